"""Checking the data of a recipe: the first rows of each file, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from heedful.data.formats.sources import SPLITS, Split
from heedful.data.formats.tables import Labelled
from heedful.data.images.checking import check_images
from heedful.data.images.sources import ImageFolders
from heedful.data.tables.findings import Checked, Row, columns, find, invalid_rows
from heedful.data.tables.reading import Record, text_of
from heedful.data.tables.source import ColumnTable, Table
from heedful.data.tables.wrong_columns import wrong_columns
from heedful.errors import UserError

Target: TypeAlias = Callable[[Sequence[Record]], str | None]

FIRST = 10_000  # rows of each file that are read, unless all are asked for


def check_data(
    data: object, context: int | None, classes: bool, every: bool = False, target: Target | None = None
) -> Checked:
    """The findings of data whose examples are rows or files of images; none for other data.

    `classes`: the label is one of a few classes; `target`: finds the column with the class, where only the recipe
    knows it.
    """
    if isinstance(data, Table):
        return _check_table(data, context, classes, every, target)
    if isinstance(data, Labelled):
        return _check_labelled(data, context, classes, every)
    if isinstance(data, ImageFolders):
        return check_images(data, classes)
    return Checked([], [])


def _check_table(data: Table, context: int | None, classes: bool, every: bool, target: Target | None) -> Checked:
    records, lines = dict[Split, Sequence[Record]](), list[str]()
    for split in SPLITS:
        if getattr(data, split) is None or split in data.shares:
            continue
        records[split] = list(islice(data.source(split), None if every else FIRST))
        data.require_columns(records[split], str(data.file(split) or f"data.{split}"))
        lines.append(_read(split, data, records[split], every))
    if isinstance(data, ColumnTable):
        label = data.columns.wanted if classes else None
        if wrong := list(wrong_columns(records["train"], data.columns.names, label)):
            return Checked(lines, wrong)
    found = [finding for split, some in records.items() for finding in columns(some, split, data.needed.values())]
    if data.shares:
        whole = records["train"]
        parts = data.parts(whole)
        records |= {split: [whole[number] for number in rows] for split, rows in parts.items()}
        sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in parts.items())
        lines.append(f"held out: {sizes}" + ("" if every or len(whole) < FIRST else ", of these rows"))
    column = None if target is None else target(records["train"])
    rows = {
        split: [
            Row(
                data.inputs(row),
                data.label(row),
                place,
                data.classes(row) if column is None else [text_of(row.get(column)).strip()],
            )
            for row, place in records[split]
        ]
        for split in SPLITS
        if split in records
    }
    for split, some in records.items():
        found += invalid_rows(_problems(data, some), split, some)
    about = find(rows, context if data.cuts else None, classes, data.repeats, _partial(records, every))
    return Checked(lines, sorted([*about, *found], key=lambda one: one.level))


def _problems(data: Table, records: Sequence[Record]) -> Iterator[UserError]:
    """What is wrong with rows that are no examples of the task."""
    for row, place in records:
        try:
            data.check_row(row, place)
        except UserError as error:
            yield error


def _read(split: Split, data: Table, records: Sequence[Record], every: bool) -> str:
    """What was read of a split."""
    path = data.file(split)
    about = "rows from Python" if path is None else f"{path} ({data.form.of(path).text})"
    first = "the first " if not every and len(records) == FIRST else ""
    return f"{split}: {first}{len(records):,} rows of {about}"


def _partial(rows: Mapping[Split, Sequence[object]], every: bool) -> bool:
    """Whether not all training rows were read."""
    return not every and len(rows["train"]) == FIRST


def _check_labelled(data: Labelled, context: int | None, classes: bool, every: bool) -> Checked:
    """The same for the older kinds of files of labelled texts."""
    rows, lines = dict[Split, list[Row]](), list[str]()
    for split in SPLITS:
        path = data.file(split)
        if path is not None:
            found = islice(data.rows(path), None if every else FIRST)
            rows[split] = [
                Row((text.text,) if pair is None else (text.text, pair.text), label.text.strip(), label.where)
                for text, pair, label in found
            ]
            first = "the first " if not every and len(rows[split]) == FIRST else ""
            lines.append(f"{split}: {first}{len(rows[split]):,} rows of {path}")
    return Checked(lines, find(rows, context, classes, partial=_partial(rows, every)))
