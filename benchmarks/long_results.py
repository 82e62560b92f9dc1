"""Long texts: film reviews read whole or cut at 512 tokens, and how far away a passkey can be retrieved.

    python benchmarks/long_results.py --data FOLDER --runs FOLDER --out long.json              # on one GPU
    python benchmarks/long_results.py ... --device cpu --quick                                 # tiny, in minutes

FOLDER has imdb-subset/ in it. Reviews: a BigBird of 4,096 positions is pre-trained once, by masked tokens, on the
unlabelled and the training reviews; then it is fine-tuned on the training reviews with three seeds, whole, and cut at
512 tokens. Accuracy is that on all test reviews, and on those longer than 512 tokens.
Passkey: random words, among which four stand for the digits of a key; four words at the end ask for one of them each.
Small models of one size are trained on texts of up to 4,096 words, on the same texts, and tested on new ones of each
length: the share of keys that are right in all four digits (a random guess: one in 10,000).
Jobs are processes, several at a time; a call that ran out of time is continued by the next: results that are in the
JSON file are not computed again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
from jobs import run_jobs  # noqa: E402

CUTS = {"whole": None, "cut": 512}  # tokens of a review
KINDS = ("full", "window", "bigbird", "linformer", "transformer_xl")
DIGITS, WORDS = 4, 64  # of a key; other words of a text
VOCAB = 1 + WORDS + 11 * DIGITS  # padding, words, for each digit its ten values and a question


# ------------------------------------------------------------------ reviews
def reviews(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_text(args: argparse.Namespace) -> Path:
    """The reviews for pre-training, one a document, and every fiftieth for validation."""
    folder: Path = args.runs / "text"
    folder.mkdir(parents=True, exist_ok=True)
    texts = [each["text"] for part in ("unsup", "train") for each in reviews(args.imdb / f"{part}.jsonl.gz")]
    texts = [" ".join(text.replace("<br />", " ").split()) for text in texts][: args.reviews]
    for name, some in (("valid", texts[::50]), ("train", [text for i, text in enumerate(texts) if i % 50])):
        (folder / f"{name}.txt").write_text("\n\n".join(some) + "\n", encoding="utf-8")
    return folder


def pretraining(args: argparse.Namespace) -> list[str]:
    """The command that pre-trains the encoder."""
    folder, steps = write_text(args), max(1, args.tokens // args.batch)
    splits = {
        split: [{"kind": "text", "files": [f"{split}.txt"], "between": "blank_lines"}] for split in ("train", "valid")
    }
    data = {"kind": "documents", "root": str(folder), **splits}
    model = args.size | {"kind": "bigbird", "context": args.context, "segments": 1, "next_sentence": False}
    model |= {"block": args.block, "dropout": 0.1, "attention_dropout": 0.1}
    return [
        sys.executable, "-m", "heedful", "train", "bigbird-prose", "--run", str(args.runs / "encoder"),
        f"data={json.dumps(data)}", f"model={json.dumps(model)}",
        f"tokenizer={json.dumps({'kind': 'wordpiece', 'vocab': args.vocab, 'lowercase': True})}",
        f"train.budget.steps={steps}", f"train.batch_tokens={args.batch}", "train.optimizer.lr=6e-4",
        f"train.schedule.warmup={max(1, steps // 10)}", f"train.save_every={steps}", f"train.evaluate_every={steps}",
        "train.samples=0", f"train.device={args.device}",
    ]  # fmt: skip


def finetune(cut: str, seed: str, args: argparse.Namespace) -> dict[str, float]:
    """Fine-tune the encoder, and classify the test reviews."""
    import heedful

    run, longest = args.runs / f"{cut}-{seed}", CUTS[cut] if not args.quick else {"whole": None, "cut": 64}[cut]
    steps = max(1, args.epochs * min(3000, args.reviews) // 32)
    command = [
        sys.executable, "-m", "heedful", "train", "imdb", "--run", str(run), f"data.root={args.imdb}",
        f"start.folder={args.runs / 'encoder'}", f"model.longest={'null' if longest is None else longest}",
        f"train.seed={seed}", "train.budget.epochs=null", f"train.budget.steps={steps}",
        f"train.optimizer.lr={args.lr}", f"train.schedule.warmup={max(1, steps // 10)}",
        f"train.save_every={steps}", f"train.evaluate_every={steps}", f"train.device={args.device}",
    ]  # fmt: skip
    if not run.is_dir():
        subprocess.run(command, check=True, stdout=sys.stderr)
    predictor: Any = heedful.load(run, device=args.device)
    test = reviews(args.imdb / "test.jsonl.gz")[:: 2000 // min(2000, args.reviews) | 1]  # classes alternate
    texts = [each["text"] for each in test]
    right = [found.label == str(each["label"]) for found, each in zip(predictor.classify(texts), test, strict=True)]
    lengths = [len(ids) + 2 for ids in predictor.tokenizer.ids(texts)]
    limit = CUTS["cut"] if not args.quick else 64
    long = [hit for hit, length in zip(right, lengths, strict=True) if length > (limit or 0)]
    return {
        "accuracy": 100 * sum(right) / len(right), "long": 100 * sum(long) / max(1, len(long)), "longer": len(long),
        "longest": max(lengths),
    }  # fmt: skip


# ------------------------------------------------------------------ passkey
def passkeys(rows: int, length: int, generator: Any, device: str) -> tuple[Any, Any]:
    """Texts (B, T) with the digits of a key at random places, and those digits (B, 4), which the last words ask for."""
    import torch

    def draw(high: int, *size: int) -> Any:
        return torch.randint(high, size, generator=generator)

    tokens, digits = 1 + draw(WORDS, rows, length), draw(10, rows, DIGITS)
    places = torch.rand(rows, length - DIGITS, generator=generator).topk(DIGITS).indices
    tokens.scatter_(1, places, 1 + WORDS + 10 * torch.arange(DIGITS) + digits)
    tokens[:, -DIGITS:] = 1 + WORDS + 10 * DIGITS + torch.arange(DIGITS)
    return tokens.to(device), digits.to(device)


def retriever(kind: str, args: argparse.Namespace) -> tuple[Any, Callable[[Any], Any]]:
    """A model, and the vectors (B, 4, D) that it has at the last four words of texts (B, T)."""
    import torch

    from heedful.blocks.masks import window
    from heedful.blocks.sparse import BlockSparse
    from heedful.models import build, config_class
    from heedful.models.bert.model import BertEncoder

    class WindowEncoder(BertEncoder):
        """BERT whose tokens attend to the nearest ones."""

        def encode(self, x: Any, layout: Any) -> list[Any]:
            outputs = [x]
            near = BlockSparse.of(window(args.near), len(x), self.config.heads, x.shape[1], device=x.device)  # type: ignore[attr-defined]
            for block in self.blocks:
                outputs.append(block(outputs[-1], near))
            return outputs

    size = {
        "vocab": VOCAB,
        "width": 128,
        "heads": 4,
        "layers": 4,
        "hidden": 512,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if kind == "transformer_xl":
        config = config_class(kind)(**size, context=args.near * 2, memory=args.near * 2)
        model: Any = build(config)

        def recurrent(tokens: Any) -> Any:
            state, parts = model.start(len(tokens), tokens.device), tokens.split(config.context, 1)
            with torch.no_grad():
                for part in parts[:-1]:
                    _, state = model.features(part, state)
            return model.features(parts[-1], state)[0][:, -DIGITS:]

        return model, recurrent
    size |= {"context": args.lengths[-1], "pooler": False, "masked_words": False, "next_sentence": False}
    if kind in ("full", "window"):
        config = config_class("bert")(**size)
        model = build(config) if kind == "full" else WindowEncoder(config)
    else:
        more = {
            "bigbird": {"block": args.block, "random_blocks": 2},
            "linformer": {"slots": args.slots, "sharing": "headwise"},
        }
        model = build(config_class(kind)(**size, **more[kind]))
    return model, lambda tokens: model(tokens)[:, -DIGITS:]


def passkey(kind: str, args: argparse.Namespace) -> dict[str, float]:
    """Train a model to give keys back, and test it on each length."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    model, vectors = retriever(kind, args)
    head = torch.nn.Linear(128, 10)
    model.to(args.device), head.to(args.device)
    weights = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.01)
    generator, cuda = torch.Generator().manual_seed(1), args.device == "cuda"
    precision = torch.autocast("cuda", torch.bfloat16) if cuda else torch.autocast("cpu", enabled=False)
    began = time.monotonic()
    for step in range(args.steps):
        longest = min(args.lengths[-1], args.lengths[0] * 2 ** (step * 2 * len(args.lengths) // args.steps))
        length = int(
            math.exp(math.log(64) + (math.log(longest) - math.log(64)) * float(torch.rand((), generator=generator)))
        )
        length = max(64, length // 64 * 64) if step % 2 else longest  # half of the texts are as long as they may be
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100, 2 * (args.steps - step) / args.steps)
        tokens, digits = passkeys(max(1, args.batch // length), length, generator, args.device)
        with precision:
            loss = F.cross_entropy(head(vectors(tokens)).flatten(0, 1).float(), digits.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    model.eval()
    found: dict[str, float] = {"loss": round(float(loss), 4), "seconds_of_training": round(time.monotonic() - began, 1)}
    test = torch.Generator().manual_seed(2)
    with torch.no_grad(), precision:
        for length in args.lengths:
            hits = []
            for _ in range(args.trials // 20):
                tokens, digits = passkeys(20, length, test, args.device)
                hits.append((head(vectors(tokens)).argmax(-1) == digits).float())
            right = torch.cat(hits)
            found[f"key {length}"] = 100 * float(right.prod(1).mean())
            found[f"digit {length}"] = 100 * float(right.mean())
    return found


# ------------------------------------------------------------------ jobs
def one(args: argparse.Namespace) -> None:
    """One job: its scores as a line of JSON."""
    kind, *rest = args.one.split("/")
    print(json.dumps(passkey(rest[0], args) if kind == "passkey" else finetune(rest[0], rest[1], args)))


def job(name: str, args: argparse.Namespace) -> list[str]:
    """The command of a job: encoder, reviews/CUT/SEED or passkey/KIND."""
    if name == "encoder":
        return pretraining(args)
    shared = ["--data", str(args.data), "--runs", str(args.runs), "--device", args.device, *["--quick"] * args.quick]
    return [sys.executable, __file__, *shared, "--one", name]


def run_all(args: argparse.Namespace) -> dict[str, Any]:
    """All jobs, several at a time, until they are done or the time is up; fine-tuning waits for the encoder."""
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    names = ["encoder", *(f"passkey/{kind}" for kind in KINDS)]
    names += [f"reviews/{cut}/{seed}" for seed in args.seeds for cut in CUTS]
    chosen = [name for name in names if name not in found and any(part in name for part in (*args.only, "encoder"))]
    waiting = chosen if "reviews" in args.only else [name for name in chosen if name != "encoder"]

    def is_ready(name: str, running: Collection[str]) -> bool:
        return not name.startswith("reviews") or "encoder" in found

    for name, printed, seconds in run_jobs(
        waiting, lambda name: job(name, args), is_ready, args.runs / "logs", args.jobs, args.threads, args.minutes
    ):
        scores = {} if name == "encoder" else json.loads(printed.splitlines()[-1])
        found[name] = scores | {"seconds": seconds}
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}  {found[name]}", flush=True)
    return found


def summary(found: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    """Accuracy of reviews, whole and cut, and keys that each model gives back by length."""
    for cut in CUTS:
        for score in ("accuracy", "long"):
            values = [found[name][score] for seed in args.seeds if (name := f"reviews/{cut}/{seed}") in found]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                yield f"reviews {cut:<6} {score:<9} {statistics.mean(values):6.2f} +- {spread:.2f} ({len(values)})"
    yield f"{'keys right, %':<16}" + "".join(f"{length:>8,}" for length in args.lengths)
    for kind in KINDS:
        scores = found.get(f"passkey/{kind}", {})
        cells = (scores.get(f"key {length}") for length in args.lengths)
        yield f"{kind:<16}" + "".join(f"{'-' if cell is None else f'{cell:.1f}':>8}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("long.json"))
    parser.add_argument("--only", nargs="+", default=["reviews", "passkey"], choices=["reviews", "passkey"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each")
    parser.add_argument("--minutes", type=float, default=6.0, help="after which whatever still runs is ended")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.runs, args.data = args.runs.resolve(), args.data.resolve()
    args.imdb = args.data / "imdb-subset"
    sizes: dict[str, Any] = {
        "size": {"width": 256, "heads": 4, "layers": 6, "hidden": 1024}, "context": 4096, "block": 64, "vocab": 8000,
        "tokens": 60_000_000, "batch": 32_768, "reviews": 10_000, "epochs": 4, "lr": 2e-4,
        "lengths": [256, 512, 1024, 2048, 4096], "near": 128, "slots": 128, "steps": 3000, "trials": 500,
    }  # fmt: skip
    if args.quick:
        sizes |= {
            "size": {"width": 32, "heads": 2, "layers": 1, "hidden": 64}, "context": 256, "block": 8, "vocab": 500,
            "tokens": 8192, "batch": 1024, "reviews": 200, "epochs": 1, "lengths": [64, 128], "near": 16, "slots": 16,
            "steps": 20, "trials": 20,
        }  # fmt: skip
    for name, value in sizes.items():
        setattr(args, name, value)
    if args.one:
        one(args)
        return
    print("\n".join(summary(run_all(args), args)))


if __name__ == "__main__":
    main()
