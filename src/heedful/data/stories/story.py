"""A story: sentences, and questions that are asked on the way, each about the sentences before it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Facts = Literal[1, 2, 3]
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")  # punctuation is left out
END = re.compile(r"(?<=[.!?])\s+|\n")  # of a sentence


class StoryQuestion(NamedTuple):
    """A question about the first sentences of a story, its answer, and the sentences that support it."""

    text: str
    answer: str
    after: int  # the number of sentences before it
    supports: tuple[int, ...] = ()  # indices of sentences, as far as they are known


@dataclass(frozen=True, slots=True)
class Story:
    """Sentences, and questions in the order in which they are asked."""

    sentences: tuple[str, ...]
    questions: tuple[StoryQuestion, ...]


class Asked(NamedTuple):
    """A question with the sentences that it is about."""

    sentences: tuple[str, ...]
    question: StoryQuestion


class Stories(NamedTuple):
    """The stories of a split."""

    stories: list[Story]
    skipped: int = 0  # stories without a question

    @property
    def asked(self) -> list[Asked]:
        """Every question, story by story."""
        return [
            Asked(story.sentences[: question.after], question) for story in self.stories for question in story.questions
        ]


def words_of(text: str) -> list[str]:
    """The words of a sentence in lower case, without punctuation."""
    return [word.lower() for word in WORD.findall(text)]


def split_sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, each on its own line or with its own full stop."""
    return tuple(part.strip() for part in END.split(text) if words_of(part))


def distinct(texts: Iterable[str]) -> list[str]:
    """Each text once, in order."""
    return list(dict.fromkeys(texts))
