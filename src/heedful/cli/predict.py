"""The command `predict`: write a model's predictions for every row of a file, as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heedful.cli.display import counting
from heedful.cli.loading import load_run, wrong_command_error
from heedful.cli.output import say
from heedful.cli.reading import MAX_LINE, Line, batched
from heedful.cli.translate import too_long_error
from heedful.data.fields.rows import Rows, rows_in
from heedful.data.formats.sources import lines
from heedful.data.formats.tables import Columns, JsonlTable
from heedful.data.tables.reading import SUFFIXES, Format, read_records
from heedful.data.tables.source import ColumnTable
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.files.reading import exists, is_file
from heedful.models.own import settings_of
from heedful.runs.load import read_recipe
from heedful.runs.rows import FIELDS, row_input
from heedful.tasks import task_class
from heedful.tasks.captioning.predictor import Caption
from heedful.tasks.dialogue.predictor import Reply
from heedful.tasks.language_model.predictor import GeneratedText
from heedful.tasks.predictor import Result
from heedful.tasks.pretraining.predictor import Embedding
from heedful.tasks.style_transfer.predictor import StyledText
from heedful.tasks.tabular.predictor import TablePredictor
from heedful.tasks.text_autoencoding.predictor import DecodedSentence
from heedful.tasks.translation.predictor import Translation, Translator
from heedful.training.checkpoint.choice import split_checkpoint

NAME_FIELD = "name the field with the text: --field NAME"


def predict_command(
    run: Path, source: Path, out: Path | None, fields: Sequence[str], beams: int | None, force: bool, batch: int
) -> None:
    """Write each row with its prediction; a file is written atomically."""
    if out is not None:
        if exists(out) and not force:
            raise UserError("this file exists", where=str(out), todo="name another one, or overwrite it with --force")
        files.require_writable(out, "--out")
    if "prediction" in fields:
        raise UserError("the prediction would overwrite its source", where="--field", todo="rename the field first")
    if not exists(source):
        raise UserError("there is no such file", where=str(source), expected="a .jsonl, .csv, .tsv or text file")
    predictor = load_run(run)
    known = FIELDS.get(type(predictor))
    if known is None:
        raise wrong_command_error(predictor, run)
    if beams is not None:
        if not task_class(predictor.task, settings_of(predictor.model).kind).searches:
            raise UserError("this model predicts without a beam search", where="--beams", todo="leave it out")
        predictor.settings = predictor.settings.model_copy(update={"beams": beams})
    table = isinstance(predictor, TablePredictor)
    rows = checked_rows(predictor, source) if table else read_rows(source)
    names, count, blank = tuple(fields) or trained_fields(run, known), 0, 0
    with written(out) as write, counting("rows done") as advance:
        for chunk in batched(rows, batch):
            inputs = [row if table else row_input(row, names, where, NAME_FIELD) for row, where in chunk]
            if isinstance(predictor, Translator):
                require_room(
                    predictor, [Line(str(one or ""), where) for one, (_, where) in zip(inputs, chunk, strict=True)]
                )
            if isinstance(predictor, TablePredictor):
                places = (where for _, where in chunk)
                results = iter(predictor.predict_rows(Rows.of((row for row, _ in chunk), places, source.parent)))
            else:
                results = iter(predictor.predict([one for one in inputs if one is not None]))
            for one, (row, _) in zip(inputs, chunk, strict=True):
                prediction = (
                    plain(next(results)) if one is not None else "" if isinstance(predictor, Translator) else None
                )
                write(json.dumps({**row, "prediction": prediction}, ensure_ascii=False))
                blank += prediction is None
            count += len(chunk)
            advance(len(chunk))
    without = f"; rows without a text, and without a prediction: {blank:,}" if blank else ""
    sys.stderr.write(f"wrote {count - blank:,} predictions to {out or 'stdout'}{without}\n")


@contextmanager
def written(out: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes lines to a file, which appears when it is complete, or to stdout."""
    if out is None:
        yield say
        return
    with (
        files.disk_errors(out.parent, f"write {out.name}"),
        files.atomic_path(out) as fresh,
        fresh.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        yield lambda line: print(line, file=file)


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


def require_room(translator: Translator, texts: Sequence[Line]) -> None:
    """Refuse a text that is too long for the model; the error names its line."""
    for line, length in zip(texts, translator.lengths([line.text for line in texts]), strict=True):
        if length > translator.context:
            raise too_long_error(line, length, translator.context)


def read_rows(path: Path) -> Iterator[tuple[dict[str, object], str]]:
    """The rows of a table, each with its line, or a text per line of any other file."""
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind in SUFFIXES:
        yield from read_records(path, Format(longest=MAX_LINE))
        return
    for number, line in enumerate(lines(path, MAX_LINE), 1):
        yield {"text": line}, f"{path}:{number}"


def checked_rows(predictor: TablePredictor, path: Path) -> Iterator[tuple[dict[str, object], str]]:
    """The rows of a table, each with its line, once the values of all are checked."""
    rows = rows_in(path)
    predictor.check(rows)
    return rows.one_by_one()


def plain(result: Any) -> Any:
    """A result as JSON: a text, a vector, or an object."""
    match result:
        case Translation() | Caption() | StyledText() | DecodedSentence() | Reply():
            return result.text
        case GeneratedText():
            return result.completion
        case Embedding():
            return result.to_dict()["vector"]
        case Result():
            return result.to_dict()
    return result
