"""The settings of a table: its files or rows from Python, their format, and the rows that are held out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from heedful.config import Config
from heedful.data.fields.columns import require_column
from heedful.data.formats.sources import SPLITS, Encoding, Name, Split, missing_files, no_data
from heedful.data.formats.tables import MAX_FIELD
from heedful.data.located import Placed
from heedful.data.tables.reading import Format, Kind, Record, parsed, read_records, same_text, text_of
from heedful.data.tables.splits import Share, held_out
from heedful.data.tokenizers.base import replace_surrogates
from heedful.errors import UserError, shown

CLASS_COUNT = 100  # a label with more different values is a number, and rows are not stratified by it
PROBE = 1000  # rows whose columns are looked at before all are read

ColumnName = Annotated[
    str,
    BeforeValidator(lambda name: str(name) if isinstance(name, int) and not isinstance(name, bool) else name),
    Field(min_length=1, max_length=1000),
]


def _usable(separator: str) -> str:
    if separator in ("\r", "\n", '"'):
        raise ValueError("a line end or a quote cannot separate columns")
    return separator


Separator = Annotated[str, Field(min_length=1, max_length=1), AfterValidator(_usable)]


FromPython = Annotated[Literal[True], BeforeValidator(lambda value: value is True or None)]  # 1 is a number of rows


class HeldOut(Config):
    """Which rows are held out where `valid` or `test` is a share or a number of rows."""

    stratify: Name | Literal[False] | None = Field(
        None,
        description="column whose values have the same share in each part; false: none; null: the label, if it has at "
        "most 100 values, each in two rows or more on average",
    )
    group: Name | None = Field(
        None,
        description="column whose values are not divided, such as an author; null: rows with the same input, apart "
        "from case and spaces, stay together",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the choice")


class Table(Config):
    """Base of tables: CSV, TSV, JSON lines or Parquet files, or rows from Python."""

    kind: Literal["table"] = "table"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    train: Name | FromPython = Field(
        True,
        description="file for training: .csv, .tsv, .jsonl (each plain or .gz) or .parquet; true: rows from Python",
    )
    valid: Name | FromPython | Share = Field(
        0.1, description="file for validation, or the share or number of rows that are held out of train"
    )
    test: Name | FromPython | Share | None = Field(
        None, description="file for the final score, or the share or number of rows that are held out of train"
    )
    held_out: HeldOut = Field(HeldOut(), description="which rows are held out")
    format: Kind | None = Field(None, description="format of the files; null: as their names end")
    header: bool = Field(True, description="whether the first line has the names; without, they are 0, 1, 2 ...")
    separator: Separator | None = Field(None, description="column separator; null: found in the first lines")
    quotes: bool | None = Field(
        None, description="whether texts may be in double quotes; null: yes in CSV; in TSV, found in the first lines"
    )
    encoding: Encoding = Field("utf-8", description="encoding of the texts; a byte-order mark is skipped")
    longest: int = Field(1_000_000, ge=1, le=MAX_FIELD, description="maximum characters per line")
    _given: dict[Split, list[Record]] = PrivateAttr(default_factory=dict)
    _parts: dict[Split, list[int]] = PrivateAttr(default_factory=dict)  # of the training rows, once they are read

    # -------------------------------------------------------------- what a task says
    cuts: ClassVar[bool] = True  # whether a text that is longer than the model reads is cut or left out
    repeats: ClassVar[bool] = False  # whether rows with the same input are as they should be

    @abstractmethod
    def examples(self, records: Sequence[Record], split: Split) -> Any:
        """The examples of some rows, as the task reads them."""

    @property
    @abstractmethod
    def needed(self) -> Mapping[str, str]:
        """The columns that must exist, by the name of their setting."""

    @abstractmethod
    def inputs(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The texts of a row that a model is given."""

    def label(self, row: Mapping[str, object]) -> str | None:
        """What is to be predicted of a row, if it is one value."""
        return None

    def classes(self, row: Mapping[str, object]) -> Sequence[str]:
        """The classes that are predicted of a row, if they are not its label."""
        return ()

    def check_row(self, row: Mapping[str, object], place: str) -> None:
        """Refuse a row that is no example of the task, as reading it for training would."""

    # -------------------------------------------------------------- files
    @property
    def form(self) -> Format:
        """How the files are written."""
        return Format(self.format, self.separator, self.quotes, self.header, self.encoding, self.longest)

    def file(self, split: Split) -> Path | None:
        """The file that has the rows of a split, if it is given."""
        name = getattr(self, split)
        name = self.train if isinstance(name, int | float) and name is not True else name
        return Path(self.root, name) if isinstance(name, str) else None

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Files that cannot be read, or else whose first rows lack a column."""
        given = [split for split in splits if getattr(self, split) is True and split not in self._given]
        if given:
            return [
                UserError(
                    "the rows of this recipe come from Python", where=f"data.{given[0]}", found="no rows",
                    expected="the name of a file", todo="name it, or pass them: heedful.train(recipe, run, data=rows)",
                )
            ]  # fmt: skip
        paths = list(dict.fromkeys(path for split in splits if (path := self.file(split)) is not None))
        if not paths:
            return []
        if missing := missing_files(self.root, paths):
            return missing
        return [problem for path in paths if (problem := self._first_problem(path)) is not None]

    def _first_problem(self, path: Path) -> UserError | None:
        """What is wrong with the first rows of a file, if anything."""
        try:
            self.require_columns(list(islice(read_records(path, self.form), PROBE)), str(path))
        except UserError as error:
            return error
        return None

    def require_columns(self, records: Sequence[Record], where: str) -> None:
        """Refuse rows that lack a column; the error names the one that is most similar."""
        if not records:
            raise UserError("there are no rows", where=where, expected="at least one row")
        names = list(dict.fromkeys(name for row, _ in records[:PROBE] for name in row))
        wanted = {f"data.columns.{setting}": column for setting, column in self.needed.items()}
        held = {"group": self.held_out.group, "stratify": self.held_out.stratify} if self.shares else {}
        wanted |= {f"data.held_out.{setting}": column for setting, column in held.items() if isinstance(column, str)}
        found = [column_problem(column, names, setting, where) for setting, column in wanted.items()]
        if problems := [problem for problem in found if problem is not None]:
            raise (
                problems[0]
                if len(problems) == 1
                else UserError(f"{len(problems)} columns are missing", where=where, problems=problems)
            )

    # -------------------------------------------------------------- rows
    def with_rows(self, given: Mapping[Split, Sequence[Record]]) -> Self:
        """The same settings for rows from Python, by split."""
        settings: dict[str, object] = dict.fromkeys(given, True)
        left = {} if "test" in given or not isinstance(self.test, str | bool) else {"test": None}
        held = {} if "valid" in given or not isinstance(self.valid, str | bool) else {"valid": 0.1}
        table = self.model_copy(update={**held, **left, **settings})
        table._given = {split: list(rows) for split, rows in given.items()}
        return table

    def source(self, split: Split) -> Iterable[Record]:
        """The rows of a split's file, or those from Python, held-out ones included."""
        if split in self._given:
            return self._given[split]
        path = self.file(split)
        if path is None:
            if getattr(self, split) is None:
                raise no_data(split)
            return self.source("train") if self.shares.get(split) else self._raise(self.problems([split]))
        return read_records(path, self.form)

    @staticmethod
    def _raise(problems: Sequence[UserError]) -> Iterator[Record]:
        raise problems[0]

    @property
    def shares(self) -> dict[Split, float | int]:
        """What is held out of the training rows, by split."""
        given: dict[Split, Any] = {"valid": self.valid, "test": self.test}
        return {split: share for split, share in given.items() if type(share) in (int, float)}

    def records(self, split: Split) -> list[Record]:
        """The rows of a split."""
        rows = list(self.source(split))
        self.require_columns(rows, str(self.file(split) or f"data.{split}"))
        if not self.shares or (split != "train" and split not in self.shares):
            return rows
        self._parts = self.parts(rows)
        return [rows[number] for number in self._parts[split]]

    @property
    def division(self) -> dict[str, list[int]]:
        """The numbers of the held-out rows, counted from 1 without the header, once the rows are read."""
        return {split: [number + 1 for number in rows] for split, rows in self._parts.items() if split != "train"}

    def parts(self, records: Sequence[Record]) -> dict[Split, list[int]]:
        """The numbers of the rows of each split that is a part of the training rows."""
        if not self.shares:
            return {"train": list(range(len(records)))}
        return held_out([self.unit(row, place) for row, place in records], self._classes(records), self.shares,
                        self.held_out.seed)  # fmt: skip

    def unit(self, row: Mapping[str, object], place: str) -> str:
        """What is not divided: the group of a row, or its input, apart from case and spaces."""
        group = self.held_out.group
        if group is not None:
            return text_of(row.get(group)) or place  # a row without a group is on its own
        return "\0".join(map(same_text, self.inputs(row)))

    def _classes(self, records: Sequence[Record]) -> list[str] | None:
        column = self.held_out.stratify
        if column is False:
            return None
        if column is not None:
            return [same_text(row.get(column)) for row, _ in records]
        labels = [same_text(label) for row, _ in records if (label := self.label(row)) is not None]
        fits = len(labels) == len(records) and len(set(labels)) <= min(CLASS_COUNT, len(labels) // 2)
        return labels if fits else None

    def read(self, split: Split) -> Any:
        """The examples of a split."""
        return self.examples(self.records(split), split)


def column_problem(name: str, names: Sequence[str], setting: str, where: str) -> UserError | None:
    """The error for a column that some rows do not have."""
    try:
        require_column(name, names, where)
    except UserError as error:
        whole, _, place = setting.rpartition(".")
        setting = whole if place.isdecimal() else setting  # one of several columns
        error.expected = f"the name of a column, for {setting}"
        close = "" if error.todo is None else error.todo.removeprefix("did you mean ").rstrip("?")
        error.todo = f"did you mean {'' if place.isdecimal() else f'{setting}='}{close}?" if close else f"set {setting}"
        if len(names) == 1 and any(mark in names[0] for mark in ",;\t|"):
            error.todo = "set data.separator to the mark between the columns"
        return error
    return None


class ColumnNames(Config):
    """Base of the columns that a task reads."""

    given: ClassVar[tuple[str, ...]]  # the settings of columns that are the input
    wanted: ClassVar[str | None] = None  # that of the column to predict, if it is one value

    @property
    def names(self) -> dict[str, str]:
        """The columns that are read, by the name of their setting."""
        found = dict[str, str]()
        for setting, name in self:
            several = [name] if isinstance(name, str) else name if isinstance(name, tuple) else []
            found |= {setting if len(several) == 1 else f"{setting}.{n}": one for n, one in enumerate(several)}
        return found

    @property
    def needed(self) -> dict[str, str]:
        """The columns that every table must have."""
        return self.names

    def inputs(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The texts of a row that a model is given."""
        every = self.names
        return tuple(text_of(parsed(row.get(every[name]))) for name in every if name.split(".")[0] in self.given)


class RowColumns(ColumnNames):
    """Base of columns of which each row is an example."""

    @abstractmethod
    def example(self, row: Mapping[str, object], place: str) -> object:
        """The example of a row in the plain form of its task, as from Python."""


class ColumnTable(Table):
    """Base of tables whose columns have names that the task knows."""

    columns: Any  # the names of the columns; each task has a class of its own

    @property
    def needed(self) -> Mapping[str, str]:
        """The columns that must exist, by the name of their setting."""
        found: dict[str, str] = self.columns.needed
        return found

    def inputs(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The texts of a row that a model is given."""
        found: tuple[str, ...] = self.columns.inputs(row)
        return found

    def label(self, row: Mapping[str, object]) -> str | None:
        """What is to be predicted of a row, if it is one value."""
        wanted = self.columns.wanted
        name = None if wanted is None else self.columns.names.get(wanted)
        return None if name is None else replace_surrogates(text_of(row.get(name)).strip())[0]


class RowTable(ColumnTable):
    """Base of tables with an example per row."""

    @staticmethod
    @abstractmethod
    def collect(examples: Iterable[object], split: Split) -> Any:
        """Examples in their plain form as the task reads them."""

    def check_row(self, row: Mapping[str, object], place: str) -> None:
        """Refuse a row that is no example of the task."""
        try:
            self.examples([(dict(row), place)], "train")
        except UserError as error:
            if str(error.where).startswith(place):  # not that nothing is left without a blank text
                raise

    def examples(self, records: Sequence[Record], split: Split) -> Any:
        """An example for each row."""
        rows = [self.columns.example(row, place) for row, place in records]
        return self.collect(Placed(rows, [place for _, place in records]), split)


def list_value(value: object, where: str, setting: str) -> list[str]:
    """A list of texts: a list, JSON, or words with spaces between."""
    found = parsed(value)
    if isinstance(found, str) and not found.strip().startswith("["):
        return found.split()
    if not isinstance(found, list | tuple):
        raise UserError(
            f"there is no list in the column of data.columns.{setting}", where=where, found=shown(value),
            expected='a list, as JSON ["a", "b"], or words with spaces between',
        )  # fmt: skip
    return [text_of(one) for one in found]
