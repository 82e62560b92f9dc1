"""Block-sparse attention to a long text: which blocks attend to which and why, how much, and the cells of one block.

H heads, T queries, S keys, R rows and C columns of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.blocks.block_values import BlockValues
from heedful.blocks.masks import BLOCK_KINDS
from heedful.blocks.sparse import WIDTH
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.capabilities import HasBlocks
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, ModelRequest, input_of, require_index

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Blocks"
ABOUT = "Which blocks of a long text attend to which, and how much; click a block for its tokens."
MOST = 1024  # rows of blocks in a packet
SIDE = 64  # tokens of an enlarged part
USUAL = 16_384  # tokens
PADDING = BLOCK_KINDS.index("padding")
Index = Field(0, ge=0, le=1_000_000)


class MaskRequest(ModelRequest):
    """The mask of a text of some length, with padding after it, in one head."""

    length: int = Field(ge=1, le=1_048_576)
    padded: int = Field(0, ge=0, le=1_048_576)
    head: int = Index


class CellsRequest(MaskRequest):
    """Up to 64 x 64 tokens of it, from a block on."""

    row: int = Index
    column: int = Index


class WeightsRequest(InputRequest):
    """The weights of one head of a layer."""

    layer: int = Index
    head: int = Index


class WeightCellsRequest(WeightsRequest):
    """Up to 64 x 64 of them, from a block on."""

    row: int = Index
    column: int = Index


def encoder(subject: Subject) -> HasBlocks | None:
    """The encoder of a model, if it attends to blocks."""
    if subject.broken is not None or not inspect.reads_text(subject.predictor):
        return None
    if inspect.is_translator(subject.predictor) or inspect.is_language_model(subject.predictor):
        return None
    found = inspect.encoder_of(subject.predictor)
    return found if isinstance(found, HasBlocks) else None


def fits(subject: Subject) -> bool:
    return encoder(subject) is not None


def require_encoder(subject: Subject) -> HasBlocks:
    found = encoder(subject)
    assert found is not None  # since the view fits
    return found


# ------------------------------------------------------------------ the mask
def about(subject: Subject, request: ModelRequest) -> bytes:
    """Sizes of the model, and the names of the kinds of blocks."""
    return pack(described(subject))


def described(subject: Subject) -> dict[str, Any]:
    config = require_encoder(subject).config
    longest = min(config.context, MOST * config.block - config.global_tokens)
    sizes = {"block": config.block, "heads": config.heads, "layers": config.layers, "extra": config.global_tokens}
    return {"kinds": BLOCK_KINDS, "longest": longest, "usual": min(longest, USUAL), **sizes}


def mask(subject: Subject, request: MaskRequest) -> bytes:
    """The kind of each pair of blocks, (R, C), and the share of all pairs of tokens that is computed."""
    kinds = kinds_of(subject, request)
    size = require_encoder(subject).config.block
    tokens = torch.full((len(kinds),), size)
    tokens[-1] -= len(kinds) * size - total_of(subject, request) - request.padded
    seen = (kinds > 0) & (kinds < PADDING)
    pairs = int((seen * tokens[:, None] * tokens).sum())
    return pack({"share": pairs / int(tokens.sum()) ** 2}, kinds=kinds)


def kinds_of(subject: Subject, request: MaskRequest) -> Tensor:
    """The kind of each pair of blocks, (R, C) uint8, for one head."""
    model = require_encoder(subject)
    config = model.config
    require_index("head", request.head, config.heads)
    if request.length > config.context:
        raise UserError(
            "the text is too long", where="length", found=f"{request.length:,} tokens",
            expected=f"at most {config.context:,}, the model's context",
        )  # fmt: skip
    rows = -(-(total_of(subject, request) + request.padded) // config.block)
    if rows > MOST:
        raise UserError(
            "there are too many blocks to draw", where="length", found=f"{rows:,} x {rows:,} blocks",
            expected=f"at most {MOST:,} x {MOST:,}", todo=f"shorten it to {MOST * config.block:,} tokens with padding",
        )  # fmt: skip
    kinds = model.block_kinds(request.length, request.padded)  # (1 or H, R, C)
    return kinds[request.head if len(kinds) > 1 else 0]


def total_of(subject: Subject, request: MaskRequest) -> int:
    """Tokens of a text with the extra ones before it."""
    return int(request.length + require_encoder(subject).config.global_tokens)


def cells(subject: Subject, request: CellsRequest) -> bytes:
    """The kind of each pair of tokens, up to (64, 64), from the first of a block on."""
    kinds, size = kinds_of(subject, request), require_encoder(subject).config.block
    require_index("row", request.row, len(kinds))
    require_index("column", request.column, len(kinds))
    total = total_of(subject, request)
    every = torch.arange(total + request.padded)
    q, k = (every[first * size :][:SIDE] for first in (request.row, request.column))
    found = kinds[q // size][:, k // size].clone()
    found[q >= total], found[:, k >= total] = PADDING, PADDING
    return pack({"first": [int(q[0]), int(k[0])]}, kinds=found)


# ------------------------------------------------------------------ weights
def weights(subject: Subject, request: WeightsRequest) -> bytes:
    """How much of the attention of each block of queries a block of keys gets, (R, C): the mean over its queries."""
    found, size = weights_of(subject, request)
    if isinstance(found, BlockValues):
        sums = found.sums()[0, request.head]  # (R, C)
    else:
        whole = F.pad(found, (0, -found.shape[1] % size, 0, -found.shape[0] % size))
        sums = whole.unflatten(1, (-1, size)).unflatten(0, (-1, size)).sum((1, 3))  # (R, C)
    tokens = found.shape[-2]
    queries = torch.full((len(sums), 1), float(size))
    queries[-1] -= len(sums) * size - tokens
    return pack({"size": size, "tokens": tokens}, shares=(sums.float().cpu() / queries))


def weight_cells(subject: Subject, request: WeightCellsRequest) -> bytes:
    """The weights of single tokens, up to (64, 64), from the first of a block on."""
    found, size = weights_of(subject, request)
    rows = -(-found.shape[-2] // size)
    require_index("row", request.row, rows)
    require_index("column", request.column, rows)
    if isinstance(found, BlockValues):
        part = found.block(0, request.head, request.row, request.column)
    else:
        part = found[request.row * size :, request.column * size :][:SIDE, :SIDE]
    return pack({"first": [request.row * size, request.column * size]}, weights=part.float().to(torch.float16))


def weights_of(subject: Subject, request: WeightsRequest) -> tuple[Tensor | BlockValues, int]:
    """The weights of a head, (T, T), or those of its layer in blocks; and the tokens of a block."""
    ((_, taps),) = subject.attentions.items()
    require_index("layer", request.layer, len(taps))
    require_index("head", request.head, require_encoder(subject).config.heads)
    tap = taps[request.layer]
    trace = subject.trace(request, tap)
    if tap in trace.blocks:
        return trace.blocks[tap], WIDTH
    size = min(SIDE, require_encoder(subject).config.block)
    return trace.values[tap][request.head], max(size, -(-trace.values[tap].shape[-1] // MOST))


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The mask or the weights of a state, and the block that it enlarges."""
    said = described(subject)
    model = {"model": state["model"]}
    found = [Call("blocks", "about", model)]
    chosen = {name: number(state, name, 0, 0, MOST) for name in ("row", "column")} if "row" in state else None
    head = number(state, "head", 0, 0, said["heads"] - 1)
    if state.get("mode") == "weights":
        settings = {**input_of(state), "layer": number(state, "layer", 0, 0, said["layers"] - 1), "head": head}
        names = ("weights", "weight_cells")
    else:
        length = number(state, "length", said["usual"], 1, said["longest"])
        padded = number(state, "padded", 0, 0, max(0, MOST * said["block"] - said["extra"] - length))
        settings, names = {**model, "length": length, "padded": padded, "head": head}, ("mask", "cells")
    found.append(Call("blocks", names[0], settings))
    return found if chosen is None else [*found, Call("blocks", names[1], {**settings, **chosen})]


def number(state: Mapping[str, Any], name: str, usual: int, low: int, high: int) -> int:
    """A number of a state, as the page reads it."""
    value = str(state.get(name))
    return max(low, min(high, int(value[:9]))) if value.isascii() and value.isdecimal() else usual


CALLS = {
    "about": (ModelRequest, about), "mask": (MaskRequest, mask), "cells": (CellsRequest, cells),
    "weights": (WeightsRequest, weights), "weight_cells": (WeightCellsRequest, weight_cells),
}  # fmt: skip
