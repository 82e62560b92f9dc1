"""The command `predict`: write the rows of a file with a model's predictions for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from heedful.cli.display import counting
from heedful.cli.loading import load_run
from heedful.cli.output import escaped, write
from heedful.cli.row_progress import row_progress
from heedful.config import Config, parse
from heedful.data.fields.rows import rows_in
from heedful.data.formats.sources import Encoding
from heedful.data.formats.tables import Columns, JsonlTable
from heedful.data.tables.reading import Format, Kind
from heedful.data.tables.source import ColumnTable, Separator
from heedful.data.tables.writing import Write, json_text, output_format, table_writer
from heedful.errors import UserError, printable
from heedful.files import writing as files
from heedful.files.reading import exists, is_file
from heedful.models.own import settings_of
from heedful.runs.journal import Journal, remove_leftovers
from heedful.runs.load import read_recipe
from heedful.runs.result_columns import require_new, result_columns
from heedful.runs.row_predictions import Predicted, RowPredictor
from heedful.runs.row_source import LONGEST, RowSource, Survey, survey
from heedful.runs.rows import FIELDS, RowReader
from heedful.tasks import task_class
from heedful.tasks.tabular.predictor import TablePredictor
from heedful.training.checkpoint.choice import split_checkpoint

NAME_FIELD = "name the field with the text: --field NAME"
ROWS, SEARCHED = 1024, 128  # rows of a window, and of one that is decoded word by word
WRITING = ("language_model", "dialogue", "captioning", "paragraphs")  # tasks that decode word by word
MOST_NAMED = 10  # unreadable images in a note


class Options(NamedTuple):
    """How rows are predicted."""

    fields: Sequence[str] = ()
    probabilities: bool = False
    beams: int | None = None
    batch: int | None = None
    force: bool = False
    overrides: Sequence[str] = ()


class FileForm(Config):
    """How the file of rows is written, where its name and its first lines do not show it."""

    format: Kind | None = Field(None, description="format of the file; null: as its name ends")
    separator: Separator | None = Field(None, description="column separator; null: found in the first lines")
    quotes: bool | None = Field(None, description="whether texts may be in double quotes; null: found")
    header: bool = Field(True, description="whether the first line has the names; without, they are 0, 1, 2 ...")
    encoding: Encoding = Field("utf-8", description="encoding of the texts")


class Settings(Config):
    """The settings that may be given as KEY=VALUE."""

    data: FileForm = Field(FileForm(), description="the file of rows")


def form_of(overrides: Sequence[str]) -> Format:
    """How a file is written that is not as usual."""
    data = parse(Settings, {}, overrides=overrides).data
    return Format(data.format, data.separator, data.quotes, data.header, data.encoding, LONGEST)


def predict_command(run: Path, path: Path, out: Path | None, options: Options) -> None:
    """Write each row with its prediction; a file appears when it is complete, and a stopped command continues."""
    source = RowSource(path, form_of(options.overrides))
    if out is not None:
        require_new_file(out, path, options.force)
    if not exists(path):
        next(iter(source))  # raises the error
    predictor = load_run(run)
    searches = task_class(predictor.task, settings_of(predictor.model).kind).searches
    if options.beams is not None:
        if not searches:
            raise UserError("this model predicts without a beam search", where="--beams", todo="leave it out")
        predictor.settings = predictor.settings.model_copy(update={"beams": options.beams})
    columns = result_columns(predictor, options.probabilities)
    names = tuple(options.fields) or trained_fields(run, FIELDS[type(predictor)])
    reader = RowReader(predictor, source, names, NAME_FIELD)
    size = options.batch or (SEARCHED if searches or predictor.task in WRITING else ROWS)
    work = RowPredictor(predictor, source, reader, columns, size, options.probabilities)
    found = surveyed(source, reader)
    require_new(columns, found.columns)
    types = {**found.columns, **{column.name: column.type for column in columns}}
    total = Total(found.count)
    try:
        with opened(out, types, work, options.force) as (journal, write_rows), row_progress(found.count) as advance:
            for part in work.run(journal):
                write_rows(part.rows)
                total.add(part)
                advance(len(part.rows), part.resumed)
    except KeyboardInterrupt:
        kept = f"; the same command continues there, from {journal_path(out).name}" if out else ""
        sys.stderr.write(f"\nstopped after {total.rows:,} of {found.count:,} rows{kept}\n")
        raise
    total.report(out)
    if work.truncated:
        sys.stderr.write(
            f"note: texts longer than the model's context, of which the beginning was read: {work.truncated:,}\n"
        )


class Total:
    """What was predicted, for the note at the end."""

    def __init__(self, expected: int) -> None:
        self.expected, self.rows, self.blank, self.unread = expected, 0, 0, list[UserError]()

    def add(self, part: Predicted) -> None:
        """Count a window."""
        self.rows += len(part.rows)
        self.blank += part.blank - len(part.unread)
        self.unread += part.unread

    def report(self, out: Path | None) -> None:
        """Say how many rows have a prediction, and which images could not be read."""
        without = f"; rows without a text, and without a prediction: {self.blank:,}" if self.blank else ""
        count = self.rows - self.blank - len(self.unread)
        sys.stderr.write(f"wrote {count:,} predictions to {out or 'stdout'}{without}\n")
        if self.unread:
            lines = [f"  {printable(str(error.where))}: {error.message}" for error in self.unread[:MOST_NAMED]]
            lines += [f"  and {len(self.unread) - MOST_NAMED:,} more"] if len(self.unread) > MOST_NAMED else []
            note = f"note: images that cannot be read, without a prediction: {len(self.unread):,}"
            sys.stderr.write("\n".join([note, *lines]) + "\n")


def require_new_file(out: Path, source: Path, force: bool) -> None:
    """Refuse a file that exists, that cannot be written, or whose format is not known."""
    output_format(out)
    if exists(out) and exists(source) and out.samefile(source):
        raise UserError("the output would overwrite its source", where=str(out), todo="name another file with --out")
    if exists(out) and not force:
        raise UserError("this file exists", where=str(out), todo="name another one, or overwrite it with --force")
    files.require_writable(out, "--out")


def journal_path(out: Path) -> Path:
    """The file beside the output that keeps what is finished."""
    return out.with_name(f"{out.name}.partial")


@contextmanager
def opened(
    out: Path | None, types: Mapping[str, Any], work: RowPredictor, force: bool
) -> Iterator[tuple[Journal | None, Write]]:
    """A journal, and a function that writes rows to a file, which appears when it is complete; or one to stdout."""
    if out is None:
        yield None, lambda rows: write("\n".join(escaped(json_text(row)) for row in rows))
        return
    with Journal(journal_path(out), work.about(), force) as journal, files.disk_errors(out.parent, f"write {out.name}"):
        remove_leftovers(out)
        with files.atomic_path(out) as fresh, table_writer(fresh, output_format(out), types) as write_rows:
            yield journal, write_rows


def surveyed(source: RowSource, reader: RowReader) -> Survey:
    """Read all rows once: what is wrong with them is found before anything is computed."""
    if isinstance(reader.predictor, TablePredictor):
        reader.predictor.check(rows_in(source.path))
    with counting("rows read") as advance:
        found, last = Survey(0, {}), 0
        for found in survey(source, reader.check):
            advance(found.count - last)
            last = found.count
    return found


def trained_fields(run: Path, known: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of the texts that a classifier or regressor was trained on, by name; else the usual names."""
    if not is_file(split_checkpoint(run)[0] / "recipe.yaml"):
        return known
    data = read_recipe(run).data
    if isinstance(data, ColumnTable):
        names = data.columns.names
        return tuple(names[key] for key in (*known, "pair") if key in names) or known
    if known != ("text",):
        return known
    names = (data.text, data.pair) if isinstance(data, Columns | JsonlTable) else ()
    found = tuple(name for name in names if isinstance(name, str))
    return found if len(found) == sum(name is not None for name in names) and found else known
