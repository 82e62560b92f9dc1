"""A question about a story, and the sentences that each hop of a memory network attends to.

K hops, S sentences, C answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field

from heedful.data.formats.sources import Split
from heedful.data.stories.sources import GeneratedStories
from heedful.data.stories.story import Asked, Stories, split_sentences
from heedful.errors import UserError
from heedful.explore.once import OncePerModel
from heedful.explore.packets import not_finite, pack
from heedful.explore.samples import task_in
from heedful.explore.views import LONGEST, Call, ModelRequest, index_of, require_index
from heedful.tasks.story_answering.predictor import StoryAnswerer

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Hops"
ABOUT = "A question about a story, and which sentences each hop attends to."

SHOWN = 10  # stories to choose from
USUAL = 10  # sentences of a story that is easy to read
TOP = 6  # answers with their probabilities
MOST = 200  # sentences of a story
SPLITS: tuple[Split, ...] = ("test", "valid")


class HopsRequest(ModelRequest):
    """A model, and a question of its run's data by its index, or the user's own story and question."""

    number: int | None = Field(None, ge=0, le=10_000_000)  # None: the first that is shown
    story: str | None = Field(None, max_length=LONGEST)
    question: str | None = Field(None, max_length=1000)


class Library:
    """The questions of a run's test or validation data; of a model without data, generated ones."""

    def __init__(self, subject: Subject) -> None:
        self.folder, self.is_run = subject.folder, subject.is_run

    @cached_property
    def stories(self) -> Stories:
        """The stories with their questions."""
        task = task_in(self.folder) if self.is_run else None
        for split in SPLITS:
            try:
                if task is not None:
                    found: Stories = task.read(split)
                    return found
            except UserError:
                continue
        return GeneratedStories(test=SHOWN).read("test")

    @cached_property
    def asked(self) -> list[Asked]:
        """Every question, story by story."""
        return self.stories.asked

    @cached_property
    def order(self) -> list[int]:
        """The indices of the questions to choose from: one about each of the first stories, of a readable length."""
        found, start = list[int](), 0
        for story in self.stories.stories[:SHOWN]:
            sizes = [abs(question.after - USUAL) for question in story.questions]
            found.append(start + sizes.index(min(sizes)))
            start += len(story.questions)
        return found


libraries = OncePerModel(Library)


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, StoryAnswerer) and subject.predictor.hops > 0


def answer(subject: Subject, request: HopsRequest) -> bytes:
    """The answers with their probabilities, and the weights (K, S) of the sentences in each hop."""
    library, answerer = libraries.of(subject), subject.predictor
    index = library.order[0] if request.number is None else request.number
    require_index("number", index, len(library.asked))
    known = library.asked[index]
    own = request.story is not None or request.question is not None
    sentences = known.sentences if request.story is None else split_sentences(request.story)
    question = known.question.text if request.question is None else request.question
    if len(sentences) > MOST:
        raise UserError(
            "this story is too long to be shown", where="story", found=f"{len(sentences):,} sentences",
            expected=f"at most {MOST}",
        )  # fmt: skip
    with subject.lock, torch.no_grad():
        (found,) = answerer.predict([(sentences, question)], TOP)
    weights = np.array(found.weights, np.float32)
    if not np.isfinite(weights).all() or not np.isfinite(found.probability):
        raise not_finite()
    return pack(
        {
            "number": index,
            "own": own,
            "sentences": sentences,
            "question": question,
            "answers": found.probabilities,
            "right": None if own else known.question.answer,
            "supports": () if own else known.question.supports,
            "forgotten": found.forgotten,
            "unknown": found.unknown,
            "choices": [
                {"number": place, "question": library.asked[place].question.text,
                 "sentences": len(library.asked[place].sentences)}
                for place in library.order
            ],
        },
        weights=weights,
    )  # fmt: skip


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The question of a state, and the others to choose from."""
    library = libraries.of(subject)
    asked: dict[str, Any] = {"model": subject.name}
    if state.get("number") is not None:
        asked |= {"number": index_of(state, "number", len(library.asked))}
    asked |= {name: str(state[name]) for name in ("story", "question") if state.get(name) is not None}
    others = ({"model": subject.name, "number": index} for index in library.order)
    return [Call("hops", "answer", each) for each in (asked, *others)]


CALLS = {"answer": (HopsRequest, answer)}
