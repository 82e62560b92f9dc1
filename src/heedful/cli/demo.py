"""The demo: a Transformer learns to translate number words in about a minute, and shows its attention."""

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
from heedful.cli.translate import draw_alignment
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
    """Train the demo's model, unless it is trained already, and show what it can do."""
    recipe = load_recipe("numbers")
    assert isinstance(recipe.data, NumberWords)
    started = time.monotonic()
    fresh = results(run) is None
    test = run_to_end(recipe, run)
    assert test is not None, "the recipe has a test set"
    took = f"trained and tested in {duration(time.monotonic() - started)} minutes" if fresh else "trained before"
    for line in report(load_as(Translator, run), recipe.data, test, run, took):
        say(line)
    offer_explorer(run)


def offer_explorer(run: Path) -> None:
    """Print the command that opens the explorer; in a terminal, offer to open it now."""
    say(f"inside    heedful explore {shlex.quote(str(run))}    to explore the model in the browser")
    asks = sys.stdin.isatty() and sys.stdout.isatty() and is_built()
    if asks and typer.confirm("\nExplore the model in the browser now?", default=True):
        from heedful.cli.explore import explore_command

        explore_command([run], "127.0.0.1", None, True, None, None, [])


def report(translator: Translator, data: NumberWords, test: Evaluated, run: Path, took: str) -> Iterator[str]:
    """The lines that the demo prints at the end."""
    exact = {score.name: score.value for score in test.scores}["exact_match"]
    yield ""
    yield f"{took}: {exact:.2f} % of {data.test:,} numbers that were not in training are translated without a mistake"
    yield ""
    numbers = list(UNSEEN)
    sources, references = spell(numbers, data.source), spell(numbers, data.target)
    translations = [best[0] for best in translator.search(sources)]
    for source, reference, translation in zip(sources, references, translations, strict=True):
        yield f"  {source}"
        yield f"    {translation.text}" + ("" if translation.text == reference else f"  (should be {reference})")
    alignment = translator.align(sources[-1], translation)
    yield ""
    yield f"attention weights of the last translation, {translation.text}"
    yield f"(rows: target, columns: source; cross-attention of decoder block {alignment.layer}, mean of its heads)"
    yield ""
    yield draw_alignment(alignment)
    figure = run / "alignment.png"
    save(alignment.plot(f"{sources[-1]} -> {translation.text}"), figure)
    yield ""
    yield f"figures   {figure} and {run / 'loss.png'}"
    yield f'next      heedful translate {shlex.quote(str(run))} "nine hundred eighty-seven" --align'
    yield "          heedful train numbers data.target=fr --run runs/french    for another language"
    yield "          heedful train numbers-rnn                                 for a recurrent net"
    yield "          heedful init translate                                    for a recipe on your own texts"
