"""The command `translate`: texts in, translations out, in order and batch by batch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.cli.display import counting
from heedful.cli.loading import load_as
from heedful.cli.output import json_line, write
from heedful.cli.reading import Line, Source, batched
from heedful.decode.settings import TranslationSettings
from heedful.errors import UserError, printable
from heedful.plots.style import Style, require_figure, save
from heedful.plots.text_heatmap import text_heatmap
from heedful.tasks.translation.predictor import Alignment, Translation, Translator


@dataclass(frozen=True)
class Searcher:
    """A translator with its settings: batches of lines to translations, the best first; blank lines have none."""

    translator: Translator
    beams: int | None
    top: int
    sampling: TranslationSettings | None

    def __call__(self, batch: Sequence[Line], first: int) -> list[list[Translation]]:
        """The translations of some lines, before which there were `first` others, blank ones not counted."""
        texts = [line.text for line in batch if not line.blank]
        if self.sampling is not None:
            found = self.translator.sample(texts, self.sampling, first=first)
        else:
            found = self.translator.search(texts, self.beams, self.top)
        translated = iter(found)
        return [
            [] if line.blank else [one for one in next(translated) if math.isfinite(one.log_probability)]
            for line in batch
        ]


def searcher(run: Path, beams: int | None, top: int, sampling: TranslationSettings | None = None) -> Searcher:
    """A run's translator with settings that fit together."""
    if beams is not None and top > beams:
        raise UserError(
            f"{beams} beams cannot give {top} translations",
            where="--top",
            todo=f"write --beams {top}, or a lower --top",
        )
    if sampling is not None and (beams is not None or top > 1):
        raise UserError(
            "a translation is either sampled or searched for", where="--sample",
            found="--beams or --top as well", todo="leave one of them out",
        )  # fmt: skip
    translator = load_as(Translator, run)
    return Searcher(translator, max(beams or translator.settings.beams, top), top, sampling)


def translated(
    search: Searcher, source: Iterable[Line], size: int, tell: Callable[[int], None]
) -> Iterator[tuple[Line, list[Translation]]]:
    """Each line with its translations, in order; what stands before a line that is too long still comes."""
    first, context = 0, search.translator.context
    for batch in batched(source, size):
        lengths = search.translator.lengths([line.text for line in batch])
        bad = next((place for place, length in enumerate(lengths) if length > context), len(batch))
        yield from zip(batch[:bad], search(batch[:bad], first), strict=True)
        tell(bad)
        if bad < len(batch):
            raise too_long(batch[bad], lengths[bad], context)
        first += sum(not line.blank for line in batch)


def too_long(line: Line, length: int, context: int) -> UserError:
    """The error of a text with more tokens than the model has positions."""
    return UserError(
        "this text is too long for the model", where=line.where, found=f"{length:,} tokens",
        expected=f"at most {context:,}", todo="split it, or train a model with a larger model.context",
    )  # fmt: skip


def translate_command(
    run: Path,
    texts: Sequence[str],
    beams: int | None,
    top: int,
    sampling: TranslationSettings | None,
    as_json: bool,
    align: bool,
    align_to: Path | None,
    batch: int,
    style: Style = "light",
) -> None:
    """Translate texts given as arguments, or the lines of stdin."""
    source = Source(texts, f'heedful translate {run} "some text"')
    if align_to is not None and (source.piped or len(texts) != 1):
        raise UserError("one picture shows one text", where="--align-to", found="several texts", todo="give one text")
    if align_to is not None:
        require_figure(align_to, "--align-to")
    search = searcher(run, beams, top, sampling)
    size = source.size(batch)
    # Where translations run over the screen, they are progress enough.
    with (
        counting("lines translated")
        if source.piped and not sys.stdout.isatty()
        else nullcontext(lambda count: None) as tell
    ):
        for line, found in translated(search, source, size, tell):
            looked = search.translator.align(line.text, found[0]) if found and (align or align_to) else None
            if as_json:
                write(json_line(record(line.text, found, looked if align else None)))
            else:
                write_plain(found, top, looked if align else None)
            if looked is not None and align_to is not None:
                save(looked.plot(f"{line.text} -> {found[0].text}", style), align_to)


def write_plain(found: Sequence[Translation], top: int, looked: Alignment | None) -> None:
    """Translations for a reader: one a line, with scores where there are several, and what was looked at."""
    if not found:
        write("")
    for one in found:
        text = printable(one.text) if sys.stdout.isatty() else one.text
        text = " ".join(text.splitlines())  # one text is one line, whatever the model wrote
        write(f"{one.score:9.4f}\t{text}" if top > 1 else text)
    if looked is not None:
        write("\n" + drawn(looked) + "\n")


def record(source: str, found: Sequence[Translation], looked: Alignment | None) -> dict[str, Any]:
    """What --json writes of one text."""
    told: dict[str, Any] = {
        "source": source,
        "translations": [
            {"text": one.text, "score": one.score, "log_probability": one.log_probability} for one in found
        ],
    }
    if looked is not None:
        weights = [[round(weight, 6) for weight in row] for row in looked.weights.tolist()]
        told["alignment"] = {
            "source": looked.source, "target": looked.target, "weights": weights, "layer": looked.layer,
        }  # fmt: skip
    return told


def drawn(looked: Alignment, width: int = 100) -> str:
    """An alignment as text: a row for each piece written, a column for each piece read."""
    return text_heatmap(looked.weights.numpy(), *looked.labels(), width)
