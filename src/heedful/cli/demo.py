"""The demo: a Transformer learns to translate number words in about a minute, and shows where it looks."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from heedful.cli.display import duration
from heedful.cli.loading import load_as
from heedful.cli.output import say
from heedful.cli.train import run_to_end
from heedful.cli.translate import drawn
from heedful.data.embedded import NumberWords, spell
from heedful.explore.server.page import is_built
from heedful.plots.style import save
from heedful.runs.evaluate import results
from heedful.runs.recipe import load_recipe
from heedful.tasks.base import Evaluated
from heedful.tasks.translation.predictor import Translator

# Of the recipe's test numbers. In the last one, seven follows twenty in English and comes before it in German.
UNSEEN = (25, 3_521, 31_234, 653_267, 327)


def demo_command(run: Path) -> None:
    """Train the demo's model, unless a finished one is there, and show what it can do."""
    recipe = load_recipe("numbers")
    assert isinstance(recipe.data, NumberWords)
    began = time.monotonic()
    fresh = results(run) is None
    test = run_to_end(recipe, run)
    assert test is not None, "the recipe has a test set"
    took = f"trained and tested in {duration(time.monotonic() - began)} minutes" if fresh else "trained before"
    for line in report(load_as(Translator, run), recipe.data, test, run, took):
        say(line)
    offer(run)


def offer(run: Path) -> None:
    """Offer the explorer on the run: at once in a terminal, else by printing its command."""
    say(f"inside    heedful explore {shlex.quote(str(run))}    to look into the model in the browser")
    asks = sys.stdin.isatty() and sys.stdout.isatty() and is_built()
    if asks and typer.confirm("\nLook into the model in the browser now?", default=True):
        from heedful.cli.explore import explore_command

        explore_command([run], "127.0.0.1", None, True, None, None, [])


def report(translator: Translator, data: NumberWords, test: Evaluated, run: Path, took: str) -> Iterator[str]:
    """What the demo says in the end; every figure in it is of this run."""
    exact = {score.name: score.value for score in test.scores}["exact_match"]
    yield ""
    yield f"{took}: {exact:.2f} % of {data.test:,} numbers that were not in training are translated without a mistake"
    yield ""
    numbers = list(UNSEEN)
    sources, references = spell(numbers, data.source), spell(numbers, data.target)
    found = [best[0] for best in translator.search(sources)]
    for source, reference, one in zip(sources, references, found, strict=True):
        yield f"  {source}"
        yield f"    {one.text}" + ("" if one.text == reference else f"  (should be {reference})")
    looked = translator.align(sources[-1], found[-1])
    yield ""
    yield f"where the model looked while it wrote the last one, {found[-1].text}"
    yield f"(rows are written, columns are read; cross-attention of decoder block {looked.layer}, mean of its heads)"
    yield ""
    yield drawn(looked)
    picture = run / "alignment.png"
    save(looked.plot(f"{sources[-1]} -> {found[-1].text}"), picture)
    yield ""
    yield f"pictures  {picture} and {run / 'loss.png'}"
    yield "next      " + f'heedful translate {shlex.quote(str(run))} "nine hundred eighty-seven" --align'
    yield "          heedful train numbers data.target=fr --run runs/french    for another language"
    yield "          heedful train numbers-rnn                                 for a recurrent net"
    yield "          heedful init translate                                    for a recipe on your own texts"
