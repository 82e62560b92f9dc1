"""The views: what of a model can be looked at, one module each, imported when somebody asks for it.

A view says by what a model can do whether it makes sense of it, and answers its own questions with packets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.inspect import Given

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

VIEWS = (
    "heads",
    "grid",
    "alignment",
    "steps",
    "beam",
    "next",
    "fill",
    "lens",
    "map",
    "ablation",
    "recurrent",
    "reconstruct",
    "positions",
    "run",
    "source",
)
LONGEST = 20_000  # characters of a text


class Named(Config):
    """A question about a model, or about a run."""

    model: str = Field(max_length=1000)


class Asked(Named, Given):
    """A question about what a model does with an input."""

    text: str = Field(max_length=LONGEST)
    other: str | None = Field(None, max_length=LONGEST)


def input_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """The model and the texts that a state names, as a question names them."""
    return {"model": state["model"], "text": state["text"], "other": state.get("other")}


def place_in(state: Mapping[str, Any], name: str, count: int) -> int:
    """A place from 0 on that a state names, as the page reads it: the last where there are fewer, else the first."""
    said = str(state.get(name))
    return min(int(said), count - 1) if said.isascii() and said.isdecimal() else 0


class Request(NamedTuple):
    """One question that a view asks: of which view, which one, and its settings."""

    view: str
    call: str
    asked: Mapping[str, Any]


class View(Protocol):
    """What a module of a view holds."""

    TITLE: str
    ABOUT: str  # one sentence for people
    CALLS: Mapping[str, tuple[type[Config], Callable[[Explorer, Any], bytes]]]

    def fits(self, subject: Subject) -> bool:
        """Whether it makes sense of a subject."""

    def wanted(self, explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
        """All that the view asks to show a state, and what a reader of its file will want besides: every layer, say."""


def find(name: str) -> View:
    """The view of a name."""
    if name not in VIEWS:
        raise UserError("there is no such view", where="view", found=shown(name), expected=", ".join(VIEWS))
    return cast(View, import_module(f"heedful.explore.views.{name}"))
