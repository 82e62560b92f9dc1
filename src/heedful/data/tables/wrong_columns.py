"""Columns that can hardly be those of their setting, found in the first rows, with the ones that may be meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from heedful.data.tables.findings import CLASSES, Finding
from heedful.data.tables.guessing import are_classes, are_numbers
from heedful.data.tables.reading import Record, text_of
from heedful.errors import shown

FIRST = 1000  # rows that are looked at
LEAST = 20  # fewer rows show nothing
LONGER = 3  # times as long as those of the column that is read


def wrong_columns(records: Sequence[Record], names: Mapping[str, str], label: str | None) -> Iterator[Finding]:
    """Texts that are numbers or have few values, beside a column of longer ones; a class of its own for each row.

    `names`: the columns that are read, by setting; `label`: the setting of the column of classes.
    """
    rows = [row for row, _ in islice(records, FIRST)]
    if len(rows) < LEAST:
        return
    every = dict.fromkeys(name for row in rows for name in row)
    values = {name: [text_of(row.get(name)).strip() for row in rows] for name in every}
    lengths = {name: sum(map(len, texts)) / len(texts) for name, texts in values.items()}
    if "text" in names:
        name = names["text"]
        longest = max(lengths, key=lengths.__getitem__)
        if lengths[longest] > LONGER * lengths[name] and (are_numbers(values[name]) or are_classes(values[name])):
            few = f"have {len({*values[name]}):,} different texts" if are_classes(values[name]) else "are numbers"
            text = (
                f"train: the {len(rows):,} first texts of the column {shown(name)} {few}; longer ones are in "
                f"{shown(longest)}: data.columns.text={longest}"
            )
            yield Finding("error", "wrong column", text, len(rows), len(rows))
    if label is not None and label in names:
        name, many = names[label], len({*values[names[label]]})
        if many > max(CLASSES, len(rows) / 2):
            others = [shown(one) for one, texts in values.items() if one not in names.values() and are_classes(texts)]
            better = f"; few values are in {', '.join(others[:3])}: data.columns.{label}=NAME" if others else ""
            text = f"train: {many:,} of the {len(rows):,} first rows have different labels in the column {shown(name)}"
            yield Finding("error", "wrong column", text + better, many, len(rows))
