"""Rewards: a translator of digits trained briefly on likelihood, then tuned on BLEU by each objective, for some seeds.

`python benchmarks/rewards.py --seeds 0 1 2` prints a line of JSON for each run: the mean reward of the samples in the
first and the last quarter of the steps, validation BLEU before and after, and the seconds of one core.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import heedful
from heedful.runs.recipe import recipe_of
from heedful.tasks.translation.predictor import Translator
from heedful.training.loop import Step

DIGITS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun",
}  # fmt: skip
RECIPE = """
task: {kind: translation, objective: OBJECTIVE, label_smoothing: 0}
data: {kind: own}
tokenizer: {kind: words, vocab: 60}
model: {norm: pre, width: 32, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 64, context: 32, dropout: 0}
train:
  seed: SEED
  budget: {steps: STEPS}
  batch_tokens: 512
  optimizer: {kind: adamw, lr: RATE}
  schedule: {kind: constant, warmup: 0}
  precision: fp32
  log_every: 1
  evaluate_every: 1000
  save_every: 1000
  use: last
  samples: 0
  threads: 1
decode: {beams: 1}
"""
OBJECTIVES = {
    "likelihood": "{kind: likelihood}",
    "policy gradient, moving average": "{kind: policy_gradient, samples: 4}",
    "policy gradient, learned": "{kind: policy_gradient, samples: 4, baseline: {kind: learned}}",
    "self-critical": "{kind: self_critical, samples: 4}",
    "minimum risk": "{kind: minimum_risk, samples: 4}",
}


def digits(count: int, seed: int) -> list[tuple[str, str]]:
    """Four to seven digits in English, and in German."""
    rng, found = random.Random(seed), list[tuple[str, str]]()
    for _ in range(count):
        words = rng.choices(list(DIGITS), k=rng.randint(4, 7))
        found.append((" ".join(words), " ".join(DIGITS[word] for word in words)))
    return found


DATA = heedful.Dataset(train=digits(1000, 0), valid=digits(500, 1))


def train(folder: Path, objective: str, seed: int, steps: int, rate: float, start: Path | None) -> list[Step]:
    """The steps of a run."""
    text = RECIPE.replace("OBJECTIVE", objective).replace("SEED", str(seed)).replace("STEPS", str(steps))
    text = text.replace("RATE", str(rate)) + (f"start: {{folder: {start}}}\n" if start else "")
    events = heedful.train(recipe_of(text, "digits.yaml"), folder, data=DATA)
    return [event for event in events if isinstance(event, Step)]


def bleu(folder: Path) -> float:
    """BLEU on the validation pairs, by greedy search."""
    return heedful.load(folder, Translator).evaluate(list(DATA.valid)).scores["bleu"]  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=list(OBJECTIVES))
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            base = Path(folder) / f"base-{seed}"
            train(base, "{kind: likelihood}", seed, 80, 0.01, None)
            before = bleu(base)
            for name in given.objectives:
                run, began = Path(folder) / f"{name}-{seed}", time.process_time()
                steps = train(run, OBJECTIVES[name], seed, given.steps, 0.003, base)
                row: dict[str, Any] = {"objective": name, "seed": seed, "before": before, "after": bleu(run)}
                if rewards := [step.parts["reward"] for step in steps if "reward" in step.parts]:
                    quarter = len(rewards) // 4
                    row |= {
                        "first": sum(rewards[:quarter]) / quarter, "last": sum(rewards[-quarter:]) / quarter,
                    }  # fmt: skip
                print(json.dumps(row | {"seconds": time.process_time() - began}), flush=True)


if __name__ == "__main__":
    main()
