"""The cross-attention of a translation, token by token: the figure of Bahdanau et al. (2015).

L layers, H heads, T generated tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.explore.head_patterns import is_word
from heedful.explore.inspect import Attention, TextInput, Trace, is_translator
from heedful.explore.openings import Highlight, on_text, quoted
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, input_of
from heedful.tasks.translation.predictor import aligns

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Alignment"
ABOUT = "The cross-attention from each generated token to the source, step by step."
EXAMPLES = 8  # to choose the first picture from
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


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The step that goes furthest back in the source: there the order of words is another one."""
    trace = subject.trace(given)
    cross, sides = cross_attention(trace), trace.reading.sides
    mean = trace.weights(cross, sharpest(trace, cross)).float().mean(0)  # (T, S)
    source = [place for place, token in enumerate(sides["source"]) if is_word(token)]
    written = [place for place, token in enumerate(sides["written"]) if is_word(token)]
    if not source:
        return None
    keys = [source[one] for one in mean[:, source].argmax(-1).tolist()]  # (T,), of each step
    jumps = [(keys[before] - keys[step], before, step) for before, step in pairwise(written)]
    back, before, step = max(jumps, default=(0, 0, 0))
    if back <= 0:
        return Highlight(
            0.5 / len(source), "Because each word attends to a word further on: the order is the same in both."
        )
    names = [quoted(sides["written"][one].piece) for one in (step, before)]
    key = quoted(sides["source"][keys[step]].piece)
    away = f"{back} token{'s' * (back > 1)}"
    why = (
        f"Because the order of words changes: {names[0]} attends most to {key}, "
        f"{away} before what {names[1]} attends to."
    )
    return Highlight(back, why)


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


CALLS = {
    "steps": (InputRequest, steps), "weights": (AlignmentRequest, weights),
    "opening": on_text(highlight, EXAMPLES, read_references=True),
}  # fmt: skip
