"""Head ablation: the predictions without some heads, and the change of the loss.

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
from heedful.explore.inspect import Attention, TextInput
from heedful.explore.openings import Highlight, on_text
from heedful.explore.packets import pack
from heedful.explore.predictions import Prediction, prediction_of
from heedful.explore.views import Call, InputRequest, heads, input_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Head ablation"
ABOUT = "What the model predicts with some heads ablated, and which heads matter most."
EXAMPLES, TRIED = 2, 32  # to choose the first picture from: examples, and heads of each
MAX_HEADS = 5000  # that are ablated
FILE_HEADS = 64  # up to this number of heads, a file holds the predictions without each of them

Index = Annotated[int, Field(ge=0, le=1000)]


class PredictionRequest(InputRequest):
    """An input, and for a masked language model the position that is masked."""

    place: int | None = Field(None, ge=0, le=100_000)


class AblationRequest(PredictionRequest):
    """The ablated heads, each by the indices of its kind of attention, its layer and itself."""

    off: tuple[tuple[Index, Index, Index], ...] = Field((), max_length=MAX_HEADS)


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
        with ablated(subject.model, heads_by_tap(attentions, request.off)):
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
    return Highlight(most - second, why, {"off": ".".join(map(str, head))})


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    settings = input_of(state)
    masked = {**settings, "place": int(state["place"])} if str(state.get("place")).isdecimal() else settings
    every = [
        (number, layer, head)
        for number, attention in enumerate(subject.trace(InputRequest(**settings)).attentions)
        for layer in range(len(attention.taps))
        for head in range(attention.heads)
    ]
    some: list[Sequence[tuple[int, ...]]] = [[], parse_heads(str(state.get("off", "")))]
    some += [[one] for one in every] if len(every) <= FILE_HEADS else []
    found = [Call("ablation", "says", {**masked, "off": [list(one) for one in off]}) for off in some]
    if "alone" in state:
        layers = sorted({(number, layer) for number, layer, _ in every})
        found += [Call("ablation", "alone", {**masked, "look": number, "layer": layer}) for number, layer in layers]
    return [Call("heads", "tokens", settings), *found]


def parse_heads(off: str) -> list[tuple[int, ...]]:
    """Heads as in the page's address: 0.1.3,2.0.1."""
    try:
        return sorted(tuple(map(int, one.split("."))) for one in off.split(",") if one)
    except ValueError:
        raise UserError("invalid heads", where="off", expected="numbers such as 0.1.3,2.0.1") from None


def full_model(subject: Subject, request: PredictionRequest) -> tuple[tuple[Attention, ...], Prediction]:
    """The kinds of attention of a model, and its prediction with all heads."""
    trace = subject.trace(request)
    return trace.attentions, prediction_of(subject.predictor, request, trace.reading, request.place)


def attention_at(attentions: Sequence[Attention], index: int) -> Attention:
    """A kind of attention by its index."""
    if index >= len(attentions):
        raise UserError("this model has no such attention", where="look", found=str(index + 1))
    return attentions[index]


def heads_by_tap(attentions: Sequence[Attention], off: Sequence[tuple[int, int, int]]) -> dict[str, list[int]]:
    """The ablated heads at each tap."""
    found: dict[str, list[int]] = {}
    for index, layer, head in off:
        attention = attention_at(attentions, index)
        if layer >= len(attention.taps) or head >= attention.heads:
            raise UserError("this model has no such head", where="off", found=f"layer {layer + 1}, head {head + 1}")
        found.setdefault(attention.taps[layer], []).append(head)
    return found


@contextmanager
def ablated(model: nn.Module, off: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Within the block, the attention weights of some heads are zeros, and so are their outputs."""

    def without(name: str, weights: Tensor) -> Tensor:
        return weights.index_fill(1, torch.tensor(off[name], device=weights.device), 0.0)

    with ExitStack() as stack:
        for name in off:
            stack.enter_context(watch(model, name, without))
        yield


CALLS = {
    "says": (AblationRequest, predictions), "alone": (LayerRequest, losses_of_heads),
    "opening": on_text(highlight, EXAMPLES),
}  # fmt: skip
