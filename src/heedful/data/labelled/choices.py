"""Multiple-choice questions in CSV files such as SWAG's: texts with several continuations, one of them correct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from heedful.data.formats.sources import FilePerSplit, Name, Split
from heedful.data.formats.tables import MAX_FIELD, Cell, csv_cells, select_columns
from heedful.errors import UserError, shown


class Question(NamedTuple):
    """A text, its continuations, and the index of the correct one."""

    text: str
    choices: tuple[str, ...]
    right: int


class Questions(NamedTuple):
    """The questions of a split."""

    items: list[Question]
    skipped: int = 0  # always, as for other data


class ChoicesTable(FilePerSplit):
    """A CSV file with a column per choice and one for the index of the correct one; the defaults are SWAG's columns."""

    advice: ClassVar = "separate columns by commas, and put a text that contains a comma in double quotes"

    kind: Literal["choices"] = "choices"
    text: Name = Field("sent1", description="column of the text")
    begin: Name | None = Field("sent2", description="column of the words that every choice starts with; null: none")
    choices: Annotated[tuple[Name, ...], Field(min_length=2, max_length=1000)] = Field(
        ("ending0", "ending1", "ending2", "ending3"), description="column of each choice"
    )
    label: Name = Field("label", description="column of the index of the correct choice, from 0")
    longest: int = Field(1_000_000, ge=1, le=MAX_FIELD, description="maximum characters per line")

    def read(self, split: Split) -> Questions:
        """The questions of a split."""
        path = self.path(split)
        columns = [self.text, *([] if self.begin is None else [self.begin]), *self.choices, self.label]
        rows = select_columns(csv_cells(path, ",", self.longest), columns, True, self.advice, path)
        questions = [self._question(cells) for cells in rows]
        if not questions:
            raise UserError("there are no questions", where=str(path), expected="a header, then a row per question")
        return Questions(questions)

    def _question(self, cells: Sequence[Cell]) -> Question:
        text, *between, label = cells
        begin = "" if self.begin is None else f"{between.pop(0).text} "
        if not (number := label.text.strip()).isdecimal() or int(number[:9]) >= len(between):
            raise UserError(
                "this is not the index of a choice", where=label.where,
                found=shown(label.text) if label.text else "nothing",
                expected=f"a whole number from 0 to {len(between) - 1}",
            )  # fmt: skip
        return Question(text.text, tuple(begin + cell.text for cell in between), int(number))
