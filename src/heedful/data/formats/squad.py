"""Question answering data: SQuAD's JSON (Rajpurkar et al., 2016), or JSON lines, plain or gzip."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.sources import FilePerSplit, Split, json_lines, lines, list_keys, string_field
from heedful.errors import UserError, shown

MAX_FILE = 1_000_000_000  # characters
AROUND = 40  # characters that an error quotes
BETWEEN = "\n"  # joined paragraphs


class Answer(NamedTuple):
    """An answer text, and its first character in the passage."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage, with its correct answers; `name` is its unique id."""

    name: str
    question: str
    passage: str
    answers: tuple[Answer, ...]


class Questions(NamedTuple):
    """The questions of one split, and the number of blank ones."""

    questions: list[Question]
    skipped: int


class WindowsConfig(Config):
    """How passages longer than the context are split, and how long an answer may be."""

    stride: int = Field(128, ge=1, le=1_000_000, description="tokens of the passage between the starts of two windows")
    question: int = Field(64, ge=1, le=1_000_000, description="maximum tokens of a question")
    longest: int = Field(30, ge=1, le=1_000_000, description="maximum tokens of an answer")


class QuestionFiles(FilePerSplit):
    """Base of files of questions."""

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Question]:
        """Every question of a file, blank ones included."""

    def read(self, split: Split) -> Questions:
        """The questions of a split, and the number of those with a blank question or passage."""
        path = self.path(split)
        rows = list(self.rows(path))
        questions = [one for one in rows if one.question.strip() and one.passage.strip()]
        if not questions:
            raise UserError("there are no questions", where=str(path), expected="questions about passages")
        return Questions(questions, len(rows) - len(questions))


class Squad(QuestionFiles):
    """Articles of paragraphs with questions, as SQuAD v1.1 is released."""

    kind: Literal["squad"] = "squad"
    paragraphs: int | None = Field(
        1,
        ge=1,
        le=1_000_000,
        exclude_if=lambda paragraphs: paragraphs == 1,  # recipes and runs without it stay as they are
        description="paragraphs of an article that are joined to one passage; null: all of them",
    )

    def rows(self, path: Path) -> Iterator[Question]:
        """The questions of all articles, in order."""
        data = _read_json(path)
        for number, article in enumerate(_list(data, "data", str(path)), 1):
            title = article.get("title") if isinstance(article.get("title"), str) else None
            there = f"{path}: article {number}" + (f" ({title})" if title else "")
            found = [
                _paragraph(paragraph, f"{there}, paragraph {place}")
                for place, paragraph in enumerate(_list(article, "paragraphs", there), 1)
            ]
            size = self.paragraphs or max(1, len(found))
            for first in range(0, len(found), size):
                yield from _joined(found[first : first + size])


class JsonQuestions(QuestionFiles):
    """One JSON object per line: a question, a passage, an answer, and its first character."""

    kind: Literal["jsonl"] = "jsonl"
    longest: int = Field(1_000_000, ge=1, le=100_000_000, description="maximum characters per line")

    def rows(self, path: Path) -> Iterator[Question]:
        """The question of each object; a blank line is a blank one."""
        for number, (where, row) in enumerate(json_lines(path, self.longest), start=1):
            if row is not None:
                question, passage, text = (string_field(row, key, where) for key in ("question", "passage", "answer"))
                yield Question(str(number), question, passage, (_answer(text, row.get("start"), passage, where),))
            else:
                yield Question(str(number), "", "", ())


QuestionsConfig = Annotated[Squad | JsonQuestions, Field(discriminator="kind")]


def _paragraph(row: dict[str, Any], where: str) -> tuple[str, list[Question]]:
    """A passage of SQuAD's JSON, and the questions about it."""
    passage = string_field(row, "context", where)
    return passage, [_question(question, passage, where) for question in _list(row, "qas", where)]


def _joined(paragraphs: Sequence[tuple[str, list[Question]]]) -> Iterator[Question]:
    """The questions about paragraphs that are one passage, with a line for each."""
    whole, begin = BETWEEN.join(passage for passage, _ in paragraphs), 0
    for passage, questions in paragraphs:
        for one in questions:
            answers = tuple(Answer(answer.text, begin + answer.start) for answer in one.answers)
            yield one._replace(passage=whole, answers=answers)
        begin += len(passage) + len(BETWEEN)


def _question(row: Mapping[str, Any], passage: str, where: str) -> Question:
    """A question of SQuAD's JSON."""
    name = string_field(dict(row), "id", where)
    where = f"{where}, question {name}"
    if row.get("is_impossible"):
        raise UserError(
            "this question has no answer", where=where, found='"is_impossible": true, as in SQuAD 2.0',
            expected="an answer that occurs in the passage, as in SQuAD 1.1",
            todo="use SQuAD 1.1, or remove such questions",
        )  # fmt: skip
    answers = tuple(
        _answer(string_field(answer, "text", where), answer.get("answer_start"), passage, where)
        for answer in _list(row, "answers", where)
    )
    if not answers:
        raise UserError("this question has no answer", where=where, found="an empty list", expected="at least one")
    return Question(name, string_field(dict(row), "question", where), passage, answers)


def _answer(text: str, start: object, passage: str, where: str) -> Answer:
    """An answer, checked to occur at that position of the passage."""
    if type(start) is not int or start < 0:
        raise UserError(
            "the start of the answer is not a position", where=where, found=shown(start),
            expected="the index of a character, from 0",
        )  # fmt: skip
    if not text.strip() or passage[start : start + len(text)] != text:
        other = passage.find(text) if text.strip() else -1
        raise UserError(
            "the answer is not at that position of the passage", where=where,
            found=f"{shown(passage[start : start + max(len(text), 1)])} at character {start}", expected=shown(text),
            todo=f"it occurs at character {other}" if other >= 0 else "it does not occur in the passage",
        )  # fmt: skip
    return Answer(text, start)


def _read_json(path: Path) -> Mapping[str, Any]:
    """Parse a file as a JSON object."""
    text = "\n".join(lines(path, MAX_FILE))
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"this is not JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}",
            found=shown(text[max(0, error.pos - AROUND // 2) : error.pos + AROUND // 2]),
            expected='SQuAD\'s JSON, {"data": [...]}; for JSON lines, write data.kind: jsonl',
        ) from None  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise UserError(f"this JSON cannot be read: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise UserError("this is not a JSON object", where=str(path), found=shown(data), expected='{"data": [...]}')
    return data


def _list(row: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list of objects under a key."""
    found = row.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(
            f"there is no list of objects under {shown(key)}", where=where,
            found=shown(found) if key in row else list_keys(row), expected=f'"{key}": [{{...}}, ...]',
        )  # fmt: skip
    return found
