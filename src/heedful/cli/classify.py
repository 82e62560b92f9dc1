"""The verb `classify`: the class of texts and pairs of texts, or their number."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import typer

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_run, other_use
from heedful.cli.translate import Line, batched, piped, stdin_lines
from heedful.errors import UserError, shown
from heedful.tasks.classification.predictor import Classification, Given, Regression, TextClassifier, TextRegressor

TOGETHER = 1024  # texts that are read at a time


def classify_verb(run: Path, texts: Sequence[str], pair: bool, as_json: bool) -> None:
    """Say the class of each text, given as arguments or as lines of stdin."""
    reads, count, cut = piped(texts), 0, 0
    if texts or reads:
        predictor = reader(run)
        lines = stdin_lines(sys.stdin.buffer) if reads else paired(texts) if pair else arguments(texts)
        width = max(map(len, predictor.labels)) if isinstance(predictor, TextClassifier) else 0
        for batch in batched(parted(lines, pair), 1 if reads and sys.stdin.isatty() else TOGETHER):
            count += len(batch)
            given = [text for text in batch if text is not None]
            said = predictor.classify(given) if isinstance(predictor, TextClassifier) else predictor.predict(given)
            found: Iterator[Classification | Regression] = iter(said)
            for text in batch:
                judged = None if text is None else (text, next(found))
                cut += judged is not None and judged[1].cut > 0
                say(told(judged, width, as_json))
        if cut:
            typer.echo(
                f"note: {cut:,} of the texts have more than {predictor.context} tokens; their ends were not read",
                err=True,
            )
    if not count:
        raise UserError("there is no text to read", todo=f'heedful classify {run} "some text", or pipe lines into it')


def reader(run: Path) -> TextClassifier | TextRegressor:
    """A run's model, if it says classes or numbers."""
    predictor = load_run(run)
    if not isinstance(predictor, TextClassifier | TextRegressor):
        raise other_use(predictor, run)
    return predictor


def arguments(texts: Sequence[str]) -> Iterator[Line]:
    """Texts of the command line, each with its place."""
    return (Line(text, f"text {number}") for number, text in enumerate(texts, 1))


def paired(texts: Sequence[str]) -> Iterator[Line]:
    """Texts of the command line, two and two, as a line of stdin would have them."""
    if len(texts) % 2:
        raise UserError(
            "a pair has two texts", where="--pair", found=f"{len(texts)} texts", todo="give the texts two and two"
        )
    for number in range(0, len(texts), 2):
        both = [text.replace("\t", " ") for text in texts[number : number + 2]]
        yield Line("\t".join(both), f"pair {number // 2 + 1}")


def parted(lines: Iterable[Line], pair: bool) -> Iterator[Given | None]:
    """What each line holds: a text, or two with a tab between; a blank line holds nothing."""
    for line in lines:
        if line.blank:
            yield None
        elif not pair:
            yield line.text
        else:
            first, tab, second = line.text.partition("\t")
            if not tab or "\t" in second:
                raise UserError(
                    "this is no pair of texts", where=line.where, found=shown(line.text),
                    expected="two texts with one tab between",
                )  # fmt: skip
            yield first, second


def told(judged: tuple[Given, Classification | Regression] | None, width: int, as_json: bool) -> str:
    """The line about one text; a blank line stays one, so that lines out are lines in."""
    if judged is None:
        return "null" if as_json else ""
    given, found = judged
    if as_json:
        texts = {"text": given} if isinstance(given, str) else {"text": given[0], "pair": given[1]}
        return json_line(
            texts | (vars(found) if isinstance(found, Classification) else {"number": found.value, "cut": found.cut})
        )
    text = given if isinstance(given, str) else " || ".join(given)
    if isinstance(found, Regression):
        return f"{found.value:8.3f}  {text}"
    return f"{found.label:<{width}} {found.probability:4.0%}  {text}"
