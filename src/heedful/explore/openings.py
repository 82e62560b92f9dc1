"""The first picture of a view: the input of a model's own data that shows most in it, what is chosen there, and why."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.inspect import TextInput
from heedful.explore.packets import pack
from heedful.explore.samples import LONG, SHORT
from heedful.explore.views import LONGEST, ModelRequest
from heedful.tasks.base import Example

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject


@dataclass(frozen=True)
class Highlight:
    """What an input shows in a view: how much, the reason in a sentence, and the state that shows it."""

    gain: float
    why: str
    state: Mapping[str, int | str] = field(default_factory=dict)
    text: str | None = None
    other: str | None = None
    size: int = 1000  # in bytes, as what is cached needs


class TextOpening(ModelRequest):
    """A model, and the text to open on; without one, the view chooses among the examples."""

    text: str | None = Field(None, max_length=LONGEST)
    other: str | None = Field(None, max_length=LONGEST)


OpeningCall = tuple[type[Config], Callable[..., bytes]]
TextHighlighter = Callable[["Subject", TextInput], Highlight | None]
Choice = TypeVar("Choice")
NOTHING = Highlight(0.0, "")


def on_text(highlight: TextHighlighter, tries: int = 1, read_references: bool = False) -> OpeningCall:
    """The call of a view that opens on the example that shows most; for one of them, on what it shows.

    Of any other text it says nothing, so that the work is bounded.
    A translator may read them with their references, so that nothing has to be searched to compare them.
    """

    def opening(subject: Subject, request: TextOpening) -> bytes:
        if request.text is not None:
            given = TextInput(text=request.text, other=request.other)
            known = any((one.text, one.other) == (given.text, given.other) for one in subject.examples.examples)
            return packed(judge(lambda one: highlight(subject, one), given) if known else NOTHING)
        examples = subject.examples.examples[:tries]
        key = f"opening {highlight.__module__} {json.dumps(examples)}"
        return packed(subject.cached(key, lambda: best_text(subject, examples)))

    def best_text(subject: Subject, examples: Sequence[Example]) -> Highlight:
        """The example of a readable length that shows most, or of all."""
        some = [one for one in examples if SHORT <= len(one.text) <= LONG] or examples
        reference = read_references and inspect.is_translator(subject.predictor)

        def read(one: Example, other: str | None) -> Highlight:
            return judge(lambda given: highlight(subject, given), TextInput(text=one.text, other=other))

        if reference:
            chosen, _ = best(lambda one: read(one, one.right), some)
            found = read(chosen, chosen.other)
        else:
            chosen, found = best(lambda one: read(one, one.other), some)
        return replace(found, text=chosen.text, other=chosen.other)

    return TextOpening, opening


def on_image(
    choices: Callable[[Subject], Iterable[int]], highlight: Callable[[Subject, int], Highlight | None]
) -> OpeningCall:
    """The call of a view that opens on the one of a few test images that shows most, which it names in the state."""

    def opening(subject: Subject, request: ModelRequest) -> bytes:
        def compute() -> Highlight:
            number, found = best(lambda one: highlight(subject, one), list(choices(subject)))
            return replace(found, state={"image": number, **found.state}) if found.why else found

        return packed(subject.cached(f"opening {highlight.__module__}", compute))

    return ModelRequest, opening


def best(highlight: Callable[[Choice], Highlight | None], choices: Sequence[Choice]) -> tuple[Choice, Highlight]:
    """The choice with the largest gain; the first of them where none shows anything."""
    every = [(one, judge(highlight, one)) for one in choices]
    return max(every, key=lambda each: each[1].gain)


def judge(highlight: Callable[[Choice], Highlight | None], choice: Choice) -> Highlight:
    """What a choice shows; nothing where the model cannot read it or its values are not finite."""
    try:
        found = highlight(choice)
    except UserError:
        return NOTHING
    return found if found is not None and math.isfinite(found.gain) else NOTHING


def packed(found: Highlight) -> bytes:
    header: dict[str, Any] = {"why": found.why, "state": dict(found.state), "text": found.text, "other": found.other}
    return pack(header)


def quoted(piece: str) -> str:
    """A token in a sentence."""
    return f"“{piece.strip() or piece.replace(' ', '␣').replace(chr(10), '↵')}”"


def rivals(what: str, first: tuple[str, float], second: tuple[str, float]) -> Highlight:
    """How close the second most probable is to the first."""
    (a, p), (b, q) = first, second
    if q >= p / 2:
        return Highlight(q, f"Because two {what} compete: {quoted(a)} with {p:.2f} and {quoted(b)} with {q:.2f}.")
    return Highlight(
        q, f"Because one of the {what} is well ahead: {quoted(a)} with {p:.2f}; the next is {quoted(b)} with {q:.2f}."
    )
