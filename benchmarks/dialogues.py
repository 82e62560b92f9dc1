"""Seconds of a training step on dialogues (B, U, T), and on plain pairs of texts with as many tokens.

    python benchmarks/dialogues.py --out benchmarks/results/dialogue-speed-cpu.json

The same random utterances train a hierarchical model and, as pairs of each utterance and the next one, a seq2seq of the
same width. The two are timed in turn, batch by batch, and compared in tokens a second: those read and those predicted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heedful.data.dialogues.batches import encode_dialogues
from heedful.data.dialogues.sources import Dialogue
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WholeWords
from heedful.models import build, config_class
from heedful.tasks.dialogue.reading import reading_of

WORDS, LONGEST = 4_000, 60
SIZE: dict[str, Any] = {"width": 128, "hidden": 256, "cell": "gru", "layers": 1, "dropout": 0.0, "context": 128}
READER = {"kind": "recurrent", "cell": "gru", "layers": 1, "hidden": 256}


def dialogues(count: int) -> list[Dialogue]:
    """Random dialogues, with the counts and lengths of everyday ones: about 8 utterances of about 14 words."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        turns = min(20, 2 + int(draw.expovariate(1 / 6)))
        lengths = [min(LONGEST, 3 + int(draw.expovariate(1 / 11))) for _ in range(turns)]
        said = [" ".join(f"w{int(WORDS * draw.random() ** 3)}" for _ in range(length)) for length in lengths]
        rows.append(Dialogue(tuple(said), tuple(turn % 2 for turn in range(turns))))
    return rows


def measured(kind: str, rows: list[Dialogue], tokenizer: TrainedTokenizer, utterances: int) -> Callable[[int], Any]:
    """A function that takes the step at a position and returns its seconds and its tokens."""
    torch.manual_seed(0)
    config = config_class(kind).model_validate({"vocab": tokenizer.vocab, "encoder": READER, "attention": None} | SIZE)
    model, reading = build(config), reading_of(config)
    batches = reading.batches(encode_dialogues(rows, tokenizer, LONGEST, utterances), 0, 4096, False, False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(position: int) -> tuple[float, int]:
        batch: Any = batches.at(position)
        begin = time.perf_counter()
        loss = reading.loss(model, batch)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        seconds = time.perf_counter() - begin
        if kind == "hred":
            heard = torch.arange(batch.lengths.shape[1] - 1) < batch.counts[:, None] - 1
            read = int(((batch.lengths[:, :-1] - 1) * heard).sum())
        else:
            read = int(batch.source_lengths.sum())
        return seconds, read + batch.tokens

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of each, after a few that are not timed")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = dialogues(2_000)
    tokenizer = TrainedTokenizer.train(WholeWords(vocab=WORDS), (text for row in rows for text in row.utterances))
    both = {"dialogues": measured("hred", rows, tokenizer, 32), "pairs": measured("seq2seq", rows, tokenizer, 2)}
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in both}
    for position in range(-3, args.steps):
        for name, step in both.items():
            timed = step(position + 3)
            if position >= 0:
                found[name].append(timed)
    speeds = {name: sum(n for _, n in timed) / sum(s for s, _ in timed) for name, timed in found.items()}
    ratios = [a[1] / a[0] / (b[1] / b[0]) for a, b in zip(found["dialogues"], found["pairs"], strict=True)]
    result = {"tokens_per_second": speeds, "ratio": speeds["dialogues"] / speeds["pairs"],
              "median_ratio": statistics.median(ratios), "steps": args.steps}  # fmt: skip
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
