"""BERT's family at equal tokens: each is pre-trained on the same text, then fine-tuned on three tasks with three seeds.

    python benchmarks/family_results.py --data FOLDER --runs FOLDER --out family.json              # on one GPU
    python benchmarks/family_results.py ... --kinds bert xlnet --tasks sst2 --seeds 0 --tokens 20000 --device cpu

FOLDER has wikitext-2/, novels/, glue/, conll2003/ and squad-v1.1/ in it. The text is tokenized once for each kind, by
the kind's own sort of tokenizer, all cased and of one size: tokenizers/KIND.json of FOLDER where there is one (a copy
of tokens/KIND/tokenizer.json of an earlier call), else one trained on the text. Pre-training is `heedful train
bert-wiki` with the kind's own task and model: 6 layers of width 384, a context of 128; once with each learning rate, of
which each kind keeps the one with the lowest loss on held-out text. DistilBERT is distilled from the BERT of the same
call, with half of its layers. Fine-tuning is `heedful train sst2` and so on, from each run.
Runs are processes, several at a time; a call that ran out of time is resumed by the next: pre-training from its last
checkpoint, and scores that are in the JSON file are not computed again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
import finetune  # noqa: E402
from jobs import run_jobs  # noqa: E402

SIZE = {"width": 384, "heads": 6, "layers": 6, "hidden": 1536, "context": 128}
ONE_TEXT = {"kind": "pretraining", "unrelated": 0}  # no pairs


@dataclass(frozen=True)
class Kind:
    """What one of the family is pre-trained by, what its model has besides the shared size, and its tokenizer."""

    task: dict[str, Any]
    model: dict[str, Any]
    tokenizer: str


KINDS = {
    "bert": Kind({"kind": "pretraining"}, {}, "wordpiece"),
    "roberta": Kind(ONE_TEXT | {"full_sentences": True}, {}, "roberta_pairs"),
    "albert": Kind(
        {"kind": "pretraining", "whole_words": True}, {"embedding": 128, "attention_dropout": 0.1}, "albert_unigram"
    ),
    "xlnet": Kind({"kind": "permutation_lm"}, {}, "xlnet_unigram"),
    "distilbert": Kind(ONE_TEXT, {"layers": SIZE["layers"] // 2}, "wordpiece"),
}
TEACHERS = {"distilbert": "bert"}
CASED = {"wordpiece": {"lowercase": False}, "albert_unigram": {"lowercase": False}}  # the others are so anyway
TASKS = {
    "sst2": finetune.TASKS["sst2"],
    "conll2003": finetune.TASKS["conll2003"],
    "squad": replace(
        finetune.TASKS["squad"], more=(*finetune.TASKS["squad"].more, "decode.stride=64", "decode.question=40")
    ),
}
finetune.TASKS |= TASKS


def tokens_of(kind: str, args: argparse.Namespace) -> Path:
    """The folder of the token files that a kind is pre-trained on; a student reads those of its teacher."""
    folder: Path = args.runs / "tokens" / TEACHERS.get(kind, kind)
    return folder


def tokenize(kind: str, args: argparse.Namespace) -> None:
    """Write the token files of a kind."""
    from heedful.data.text.documents import iter_documents, read_documents
    from heedful.data.text.pretraining import tokenize_documents
    from heedful.data.text.token_documents import write_tokens
    from heedful.data.tokenizers.encoders import encoder_tokenizer, load_encoder_tokenizer
    from heedful.runs.recipe import load_recipe

    sort = KINDS[kind].tokenizer
    chosen = {"kind": sort, "vocab": args.vocab} | CASED.get(sort, {})
    recipe: Any = load_recipe("bert-wiki", [f"data.root={args.data}", f"tokenizer={json.dumps(chosen)}"])
    given = args.data / "tokenizers" / f"{kind}.json"
    train = read_documents(recipe.data, "train")
    tokenizer = load_encoder_tokenizer(given) if given.is_file() else encoder_tokenizer(recipe.tokenizer, train.texts)
    splits: dict[Any, Any] = {"train": train.documents, "valid": iter_documents(recipe.data, "valid")}
    split_ids = {split: tokenize_documents(documents, tokenizer) for split, documents in splits.items()}
    manifest = write_tokens(tokens_of(kind, args), tokenizer, split_ids)
    print(json.dumps({"vocab": tokenizer.vocab, "tokens": manifest.splits["train"].tokens}))


def pretraining(name: str, args: argparse.Namespace) -> list[str]:
    """The command that pre-trains a model, KIND@RATE."""
    kind, _, rate = name.partition("@")
    task, model = KINDS[kind].task, {"kind": kind, **SIZE, "dropout": 0.1} | KINDS[kind].model
    if kind in TEACHERS:
        task = task | {"teacher": {"folder": str(args.runs / TEACHERS[kind]), "tokens": "masked"}}
    data = {"kind": "tokens", "folder": str(tokens_of(kind, args))}
    steps = max(1, args.tokens // args.batch)
    return [
        sys.executable, "-m", "heedful", "train", "bert-wiki", "--run", str(args.runs / name),
        f"data={json.dumps(data)}", "tokenizer=null", f"task={json.dumps(task)}", f"model={json.dumps(model)}",
        "train.budget.steps=null", f"train.budget.tokens={args.tokens}", f"train.batch_tokens={args.batch}",
        f"train.schedule.warmup={max(1, steps // 10)}", f"train.optimizer.lr={rate}",
        f"train.save_every={max(1, steps // 2)}", "train.evaluate_every=1000000", "train.samples=0",
        f"train.device={args.device}", "train.workers=2", *args.settings,
    ]  # fmt: skip


def job(name: str, args: argparse.Namespace) -> list[str]:
    """The command of a job: KIND/tokens, KIND@RATE to pre-train, or KIND/TASK/SEED to fine-tune."""
    if "/" not in name:
        return pretraining(name, args)
    shared = ["--data", str(args.data), "--runs", str(args.runs), "--device", args.device]
    shared += ["--steps", str(args.steps), "--lr", str(args.lr), "--vocab", str(args.vocab)]
    return [sys.executable, __file__, *shared, "--one", name]


def one(args: argparse.Namespace) -> None:
    """Tokenize for a kind, or fine-tune once: the counts or scores as a line of JSON."""
    kind, task, *rest = args.one.split("/")
    if not rest:
        tokenize(kind, args)
        return
    seed = rest[0]
    folder = str(Path(args.data, TASKS[task].folder))
    start = str(args.runs / kind)
    settings = finetune.Args(
        task, int(seed), start, folder, args.device, args.steps, 20, args.lr, max(1, args.steps // 10)
    )
    print(json.dumps(finetune.ours(settings)))


def pretrained_scores(run: Path) -> dict[str, float]:
    """What a model scored on held-out text at the end of its pre-training, and the tokens it read."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [line for line in lines if line["kind"] == "evaluated"][-1]
    tokens = [line for line in lines if line["kind"] == "step"][-1]["tokens"]
    return {name: score["value"] for name, score in last["scores"].items()} | {"loss": last["loss"], "tokens": tokens}


def keep_best(kind: str, found: dict[str, Any], args: argparse.Namespace) -> None:
    """Once a kind is pre-trained with all learning rates, runs/KIND is the run with the lowest loss."""
    names = [f"{kind}@{rate}" for rate in args.pretraining_lrs]
    if all(name in found for name in names):
        best = min(names, key=lambda name: found[name]["loss"])
        found[kind] = found[best] | {"lr": float(best.partition("@")[2])}
        (args.runs / kind).symlink_to(best)


def is_done(name: str, args: argparse.Namespace) -> bool:
    """Whether the files of KIND/tokens, or of a pre-trained model, are there."""
    kind, _, tokens = name.partition("/")
    last = tokens_of(kind, args) / "manifest.json" if tokens else args.runs / kind / "model" / "model.safetensors"
    return last.is_file()


def needs(name: str) -> list[str]:
    """The jobs that must be done before another starts."""
    kind, _, task = name.partition("/")
    if not task:
        kind = kind.partition("@")[0]
        return [TEACHERS[kind]] if kind in TEACHERS else [f"{kind}/tokens"]
    return [] if task == "tokens" else [kind]


def run_all(args: argparse.Namespace) -> dict[str, Any]:
    """All jobs, several at a time, until they are done or the time is up; what needs another waits for it."""
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    args.runs, args.data = args.runs.resolve(), args.data.resolve()
    tokens = [f"{kind}/tokens" for kind in args.kinds if kind not in TEACHERS]
    models = [f"{kind}@{rate}" for kind in args.kinds for rate in args.pretraining_lrs]
    names = [name for name in [*tokens, *models] if not is_done(name, args)]
    tuned = [f"{kind}/{task}/{seed}" for seed in args.seeds for task in reversed(args.tasks) for kind in args.kinds]
    waiting = [*names, *(name for name in tuned if name not in found)]

    def is_ready(name: str, running: Collection[str]) -> bool:
        return all(is_done(each, args) and each not in running for each in needs(name))

    tokenizing = {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(2 * args.threads)}
    limits = (args.jobs, args.threads, args.minutes)
    for name, printed, seconds in run_jobs(
        waiting, lambda name: job(name, args), is_ready, args.runs / "logs", *limits, tokenizing
    ):
        scores = json.loads(printed.splitlines()[-1]) if "/" in name else pretrained_scores(args.runs / name)
        found[name] = scores | {"seconds": seconds}
        if "@" in name:
            keep_best(name.partition("@")[0], found, args)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}  {found[name]}", flush=True)
    return found


def summary(found: dict[str, Any], kinds: list[str], tasks: list[str], seeds: list[int]) -> Iterator[str]:
    """A line for each kind: tokens predicted right on held-out text, and mean and deviation of each task's scores."""
    columns = [(task, score) for task in tasks for score in TASKS[task].scores]
    yield f"{'':<12} {'predicted':>9} " + " ".join(f"{task + ' ' + score:>22}" for task, score in columns)
    for kind in kinds:
        cells = []
        for task, score in columns:
            values = [found[name][score] for seed in seeds if (name := f"{kind}/{task}/{seed}") in found]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):6.2f} +- {spread:.2f} ({len(values)})" if values else "-")
        held_out = found.get(kind, {})
        shares = [held_out[name] for name in ("masked_accuracy", "permutation_accuracy") if name in held_out]
        yield f"{kind:<12} {f'{shares[0]:.2f}' if shares else '-':>9} " + " ".join(f"{cell:>22}" for cell in cells)
    for student, teacher in TEACHERS.items():
        for task, score in columns:
            both = [
                [found[name][score] for seed in seeds if (name := f"{kind}/{task}/{seed}") in found]
                for kind in (student, teacher)
            ]
            if all(both) and student in kinds and statistics.mean(both[1]) > 0:
                kept = statistics.mean(both[0]) / statistics.mean(both[1])
                yield f"{student} keeps {kept:.1%} of the {score} of {teacher} on {task}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="where the pre-trained models are kept")
    parser.add_argument("--out", type=Path, default=Path("family.json"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=40_000_000, help="of pre-training, for each")
    parser.add_argument("--vocab", type=int, default=8000, help="tokens of each tokenizer")
    parser.add_argument("--batch", type=int, default=16_384, help="tokens of a batch in pre-training")
    parser.add_argument("--pretraining-lrs", nargs="+", type=float, default=[3e-4, 6e-4], help="of which one is kept")
    parser.add_argument("--steps", type=int, default=500, help="of fine-tuning, for each")
    parser.add_argument("--lr", type=float, default=2e-4, help="of fine-tuning")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--jobs", type=int, default=10, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each")
    parser.add_argument("--minutes", type=float, default=6.7, help="after which whatever still runs is ended")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="more settings of pre-training")
    args = parser.parse_args()
    if args.one:
        one(args)
        return
    found = run_all(args)
    print("\n".join(summary(found, args.kinds, args.tasks, args.seeds)))


if __name__ == "__main__":
    main()
