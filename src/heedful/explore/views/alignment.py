"""The cross-attention of a translation, token by token: the figure of Bahdanau et al. (2015).

L layers, H heads, T generated tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.explore.inspect import Attention, Trace, is_translator
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, input_of
from heedful.tasks.translation.predictor import aligns

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Alignment"
ABOUT = "The cross-attention from each generated token to the source, step by step."
TOP = 4  # most probable tokens of a step


class AlignmentRequest(InputRequest):
    """One layer of the decoder; by default the one with the lowest entropy."""

    layer: int | None = Field(None, ge=0, le=1000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and is_translator(subject.predictor) and aligns(subject.model)


def steps(subject: Subject, request: InputRequest) -> bytes:
    """The source and the generated tokens, the layer with the lowest entropy, and each step's top tokens (T, 4)."""
    trace = subject.trace(request)
    cross, sides = cross_attention(trace), trace.reading.sides
    probabilities = trace.output[0].float().softmax(-1)  # (T, V)
    written = torch.tensor([token.id for token in sides["written"]], device=probabilities.device)  # (T,)
    best = probabilities.topk(min(TOP, probabilities.shape[-1]))
    header = {
        "source": [token.to_json() for token in sides["source"]],
        "written": [token.to_json() for token in sides["written"]],
        "likely": [subject.predictor.tokenizer.pieces(ids) for ids in best.indices.tolist()],
        "layers": len(cross.taps), "heads": cross.heads, "sharpest": sharpest(trace, cross),
    }  # fmt: skip
    return pack(header, chances=best.values, chance=probabilities.gather(1, written[:, None])[:, 0])


def weights(subject: Subject, request: AlignmentRequest) -> bytes:
    """The attention weights of a layer: the mean over its heads (T, S), and each head (H, T, S)."""
    trace = subject.trace(request)
    cross = cross_attention(trace)
    layer = sharpest(trace, cross) if request.layer is None else request.layer
    found = trace.weights(cross, layer).float()
    return pack({"layer": layer}, mean=found.mean(0), heads=found.half())


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    settings = input_of(state)
    layers = range(len(cross_attention(subject.trace(InputRequest(**settings))).taps))
    every = [Call("alignment", "weights", {**settings, "layer": layer}) for layer in layers]
    return [Call("alignment", "steps", settings), Call("alignment", "weights", settings), *every]


def cross_attention(trace: Trace) -> Attention:
    """The attention of the decoder to the source."""
    return next(one for one in trace.attentions if one.kind == "cross")


def sharpest(trace: Trace, cross: Attention) -> int:
    """The layer whose mean over the heads has the lowest entropy, as in `Translator.align`."""
    means = (trace.weights(cross, layer).float().mean(0) for layer in range(len(cross.taps)))
    entropies = [float(torch.special.entr(mean).sum()) for mean in means]
    return entropies.index(min(entropies))


CALLS = {"steps": (InputRequest, steps), "weights": (AlignmentRequest, weights)}
