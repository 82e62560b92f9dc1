"""Stories with questions: generated ones, files of the bAbI tasks (Weston et al., 2015), and JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.embedded import Embedded
from heedful.data.formats.sources import (
    SPLITS,
    FilePerSplit,
    Name,
    Split,
    json_lines,
    lines,
    list_keys,
    missing_files,
    no_data,
    string_field,
)
from heedful.data.located import located
from heedful.data.stories.story import Facts, Stories, Story, StoryQuestion, split_sentences, words_of
from heedful.data.tokenizers.base import replace_surrogates
from heedful.errors import UserError, shown

FIRST = {"train": 0, "valid": 10**9, "test": 2 * 10**9}  # the number of the first story of each split
NUMBERED = "a numbered line, such as '1 Mary moved to the bathroom.'"
ASKED = "a question, its answer and the numbers of its supporting facts, with tabs between them"
HELD_OUT = 10  # one story of this many is held out for validation, where there is no file


class GeneratedStories(Embedded):
    """Generated stories of people, places and objects, with questions like those of the first three bAbI tasks."""

    kind: Literal["generated_stories"] = "generated_stories"
    facts: Facts = Field(1, description="supporting facts of an answer")
    questions: int = Field(5, ge=1, le=1000, description="questions about each story")
    every: int = Field(2, ge=1, le=1000, description="sentences before each question, or a few more")
    train: int = Field(2_000, ge=1, le=10_000_000, description="stories for training")
    valid: int = Field(100, ge=1, le=1_000_000, description="stories for validation")
    test: int = Field(200, ge=1, le=1_000_000, description="stories for the final score")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the stories")

    def read(self, split: Split) -> Stories:
        """The stories of a split."""
        from heedful.data.stories.generator import generate_story

        count = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        first = FIRST[split]
        return Stories(
            [
                generate_story(self.seed, number, self.facts, self.questions, self.every)
                for number in range(first, first + count)
            ]
        )

    def file(self, split: Split) -> str:
        """The name of a split in errors."""
        return f"data.{split}"


class BabiFiles(Config):
    """Files of a bAbI task: numbered lines of stories, and questions with answers and supporting facts."""

    kind: Literal["babi"] = "babi"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    train: Name = Field(description="file for training, such as qa1_single-supporting-fact_train.txt")
    valid: Name | None = Field(
        None, description="file for validation; null: the last tenth of the training stories, which are then left out"
    )
    test: Name | None = Field(None, description="file for the final score")
    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")

    def file(self, split: Split) -> Path | None:
        """The file of a split, if it is given; validation may take a part of the training file."""
        name = {"train": self.train, "valid": self.valid or self.train, "test": self.test}[split]
        return None if name is None else Path(self.root, name)

    def read(self, split: Split) -> Stories:
        """The stories of a split."""
        path = self.file(split)
        if path is None:
            raise no_data(split)
        found = read_babi(path, self.longest)
        if self.valid is not None or split == "test":
            return found
        cut = len(found.stories) - max(1, len(found.stories) // HELD_OUT)
        if cut < 1:
            raise UserError(
                "no story can be held out for validation", where=str(path), found="one story",
                todo="name a file for validation: data.valid",
            )  # fmt: skip
        return found._replace(stories=found.stories[cut:] if split == "valid" else found.stories[:cut])

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return missing_files(self.root, map(self.file, splits))


class JsonStories(FilePerSplit):
    """One JSON object per line: a story as a list of sentences or a text, a question, and its answer."""

    kind: Literal["story_jsonl"] = "story_jsonl"
    longest: int = Field(1_000_000, ge=1, le=100_000_000, description="maximum characters per line")

    def read(self, split: Split) -> Stories:
        """The stories of a split, one for each question."""
        return read_json_stories(self.path(split), self.longest)


StoriesConfig = Annotated[GeneratedStories | BabiFiles | JsonStories, Field(discriminator="kind")]


# ------------------------------------------------------------------ bAbI
def read_babi(path: Path, longest: int) -> Stories:
    """The stories of a file in bAbI's format; a story begins where the numbers start at 1 again."""
    stories, skipped = list[Story](), 0
    for part in _numbered(path, longest):
        story = _story(part)
        stories += [story] if story.questions else []
        skipped += not story.questions
    return _required(stories, skipped, str(path))


def _numbered(path: Path, longest: int) -> Iterator[list[tuple[str, str]]]:
    """The lines of each story without their numbers, each with its location; blank lines are left out."""
    part = list[tuple[str, str]]()
    for number, line in enumerate(lines(path, longest), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        first, _, rest = line.strip(" ").partition(" ")
        if not (first.isascii() and first.isdigit() and rest.strip()):
            raise UserError("this line has no number or no text", where=where, found=shown(line), expected=NUMBERED)
        if first == "1" and part:
            yield part
            part = []
        if first != str(len(part) + 1):
            raise UserError(
                "the lines of this story are not numbered one by one", where=where, found=first[:20],
                expected=f"{len(part) + 1}, or 1 for a new story",
            )  # fmt: skip
        part.append((where, rest))
    if part:
        yield part


def _story(numbered: Sequence[tuple[str, str]]) -> Story:
    """The story of numbered lines."""
    sentences, questions = list[str](), list[StoryQuestion]()
    indices = dict[str, int]()  # of the sentences, by the numbers of their lines
    for number, (where, line) in enumerate(numbered, start=1):
        text, tab, rest = line.partition("\t")
        if not tab:
            indices[str(number)] = len(sentences)
            sentences.append(text.strip())
            continue
        answer, _, facts = rest.partition("\t")
        if unknown := [fact for fact in facts.split() if fact not in indices]:
            raise UserError(
                "a supporting fact is no sentence before its question", where=where, found=shown(unknown[0]),
                expected="the number of a sentence of the same story",
            )  # fmt: skip
        supports = tuple(indices[fact] for fact in facts.split())
        questions.append(_question(text, answer, sentences, supports, where, ASKED))
    return Story(tuple(sentences), tuple(questions))


# ------------------------------------------------------------------ JSON lines, and examples from Python
def read_json_stories(path: Path, longest: int) -> Stories:
    """The stories of a file of JSON objects."""
    stories = list[Story]()
    for where, row in json_lines(path, longest):
        if row is not None:
            question, answer = (string_field(row, key, where) for key in ("question", "answer"))
            stories.append(one_question(sentences_of(row, where), question, answer, row.get("supports", ()), where))
    return _required(stories, 0, str(path))


def sentences_of(row: dict[str, object], where: str) -> tuple[str, ...]:
    """The sentences in the field `story` of a row: a list of them, or one text."""
    found = row.get("story")
    if isinstance(found, str):
        return split_sentences(found)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UserError(
            "a row needs a story", where=where, found=shown(found) if "story" in row else list_keys(row),
            expected="'story' with a text or a list of sentences",
        )  # fmt: skip
    return tuple(one for one in found if words_of(one))


def one_question(
    sentences: Sequence[str], question: str, answer: str, supports: object = (), where: str = "story"
) -> Story:
    """A story with one question about all of it."""
    form = "indices of sentences from 0"
    if not isinstance(supports, list | tuple):
        raise UserError("the supporting facts are no list", where=where, found=shown(supports), expected=form)
    for fact in supports:
        if type(fact) is not int or not 0 <= fact < len(sentences):
            raise UserError("a supporting fact is no sentence", where=where, found=shown(fact), expected=form)
    asked = _question(question, answer, sentences, tuple(supports), where, "a question and its answer")
    return Story(tuple(sentences), (asked,))


def own_stories(examples: Iterable[object], split: Split) -> Stories:
    """(story, question, answer), or with a list of supporting sentences; a story is a text or a list of sentences."""
    stories = list[Story]()
    for where, row in located(examples, split):
        parts = list(row) if isinstance(row, Sequence) and not isinstance(row, str) else []
        if len(parts) not in (3, 4) or not all(isinstance(part, str) for part in parts[1:3]):
            raise UserError(
                "invalid example for the task", where=where, found=shown(row), expected="(story, question, answer)"
            )
        text, question, answer, supports = (*parts, ())[:4]
        story: dict[str, object] = {"story": text if isinstance(text, str | list) else list(text)}
        stories.append(one_question(sentences_of(story, where), question, answer, supports, where))
    return _required(stories, 0, f"data.{split}")


# ------------------------------------------------------------------ checks
def _question(
    text: str, answer: str, before: Sequence[str], supports: tuple[int, ...], where: str, expected: str
) -> StoryQuestion:
    """A question that has words, an answer, and sentences before it."""
    if not words_of(text):
        raise UserError("there is no question", where=where, found=shown(text), expected=expected)
    if not answer.strip():
        raise UserError("this question has no answer", where=where, found=shown(text.strip()), expected=expected)
    if not before:
        raise UserError(
            "there is no sentence before this question", where=where, found=shown(text.strip()),
            expected="a story with at least one sentence",
        )  # fmt: skip
    return StoryQuestion(text.strip(), replace_surrogates(answer.strip())[0], len(before), supports)


def _required(stories: list[Story], skipped: int, where: str) -> Stories:
    """The stories; an error if there are none."""
    if not stories:
        found = f"{skipped} stories without a question" if skipped else "no story"
        raise UserError("there are no questions", where=where, found=found, expected="stories with questions")
    return Stories(stories, skipped)
