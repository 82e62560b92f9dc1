"""DailyDialog: the perplexity of a hierarchical and a flat model with the same budget, and sampled replies.

    python benchmarks/dialogue_results.py ../shared/data/dailydialog --out benchmarks/results/dialogues-cpu.json

Both models have the same width, read the same dialogues in the same number of epochs, of about as many steps, and
predict the same replies. The first 200 dialogues of the development file select the checkpoint; 300 more are tested.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import heedful
from heedful.data.dialogues.sources import DailyDialog, Dialogue
from heedful.runs.evaluate import results
from heedful.tasks.dialogue.predictor import DialogueModel

VALID, TEST = 200, 300  # dialogues
SHOWN = 4  # of the test set, the first ones
SETTINGS = [
    "data={kind: own, test: true}", "tokenizer.vocab=2500", "task.utterances=16", "train.budget={epochs: 3}",
    "train.batch_tokens=2048", "train.optimizer.lr=3e-3", "train.schedule.warmup=50", "train.evaluate_every=100",
    "train.save_every=100", "train.log_every=50", "train.precision=fp32", "train.device=cpu",
]  # fmt: skip
SIZE = "width: 48, cell: gru, layers: 1, hidden: 64, context: 512, dropout: 0.2"
READER = "encoder: {kind: recurrent, cell: gru, layers: 1, hidden: 64}"
MODELS = {
    "hierarchical": f"{{kind: hred, {SIZE}, {READER}, attention: null}}",
    "flat": f"{{kind: seq2seq, {SIZE}, {READER}, attention: null}}",
}
# Batches with which an epoch has about 117 steps, as that of the hierarchical model.
MORE = {
    "flat": ["train.batch_tokens=3700"],
}


def splits(folder: Path) -> heedful.Dataset:
    """Dialogues for training, validation and test."""
    files = DailyDialog(root=str(folder), train="dialogues_1k_en.txt.gz", valid="en_dev_human.txt.gz")
    held = texts(files.read("valid").dialogues)
    return heedful.Dataset(texts(files.read("train").dialogues), held[:VALID], held[VALID : VALID + TEST])


def texts(dialogues: Sequence[Dialogue]) -> list[list[str]]:
    return [list(dialogue.utterances) for dialogue in dialogues]


def run(name: str, seed: int, data: heedful.Dataset, folder: Path) -> dict[str, Any]:
    """The test scores of a model, its size and the seconds of one core that it took."""
    recipe = heedful.load_recipe(
        "dailydialog", [*SETTINGS, *MORE.get(name, []), f"model={MODELS[name]}", f"train.seed={seed}"]
    )
    begin = time.process_time()
    for _ in heedful.train(recipe, folder, data=data):
        pass
    seconds = time.process_time() - begin
    stored, model = results(folder), heedful.load(folder, DialogueModel)
    assert stored is not None
    size = sum(weight.numel() for weight in model.model.parameters())
    scores = {score.name: score.value for score in stored.scores}
    return {"model": name, "seed": seed, "loss": stored.loss, **scores, "parameters": size, "cpu_seconds": seconds}


def sampled(folder: Path, data: heedful.Dataset) -> list[dict[str, Any]]:
    """The first test dialogues up to their last utterance, with a sampled reply and the most probable one."""
    model = heedful.load(folder, DialogueModel)
    rows: Any = list(data.test or ())[:SHOWN]
    histories = [row[:-1] for row in rows]
    found = zip(rows, model.sample(histories, temperature=0.7, seed=0), model.predict(histories), strict=True)
    return [
        {"history": row[:-1], "reference": row[-1], "sampled": reply.text, "greedy": best.text}
        for row, reply, best in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data, rows, shown = splits(args.folder), list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as work:
        for seed in args.seeds:
            for name in MODELS:
                folder = Path(work, f"{name}-{seed}")
                rows.append(run(name, seed, data, folder))
                print(json.dumps(rows[-1]), flush=True)
                if name == "hierarchical" and not shown:
                    shown = sampled(folder, data)
                    print(json.dumps(shown, indent=1, ensure_ascii=False), flush=True)
                if args.out:
                    text = json.dumps({"runs": rows, "replies": shown}, indent=1, ensure_ascii=False)
                    args.out.write_text(text + "\n")
    for name in MODELS:
        values = [row["perplexity"] for row in rows if row["model"] == name]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:28} perplexity {statistics.mean(values):.2f} +- {spread:.2f}")


if __name__ == "__main__":
    main()
