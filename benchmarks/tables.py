"""The recipe `parcels` with all columns and with each one left out, three seeds each, and the price instead.

    python benchmarks/tables.py --out benchmarks/results/tables.json     # on one core, 21 runs of half a minute
    python benchmarks/tables.py --quick                                  # one epoch, one seed: that it runs

Rows and images are the same in every run; the seed is that of the weights and of the order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
COLUMNS = ("note", "weight", "size", "country", "items")
VARIANTS = {
    "all columns": [],
    **{f"without {name}": [f"task.leave_out=[price, {name}]"] for name in COLUMNS},
    "price": ["task.predict=price", "task.metric=r2", "task.leave_out=[carrier]"],
}


def train(overrides: list[str], seed: int, quick: bool) -> dict[str, Any]:
    """The test scores of one run, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        more = ["train.budget.epochs=1", "data.train=500"] if quick else []
        command = [sys.executable, "-m", "heedful", "train", "parcels", "--run", f"{folder}/run"]
        start = time.monotonic()
        subprocess.run(
            [*command, *overrides, f"train.seed={seed}", *more], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        seconds = time.monotonic() - start
        scores = json.loads(Path(folder, "run", "results.json").read_text())["scores"]
    return {"seed": seed, "seconds": round(seconds, 1), **{name: one["value"] for name, one in scores.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = {}
    for name, overrides in VARIANTS.items():
        runs = [train(overrides, seed, options.quick) for seed in range(1 if options.quick else options.seeds)]
        score = "r2" if name == "price" else "accuracy"
        values = [run[score] for run in runs]
        mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        found[name] = {"runs": runs, "score": score, "mean": round(mean, 2), "std": round(spread, 2)}
        print(f"{name:<18} {score} {mean:.2f} +- {spread:.2f}  {[round(value, 1) for value in values]}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
