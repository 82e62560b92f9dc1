"""Multiple-choice data: texts with several continuations, one of them correct, as tables such as SWAG's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from heedful.data.formats.sources import FilePerSplit, Name, Split
from heedful.data.formats.tables import WIDEST, Cell, csv_cells, select_columns
from heedful.errors import UserError, shown


class Question(NamedTuple):
    """A text, its continuations, and the index of the correct one."""

    text: str
    choices: tuple[str, ...]
    right: int


class Questions(NamedTuple):
    """The questions of one split; none is skipped."""

    items: list[Question]
    skipped: int = 0


class ChoicesTable(FilePerSplit):
    """A CSV file with a column for each choice and one for the index of the correct one; by default, SWAG's."""

    advice: ClassVar = "columns are separated by commas, and a text with a comma in it needs double quotes"

    kind: Literal["choices"] = "choices"
    text: Name = Field("sent1", description="column of the text")
    begin: Name | None = Field("sent2", description="column of the words that every choice starts with; null: none")
    choices: Annotated[tuple[Name, ...], Field(min_length=2, max_length=1000)] = Field(
        ("ending0", "ending1", "ending2", "ending3"), description="column of each choice"
    )
    label: Name = Field("label", description="column of the index of the correct choice, from 0")
    longest: int = Field(1_000_000, ge=1, le=WIDEST, description="maximum characters per line")

    def read(self, split: Split) -> Questions:
        """The questions of a split."""
        path = self.path(split)
        columns = [self.text, *([] if self.begin is None else [self.begin]), *self.choices, self.label]
        rows = select_columns(csv_cells(path, ",", self.longest), columns, True, self.advice, path)
        found = [self._question(cells) for cells in rows]
        if not found:
            raise UserError("there is no question to read", where=str(path), expected="a header and a row for each")
        return Questions(found)

    def _question(self, cells: Sequence[Cell]) -> Question:
        text, *between, label = cells
        begin = "" if self.begin is None else f"{between.pop(0).text} "
        if not (number := label.text.strip()).isdecimal() or int(number[:9]) >= len(between):
            raise UserError(
                "this is not the number of a choice", where=label.where,
                found=shown(label.text) if label.text else "nothing",
                expected=f"a whole number from 0 to {len(between) - 1}",
            )  # fmt: skip
        return Question(text.text, tuple(begin + cell.text for cell in between), int(number))
