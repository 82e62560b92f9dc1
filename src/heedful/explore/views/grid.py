"""All heads of a model at a glance: a small picture of each, and what can be said of it in a few numbers.

L layers, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.explore.capabilities import Headed
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request, heads, input_in
from heedful.explore.views.heads import described

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "All heads"
ABOUT = "The attention of every head of every layer at a glance, sorted by entropy or distance."
SIDE = 48  # dots of a picture, at the most
FILE = 10_000_000  # bytes of enlarged heads in a file
NUMBERS = ("entropy", "distance", "first", "near")


def fits(subject: Subject) -> bool:
    return heads.fits(subject) and heads_of(subject) > 1


def heads_of(subject: Subject) -> int:
    """How many heads a model has, all layers and kinds of attention together."""
    every = (name.rpartition(".")[0] for each in subject.attentions.values() for name in each)
    modules = (subject.model.get_submodule(name) for name in every)
    return sum(module.heads if isinstance(module, Headed) else 1 for module in modules)


def wall(explorer: Explorer, asked: Asked) -> bytes:
    """The pictures (L, H, up to 48, up to 48) and the numbers (L, H, 4) of each kind of attention, in one packet."""
    trace = explorer.subject(asked.model).trace(asked)
    arrays: dict[str, Tensor] = {}
    for place, look in enumerate(trace.looks):
        layers = [trace.weights(look, layer).float() for layer in range(len(look.taps))]
        arrays[f"pictures{place}"] = torch.stack([picture(weights) for weights in layers])
        arrays[f"numbers{place}"] = torch.stack([numbers(weights) for weights in layers])
    return pack({**described(trace), "numbers": NUMBERS}, **arrays)


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    asked = input_in(state)
    trace = explorer.subject(state["model"]).trace(Asked(**asked))
    every = [(look, layer) for look in trace.looks for layer in range(len(look.taps))]
    # The layer that is enlarged comes first, then as many others as a file can well hold.
    every.sort(key=lambda one: (one[0].name, str(one[1])) != (state.get("look"), str(state.get("layer"))))
    room, found = FILE, [Request("grid", "wall", asked)]
    for look, layer in every:
        room -= 2 * trace.weights(look, layer).numel()
        if room >= 0 or len(found) == 1:
            found.append(Request("heads", "layer", {**asked, "look": look.name, "layer": layer}))
    return found


def picture(weights: Tensor) -> Tensor:
    """Weights (H, T, S) as bytes of their square roots, so that small ones are seen too.

    Where there are more tokens than dots, a dot is the largest of its weights: nothing that stands out is lost.
    """
    small = F.adaptive_max_pool2d(weights[None], (min(SIDE, weights.shape[1]), min(SIDE, weights.shape[2])))[0]
    return (small.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)


def numbers(weights: Tensor) -> Tensor:
    """Of each head (H, 4), as means over its queries: entropy in nats, distance, and shares on some of the keys.

    The distance is |t - s|, each counted by its weight; the shares are those of the first key, and of the keys next to
    the query's own place.
    """
    away = torch.arange(weights.shape[1])[:, None] - torch.arange(weights.shape[2])  # (T, S)
    away = away.abs().to(weights)
    entropy = torch.special.entr(weights).sum(-1)  # (H, T)
    distance, near = (torch.einsum("hts,ts->ht", weights, part) for part in (away, (away == 1).to(weights)))
    return torch.stack([part.mean(-1) for part in (entropy, distance, weights[..., 0], near)], -1)  # (H, 4)


CALLS = {"wall": (Asked, wall)}
