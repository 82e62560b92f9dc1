"""All heads of a model at a glance: a thumbnail of each head's weights, and a few statistics.

L layers, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.explore.capabilities import HasHeads
from heedful.explore.habits import most_unusual
from heedful.explore.inspect import TextInput
from heedful.explore.openings import Highlight, on_text
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, heads, input_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "All heads"
ABOUT = "The attention of every head of every layer at a glance, sorted by entropy or distance."
SIDE = 48  # largest side of a thumbnail in pixels
FILE = 10_000_000  # bytes of enlarged heads in a file
STATISTICS = ("entropy", "distance", "first", "near")


def fits(subject: Subject) -> bool:
    return heads.fits(subject) and head_count(subject) > 1


def head_count(subject: Subject) -> int:
    """The number of heads of a model, over all layers and kinds of attention."""
    every = (name.rpartition(".")[0] for each in subject.attentions.values() for name in each)
    modules = (subject.model.get_submodule(name) for name in every)
    return sum(module.heads if isinstance(module, HasHeads) else 1 for module in modules)


def wall(subject: Subject, request: InputRequest) -> bytes:
    """The thumbnails (L, H, up to 48, up to 48) and the statistics (L, H, 4) of each kind of attention."""
    trace = subject.trace(request)
    arrays: dict[str, Tensor] = {}
    for number, attention in enumerate(trace.attentions):
        layers = [trace.weights(attention, layer).float() for layer in range(len(attention.taps))]
        arrays[f"pictures{number}"] = torch.stack([thumbnails(weights) for weights in layers])
        arrays[f"numbers{number}"] = torch.stack([statistics(weights) for weights in layers])
    return pack({**heads.described(trace), "numbers": STATISTICS}, **arrays)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The thumbnails, and as many enlarged layers as fit, the chosen one first."""
    settings = input_of(state)
    trace = subject.trace(InputRequest(**settings))
    every = [(one, layer) for one in trace.attentions for layer in range(len(one.taps))]
    every.sort(key=lambda one: (one[0].name, str(one[1])) != (state.get("look"), str(state.get("layer"))))
    patterns = Call("heads", "patterns", {"model": settings["model"]})
    room, found = FILE, [Call("grid", "wall", settings), patterns]
    for attention, layer in every:
        room -= 2 * trace.weights(attention, layer).numel()
        if room >= 0 or len(found) == 2:
            found.append(Call("heads", "layer", {**settings, "look": attention.name, "layer": layer}))
    return found


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The head of the most unusual weight; no head is enlarged, so that all are seen first."""
    found = most_unusual(subject, given, lambda _: {})
    return None if found is None else replace(found, state={})


def thumbnails(weights: Tensor) -> Tensor:
    """The square roots of weights (H, T, S) as bytes, so that small ones are visible too.

    Where there are more tokens than pixels, a pixel is the largest of its weights, so that no peak is lost.
    """
    small = F.adaptive_max_pool2d(weights[None], (min(SIDE, weights.shape[1]), min(SIDE, weights.shape[2])))[0]
    return (small.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)


def statistics(weights: Tensor) -> Tensor:
    """Entropy in nats, distance, and weight on the first and on neighbouring keys of each head (H, 4).

    All are means over the queries; the distance is the mean of |t - s| under the weights.
    """
    away = torch.arange(weights.shape[1])[:, None] - torch.arange(weights.shape[2])  # (T, S)
    away = away.abs().to(weights)
    entropy = torch.special.entr(weights).sum(-1)  # (H, T)
    distance, near = (torch.einsum("hts,ts->ht", weights, part) for part in (away, (away == 1).to(weights)))
    return torch.stack([part.mean(-1) for part in (entropy, distance, weights[..., 0], near)], -1)  # (H, 4)


CALLS = {"wall": (InputRequest, wall), "opening": on_text(highlight)}
