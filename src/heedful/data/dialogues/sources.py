"""Dialogues from files: DailyDialog's format, JSON lines, and tables with a row for each utterance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from heedful.data.formats.sources import (
    TABS,
    FilePerSplit,
    Name,
    Split,
    json_lines,
    lines,
    list_keys,
    string_field,
)
from heedful.data.formats.tables import ByName, Cell, csv_cells, select_columns, tsv_cells
from heedful.errors import UserError, shown

END = "__eou__"  # the end of an utterance in DailyDialog's files
TWO = 2  # speakers that take turns where none are named
SENTENCE = "a dialogue of two utterances or more"


class Utterance(NamedTuple):
    """What a speaker says in one turn; None: the speaker is not named."""

    text: str
    speaker: str | None = None


class Dialogue(NamedTuple):
    """The utterances of a dialogue, and who says each: 0 for the first speaker, 1 for the next new one, and so on."""

    utterances: tuple[str, ...]
    speakers: tuple[int, ...]


class Dialogues(NamedTuple):
    """The dialogues of a split, and what was left out of them."""

    dialogues: list[Dialogue]
    skipped: int  # dialogues of fewer than two utterances, in which nothing is a reply
    blank: int  # utterances without text, in dialogues that were kept


def collect_dialogues(rows: Iterable[Sequence[Utterance]], where: str) -> Dialogues:
    """The dialogues with a reply, their blank utterances left out and their speakers numbered."""
    found, skipped, blank = list[Dialogue](), 0, 0
    for row in rows:
        said = [one for one in row if one.text.strip()]
        if len(said) < 2:
            skipped += 1
            continue
        blank += len(row) - len(said)
        found.append(Dialogue(tuple(one.text.strip() for one in said), number_speakers([one.speaker for one in said])))
    if not found:
        raise UserError(
            "there are no dialogues", where=where, found=f"{skipped:,} of fewer than two utterances",
            expected=SENTENCE, todo="put the utterances of a dialogue together, each a reply to the one before",
        )  # fmt: skip
    return Dialogues(found, skipped, blank)


def number_speakers(names: Sequence[str | None]) -> tuple[int, ...]:
    """The speakers in the order in which they first speak; where they are not named, two take turns."""
    if None in names:
        return tuple(turn % TWO for turn in range(len(names)))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def utterance(one: object, where: str) -> Utterance:
    """An utterance from Python: a text, or (speaker, text)."""
    if isinstance(one, str):
        return Utterance(one)
    if isinstance(one, Sequence) and len(one) == 2 and isinstance(one[1], str) and isinstance(one[0], str | int):
        return Utterance(one[1], str(one[0]))
    raise UserError("this is no utterance", where=where, found=shown(one), expected="a text, or (speaker, text)")


class DialogueFiles(FilePerSplit):
    """Base of dialogues from one file per split."""

    longest: int = Field(1_000_000, ge=1, le=100_000_000, description="maximum characters per line")

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Sequence[Utterance]]:
        """The utterances of each dialogue of a file."""

    def read(self, split: Split) -> Dialogues:
        """The dialogues of a split."""
        path = self.path(split)
        return collect_dialogues(self.rows(path), str(path))


class DailyDialog(DialogueFiles):
    """A dialogue per line, `__eou__` after each utterance, as in DailyDialog; after a tab, labels may follow."""

    kind: Literal["dailydialog"] = "dailydialog"

    def rows(self, path: Path) -> Iterator[Sequence[Utterance]]:
        """The utterances of each line; a blank line is no dialogue."""
        marked, number = False, 0
        for number, line in enumerate(lines(path, self.longest), start=1):  # noqa: B007, counted for an error
            text = line.split("\t")[0]
            marked = marked or END in text
            if text.strip():
                yield [Utterance(one) for one in split_turns(text)]
        if not marked:
            raise UserError(
                "this file has no dialogues in DailyDialog's format", where=str(path),
                found=f"{number:,} lines without {END}", expected=f"one utterance {END} another {END}, a line each",
                todo="for other formats, set data.kind to jsonl, csv or tsv",
            )  # fmt: skip


def split_turns(text: str) -> list[str]:
    """The texts between the marks; after the last mark, nothing has to follow."""
    turns = text.split(END)
    return turns if turns[-1].strip() else turns[:-1]


class JsonlDialogues(DialogueFiles):
    """A JSON object per line with a list of utterances: texts, or objects with a text and a speaker."""

    kind: Literal["jsonl"] = "jsonl"
    utterances: Name = Field("utterances", description="key of the list of utterances")
    text: Name = Field("text", description="key of the text of an utterance, if utterances are objects")
    speaker: Name = Field("speaker", description="key of its speaker, a name or a number, which may be missing")

    def rows(self, path: Path) -> Iterator[Sequence[Utterance]]:
        """The utterances of each object; blank lines are skipped."""
        for where, row in json_lines(path, self.longest):
            if row is not None:
                yield utterances_in(row, where, self.utterances, self.text, self.speaker)


def utterances_in(
    row: dict[str, object], where: str, key: str = "utterances", text: str = "text", speaker: str = "speaker"
) -> list[Utterance]:
    """The utterances in a field of a row."""
    found, form = row.get(key), f"{shown(key)} with a list of texts, or of objects with {shown(text)}"
    if key not in row:
        raise UserError(f"the key {shown(key)} is missing", where=where, found=list_keys(row), expected=form)
    if not isinstance(found, list):
        raise UserError(f"the value of {shown(key)} is not a list", where=where, found=shown(found), expected=form)
    return [_utterance(one, f"{where}, utterance {number}", text, speaker) for number, one in enumerate(found, 1)]


def _utterance(one: object, where: str, text: str, speaker: str) -> Utterance:
    """A text, or an object with a text and perhaps a speaker."""
    if isinstance(one, str):
        return Utterance(one)
    if not isinstance(one, dict):
        raise UserError("this is no utterance", where=where, found=shown(one), expected="a text, or an object with one")
    who = one.get(speaker)
    if who is not None and (isinstance(who, bool) or not isinstance(who, str | int)):
        raise UserError(
            "a speaker is a name or a number", where=where, found=shown(who), expected="a JSON string or integer"
        )
    return Utterance(string_field(one, text, where), None if who is None else str(who))


class DialogueTable(DialogueFiles):
    """Base of tables with a row for each utterance; rows with the same dialogue id belong together, in their order."""

    advice: ClassVar[str]  # about column separators

    header: bool = Field(True, description="whether the first line is a header")
    dialogue: ByName = Field("dialogue", description="column of the dialogue id, by name or by index from 0")
    text: ByName = Field("text", description="column of the utterance")
    speaker: ByName | None = Field(None, description="column of the speaker; null: two speakers take turns")

    @model_validator(mode="after")
    def _require_header_for_names(self) -> DialogueTable:
        names = [column for column in (self.dialogue, self.text, self.speaker) if isinstance(column, str)]
        if names and not self.header:
            raise ValueError(
                f"without a header, columns have no names; write an index from 0 instead of {shown(names[0])}"
            )
        return self

    @abstractmethod
    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """Every non-empty line, as its number and its cells."""

    def rows(self, path: Path) -> Iterator[Sequence[Utterance]]:
        """The utterances of each dialogue, in the order in which the dialogues begin."""
        columns = [column for column in (self.dialogue, self.text, self.speaker) if column is not None]
        found: dict[str, list[Utterance]] = {}
        for cells in select_columns(self.split(path), columns, self.header, self.advice, path):
            name, text, *speaker = (cell.text.strip() for cell in cells)
            if not name:
                raise UserError(
                    "an utterance belongs to no dialogue", where=cells[0].where, found="a blank dialogue id",
                    expected="the id of its dialogue",
                )  # fmt: skip
            found.setdefault(name, []).append(Utterance(text, speaker[0] if speaker else None))
        yield from found.values()


class TsvDialogues(DialogueTable):
    """Tab-separated columns; there is no quoting, so an utterance cannot contain a tab."""

    advice: ClassVar = TABS

    kind: Literal["tsv"] = "tsv"

    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """The cells of each line."""
        return tsv_cells(path, self.longest)


class CsvDialogues(DialogueTable):
    """Comma-separated columns; an utterance in double quotes may contain commas, line ends, and doubled quotes."""

    advice: ClassVar = "columns are separated by data.separator"

    kind: Literal["csv"] = "csv"
    separator: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="column separator")

    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """The cells of each record."""
        return csv_cells(path, self.separator, self.longest)
