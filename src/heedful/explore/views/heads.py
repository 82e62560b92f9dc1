"""Where each head looks: lines from the tokens that ask to those that are looked at.

H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.errors import UserError, shown
from heedful.explore.inspect import Look, Token, Trace
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request, input_in, place_in

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Heads"
MOST_HELD = 4_000_000  # weights in a file: all layers of a text of usual length, those beside the chosen one of a long
ABOUT = "The attention weights of each head of a layer, token by token."


class Layer(Asked):
    """One layer of one kind of attention."""

    look: str = Field(max_length=200)
    layer: int = Field(ge=0, le=1000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and bool(subject.attentions)


def tokens(explorer: Explorer, asked: Asked) -> bytes:
    """The tokens of each side, and the kinds of attention that look at them."""
    return pack(described(explorer.subject(asked.model).trace(asked)))


def layer(explorer: Explorer, asked: Layer) -> bytes:
    """Where the heads of one layer look, (H, T, S), as half floats."""
    trace = explorer.subject(asked.model).trace(asked)
    look = look_in(trace, asked.look)
    return pack({}, weights=trace.weights(look, asked.layer).to(torch.float16))


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    asked = input_in(state)
    trace = explorer.subject(state["model"]).trace(Asked(**asked))
    look = next((one for one in trace.looks if one.name == state.get("look")), trace.looks[0])
    chosen = look.name, place_in(state, "layer", len(look.taps))
    layers = [
        (look.name != chosen[0], abs(number - chosen[1]), trace.weights(look, number).numel(), look.name, number)
        for look in trace.looks
        for number in range(len(look.taps))
    ]
    kept: list[Request] = []
    room = MOST_HELD
    for _, _, size, name, number in sorted(layers):  # the layer that is shown first, then those beside it
        if not kept or size <= room:
            kept.append(Request("heads", "layer", {**asked, "look": name, "layer": number}))
            room -= size
    return [Request("heads", "tokens", asked), *kept]


def described(trace: Trace) -> dict[str, Any]:
    """The tokens and the kinds of attention of a trace, in words."""
    return {
        "sides": {name: [told(token) for token in side] for name, side in trace.reading.sides.items()},
        "looks": [
            {
                "name": look.name, "title": look.title, "kind": look.kind, "asks": look.asks, "sees": look.sees,
                "layers": len(look.taps), "heads": look.heads,
            }
            for look in trace.looks
        ],
    }  # fmt: skip


def told(token: Token) -> dict[str, Any]:
    return {"piece": token.piece, "id": token.id, "part": token.part}


def look_in(trace: Trace, name: str) -> Look:
    """The kind of attention of a name."""
    for look in trace.looks:
        if look.name == name:
            return look
    known = ", ".join(look.name for look in trace.looks)
    raise UserError("this model has no such attention", where="look", found=shown(name), expected=known)


CALLS = {"tokens": (Asked, tokens), "layer": (Layer, layer)}
