"""Tables of texts, for every task with texts: which columns it reads, and the example of a row."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from heedful.data import own
from heedful.data.dialogues.sources import Dialogues, Utterance, collect_dialogues, utterances_in
from heedful.data.fields.columns import Place, components, is_missing, to_number
from heedful.data.fields.rows import Rows, named_rows
from heedful.data.formats.conll import require_tag
from heedful.data.formats.sources import Split
from heedful.data.stories.sources import own_stories
from heedful.data.tables.reading import Record, parsed, same_text, text_of
from heedful.data.tables.source import ColumnName, ColumnNames, ColumnTable, RowColumns, RowTable, Table, list_value
from heedful.data.text.documents import split_text
from heedful.data.text.files import DocumentStream, skip_blank
from heedful.errors import UserError, shown


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the column {shown(twice)} stands here twice; write each once")
    return names


Several = Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=1000), AfterValidator(_different)]
OneOrSeveral = ColumnName | Several
MARKS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
NUMBER = "a number such as 3.8"
ROOT = re.compile(r"^\s*\(\s*([^\s()]+)")  # the class of a tree
COMMA = re.compile(r"-?[0-9]+,[0-9]+")  # as many countries write decimals


class TargetColumns(RowColumns):
    """Base of the columns of texts, or pairs of texts, each with something to predict."""

    given: ClassVar = ("text", "pair")
    wanted: ClassVar = "label"
    text: ColumnName = Field("text", description="column of the text")
    pair: ColumnName | None = Field(None, description="column of the second text, for pairs")

    @abstractmethod
    def target(self, row: Mapping[str, object], place: str) -> str:
        """What is to be predicted, as text."""

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(text, label), or (text, other text, label)."""
        texts = [text_of(row.get(name)) for name in (self.text, self.pair) if name is not None]
        return (*texts, self.target(row, place) if all(map(str.strip, texts)) else "")  # blank texts are left out


class TargetTable(RowTable):
    """Base of rows with a text, or a pair of texts, and something to predict."""

    collect: ClassVar = staticmethod(own.labelled)

    @property
    def pair(self) -> str | None:
        """The column of the second text, for pairs."""
        found: str | None = self.columns.pair
        return found


class LabelColumns(TargetColumns):
    """The columns of texts, or pairs of texts, with a label."""

    label: ColumnName = Field("label", description="column of the label")

    def target(self, row: Mapping[str, object], place: str) -> str:
        """The label."""
        return text_of(row.get(self.label)).strip()


class LabelTable(TargetTable):
    """Rows with a text, or a pair of texts, and a label."""

    columns: LabelColumns = Field(LabelColumns(), description="the columns that are read")


class LabelsColumns(TargetColumns):
    """The columns of texts, or pairs of texts, with any number of labels."""

    label: OneOrSeveral = Field(
        "label",
        description="column of the labels, a list or a text with commas between them; or the names of several columns, "
        "one for each label, with 1 where a text has it and 0 where not",
    )

    def target(self, row: Mapping[str, object], place: str) -> str:
        """The labels, with commas between them."""
        found = parsed(row.get(self.label)) if isinstance(self.label, str) else self._marked(row, place)
        if not isinstance(found, list | tuple):
            return text_of(found).strip()
        labels = [text_of(one).strip() for one in found]
        if (divided := next((one for one in labels if "," in one), None)) is not None:
            raise UserError(
                "this label has a comma, which divides labels", where=place, found=shown(divided),
                todo="write another mark in place of the comma",
            )  # fmt: skip
        return ", ".join(labels)

    def _marked(self, row: Mapping[str, object], place: str) -> list[str]:
        """The columns that a row has a 1 in."""
        for name in self.label:
            if same_text(row.get(name)) not in MARKS:
                raise UserError(
                    "this does not say whether a text has the label", where=f"{place}, column {shown(name)}",
                    found=shown(row.get(name)), expected="1 or 0, or true or false",
                )  # fmt: skip
        return [name for name in self.label if MARKS[same_text(row.get(name))]]


class LabelsTable(TargetTable):
    """Rows with a text, or a pair of texts, and any number of labels."""

    columns: LabelsColumns = Field(LabelsColumns(), description="the columns that are read")

    def classes(self, row: Mapping[str, object]) -> Sequence[str]:
        """The labels of a row."""
        with suppress(UserError):  # another finding
            return [name for one in self.columns.target(row, "").split(",") if (name := one.strip())]
        return ()


class NumberColumns(TargetColumns):
    """The columns of texts, or pairs of texts, with a number, or several."""

    label: OneOrSeveral = Field(
        "label",
        description="column of the number; or the names of several columns, as [width, height], where a text has "
        "several numbers; or one column of lists of numbers, with their names in model.numbers",
    )

    @property
    def several(self) -> tuple[str, ...]:
        """The names of the columns, if there are several."""
        return self.label if isinstance(self.label, tuple) and len(self.label) > 1 else ()

    def target(self, row: Mapping[str, object], place: str) -> str:
        """The number, or the numbers with commas between them."""
        found = list[object]()
        for name in [self.label] if isinstance(self.label, str) else self.label:
            value, at = parsed(row.get(name)), Place(place, name)
            if is_missing(value):
                raise at.error("a number is missing", value, NUMBER, "write it into the row, or remove the row")
            if isinstance(value, str) and COMMA.fullmatch(value.strip()):
                raise at.error("this is not a number", value, NUMBER, "write a point in place of the comma")
            parts = [value] if self.several else components(value)
            for part in parts:
                to_number(part, at, NUMBER)
            found += parts
        return ", ".join(map(text_of, found))


class NumberTable(TargetTable):
    """Rows with a text, or a pair of texts, and a number, or several."""

    columns: NumberColumns = Field(NumberColumns(), description="the columns that are read")


class StyleColumns(RowColumns):
    """The columns of texts in several styles."""

    given: ClassVar = ("text",)
    wanted: ClassVar = "style"
    text: ColumnName = Field("text", description="column of the text")
    style: ColumnName = Field("style", description="column of the name of its style")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(text, style)."""
        return text_of(row.get(self.text)), text_of(row.get(self.style)).strip()


class StyleTable(RowTable):
    """Rows with a text and its style."""

    columns: StyleColumns = Field(StyleColumns(), description="the columns that are read")
    collect: ClassVar = staticmethod(own.labelled)


class PairColumns(RowColumns):
    """The columns of texts and their translations."""

    given: ClassVar = ("source",)
    source: ColumnName = Field("source", description="column of the source text")
    target: ColumnName = Field("target", description="column of its translation")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(source, target)."""
        return text_of(row.get(self.source)), text_of(row.get(self.target))


class TranslationTable(RowTable):
    """Rows with a text and its translation."""

    columns: PairColumns = Field(PairColumns(), description="the columns that are read")
    collect: ClassVar = staticmethod(own.pairs)


class ChoiceColumns(RowColumns):
    """The columns of texts with several continuations."""

    given: ClassVar = ("text", "begin", "choices")
    wanted: ClassVar = "label"
    text: ColumnName = Field("text", description="column of the text")
    begin: ColumnName | None = Field(None, description="column of the words that every choice starts with")
    choices: tuple[ColumnName, ...] = Field(
        ("choices",), min_length=1, max_length=1000, description="column of each choice, or one column of lists"
    )
    label: ColumnName = Field("label", description="column of the index of the correct choice, from 0")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(text, choices, correct)."""
        every = [text_of(row.get(name)) for name in self.choices]
        if len(self.choices) == 1:
            every = list_value(row.get(self.choices[0]), place, "choices")
        begin = "" if self.begin is None else f"{text_of(row.get(self.begin))} "
        number = text_of(row.get(self.label)).strip()
        if not number.isdecimal() or int(number[:9]) >= len(every):
            raise UserError(
                "this is not the index of a choice", where=place, found=shown(number) if number else "nothing",
                expected=f"a whole number from 0 to {len(every) - 1}",
            )  # fmt: skip
        return text_of(row.get(self.text)), [begin + one for one in every], int(number)


class ChoiceTable(RowTable):
    """Rows with a text, its continuations, and which one is correct."""

    columns: ChoiceColumns = Field(ChoiceColumns(), description="the columns that are read")
    collect: ClassVar = staticmethod(own.choices)


class TagColumns(RowColumns):
    """The columns of words and of their tags."""

    given: ClassVar = ("words",)
    words: ColumnName = Field("tokens", description="column of the words: a list, or a text with spaces between them")
    tags: ColumnName = Field("tags", description="column of their tags, in the same form")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(words, tags)."""
        words, tags = (
            list_value(row.get(name), place, key) for name, key in ((self.words, "words"), (self.tags, "tags"))
        )
        if len(words) != len(tags):
            raise UserError(
                "the numbers of tags and words differ", where=place, found=f"{len(words)} words, {len(tags)} tags",
                expected="a tag for each word",
            )  # fmt: skip
        return words, [require_tag(tag, place) for tag in tags]


class TagTable(RowTable):
    """Rows with the words of a sentence and their tags."""

    columns: TagColumns = Field(TagColumns(), description="the columns that are read")
    collect: ClassVar = staticmethod(own.tagged)

    def classes(self, row: Mapping[str, object]) -> Sequence[str]:
        """The tags of a row but O, which most words have."""
        with suppress(UserError):  # another finding
            return [tag for tag in list_value(row.get(self.columns.tags), "", "tags") if tag != "O"]
        return ()


class QuestionColumns(RowColumns):
    """The columns of questions about a passage."""

    given: ClassVar = ("question", "passage")
    question: ColumnName = Field("question", description="column of the question")
    passage: ColumnName = Field("passage", description="column of the passage")
    answer: ColumnName = Field(
        "answer", description="column of the answer, a part of the passage; or of objects with text and answer_start"
    )
    start: ColumnName | None = Field(
        None, description="column of its first character in the passage; null: the answer occurs once"
    )

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(question, passage, answer, start)."""
        passage, value = text_of(row.get(self.passage)), row.get(self.answer)
        start = None if self.start is None else row.get(self.start)
        if isinstance(value, Mapping):  # as the package `datasets` has SQuAD
            texts, starts = list(value.get("text", [])), list(value.get("answer_start", []))
            value, start = (texts or [""])[0], (starts or [None])[0]
        answer = text_of(value)
        number = passage.find(answer) if start is None else int(text) if (text := text_of(start)).isdecimal() else -1
        once = start is not None or passage.count(answer) == 1
        if not answer.strip() or not once or number < 0 or passage[number : number + len(answer)] != answer:
            raise UserError(
                "the answer is not at one place of the passage", where=place, found=shown(answer),
                expected="a text that occurs in the passage, at its start",
                todo="set data.columns.start to the column of its first character" if start is None else None,
            )  # fmt: skip
        return text_of(row.get(self.question)), passage, answer, number


class QuestionTable(RowTable):
    """Rows with a question, a passage, and the answer."""

    cuts: ClassVar = False

    columns: QuestionColumns = Field(QuestionColumns(), description="the columns that are read")
    collect: ClassVar = staticmethod(own.questions)


class StoryColumns(RowColumns):
    """The columns of questions about a story."""

    given: ClassVar = ("story", "question")
    wanted: ClassVar = "answer"
    story: ColumnName = Field("story", description="column of the story: a text, or a list of sentences")
    question: ColumnName = Field("question", description="column of the question")
    answer: ColumnName = Field("answer", description="column of the answer, a word")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """(story, question, answer)."""
        story = row.get(self.story)
        sentences = list(story) if isinstance(story, list | tuple) else text_of(story)
        return sentences, text_of(row.get(self.question)), text_of(row.get(self.answer))


class StoryTable(RowTable):
    """Rows with a story, a question and its answer."""

    columns: StoryColumns = Field(StoryColumns(), description="the columns that are read")
    collect: ClassVar = staticmethod(own_stories)

    def classes(self, row: Mapping[str, object]) -> Sequence[str]:
        """The answer of a row."""
        return [self.label(row) or ""]


class UtteranceColumns(ColumnNames):
    """The columns of dialogues: a row for each utterance, or for each dialogue."""

    given: ClassVar = ("dialogue", "text", "utterances")
    dialogue: ColumnName = Field("dialogue", description="column of the dialogue's id; its rows are in order")
    text: ColumnName = Field("text", description="column of the utterance")
    speaker: ColumnName | None = Field(None, description="column of the speaker; null: two speakers take turns")
    utterances: ColumnName | None = Field(
        None, description="column of lists of utterances, if a row is a whole dialogue; then the others are not read"
    )

    @property
    def needed(self) -> dict[str, str]:
        """The columns that every table must have."""
        alone = {} if self.utterances is None else {"utterances": self.utterances}
        return alone or self.names


class UtteranceTable(ColumnTable):
    """Rows with an utterance of a dialogue each, or with a whole dialogue."""

    cuts: ClassVar = False
    repeats: ClassVar = True

    columns: UtteranceColumns = Field(UtteranceColumns(), description="the columns that are read")

    def unit(self, row: Mapping[str, object], place: str) -> str:
        """The dialogue of a row, which is not divided."""
        if self.held_out.group is None and self.columns.utterances is None:
            return text_of(row.get(self.columns.dialogue)).strip()
        return super().unit(row, place)

    def examples(self, records: Sequence[Record], split: Split) -> Dialogues:
        """The dialogues, in the order in which they begin."""
        found = dict[object, list[Utterance]]()
        for number, (row, place) in enumerate(records):
            name, utterances = self._utterances(row, place)
            found.setdefault(number if name is None else name, []).extend(utterances)
        return collect_dialogues(found.values(), f"data.{split}")

    def check_row(self, row: Mapping[str, object], place: str) -> None:
        """Refuse a row without a dialogue, or without utterances."""
        self._utterances(row, place)

    def _utterances(self, row: Mapping[str, object], place: str) -> tuple[str | None, list[Utterance]]:
        """The id of a row's dialogue, None where the row is a whole one, and its utterances."""
        columns = self.columns
        if columns.utterances is not None:
            return None, utterances_in(dict(row), place, columns.utterances)
        name = text_of(row.get(columns.dialogue)).strip()
        if not name:
            raise UserError(
                "an utterance belongs to no dialogue", where=place, found="a blank dialogue id",
                expected="the id of its dialogue",
            )  # fmt: skip
        who = None if columns.speaker is None else text_of(row.get(columns.speaker)).strip()
        return name, [Utterance(text_of(row.get(columns.text)).strip(), who)]


class TreeColumns(RowColumns):
    """The column of labelled trees."""

    given: ClassVar = ("tree",)
    tree: ColumnName = Field("tree", description="column of the tree, as (2 (1 not) (3 bad))")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """A tree as text."""
        return text_of(row.get(self.tree))


class TreeTable(RowTable):
    """Rows with a labelled tree."""

    columns: TreeColumns = Field(TreeColumns(), description="the column that is read")
    collect: ClassVar = staticmethod(own.trees)

    def classes(self, row: Mapping[str, object]) -> Sequence[str]:
        """The class of the whole tree."""
        return ROOT.findall(text_of(row.get(self.columns.tree)))


class TextColumns(RowColumns):
    """The column of texts."""

    given: ClassVar = ("text",)
    text: ColumnName = Field("text", description="column of the text")

    def example(self, row: Mapping[str, object], place: str) -> object:
        """A text."""
        return text_of(row.get(self.text))


class SentenceTable(RowTable):
    """Rows with a sentence."""

    columns: TextColumns = Field(TextColumns(), description="the column that is read")
    collect: ClassVar = staticmethod(own.sentences)


class DocumentTable(RowTable):
    """Rows with a document each."""

    cuts: ClassVar = False

    columns: TextColumns = Field(TextColumns(), description="the column that is read")
    collect: ClassVar = staticmethod(own.text)

    def stream(self, split: Split) -> DocumentStream:
        """The lines of each document; blank documents are skipped."""
        return skip_blank(text.split("\n") for text in self._texts(split))

    def documents(self, split: Split) -> Iterator[list[str]]:
        """The sentences of each document; empty documents are skipped."""
        return (found for text in self._texts(split) if (found := split_text(text)))

    def _texts(self, split: Split) -> Iterable[str]:
        return (text_of(row.get(self.columns.text)) for row, _ in self.records(split))


class FieldTable(Table):
    """Rows with named columns of any type."""

    @property
    def needed(self) -> dict[str, str]:
        """None: the recipe says which columns are used."""
        return {}

    def inputs(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """All values of a row."""
        return tuple(map(text_of, row.values()))

    def examples(self, records: Sequence[Record], split: Split) -> Rows:
        """The rows."""
        return named_rows(records, self.root)
