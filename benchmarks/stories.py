"""Accuracy on generated stories: a memory network and a bag of words, with one, two and three supporting facts.

    python benchmarks/stories.py                          # trains what is missing, 18 runs, and writes the table
    python benchmarks/stories.py --only stories-2 --seeds 0

Every recipe is trained as it is with each seed, and once more with the bag of words in place of its model. Runs that
are complete are not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from heedful.cli.train import run_to_end
from heedful.runs.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "stories.json"
PAGE = ROOT / "docs" / "results" / "stories.md"
MARKS = ("<!-- table: benchmarks/stories.py -->", "<!-- end of the table -->")
RECIPES = ("stories-1", "stories-2", "stories-3")
MODELS: dict[str, list[str]] = {"memory network": [], "bag of words": ["model={kind: bag_of_words}"]}
CPU = ["train.device=cpu", "train.threads=1"]


def trained(recipe: str, model: str, seed: int, folder: Path) -> dict[str, Any]:
    """The test scores of a run, and the seconds of the processor that it took, with its evaluations."""
    record = record_of(recipe, model, seed, folder)
    path = record.with_suffix("")
    if not record.exists():
        resumed, begin = path.exists(), time.process_time()
        test = run_to_end(load_recipe(recipe, [*MODELS[model], *CPU, f"train.seed={seed}"]), path)
        assert test is not None, "the recipes have test data"
        scores = {score.name: score.value for score in test.scores}
        seconds = {} if resumed else {"seconds": time.process_time() - begin}
        record.write_text(json.dumps(seconds | scores))
    return {"recipe": recipe, "model": model, "seed": seed, **json.loads(record.read_text())}


def collected(folder: Path) -> list[dict[str, Any]]:
    """The runs that are complete."""
    every = [(recipe, model, seed) for recipe in RECIPES for model in MODELS for seed in range(10)]
    return [trained(*one, folder) for one in every if record_of(*one, folder).exists()]


def record_of(recipe: str, model: str, seed: int, folder: Path) -> Path:
    """The file with the scores of a run."""
    return folder / f"{recipe}-{model.replace(' ', '-')}-{seed}.json"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of all seeds as a table: accuracy of each, mean, supporting facts, and seconds."""
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        f"| recipe | model | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | supporting facts | seconds |",
        f"|---|---|{'---:|' * (len(seeds) + 3)}",
    ]
    for recipe in RECIPES:
        for model in MODELS:
            some = [row for row in rows if (row["recipe"], row["model"]) == (recipe, model)]
            if not some:
                continue
            scores = {row["seed"]: f"{row['accuracy']:.1f}" for row in some}
            each = " | ".join(scores.get(seed, "not run") for seed in seeds)
            facts = f"{statistics.mean(row['supports'] for row in some):.1f}" if "supports" in some[0] else ""
            mean = statistics.mean(row["accuracy"] for row in some)
            seconds = statistics.mean(row["seconds"] for row in some if "seconds" in row)  # unknown of a resumed run
            lines.append(f"| `{recipe}` | {model} | {each} | {mean:.1f} | {facts} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing; with all recipes and seeds, write the results and their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "stories", help="where the runs are")
    parser.add_argument("--only", choices=RECIPES, help="one recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of training")
    parser.add_argument("--collect", action="store_true", help="train nothing: write what is complete")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    rows = (
        collected(args.runs)
        if args.collect
        else [
            trained(recipe, model, seed, args.runs)
            for recipe in RECIPES
            if args.only in (None, recipe)
            for model in MODELS
            for seed in args.seeds
        ]
    )
    print(table(rows))
    if args.only is None:
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{table(rows)}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    main()
