"""The views of the explorer, one module each, imported when first used.

A view decides by a model's capabilities whether it fits it, and answers its own calls with packets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.head_settings import HeadSettings, heads_of
from heedful.explore.inspect import TextInput

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

VIEWS = (
    "home",
    "heads", "grid", "blocks", "alignment", "steps", "beam", "next", "fill", "classifier", "lens", "map", "ablation",
    "recurrent", "reconstruct", "image", "caption", "paragraph", "glimpses", "hops", "dialogue", "agent", "positions",
    "run", "source",
)  # fmt: skip
LONGEST = 20_000  # characters of a text


class ModelRequest(Config):
    """The settings of a call about one of the open models."""

    model: str = Field(max_length=1000)


class TextRequest(ModelRequest, TextInput):
    """The settings of a call about a model and an input."""

    text: str = Field(max_length=LONGEST)
    other: str | None = Field(None, max_length=LONGEST)


class HeadedRequest(ModelRequest, HeadSettings):
    """The settings of a call that is answered with some heads changed."""


class InputRequest(TextRequest, HeadedRequest):
    """The settings of a call about a model and an input, answered with some heads changed."""


def text_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The model and the texts of a state, as the settings of a call."""
    return {"model": state.get("model"), "text": state.get("text"), "other": state.get("other")}


def input_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its changed heads."""
    return text_of(state) | heads_of(state)


def index_of(state: Mapping[str, Any], name: str, count: int) -> int:
    """An index in a state, as the page reads it: the last where it is too large, 0 where it is missing or invalid."""
    value = str(state.get(name))
    return min(int(value), count - 1) if value.isascii() and value.isdecimal() else 0


def require_index(name: str, index: int, count: int, what: str | None = None) -> None:
    """Refuse an index out of range; users count from 1."""
    if index >= count:
        raise UserError(
            f"there is no such {what or name}", where=name, found=str(index + 1), expected=f"1 to {count:,}"
        )


class Call(NamedTuple):
    """One call of a view with its settings."""

    view: str
    call: str
    settings: Mapping[str, Any]


class View(Protocol):
    """What the module of a view defines."""

    TITLE: str
    ABOUT: str  # one sentence for the page
    CALLS: Mapping[str, tuple[type[Config], Callable[..., bytes]]]  # by name; with a subject where there is a model

    def fits(self, subject: Subject) -> bool:
        """Whether the view can show a subject."""

    def calls(self, subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
        """The calls whose answers an exported file holds: those of a state, and those its reader may need."""


def takes_heads(view: View) -> bool:
    """Whether the calls of a view are answered with some heads changed."""
    return any(issubclass(kind, HeadedRequest) for kind, _ in view.CALLS.values())


def find(name: str) -> View:
    """The view of a name."""
    if name not in VIEWS:
        raise UserError("there is no such view", where="view", found=shown(name), expected=", ".join(VIEWS))
    return cast(View, import_module(f"heedful.explore.views.{name}"))
