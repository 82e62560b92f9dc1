"""The command `translate`: translate texts in order, in batches."""

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
from heedful.runs.row_predictions import too_long_error
from heedful.tasks.translation.predictor import Alignment, Translation, Translator


@dataclass(frozen=True)
class BatchTranslator:
    """A translator with search settings: maps a batch of lines to the best translations of each."""

    translator: Translator
    beams: int | None
    top: int
    sampling: TranslationSettings | None
    to: str | None = None

    def __call__(self, batch: Sequence[Line], first: int) -> list[list[Translation]]:
        """The translations of each line, none for blank ones; `first` counts the nonblank lines before the batch."""
        texts = self.translator.addressed([line.text for line in batch if not line.blank], self.to)
        if self.sampling is not None:
            results = self.translator.sample(texts, self.sampling, first=first)
        else:
            results = self.translator.search(texts, self.beams, self.top)
        translations = iter(results)
        return [
            [] if line.blank else [one for one in next(translations) if math.isfinite(one.log_probability)]
            for line in batch
        ]


def load_translator(
    run: Path, beams: int | None, top: int, sampling: TranslationSettings | None = None, to: str | None = None
) -> BatchTranslator:
    """Load a translator; search and sampling options that contradict each other are refused."""
    if beams is not None and top > beams:
        raise UserError(
            f"{beams} beams cannot give {top} translations",
            where="--top",
            todo=f"write --beams {top}, or a lower --top",
        )
    if sampling is not None and (beams is not None or top > 1):
        raise UserError(
            "--sample cannot be combined with --beams or --top", where="--sample",
            todo="leave one of them out",
        )  # fmt: skip
    translator = load_as(Translator, run)
    if to is None and translator.languages:
        raise UserError(
            "this model translates into several languages", where="--to", found="no language",
            expected="one of " + ", ".join(translator.languages), todo=f"write --to {translator.languages[0]}",
        )  # fmt: skip
    translator.addressed([], to)
    return BatchTranslator(translator, max(beams or translator.settings.beams, top), top, sampling, to)


def translate_lines(
    translator: BatchTranslator, source: Iterable[Line], size: int, advance: Callable[[int], None]
) -> Iterator[tuple[Line, list[Translation]]]:
    """Each line with its translations; the lines before one that is too long are translated before the error."""
    first, context = 0, translator.translator.context
    for batch in batched(source, size):
        lengths = translator.translator.lengths(
            translator.translator.addressed([line.text for line in batch], translator.to)
        )
        end = next((index for index, length in enumerate(lengths) if length > context), len(batch))
        yield from zip(batch[:end], translator(batch[:end], first), strict=True)
        advance(end)
        if end < len(batch):
            raise too_long_error(batch[end].where, lengths[end], context)
        first += sum(not line.blank for line in batch)


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
    to: str | None = None,
) -> None:
    """Translate the arguments, or the lines of stdin."""
    source = Source(texts, f'heedful translate {run} "some text"')
    if align_to is not None and (source.piped or len(texts) != 1):
        raise UserError(
            "--align-to draws a single text", where="--align-to", found="several texts", todo="give one text"
        )
    if align_to is not None:
        require_figure(align_to, "--align-to")
    translator = load_translator(run, beams, top, sampling, to)
    size = source.size(batch)
    # No counter if the translations themselves are printed in a terminal.
    with (
        counting("lines translated")
        if source.piped and not sys.stdout.isatty()
        else nullcontext(lambda count: None) as advance
    ):
        for line, translations in translate_lines(translator, source, size, advance):
            alignment = None
            if translations and (align or align_to):
                alignment = translator.translator.align(
                    translator.translator.addressed([line.text], to)[0], translations[0]
                )
            if as_json:
                write(json_line(record(line.text, translations, alignment if align else None)))
            else:
                write_plain(translations, top, alignment if align else None)
            if alignment is not None and align_to is not None:
                save(alignment.plot(f"{line.text} -> {translations[0].text}", style), align_to)


def write_plain(translations: Sequence[Translation], top: int, alignment: Alignment | None) -> None:
    """Print translations, one per line, with scores if there may be several, and the alignment."""
    if not translations:
        write("")
    for one in translations:
        text = printable(one.text) if sys.stdout.isatty() else one.text
        text = " ".join(text.splitlines())  # a translation is one line
        write(f"{one.score:9.4f}\t{text}" if top > 1 else text)
    if alignment is not None:
        write("\n" + draw_alignment(alignment) + "\n")


def record(source: str, translations: Sequence[Translation], alignment: Alignment | None) -> dict[str, Any]:
    """A text and its translations as --json prints them."""
    result: dict[str, Any] = {
        "source": source,
        "translations": [
            {"text": one.text, "score": one.score, "log_probability": one.log_probability} for one in translations
        ],
    }
    if alignment is not None:
        weights = [[round(weight, 6) for weight in row] for row in alignment.weights.tolist()]
        result["alignment"] = {
            "source": alignment.source, "target": alignment.target, "weights": weights, "layer": alignment.layer,
        }  # fmt: skip
    return result


def draw_alignment(alignment: Alignment, width: int = 100) -> str:
    """An alignment as a text heat map: a row per target token, a column per source token."""
    return text_heatmap(alignment.weights.numpy(), *alignment.labels(), width)
