"""Fine-tuning with Heedful and with `transformers`: the same encoder, data, batches of 32, schedule, budget and seeds.

    python benchmarks/finetune.py --start FOLDER --data FOLDER                 # every task, three seeds, on a GPU
    python benchmarks/finetune.py --start FOLDER --data FOLDER --tasks mrpc --seeds 0 --steps 3 --device cpu

FOLDER is a folder of Hugging Face's make, and one with `glue/SST-2`, `glue/CoLA` and so on below it. Every run is a
process of its own, several at a time; what each came to is kept in a JSON file at once, and runs that are in it are not
done again, so that a call that ran out of time is resumed by the next. The scores are those of the last step, on
the development set. Heedful's runs are `heedful train RECIPE`; the others a plain loop over `transformers`' own model,
tokenizer and dropout, in bf16 where Heedful trains in it, scored by scikit-learn and scipy.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
import finetune_spans  # noqa: E402

WIDTH = 32  # examples in a batch
DECAY = 0.01
CONTENDERS = ("heedful", "transformers")

Rows = list[tuple[str, str | None, str]]


@dataclass(frozen=True)
class Task:
    """A task: Heedful's recipe of it, where its files are, the scores that count, and the other side's run."""

    recipe: str
    folder: str
    scores: tuple[str, ...]  # the first one decides
    theirs: Callable[[Args], dict[str, float]]
    more: tuple[str, ...] = ()  # settings of the recipe to change


@dataclass(frozen=True)
class Args:
    """The settings of one run."""

    task: str
    seed: int
    start: str
    data: str
    device: str
    steps: int | None
    epochs: int
    lr: float
    warmup: int


def settings(args: argparse.Namespace, task: str, seed: int) -> Args:
    """A run's settings, those of the recipe."""
    from heedful.runs.recipe import load_recipe

    train: Any = load_recipe(TASKS[task].recipe, TASKS[task].more).train
    return Args(
        task, seed, args.start, str(Path(args.data, TASKS[task].folder)), args.device, args.steps,
        args.epochs or train.budget.epochs, args.lr or train.optimizer.lr, train.schedule.warmup,
    )  # fmt: skip


# ------------------------------------------------------------------ what both need
def rate(args: Args, step: int, total: int) -> float:
    """The learning rate of a step counted from 1: Heedful's `linear`."""
    return args.lr * min(1.0, step / args.warmup) * (1 - (step - 1) / total)


def shuffled(count: int, args: Args) -> Iterator[list[int]]:
    """The examples of each batch, without end, an epoch after the other."""
    chance = random.Random(args.seed)
    while True:
        order = list(range(count))
        chance.shuffle(order)
        yield from (order[start : start + WIDTH] for start in range(0, count, WIDTH))


def loop(model: Any, count: int, loss_of: Callable[[list[int]], Any], args: Args) -> int:
    """Train a model of `transformers` as in its examples; returns the number of steps."""
    import torch

    bare = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [weight for name, weight in named if not name.endswith(bare)], "weight_decay": DECAY},
        {"params": [weight for name, weight in named if name.endswith(bare)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.999), eps=1e-8)
    total = -(-count // WIDTH) * args.epochs
    total = min(total, args.steps or total)
    model.train()
    for step, rows in zip(range(1, total + 1), shuffled(count, args), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate(args, step, total)
        with mixed(args.device):
            loss = loss_of(rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return total


def mixed(device: str) -> Any:
    """bf16 where Heedful uses it."""
    import torch

    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=device == "cuda")


def began(args: Args, kind: str, **changes: Any) -> tuple[Any, Any]:
    """A model of `transformers` with its encoder from the folder, and its tokenizer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(args.seed)
    model = getattr(transformers, kind).from_pretrained(args.start, dtype=torch.float32, **changes).to(args.device)
    return model, transformers.AutoTokenizer.from_pretrained(args.start)


# ------------------------------------------------------------------ GLUE, on the other side
def table(path: Path, columns: Sequence[int], header: bool) -> Rows:
    """Columns of a GLUE file: the text, the second one or none, the label."""
    with gzip.open(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
        rows = list(csv.reader((line.rstrip("\n") for line in lines), delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
    first, *second, label = columns
    return [(row[first], row[second[0]] if second else None, row[label]) for row in rows]


def glue(columns: Sequence[int], header: bool = True, number: bool = False) -> Callable[[Args], dict[str, float]]:
    """The run of a task whose files have these columns."""

    def run(args: Args) -> dict[str, float]:
        import torch

        train, valid = (table(Path(args.data, f"{name}.tsv.gz"), columns, header) for name in ("train", "dev"))
        model, tokenizer = began(args, "BertForSequenceClassification", num_labels=1 if number else 2)

        def encoded(rows: Rows) -> Any:
            second = [pair for _, pair, _ in rows] if rows[0][1] is not None else None
            first = [text for text, _, _ in rows]
            return tokenizer(first, second, truncation=True, max_length=512, padding=True, return_tensors="pt").to(
                args.device
            )

        def loss_of(rows: list[int]) -> Any:
            some = [train[row] for row in rows]
            labels = [float(label) if number else int(label) for _, _, label in some]
            return model(**encoded(some), labels=torch.tensor(labels, device=args.device)).loss

        steps = loop(model, len(train), loss_of, args)
        found: list[Any] = []
        with torch.inference_mode():
            for start in range(0, len(valid), 128):
                logits = model(**encoded(valid[start : start + 128])).logits.float()
                found += (logits[:, 0] if number else logits.argmax(-1)).tolist()
        return scores_of(found, [float(label) for _, _, label in valid], number) | {"steps": steps}

    return run


def scores_of(found: list[Any], right: list[float], number: bool) -> dict[str, float]:
    """Scores by the packages that everybody uses."""
    if number:
        from scipy.stats import pearsonr, spearmanr

        return {"pearson": 100 * pearsonr(found, right).statistic, "spearman": 100 * spearmanr(found, right).statistic}
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    classes = [int(label) for label in right]
    return {
        "accuracy": 100 * accuracy_score(classes, found),
        "f1": 100 * f1_score(classes, found),
        "matthews": 100 * matthews_corrcoef(classes, found),
    }


PART = ("train.budget={epochs: 4}", *map("data.{}={}".format, ("train", "valid"), finetune_spans.SQUAD))  # of SQuAD
TASKS: dict[str, Task] = {
    "sst2": Task("sst2", "glue/SST-2", ("accuracy",), glue((0, 1))),
    "cola": Task("cola", "glue/CoLA", ("matthews",), glue((3, 1), header=False)),
    "mrpc": Task("mrpc", "glue/MRPC", ("f1", "accuracy"), glue((3, 4, 0))),
    "stsb": Task("stsb", "glue/STS-B", ("spearman", "pearson"), glue((7, 8, 9), number=True)),
    "conll2003": Task("conll2003", "conll2003", ("f1",), finetune_spans.tagging, ("data.test=null",)),
    "squad": Task("squad", "squad-v1.1", ("f1", "exact_match"), finetune_spans.answering, PART),
}


# ------------------------------------------------------------------ Heedful's side
def ours(args: Args) -> dict[str, float]:
    """The scores of `heedful train`, from the files of the run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable, "-m", "heedful", "train", TASKS[args.task].recipe, "--run", f"{folder}/run",
            f"start.folder={args.start}", f"data.root={args.data}", f"train.seed={args.seed}",
            f"train.device={args.device}", f"train.optimizer.lr={args.lr}", f"train.schedule.warmup={args.warmup}",
            f"train.batch_examples={WIDTH}", "train.evaluate_every=1000000", "train.save_every=1000000",
            "train.samples=0", *TASKS[args.task].more, f"train.budget.epochs={args.epochs}",
        ]  # fmt: skip
        words += [f"train.budget.steps={args.steps}"] if args.steps else []
        path = os.pathsep.join([str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = next(line for line in map(json.loads, reversed(lines)) if line.get("split") == "valid")
    return {name: score["value"] for name, score in last["scores"].items()} | {"steps": last["step"]}


# ------------------------------------------------------------------ all runs
def name_of(task: str, contender: str, seed: int) -> str:
    return f"{task}/{contender}/{seed}"


def one(args: argparse.Namespace) -> None:
    """A single run, in a process of its own: its scores as a line of JSON."""
    task, contender, seed = args.one.split("/")
    chosen, began_at = settings(args, task, int(seed)), time.monotonic()
    scores = ours(chosen) if contender == "heedful" else TASKS[task].theirs(chosen)
    print(json.dumps(scores | {"seconds": round(time.monotonic() - began_at, 1)}))


def every(args: argparse.Namespace) -> dict[str, Any]:
    """All runs, several at a time, until they are done or the time is up."""
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    names = [name_of(*each) for each in ((t, c, s) for s in args.seeds for t in args.tasks for c in CONTENDERS)]
    waiting, running = [name for name in names if name not in found], {}
    until = time.monotonic() + 60 * args.minutes
    shared = ["--start", args.start, "--data", args.data, "--device", args.device]
    for option in ("steps", "epochs", "lr"):
        shared += [f"--{option}", str(getattr(args, option))] if getattr(args, option) else []
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false"}
    while (waiting or running) and time.monotonic() < until:
        while waiting and len(running) < args.jobs:
            name, words = waiting.pop(0), [sys.executable, __file__, *shared, "--one"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running[name] = subprocess.Popen([*words, name], env=environment, start_new_session=True, **pipes)
        for name, process in list(running.items()):
            if process.poll() is None:
                continue
            out, err = process.communicate()
            del running[name]
            if process.returncode:
                print(f"{name} failed: {err.strip()[-1500:]}", file=sys.stderr)
                continue
            found[name] = json.loads(out.splitlines()[-1])
            args.out.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}  {found[name]}", flush=True)
        time.sleep(0.5)
    for process in running.values():
        os.killpg(process.pid, signal.SIGKILL)  # with what it has started itself
        process.wait()
    return found


def summary(found: dict[str, Any], tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    """Mean and deviation of every score, side by side, and whether ours is below by more than one deviation."""
    yield f"{'task':<10} {'score':<10} " + " ".join(f"{side:>22}" for side in CONTENDERS) + "   runs  seconds"
    for task in tasks:
        for score in TASKS[task].scores:
            sides = [[found[n] for s in seeds if (n := name_of(task, side, s)) in found] for side in CONTENDERS]
            if not all(sides):
                continue
            values = [[run[score] for run in side] for side in sides]
            spread = [statistics.stdev(side) if len(side) > 1 else 0.0 for side in values]
            means = [statistics.mean(side) for side in values]
            cells = " ".join(f"{mean:13.2f} +- {sd:5.2f}" for mean, sd in zip(means, spread, strict=True))
            seconds = " / ".join(f"{statistics.mean(run['seconds'] for run in side):.0f}" for side in sides)
            behind = "   BELOW" if means[0] < means[1] - max(spread) else ""
            yield f"{task:<10} {score:<10} {cells}   {len(values[0])}/{len(values[1])}   {seconds}{behind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", required=True, help="folder of the encoder")
    parser.add_argument("--data", required=True, help="folder with glue/ and the others in it")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, help="at most, instead of the recipe's epochs")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--lr", type=float, help="instead of the recipe's")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which whatever still runs is ended")
    parser.add_argument("--out", type=Path, default=Path("finetune.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args)
        return
    found = every(args)
    print("\n".join(summary(found, args.tasks, args.seeds)))


if __name__ == "__main__":
    main()
