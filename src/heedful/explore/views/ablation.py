"""Head ablation: the predictions without some heads, and the change of the loss.

H heads, N losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.errors import UserError
from heedful.explore.head_settings import (
    HeadSettings,
    Index,
    ablated,
    attention_at,
    heads_by_tap,
    heads_of,
    heads_set,
    parse_heads,
)
from heedful.explore.inspect import Attention, TextInput
from heedful.explore.openings import Highlight, on_text
from heedful.explore.packets import pack
from heedful.explore.predictions import Prediction, prediction_of
from heedful.explore.views import Call, TextRequest, heads, text_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Head ablation"
ABOUT = "What the model predicts with some heads ablated, and which heads matter most."
EXAMPLES, TRIED = 2, 32  # to choose the first picture from: examples, and heads of each
FILE_HEADS = 64  # up to this number of heads, a file holds the predictions without each of them


class PredictionRequest(TextRequest):
    """An input, and for a masked language model the position that is masked."""

    place: int | None = Field(None, ge=0, le=100_000)


class AblationRequest(PredictionRequest, HeadSettings):
    """The same with some heads changed: the loss is that of what the full model predicts."""


class LayerRequest(PredictionRequest):
    """One layer, whose heads are ablated one at a time."""

    look: Index
    layer: Index


fits = heads.fits


@torch.inference_mode()
def predictions(subject: Subject, request: AblationRequest) -> bytes:
    """The predictions without some heads, and the losses (N,)."""
    with subject.lock:
        attentions, found = full_model(subject, request)
        with heads_set(subject.model, attentions, request):
            candidates, losses = found.candidates(), found.losses()
    header = {
        "says": found.what, "measure": found.measure, "pieces": found.pieces, "hidden": found.masked,
        "answers": [{"text": one.text, "chance": one.probability} for one in candidates],
        "loss": float(losses.mean()) if len(losses) else None,
    }  # fmt: skip
    return pack(header, losses=losses.float())


@torch.inference_mode()
def losses_of_heads(subject: Subject, request: LayerRequest) -> bytes:
    """The mean loss (H,) without each head of a layer, one at a time."""
    with subject.lock:
        attentions, found = full_model(subject, request)
        if not found.pieces:
            raise UserError("a text without tokens has no loss", where="text", todo="write some words")
        losses = []
        for head in range(attention_at(attentions, request.look).heads):
            with ablated(subject.model, heads_by_tap(attentions, [(request.look, request.layer, head)])):
                losses.append(found.losses().mean())
    return pack({}, losses=torch.stack(losses).float())


@torch.inference_mode()
def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The head without which the loss rises most: of all heads, or of one layer where there are many."""
    request = PredictionRequest(model=subject.name, text=given.text, other=given.other)
    with subject.lock:
        attentions, found = full_model(subject, request)
        every = [
            (number, layer, head)
            for number, one in enumerate(attentions)
            for layer in range(len(one.taps))
            for head in range(one.heads)
        ]
        if len(every) > TRIED and (unusual := subject.habits.finding(subject.trace(given), given.text)) is not None:
            layer = (attentions.index(unusual.attention), unusual.layer)
            every = [one for one in every if one[:2] == layer]
        if not found.pieces or len(every) < 2:
            return None
        full = float(found.losses().mean())
        rises = []
        for one in every[:TRIED]:
            with ablated(subject.model, heads_by_tap(attentions, [one])):
                rises.append((float(found.losses().mean()) - full, one))
    (most, head), (second, _) = sorted(rises, reverse=True)[:2]
    if most <= 0:
        return None
    which = f"{attentions[head[0]].title}, layer {head[1] + 1}, head {head[2] + 1}"
    why = (
        f"Because one head matters most here: without {which}, the loss rises by {most:.2g}; without any other of the "
        f"{len(rises)} heads tried, by {max(second, 0):.2g} at most."
    )
    return Highlight(most - second, why, {"tried": ".".join(map(str, head))})


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    settings = text_of(state)
    masked = {**settings, "place": int(state["place"])} if str(state.get("place")).isdecimal() else settings
    every = [
        (number, layer, head)
        for number, attention in enumerate(subject.trace(TextRequest(**settings)).attentions)
        for layer in range(len(attention.taps))
        for head in range(attention.heads)
    ]
    tried = parse_heads(str(state.get("tried") or ""), "tried")
    some: list[dict[str, Any]] = [{}, heads_of(state) or ({"off": tried} if tried else {})]
    some += [{"off": (one,)} for one in every] if len(every) <= FILE_HEADS else []
    found = [Call("ablation", "says", {**masked, **each}) for each in some]
    if "alone" in state:
        layers = sorted({(number, layer) for number, layer, _ in every})
        found += [Call("ablation", "alone", {**masked, "look": number, "layer": layer}) for number, layer in layers]
    return [Call("heads", "tokens", settings), *found]


def full_model(subject: Subject, request: PredictionRequest) -> tuple[tuple[Attention, ...], Prediction]:
    """The kinds of attention of a model, and its prediction with all heads."""
    trace = subject.trace(request)
    return trace.attentions, prediction_of(subject.predictor, request, trace.reading, request.place)


CALLS = {
    "says": (AblationRequest, predictions), "alone": (LayerRequest, losses_of_heads),
    "opening": on_text(highlight, EXAMPLES),
}  # fmt: skip
