"""Heads switched off: what the model says without them, and how much harder it finds the text.

H heads, N losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.explore.inspect import Look
from heedful.explore.packets import pack
from heedful.explore.predictions import Saying, saying
from heedful.explore.views import Asked, Request, heads, input_in

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Head ablation"
ABOUT = "What the model predicts with some heads ablated, and which heads matter most."
MOST = 5000  # heads that are switched off
ALONE = 64  # heads of a model, at the most, for which a file holds what it says without each of them

Count = Annotated[int, Field(ge=0, le=1000)]


class Hiding(Asked):
    """An input, and the token of it that is hidden from a model that tells hidden words."""

    place: int | None = Field(None, ge=0, le=100_000)


class Without(Hiding):
    """What a model says without some heads, each told by the numbers of its kind of attention, layer and place."""

    off: tuple[tuple[Count, Count, Count], ...] = Field((), max_length=MOST)


class Missing(Hiding):
    """The heads of one layer, each to be switched off alone."""

    look: Count
    layer: Count


def fits(subject: Subject) -> bool:
    return heads.fits(subject)


@torch.inference_mode()
def says(explorer: Explorer, asked: Without) -> bytes:
    """What the model says without some heads, and its losses (N,)."""
    subject = explorer.subject(asked.model)
    with subject.lock:
        looks, said = opened(subject, asked)
        with silent(subject.model, taps_of(looks, asked.off)):
            answers, losses = said.answers(), said.losses()
    words = {
        "says": said.says, "measure": said.measure, "pieces": said.pieces, "hidden": said.hidden,
        "answers": [{"text": one.text, "chance": one.chance} for one in answers],
        "loss": mean(losses),
    }  # fmt: skip
    return pack(words, losses=losses.float())


@torch.inference_mode()
def alone(explorer: Explorer, asked: Missing) -> bytes:
    """The mean loss (H,) without each head of a layer, the others being there."""
    subject = explorer.subject(asked.model)
    with subject.lock:
        looks, said = opened(subject, asked)
        if not said.pieces:
            raise UserError("nothing can be lost of a text without tokens", where="text", todo="write some words")
        losses = []
        for head in range(look_at(looks, asked.look).heads):
            with silent(subject.model, taps_of(looks, [(asked.look, asked.layer, head)])):
                losses.append(said.losses().mean())
    return pack({}, losses=torch.stack(losses).float())


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    asked = input_in(state)
    looks = explorer.subject(state["model"]).trace(Asked(**asked)).looks
    hiding = {**asked, "place": int(state["place"])} if str(state.get("place")).isdecimal() else asked
    every = [
        (place, layer, head)
        for place, look in enumerate(looks)
        for layer in range(len(look.taps))
        for head in range(look.heads)
    ]
    some: list[Sequence[tuple[int, ...]]] = [[], read(str(state.get("off", "")))]
    some += [[one] for one in every] if len(every) <= ALONE else []
    found = [Request("ablation", "says", {**hiding, "off": [list(one) for one in off]}) for off in some]
    if "alone" in state:
        layers = sorted({(place, layer) for place, layer, _ in every})
        found += [Request("ablation", "alone", {**hiding, "look": look, "layer": layer}) for look, layer in layers]
    return [Request("heads", "tokens", asked), *found]


def read(off: str) -> list[tuple[int, ...]]:
    """Heads as the page's address says them: 0.1.3,2.0.1."""
    try:
        return sorted(tuple(map(int, one.split("."))) for one in off.split(",") if one)
    except ValueError:
        raise UserError("these are not heads", where="off", expected="numbers such as 0.1.3,2.0.1") from None


def opened(subject: Subject, asked: Hiding) -> tuple[tuple[Look, ...], Saying]:
    """The kinds of attention of a model, and what the whole of it has to say."""
    trace = subject.trace(asked)
    return trace.looks, saying(subject.predictor, asked, trace.reading, asked.place)


def look_at(looks: Sequence[Look], place: int) -> Look:
    if place >= len(looks):
        raise UserError("this model has no such attention", where="look", found=str(place + 1))
    return looks[place]


def taps_of(looks: Sequence[Look], off: Sequence[tuple[int, int, int]]) -> dict[str, list[int]]:
    """The heads that are off at each tap."""
    found: dict[str, list[int]] = {}
    for place, layer, head in off:
        look = look_at(looks, place)
        if layer >= len(look.taps) or head >= look.heads:
            raise UserError("this model has no such head", where="off", found=f"layer {layer + 1}, head {head + 1}")
        found.setdefault(look.taps[layer], []).append(head)
    return found


@contextmanager
def silent(model: nn.Module, off: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """While it lasts, these heads look nowhere: their weights are zeros, and so is what they give."""

    def without(name: str, weights: Tensor) -> Tensor:
        return weights.index_fill(1, torch.tensor(off[name], device=weights.device), 0.0)

    with ExitStack() as stack:
        for name in off:
            stack.enter_context(watch(model, name, without))
        yield


def mean(losses: Tensor) -> float | None:
    """The mean of losses; None, where there are none, as of a text without tokens."""
    return float(losses.mean()) if len(losses) else None


CALLS = {"says": (Without, says), "alone": (Missing, alone)}
