"""The verbs `translate` and `predict`: texts in, translations out, in the order they came and batch by batch."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from heedful.cli.display import counting, json_line
from heedful.cli.loading import load_as
from heedful.data.formats.sources import BOM, decode_line, lines, parse_object, string_field
from heedful.decode.settings import TranslationSettings
from heedful.errors import UserError, printable
from heedful.files import writing as files
from heedful.files.reading import exists
from heedful.plots.style import Style, require_figure, save
from heedful.plots.text_heatmap import text_heatmap
from heedful.tasks.translation.predictor import Alignment, Translation, Translator

LONGEST = 10_000_000  # characters of a line that is read at all

Item = TypeVar("Item")


class Line(NamedTuple):
    """A text and the place it came from."""

    text: str
    where: str

    @property
    def blank(self) -> bool:
        """Whether there is nothing to translate."""
        return not self.text.strip()


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
            "a translation is either drawn by chance or searched for", where="--sample",
            found="--beams or --top besides", todo="leave one of them out",
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
            raise UserError(
                "this text is too long for the model",
                where=batch[bad].where,
                found=f"{lengths[bad]:,} tokens",
                expected=f"at most {context:,}",
                todo="split it, or train a model with a larger model.context",
            )
        first += sum(not line.blank for line in batch)


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Items in lists of a size, the last one shorter; a mistake in them comes after what stands before it."""
    rest, batch = iter(items), list[Item]()
    try:
        for item in rest:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
    except UserError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def piped(texts: Sequence[str]) -> bool:
    """Whether texts come over stdin: it is named instead of them, or there are none and nobody types.

    A file that is named where a text belongs is refused, since its name would be read.
    """
    for text in texts:
        if Path(text).suffix and os.path.isfile(text):  # which is false of texts that can be no path
            raise UserError(
                "this is a file, and a text is expected", where=text,
                todo=f"read its lines over stdin: - < {shlex.quote(text)}; or score it by a recipe: heedful eval",
            )  # fmt: skip
    return list(texts) == ["-"] or (not texts and not sys.stdin.isatty())


def stdin_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a stream of UTF-8, as soon as they come."""
    number = 0
    while line := stream.readline(4 * LONGEST):
        number += 1
        where = f"stdin:{number}"
        if len(line) == 4 * LONGEST:
            raise UserError("this line has no end", where=where, found=f"{len(line):,} bytes", todo="split it")
        yield Line(decode_line(line if number > 1 else line.removeprefix(BOM), LONGEST * 4, where), where)


def translate_verb(
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
    reads = piped(texts)
    if not texts and not reads:
        raise UserError(
            "there is no text to translate", todo=f'heedful translate {run} "some text", or pipe lines into it'
        )
    if align_to is not None and (reads or len(texts) != 1):
        raise UserError("one picture shows one text", where="--align-to", found="several texts", todo="give one text")
    if align_to is not None:
        require_figure(align_to, "--align-to")
    search = searcher(run, beams, top, sampling)
    given = (Line(text, f"text {number}") for number, text in enumerate(texts, 1))
    source = stdin_lines(sys.stdin.buffer) if reads else given
    # A person who types lines waits for each; and where translations run over the screen, they are progress enough.
    size = 1 if reads and sys.stdin.isatty() else batch
    with counting("lines translated") if reads and not sys.stdout.isatty() else nullcontext(lambda count: None) as tell:
        for line, found in translated(search, source, size, tell):
            looked = search.translator.align(line.text, found[0]) if found and (align or align_to) else None
            if as_json:
                write(json_line(record(line.text, found, looked if align else None)))
            else:
                write_plain(found, top, looked if align else None)
            if looked is not None and align_to is not None:
                save(looked.plot(f"{line.text} -> {found[0].text}", style), align_to)


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


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


def predict_verb(run: Path, source: Path, to: Path, field: str, beams: int | None, force: bool, batch: int) -> None:
    """Add a prediction to every object of a JSON lines file."""
    if exists(to) and not force:
        raise UserError("a file is in the way", where=str(to), todo="name another one, or write over it with --force")
    files.require_writable(to, "--out")
    if field == "prediction":
        raise UserError("the prediction would overwrite its source", where="--field", todo="rename the field first")
    if not exists(source):
        raise UserError("there is no such file", where=str(source), expected="a file with one JSON object a line")
    rows = deque[dict[str, object]]()  # those whose text is being translated

    def read() -> Iterator[Line]:
        for number, line in enumerate(lines(source, LONGEST), 1):
            where = f"{source}:{number}"
            if line.strip():
                rows.append(parse_object(line, where))
                yield Line(string_field(rows[-1], field, where), where)

    search = searcher(run, beams, 1)
    done = 0
    with (
        files.disk_errors(to.parent, f"write {to.name}"),
        files.atomic_path(to) as fresh,
        fresh.open("w", encoding="utf-8", errors="backslashreplace") as out,
        counting("lines done") as tell,
    ):
        for _, found in translated(search, read(), batch, tell):
            row = {**rows.popleft(), "prediction": found[0].text if found else ""}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            done += 1
    sys.stderr.write(f"wrote {done:,} predictions to {to}\n")
