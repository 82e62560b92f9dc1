"""Positions and masks, as the lectures draw them, and those that a model has of its own.

T places, D width, H heads, B rows, N words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks import masks
from heedful.blocks.masks import Mask, dense
from heedful.blocks.positions import Fixed, Learned, Rotary, sinusoid_halves, sinusoids
from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.capabilities import Placed
from heedful.explore.packets import pack
from heedful.explore.views import Named, Request

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Positions and masks"
ABOUT = "Position encodings, and which tokens each token may attend to."

LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {"interleaved": sinusoids, "halves": sinusoid_halves}
ALIBI, MOST_BIAS = "alibi", 64
MOST_PLACES, MOST_OWN = 128, 1024  # that the page shows of sinusoids, and of a model's own table
Place = Annotated[int, Field(ge=0, le=64)]


class Table(Named):
    """A table of positions: sinusoids in one of two layouts, or one that the model has, by its name."""

    of: str = Field(max_length=200)
    places: int = Field(ge=1, le=1024)
    width: int = Field(ge=2, le=1024, multiple_of=2, description="of sinusoids; a model's table has its own")


class Seen(Config):
    """A mask over so many words, and what some kinds need to know."""

    kind: Literal["all", "causal", "window", "local", "padding", "prefix", "documents", "query", "content"]
    size: int = Field(ge=1, le=64)
    near: int = Field(2, ge=0, le=64, description="how far a window reaches")
    lengths: tuple[Place, ...] = Field((), max_length=8, description="of the rows of a batch")
    documents: tuple[Place, ...] = Field((), max_length=64, description="the document that each word is of")
    order: tuple[Place, ...] = Field((), max_length=64, description="the words' numbers, from 1, as they are predicted")


def fits(subject: Subject) -> bool:
    return subject.broken is None and bool(described(subject.model))


# ------------------------------------------------------------------ positions
def own(explorer: Explorer, asked: Named) -> bytes:
    """The positions that a model has: their names, kinds and sizes."""
    return pack({"own": described(explorer.subject(asked.model).model)})


def described(model: Any) -> list[dict[str, Any]]:
    """In words, what a model knows of places: told by its parts."""
    told = []
    for name, (kind, values) in tables(model).items():
        places, width = values.shape
        layout = layout_of(values) if kind == "fixed" else None
        told.append({"name": name, "kind": kind, "layout": layout, "places": places, "width": width})
    if heads := slopes(model):
        told.append(
            {"name": ALIBI, "kind": "a slope for each head", "layout": None, "places": MOST_BIAS, "width": heads}
        )
    return told


def tables(model: Any) -> dict[str, tuple[str, Tensor]]:
    """A model's tables (T, D) by their names; of turned pairs, which all layers share, sines beside cosines."""
    found: dict[str, tuple[str, Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Learned):
            found[name] = ("learned", module.table)
        elif isinstance(module, Fixed):
            found[name] = ("fixed", module.table)
        elif isinstance(module, Rotary) and not any(kind == "rotary" for kind, _ in found.values()):
            found[name] = ("rotary", torch.cat([module.sin, module.cos], -1))
    return found


def layout_of(table: Tensor) -> str | None:
    """The layout of sinusoids that a table (T, D) has; None where it holds other numbers."""
    found = table.detach().float().cpu()
    return next((name for name, made in LAYOUTS.items() if torch.equal(found, made(*found.shape))), None)


def slopes(model: Any) -> int:
    """How many heads of a model have a slope each, by which distance counts against a look; 0: none."""
    settings = model.config
    heads: int = settings.heads if isinstance(settings, Placed) and settings.positions == ALIBI else 0
    return heads


def table(explorer: Explorer, asked: Table) -> bytes:
    """The numbers themselves, (T, D)."""
    return pack({}, table=values_of(explorer, asked))


def similarity(explorer: Explorer, asked: Table) -> bytes:
    """The dot product of each place with each other, (T, T)."""
    values = values_of(explorer, asked)
    return pack({}, products=values @ values.T)


def values_of(explorer: Explorer, asked: Table) -> Tensor:
    """The table that is asked for, as far as it goes."""
    found = tables(explorer.subject(asked.model).model)
    if asked.of in LAYOUTS:
        return LAYOUTS[asked.of](asked.places, asked.width)
    if asked.of not in found:
        known = ", ".join([*LAYOUTS, *found])
        raise UserError("there are no such positions", where="of", found=shown(asked.of), expected=known)
    return found[asked.of][1][: asked.places].detach().float().cpu()


def bias(explorer: Explorer, asked: Table) -> bytes:
    """By how much each head of a model with slopes shifts the score of each pair of places, (H, T, T)."""
    heads, places = slopes(explorer.subject(asked.model).model), min(asked.places, MOST_BIAS)
    if not heads:
        raise UserError("this model has no slopes", where="of", found=shown(asked.of))
    empty = torch.empty(1, heads, places, 0)
    return pack({}, bias=dense(masks.alibi(heads), empty, empty).expand(1, heads, places, places)[0])


# ------------------------------------------------------------------ masks
def mask(explorer: Explorer, asked: Seen) -> bytes:
    """Which words each word may look at, (B, N, N): 1 where it may."""
    return pack({}, mask=visible(asked).to(torch.uint8))


def visible(asked: Seen) -> Tensor:
    """A mask as a tensor (B, N, N) of truths."""
    rows = max(1, len(asked.lengths)) if asked.kind == "padding" else 1
    words = torch.empty(rows, 1, asked.size, 0)
    return dense(RULES[asked.kind](asked), words, words).expand(rows, 1, asked.size, asked.size)[:, 0]


def _ranks(asked: Seen) -> Tensor:
    """The rank of each word in the order that is asked for, (1, N)."""
    if sorted(asked.order) != list(range(1, asked.size + 1)):
        raise UserError(
            "this is not an order of the words", where="order", found=shown(asked.order),
            expected=f"each number from 1 to {asked.size} once",
        )  # fmt: skip
    return torch.tensor([asked.order]).argsort()


def _lengths(asked: Seen) -> Tensor:
    return torch.tensor(asked.lengths or (asked.size,))


def _documents(asked: Seen) -> Tensor:
    if len(asked.documents) != asked.size:
        raise UserError(
            "each word is of one document", where="documents", found=f"{len(asked.documents)} numbers",
            expected=str(asked.size),
        )  # fmt: skip
    return torch.tensor([asked.documents])


RULES: dict[str, Callable[[Seen], Mask]] = {
    "all": lambda asked: masks.padding(torch.tensor([asked.size])),
    "causal": lambda asked: masks.causal(),
    "window": lambda asked: masks.window(asked.near),
    "local": lambda asked: masks.causal() & masks.window(asked.near),
    "padding": lambda asked: masks.padding(_lengths(asked)),
    "prefix": lambda asked: masks.causal() | masks.prefix(_lengths(asked)[:1]),
    "documents": lambda asked: masks.causal() & masks.same(_documents(asked)),
    "query": lambda asked: masks.order(_ranks(asked)),
    "content": lambda asked: masks.order(_ranks(asked)) | masks.same(torch.arange(asked.size)[None]),
}


# ------------------------------------------------------------------ a file
def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    model = str(state.get("model"))
    found = described(explorer.subject(model).model)
    asked = [Request("positions", "own", {"model": model})]
    own = {one["name"]: min(MOST_OWN, one["places"]) for one in found if one["name"] != ALIBI}
    for of, most in {**dict.fromkeys(LAYOUTS, MOST_PLACES), **own}.items():
        places, steps, side = (
            min(most, _number(state, name, usual)) for name, usual in (("places", 20), ("steps", 100), ("side", 64))
        )
        sizes = {"model": model, "of": of, "places": places, "width": _number(state, "width", 512)}
        asked.append(Request("positions", "table", sizes))
        asked.append(Request("positions", "table", {**sizes, "places": steps, "width": _number(state, "dims", 20)}))
        asked.append(Request("positions", "similarity", {**sizes, "places": side}))
    if any(one["name"] == ALIBI for one in found):
        asked.append(Request("positions", "bias", {"model": model, "of": ALIBI, "places": 20, "width": 2}))
    return asked + [Request("positions", "mask", one) for one in _masks(state)]


def _masks(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every kind of mask over the words of a state, as the page asks for them."""
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
    if sorted(order) != list(range(1, size + 1)):
        order = usual_order(size)
    return plain + [{"kind": kind, "size": size, "order": order} for kind in ("query", "content")]


WORDS = "The animal crossed the wide street"


def usual_order(size: int) -> list[int]:
    """An order to begin with: the lectures' 3, 2, 4, 1, and then what is left from the end."""
    first = [number for number in (3, 2, 4, 1) if number <= size]
    return first + list(range(size, 4, -1))


def _number(state: Mapping[str, Any], name: str, otherwise: int) -> int:
    try:
        return int(state.get(name, otherwise))
    except (TypeError, ValueError, OverflowError):
        return otherwise


def _numbers(state: Mapping[str, Any], name: str) -> list[int]:
    return [
        int(part) for part in str(state.get(name, "")).replace(",", " ").split() if part.isascii() and part.isdecimal()
    ][:64]


CALLS = {
    "own": (Named, own), "table": (Table, table), "similarity": (Table, similarity), "bias": (Table, bias),
    "mask": (Seen, mask),
}  # fmt: skip
