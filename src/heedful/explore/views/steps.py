"""One attention, step by step with its numbers: compare, scale, mask, softmax, and the weighted sum.

T queries, S keys, K width of a query, E width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.attention import attend
from heedful.blocks.normalizers import softmax
from heedful.blocks.scores import scaled_dot
from heedful.blocks.taps import Tap, taps
from heedful.config import Config
from heedful.errors import UserError
from heedful.explore.capabilities import Normalizes, Scores, part_of
from heedful.explore.inspect import Look, Trace
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request, heads, input_in, place_in
from heedful.explore.views.heads import Layer, described, look_in

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Step by step"
ABOUT = "One query of one head, from q · k to the weighted sum, with the model's own values."
TABLE = ("vectors", "dot", "scale", "mask", "softmax", "sum")  # the stages of the lectures
VECTORS = ("queries", "keys", "values")
NOISE = 1e-5  # of a score, as a share of the longest it could be: what is below is rounding, not a bias
UNDERFLOW = 87.0  # how far below the largest a score may be, and still have a weight
LARGEST = 6_000_000  # bytes of a file that holds more heads than the one that is shown


class Head(Layer):
    """One head of one layer."""

    head: int = Field(ge=0, le=1000)


class Query(Head):
    """One query of it."""

    query: int = Field(ge=0, le=100_000)


class Nothing(Config):
    """No settings."""


def fits(subject: Subject) -> bool:
    return heads.fits(subject)


def tokens(explorer: Explorer, asked: Asked) -> bytes:
    """The tokens of each side, and the kinds of attention with the stages that each has."""
    subject = explorer.subject(asked.model)
    trace = subject.trace(asked)
    words = described(trace)
    for told, look in zip(words["looks"], trace.looks, strict=True):
        told["stages"] = stages(subject, look)
    return pack(words)


def stages(subject: Subject, look: Look) -> list[str]:
    """What can be seen of a look: all of the lectures' table, or what there is without a dot product."""
    module = subject.model.get_submodule(above(look, 0))
    stages = list(TABLE) if compares(module) else ["scores", *TABLE[TABLE.index("mask") :]]
    return stages if softmaxed(module) else [stage for stage in stages if stage != "mask"]


def compares(module: Any) -> bool:
    """Whether a block's scores are scaled dot products of vectors that can be seen."""
    shown = taps(module).keys() >= set(VECTORS)
    plain = part_of(module, "score") is None and (not isinstance(module, Scores) or module.score is scaled_dot)
    return shown and plain


def softmaxed(module: Any) -> bool:
    """Whether its weights are zero where a key is masked only; those of sparsemax may be zero anywhere."""
    return not isinstance(module, Normalizes) or module.normalize is softmax


def head(explorer: Explorer, asked: Head) -> bytes:
    """All numbers of one head: scores and weights (T, S), and its vectors where it has them."""
    look, seen = watched(explorer, asked)
    weights, scores = (one(seen, look, asked, name) for name in ("weights", "scores"))
    module = explorer.subject(asked.model).model.get_submodule(above(look, asked.layer))
    off = masked(scores, weights) if softmaxed(module) else torch.zeros_like(weights, dtype=torch.bool)
    arrays = {"weights": weights, "scores": scores, "masked": off.to(torch.uint8)}
    words: dict[str, Any] = {}
    if compares(module):
        q, k, v = (one(seen, look, asked, name) for name in VECTORS)
        arrays |= compared(q, k, v, scores, weights)
        words["width"] = q.shape[1]
    return pack(words, **{name: array if name == "masked" else array.float() for name, array in arrays.items()})


def compared(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The vectors, the products q . k (T, S), what was added to the scores if anything was, and the sums (T, E)."""
    dots = q.double() @ k.double().mT  # (T, S)
    scaled = dots / math.sqrt(q.shape[1])  # (T, S)
    found = {"queries": q, "keys": k, "values": v, "dots": dots, "sums": weights.double() @ v.double()}
    longest = q.double().norm(dim=1).max() * k.double().norm(dim=1).max() / math.sqrt(q.shape[1])
    added = scores.double() - scaled  # (T, S)
    return {**found, "bias": added} if bool((added.abs() > NOISE * longest).any()) else found


def masked(scores: Tensor, weights: Tensor) -> Tensor:
    """Where a query may not look (T, S): there the weight is zero, though the score would give it one."""
    largest = scores.masked_fill(weights == 0, -math.inf).amax(1, keepdim=True)  # (T, 1)
    return (weights == 0) & (scores > largest - UNDERFLOW)


def products(explorer: Explorer, asked: Query) -> bytes:
    """What one query of a recurrent decoder gets: each vector of the memory times its weight (S, E), and their sum."""
    look, seen = watched(explorer, asked)
    name = f"{above(look, asked.layer)}."
    if f"{name}products" not in seen.values:
        raise UserError("this attention shows no products", where="look", found=look.name)
    sums, queries = seen.values[f"{name}context"], seen.values[f"{name}weights"].shape[1]  # (T, E)
    if asked.query >= queries:
        raise UserError("there is no such query", where="query", found=str(asked.query + 1), expected=f"1 to {queries}")
    # The steps of a decoder come one after another, along the keys.
    each = seen.values[f"{name}products"].reshape(queries, -1, sums.shape[-1])  # (T, S, E)
    return pack({}, products=each[asked.query].float(), sums=sums[asked.query].float())


def watched(explorer: Explorer, asked: Head) -> tuple[Look, Trace]:
    """A kind of attention, and all that passes the taps of one of its layers."""
    subject = explorer.subject(asked.model)
    look = look_in(subject.trace(asked), asked.look)
    for name, found, count in (("layer", asked.layer, len(look.taps)), ("head", asked.head, look.heads)):
        if found >= count:
            raise UserError(f"there is no such {name}", where=name, found=str(found + 1), expected=f"1 to {count}")
    return look, subject.trace(asked, f"{above(look, asked.layer)}.*")


def one(seen: Trace, look: Look, asked: Head, name: str) -> Tensor:
    """What passed one tap of a layer, of one head."""
    return seen.values[f"{above(look, asked.layer)}.{name}"][asked.head]


def above(look: Look, layer: int) -> str:
    """The path of the block whose look it is."""
    return look.taps[layer].rpartition(".")[0]


# ------------------------------------------------------------------ the example of the lectures
@torch.inference_mode()
def example(explorer: Explorer, asked: Nothing) -> bytes:
    """ "Thinking Machines": 112 and 96, divided by 8, give 14 and 12, and weights of 0.88 and 0.12."""
    q, k, v = thinking_machines()
    scores, weights = Tap(), Tap()
    seen: dict[str, Tensor] = {}
    scores.hook = lambda x: seen.update(scores=x[0, 0])
    weights.hook = lambda x: seen.update(weights=x[0, 0])
    attend(q[None, None], k[None, None], v[None, None], scores=scores, weights=weights)
    arrays = {**seen, **compared(q, k, v, seen["scores"], seen["weights"])}
    words = {"width": q.shape[1], "pieces": ["Thinking", "Machines"], "stages": [one for one in TABLE if one != "mask"]}
    masks = torch.zeros(seen["scores"].shape, dtype=torch.uint8)
    return pack(words, masked=masks, **{name: array.float() for name, array in arrays.items()})


def thinking_machines() -> tuple[Tensor, Tensor, Tensor]:
    """A query (1, 64), two keys and two values (2, 64) with q . k = 112 and 96, exact in any floats.

    Of ones and minus ones, q . q = 64; a key is a multiple of q and something that stands at right angles to it.
    """
    q = torch.cos(torch.arange(64.0) ** 2).sign()  # (64,)
    away = torch.stack([torch.arange(32) % 5 - 2, torch.arange(32) % 3 - 1]) / 4  # (2, 32)
    across = torch.stack([away, -away], 2).flatten(1) * q  # (2, 64)
    waves = torch.stack([torch.cos(torch.arange(64) / 5), torch.sin(torch.arange(64) / 3)])  # (2, 64)
    return q[None], torch.tensor([[112.0], [96.0]]) / 64 * q + across, waves


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    """The chosen layer with all its heads, where they do not take too much, and the lectures' example."""
    asked = input_in(state)
    subject = explorer.subject(state["model"])
    trace = subject.trace(Asked(**asked))
    look = next((one for one in trace.looks if one.name == state.get("look")), trace.looks[0])
    layer, chosen = place_in(state, "layer", len(look.taps)), place_in(state, "head", look.heads)
    weights = trace.weights(look, layer)
    few = weights.nbytes * 2 > LARGEST
    found = [
        Request("steps", "head", {**asked, "look": look.name, "layer": layer, "head": number})
        for number in ([chosen] if few else range(look.heads))
    ]
    if "vectors" not in stages(subject, look):
        found += [
            Request("steps", "products", {**asked, "look": look.name, "layer": layer, "head": 0, "query": query})
            for query in range(min(weights.shape[1], 100))
        ]
    return [Request("steps", "tokens", asked), Request("steps", "example", {}), *found]


CALLS = {
    "tokens": (Asked, tokens), "head": (Head, head), "products": (Query, products), "example": (Nothing, example),
}  # fmt: skip
