"""The attention weights of each head, as lines from queries to keys.

H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.errors import UserError, shown
from heedful.explore.habits import most_unusual
from heedful.explore.head_patterns import PATTERNS
from heedful.explore.inspect import Attention, TextInput, Trace
from heedful.explore.occurrences import TEXTS_PER_CALL, Pattern, Same, search
from heedful.explore.openings import Highlight, on_text
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, ModelRequest, index_of, input_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Heads"
ABOUT = "The attention weights of each head of a layer, token by token."
MAX_WEIGHTS = 4_000_000  # in a file: all layers of a short text, those near the chosen one of a long text


class LayerRequest(InputRequest):
    """One layer of one kind of attention."""

    look: str = Field(max_length=200)
    layer: int = Field(ge=0, le=1000)


class OccurrencesRequest(ModelRequest):
    """A head, what it does, and the number of the text to search from."""

    look: str = Field(max_length=200)
    layer: int = Field(ge=0, le=1000)
    head: int = Field(ge=0, le=1000)
    query: int = Field(ge=0, le=10_000_000)
    key: int = Field(ge=0, le=10_000_000)
    distance: int = Field(ge=-100_000, le=100_000)
    same: Same
    start: int = Field(0, ge=0, le=100_000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and bool(subject.attentions)


def tokens(subject: Subject, request: InputRequest) -> bytes:
    """The tokens of each side, and the kinds of attention between them."""
    return pack(described(subject.trace(request)))


def layer(subject: Subject, request: LayerRequest) -> bytes:
    """The attention weights of one layer, (H, T, S), as half floats."""
    trace = subject.trace(request)
    return pack({}, weights=trace.weights(attention_in(trace, request.look), request.layer).to(torch.float16))


def patterns(subject: Subject, request: ModelRequest) -> bytes:
    """The pattern of each head over the model's examples, by kind of attention, layer and head."""
    known = subject.habits
    return pack({"patterns": {name: one.patterns for name, one in known.profiles.items()}, "names": PATTERNS,
                 "texts": len(known.gains)})  # fmt: skip


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The layer, head and query to open on: the weight that is furthest above its head's mean at that distance."""
    return most_unusual(subject, given, lambda found: {"heads": found.head, "token": f"ask-{found.query}"})


def occurrences(subject: Subject, request: OccurrencesRequest) -> bytes:
    """Where the head does this in a few texts of the model's data; the page asks for the next ones."""
    taps = subject.attentions.get(request.look, ())
    if request.layer >= len(taps):
        known = ", ".join(subject.attentions)
        raise UserError(
            "this model has no such layer of attention", where="look", found=shown(request.look), expected=known
        )
    texts = subject.corpus
    pattern = Pattern(request.query, request.key, request.distance, request.same)
    some = texts[request.start : request.start + TEXTS_PER_CALL]
    found = search(subject, taps[request.layer], request.head, pattern, some)
    return pack({"found": found, "read": min(request.start + len(some), len(texts)), "of": len(texts)})


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The chosen layer first, then its neighbours, then the other kinds of attention, as many as fit."""
    settings = input_of(state)
    trace = subject.trace(InputRequest(**settings))
    chosen = trace.attention(state.get("look"))
    now = index_of(state, "layer", len(chosen.taps))
    layers = [
        (one.name != chosen.name, abs(number - now), trace.weights(one, number).numel(), one.name, number)
        for one in trace.attentions
        for number in range(len(one.taps))
    ]
    found: list[Call] = []
    room = MAX_WEIGHTS
    for _, _, size, name, number in sorted(layers):
        if not found or size <= room:
            found.append(Call("heads", "layer", {**settings, "look": name, "layer": number}))
            room -= size
    return [Call("heads", "tokens", settings), Call("heads", "patterns", {"model": settings["model"]}), *found]


def described(trace: Trace) -> dict[str, Any]:
    """The tokens and the kinds of attention of a trace, for the page."""
    return {
        "sides": {name: [token.to_json() for token in side] for name, side in trace.reading.sides.items()},
        "looks": looks_of(trace.attentions),
    }


def looks_of(attentions: Sequence[Attention]) -> list[dict[str, Any]]:
    """Kinds of attention, for the page."""
    return [
        {
            "name": one.name, "title": one.title, "kind": one.kind, "asks": one.queries, "sees": one.keys,
            "layers": len(one.taps), "heads": one.heads,
        }
        for one in attentions
    ]  # fmt: skip


def attention_in(trace: Trace, name: str) -> Attention:
    """The kind of attention of a name, which must be there."""
    if (found := trace.attention(name)).name == name:
        return found
    known = ", ".join(one.name for one in trace.attentions)
    raise UserError("this model has no such attention", where="look", found=shown(name), expected=known)


CALLS = {
    "tokens": (InputRequest, tokens), "layer": (LayerRequest, layer),
    "patterns": (ModelRequest, patterns), "opening": on_text(highlight),
    "occurrences": (OccurrencesRequest, occurrences),
}  # fmt: skip
