"""Position encodings and attention masks: those of the lectures, and those of a model.

T positions, D width, H heads, B rows, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks import masks
from heedful.blocks.masks import Mask, dense
from heedful.blocks.positions import FixedPositions, LearnedPositions, Rotary, sinusoid_halves, sinusoids
from heedful.blocks.relative import distance_sinusoids
from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.capabilities import HasDistances, HasPositions
from heedful.explore.packets import pack
from heedful.explore.views import Call, ModelRequest

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Positions and masks"
ABOUT = "Position encodings, and which tokens each token may attend to."

LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {"interleaved": sinusoids, "halves": sinusoid_halves}
ALIBI, MOST_BIAS = "alibi", 64
MOST_PLACES, MOST_OWN = 128, 1024  # positions that the page shows of sinusoids, and of a model's own table
WORDS = "The animal crossed the wide street"
Place = Annotated[int, Field(ge=0, le=64)]


class TableRequest(ModelRequest):
    """A table of positions: sinusoids in one of two layouts, or the model's own by its name."""

    of: str = Field(max_length=200)
    places: int = Field(ge=1, le=1024)
    width: int = Field(ge=2, le=1024, multiple_of=2, description="of sinusoids; a model's table has its own")


class MaskRequest(Config):
    """A mask over some tokens, and the settings that some kinds need."""

    kind: Literal["all", "causal", "window", "local", "padding", "prefix", "documents", "query", "content"]
    size: int = Field(ge=1, le=64)
    near: int = Field(2, ge=0, le=64, description="distance that a window covers")
    lengths: tuple[Place, ...] = Field((), max_length=8, description="of the rows of a batch")
    documents: tuple[Place, ...] = Field((), max_length=64, description="the document of each token")
    order: tuple[Place, ...] = Field((), max_length=64, description="the tokens, from 1, in the order of prediction")


def fits(subject: Subject) -> bool:
    return subject.broken is None and bool(described(subject.model))


# ------------------------------------------------------------------ positions
def own(subject: Subject, request: ModelRequest) -> bytes:
    """The position encodings of a model: their names, kinds and sizes."""
    return pack({"own": described(subject.model)})


def described(model: Any) -> list[dict[str, Any]]:
    """The position encodings of a model, for the page."""
    found = [
        {
            "name": name, "kind": kind, "layout": layout_of(values) if kind in ("fixed", "relative") else None,
            "places": values.shape[0], "width": values.shape[1],
        }
        for name, (kind, values) in tables(model).items()
    ]  # fmt: skip
    if heads := slopes(model):
        found.append(
            {"name": ALIBI, "kind": "a slope for each head", "layout": None, "places": MOST_BIAS, "width": heads}
        )
    return found


def tables(model: Any) -> dict[str, tuple[str, Tensor]]:
    """A model's tables (T, D) by name; of rotary positions, which all layers share, sines beside cosines.

    Those of relative positions have a row for each distance to an earlier token.
    """
    found: dict[str, tuple[str, Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LearnedPositions):
            found[name] = ("learned", module.table)
        elif isinstance(module, FixedPositions):
            found[name] = ("fixed", module.table)
        elif isinstance(module, Rotary) and not any(kind == "rotary" for kind, _ in found.values()):
            found[name] = ("rotary", torch.cat([module.sin, module.cos], -1))
    if isinstance(settings := model.config, HasDistances):
        found["distances"] = ("relative", distance_sinusoids(torch.arange(settings.context), settings.width))
    return found


def layout_of(table: Tensor) -> str | None:
    """The layout of a table (T, D) of sinusoids; None for other tables."""
    found = table.detach().float().cpu()
    return next((name for name, made in LAYOUTS.items() if torch.equal(found, made(*found.shape))), None)


def slopes(model: Any) -> int:
    """The number of heads with an ALiBi slope; 0 for other models."""
    settings = model.config
    heads: int = settings.heads if isinstance(settings, HasPositions) and settings.positions == ALIBI else 0
    return heads


def table(subject: Subject, request: TableRequest) -> bytes:
    """The values of a table, (T, D)."""
    return pack({}, table=values_of(subject, request))


def similarity(subject: Subject, request: TableRequest) -> bytes:
    """The dot product of each pair of positions, (T, T)."""
    values = values_of(subject, request)
    return pack({}, products=values @ values.T)


def values_of(subject: Subject, request: TableRequest) -> Tensor:
    """The requested table, up to its length."""
    found = tables(subject.model)
    if request.of in LAYOUTS:
        return LAYOUTS[request.of](request.places, request.width)
    if request.of not in found:
        known = ", ".join([*LAYOUTS, *found])
        raise UserError("there are no such positions", where="of", found=shown(request.of), expected=known)
    return found[request.of][1][: request.places].detach().float().cpu()


def bias(subject: Subject, request: TableRequest) -> bytes:
    """The ALiBi bias of each head for each pair of positions, (H, T, T)."""
    heads, places = slopes(subject.model), min(request.places, MOST_BIAS)
    if not heads:
        raise UserError("this model has no ALiBi slopes", where="of", found=shown(request.of))
    empty = torch.empty(1, heads, places, 0)
    return pack({}, bias=dense(masks.alibi(heads), empty, empty).expand(1, heads, places, places)[0])


# ------------------------------------------------------------------ masks
def mask(request: MaskRequest) -> bytes:
    """Which tokens each token may attend to, (B, N, N): 1 where it may."""
    rows = max(1, len(request.lengths)) if request.kind == "padding" else 1
    empty = torch.empty(rows, 1, request.size, 0)
    found = dense(MASKS[request.kind](request), empty, empty).expand(rows, 1, request.size, request.size)[:, 0]
    return pack({}, mask=found.to(torch.uint8))


def _ranks(request: MaskRequest) -> Tensor:
    """The rank of each token in the requested order, (1, N)."""
    if sorted(request.order) != list(range(1, request.size + 1)):
        expected = f"each number from 1 to {request.size} once"
        raise UserError("invalid order", where="order", found=shown(request.order), expected=expected)
    return torch.tensor([request.order]).argsort()


def _lengths(request: MaskRequest) -> Tensor:
    return torch.tensor(request.lengths or (request.size,))


def _documents(request: MaskRequest) -> Tensor:
    if len(request.documents) != request.size:
        found, expected = f"{len(request.documents)} numbers", str(request.size)
        raise UserError("each token has one document", where="documents", found=found, expected=expected)
    return torch.tensor([request.documents])


MASKS: dict[str, Callable[[MaskRequest], Mask]] = {
    "all": lambda request: masks.padding(torch.tensor([request.size])),
    "causal": lambda request: masks.causal(),
    "window": lambda request: masks.window(request.near),
    "local": lambda request: masks.causal() & masks.window(request.near),
    "padding": lambda request: masks.padding(_lengths(request)),
    "prefix": lambda request: masks.causal() | masks.prefix(_lengths(request)[:1]),
    "documents": lambda request: masks.causal() & masks.same(_documents(request)),
    "query": lambda request: masks.order(_ranks(request)),
    "content": lambda request: masks.order(_ranks(request)) | masks.same(torch.arange(request.size)[None]),
}


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    model = subject.name
    found = described(subject.model)
    every = [Call("positions", "own", {"model": model})]
    own = {one["name"]: min(MOST_OWN, one["places"]) for one in found if one["name"] != ALIBI}
    for of, most in {**dict.fromkeys(LAYOUTS, MOST_PLACES), **own}.items():
        places, steps, side = (
            min(most, _number(state, name, usual)) for name, usual in (("places", 20), ("steps", 100), ("side", 64))
        )
        sizes = {"model": model, "of": of, "places": places, "width": _number(state, "width", 512)}
        every.append(Call("positions", "table", sizes))
        every.append(Call("positions", "table", {**sizes, "places": steps, "width": _number(state, "dims", 20)}))
        every.append(Call("positions", "similarity", {**sizes, "places": side}))
    if any(one["name"] == ALIBI for one in found):
        every.append(Call("positions", "bias", {"model": model, "of": ALIBI, "places": 20, "width": 2}))
    return every + [Call("positions", "mask", one) for one in _masks(state)]


def _masks(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of every kind of mask over the words of a state, as the page requests them."""
    words = str(state.get("words", WORDS)).split()[:24] or ["?"]
    size = len(words)
    plain: list[dict[str, Any]] = [{"kind": kind, "size": size} for kind in ("all", "causal")]
    near = {"size": size, "near": _number(state, "near", 2)}
    plain += [{"kind": kind, **near} for kind in ("window", "local")]
    lengths = _numbers(state, "lengths") or [size, max(1, size - 2)]
    plain += [{"kind": "padding", "size": size, "lengths": lengths}]
    plain += [{"kind": "prefix", "size": size, "lengths": [_number(state, "prefix", 3)]}]
    documents = _numbers(state, "documents")
    usual = [int(place >= (size + 1) // 2) + 1 for place in range(size)]
    plain += [{"kind": "documents", "size": size, "documents": documents if len(documents) == size else usual}]
    order = _numbers(state, "order")
    if sorted(order) != list(range(1, size + 1)):  # the lectures' 3, 2, 4, 1, then the rest from the end
        order = [number for number in (3, 2, 4, 1) if number <= size] + list(range(size, 4, -1))
    return plain + [{"kind": kind, "size": size, "order": order} for kind in ("query", "content")]


def _number(state: Mapping[str, Any], name: str, otherwise: int) -> int:
    try:
        return int(state.get(name, otherwise))
    except (TypeError, ValueError, OverflowError):
        return otherwise


def _numbers(state: Mapping[str, Any], name: str) -> list[int]:
    parts = str(state.get(name, "")).replace(",", " ").split()
    return [int(part) for part in parts if part.isascii() and part.isdecimal()][:64]


CALLS = {
    "own": (ModelRequest, own), "table": (TableRequest, table), "similarity": (TableRequest, similarity),
    "bias": (TableRequest, bias), "mask": (MaskRequest, mask),
}  # fmt: skip
