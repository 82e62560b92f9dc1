"""Where a translation looked while it was written, word by word: the picture of Bahdanau et al. (2015).

L layers, H heads, T tokens written, S tokens read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from heedful.explore.inspect import Look, Trace, translates
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request, input_in
from heedful.explore.views.heads import told
from heedful.tasks.translation.predictor import aligns

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Alignment"
ABOUT = "The cross-attention from each generated token to the source, step by step."
LIKELY = 4  # tokens that are told of a step


class Aligned(Asked):
    """One layer of the decoder, or the one that is sharpest."""

    layer: int | None = Field(None, ge=0, le=1000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and translates(subject.predictor) and aligns(subject.model)


def steps(explorer: Explorer, asked: Asked) -> bytes:
    """What was read and written, which layer is sharpest, and what each step held for likely: (T, 4) tokens."""
    subject = explorer.subject(asked.model)
    trace = subject.trace(asked)
    look, sides = crossing(trace), trace.reading.sides
    chances = trace.output[0].float().softmax(-1)  # (T, V)
    written = torch.tensor([token.id for token in sides["written"]], device=chances.device)  # (T,)
    best = chances.topk(min(LIKELY, chances.shape[-1]))
    words = {
        "source": [told(token) for token in sides["source"]],
        "written": [told(token) for token in sides["written"]],
        "likely": [subject.predictor.tokenizer.pieces(ids) for ids in best.indices.tolist()],
        "layers": len(look.taps), "heads": look.heads, "sharpest": sharpest(trace, look),
    }  # fmt: skip
    return pack(words, chances=best.values, chance=chances.gather(1, written[:, None])[:, 0])


def weights(explorer: Explorer, asked: Aligned) -> bytes:
    """Where a layer looks: the mean of its heads (T, S), and each of them (H, T, S)."""
    trace = explorer.subject(asked.model).trace(asked)
    look = crossing(trace)
    layer = sharpest(trace, look) if asked.layer is None else asked.layer
    found = trace.weights(look, layer).float()
    return pack({"layer": layer}, mean=found.mean(0), heads=found.half())


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    asked = input_in(state)
    look = crossing(explorer.subject(state["model"]).trace(Asked(**asked)))
    every = [Request("alignment", "weights", {**asked, "layer": layer}) for layer in range(len(look.taps))]
    return [Request("alignment", "steps", asked), Request("alignment", "weights", asked), *every]


def crossing(trace: Trace) -> Look:
    """The attention of the decoder to the source."""
    return next(look for look in trace.looks if look.kind == "cross")


def sharpest(trace: Trace, look: Look) -> int:
    """The layer whose mean over the heads has the least entropy, as `Translator.align` chooses it."""
    entropies = [
        float(torch.special.entr(trace.weights(look, layer).float().mean(0)).sum()) for layer in range(len(look.taps))
    ]
    return entropies.index(min(entropies))


CALLS = {"steps": (Asked, steps), "weights": (Aligned, weights)}
