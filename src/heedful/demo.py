"""The demo: a Transformer learns to translate number words in about a minute, and shows where it looks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from heedful.commands.display import display, duration, scores
from heedful.commands.loading import load_run
from heedful.commands.train import run_to_end
from heedful.commands.translate import draw, drawn
from heedful.data.embedded import NumberWords, spell
from heedful.experiment import Evaluated, results
from heedful.recipe import load_recipe
from heedful.tasks.translation import Translation, Translator

SHOWN = 721  # the one stands last in English, and before the twenty in German
EXAMPLES = (21, 99, 358, 4_096, 70_013, 123_456, 987_654)


def demo_verb(run: Path) -> None:
    """Train the demo's model, unless a finished one is there, and show what it can do."""
    recipe = load_recipe("numbers")
    assert isinstance(recipe.data, NumberWords)
    began, fresh = time.monotonic(), results(run) is None
    test = run_to_end(recipe, run)
    took = f"trained in {duration(time.monotonic() - began)}" if fresh else "trained before"
    assert test is not None, "the recipe has a test set"
    with display(1) as screen:
        for line in report(load_run(run), recipe.data, test, run, took):
            screen.say(line)


def report(translator: Translator, data: NumberWords, test: Evaluated, run: Path, took: str) -> Sequence[str]:
    """What the demo says in the end; every figure in it is of this run."""
    numbers = [number for number in EXAMPLES if number not in set(data.numbers("train"))]
    english, german = spell(numbers, data.source), spell(numbers, data.target)
    texts = [*english, *spell([SHOWN], data.source)]
    found: list[Translation] = [best[0] for best in translator.search(texts)]
    looked = translator.align(texts[-1], found[-1])
    picture = run / "alignment.png"
    draw(looked, picture, f"{texts[-1]} -> {found[-1].text}")
    folder = shlex.quote(str(run))
    marks = ["right" if one.text == right else f"wrong: {right}" for one, right in zip(found, german, strict=False)]
    return [
        "",
        f"{took}; on {data.test:,} numbers it never saw: {scores(test)}",
        "",
        "numbers that were not in training:",
        *(f"  {text}\n    -> {one.text}  ({mark})" for text, one, mark in zip(english, found, marks, strict=False)),
        "",
        f"where the model looked while it wrote {found[-1].text}:",
        f"(cross-attention of decoder block {looked.layer}, the mean of its heads; rows are written, columns read)",
        "",
        drawn(looked),
        "",
        f"pictures  {picture} and {run / 'loss.png'}",
        "",
        "next:",
        f'  heedful translate {folder} "nine hundred eighty-seven" --align',
        "  heedful train numbers data.target=fr --run runs/french     another language",
        "  heedful init translate                                     a recipe for your own texts",
    ]
