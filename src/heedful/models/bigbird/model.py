"""BigBird ("Transformers for longer sequences", Zaheer et al., 2020).

BERT's encoder, in which a block of tokens attends to a few blocks: to its neighbours (a window), to random ones, and to
global ones, which attend to all and to which all attend. The cost grows with the length, not with its square.

    mask = (window | global | random) & real

ITC: the first and the last block are global. ETC: extra tokens before the text are. Blocks are counted from a text's
first token, and the last block is that of its own last token: padding changes nothing.

B batch, T positions, D width, H heads, K width of one head; S positions without those beyond the context, G extra
tokens, M = G + S; R blocks of queries, C of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV, unchanged
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import Layout, PackedTexts, real_first
from heedful.blocks.masks import AnyMask, Bias, Grid, block_table, padding, random_blocks
from heedful.blocks.norms import PostNorm
from heedful.blocks.sparse import DENSE, BlockSparse
from heedful.blocks.taps import watched
from heedful.models.bert.model import BertEncoder, init_weights
from heedful.models.bigbird.config import BigBirdConfig

SMALL = 512  # positions of rows in which a mask of T x T is cheaper than lists of blocks


@dataclass(frozen=True)
class Pattern:
    """Which blocks of texts attend to which, (B, 1, R, C) each, without random ones."""

    text: Tensor  # both are blocks of the text
    window: Tensor  # neighbours
    ends: Tensor  # one of them is global
    dense: Tensor  # (B, 1, 1, 1) every pair, since the text is short
    again: Tensor  # those with the first block that are not global for another reason

    @classmethod
    def of(cls, config: BigBirdConfig, lengths: Tensor, width: int) -> Pattern:
        """The pattern of texts of these lengths (B,), with their extra tokens, in rows of `width`."""
        blocks = (width + config.block - 1) // config.block  # not -(-width // block): ONNX rounds towards zero
        column = torch.arange(blocks, device=lengths.device)  # (C,)
        row, last = column[:, None], ((lengths - 1) // config.block)[:, None, None, None]
        lead = config.global_tokens // config.block
        ends = (row < lead) | (column < lead) | (last < 0)  # (B, 1, R, C)
        if not lead:
            ends = (row == 0) | (column == 0) | (row == last) | (column == last)  # (B, 1, R, C)
        dense = (lengths <= config.global_tokens + config.dense_length)[:, None, None, None]  # (B, 1, 1, 1)
        near = ((row - column).abs() <= config.window_blocks // 2).expand_as(ends)  # (B, 1, R, C)
        again = ~dense & (column == 0) & (row > 0) & (row < last)  # (B, 1, R, C)
        return cls((row <= last) & (column <= last), near, ends, dense, again)

    @property
    def fixed(self) -> Tensor:
        """All pairs that are not random."""
        return self.text & (self.window | self.ends | self.dense)  # (B, 1, R, C)


@dataclass(frozen=True)
class Sight:
    """What the tokens of a batch attend to: a mask and a bias, and what is done to keys and values before."""

    mask: AnyMask
    bias: Bias | None = None
    past: Callable[[KV], KV] = unchanged


def sight(c: BigBirdConfig, lengths: Tensor, width: int, watched: bool) -> Sight:
    """What texts of these lengths (B,), with their extra tokens, attend to in rows of `width`."""
    real, count, device = padding(lengths), c.random_blocks, lengths.device
    # An exported model takes texts of any length: the example decides nothing. Torch 2.11 calls compiled ones exported.
    exported = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    if c.attention == "original_full" or (not exported and width <= c.global_tokens + c.dense_length):
        return Sight(real)
    pattern = Pattern.of(c, lengths, width)
    dense = exported or width <= (DENSE if watched else SMALL)
    mask = block_table(pattern.fixed, c.block)
    if count and c.random_from == "first":
        return first_again(c, pattern, lengths, width, dense, watched)
    if count:
        taken = pattern.fixed | ~pattern.text  # (B, 1, R, C)
        mask |= random_blocks(count, c.block, c.heads, c.seed, width, exclude=taken, device=device)
    return Sight(mask & real if dense else BlockSparse.of(mask & real, len(lengths), c.heads, width, device=device))


def first_again(c: BigBirdConfig, pattern: Pattern, lengths: Tensor, width: int, dense: bool, watched: bool) -> Sight:
    """Each random block is the first block, which so counts 1 + random times.

    Its scores get a bias of log(1 + random), where weights are watched or small; otherwise copies of the block stand
    before the keys and values, which give the same sums.
    """
    count, copied, device = c.random_blocks, c.random_blocks * c.block, lengths.device
    if dense or watched:
        table = pattern.again * math.log(1 + count)  # (B, 1, R, C)
        bias = Bias(lambda b, h, q, k: table[b, 0, q // c.block, k // c.block])
        rule = block_table(pattern.fixed, c.block) & padding(lengths)
        return Sight(rule if dense else BlockSparse.of(rule, len(lengths), c.heads, width, device=device), bias)
    copies = pattern.again[..., :1].expand(-1, -1, -1, count)
    mask = block_table(torch.cat([copies, pattern.fixed], -1), c.block) & padding(lengths + copied)

    def past(kv: KV) -> KV:
        return KV(*(torch.cat([*[x[:, :, : c.block]] * count, x], 2) for x in (kv.k, kv.v)))

    sparse = BlockSparse.of(mask, len(lengths), c.heads, width, copied + width, device=device)
    return Sight(sparse, past=past)


def block_kinds(c: BigBirdConfig, length: int, padded: int) -> Tensor:
    """Why each block of a text attends to each, (1 or H, R, C) uint8: numbers in `BLOCK_KINDS`."""
    lengths, width = torch.tensor([c.global_tokens + length]), c.global_tokens + length + padded
    pattern = Pattern.of(c, lengths, width)
    whole = pattern.dense if c.attention == "block_sparse" else torch.ones_like(pattern.dense)
    near, ends, chosen = pattern.window & ~whole, pattern.ends & ~whole, torch.zeros_like(pattern.text)
    if c.random_blocks and c.random_from == "seed" and not whole.all():
        taken = pattern.fixed | ~pattern.text  # (B, 1, R, C)
        rule = random_blocks(c.random_blocks, c.block, c.heads, c.seed, width, exclude=taken)
        chosen = rule.blocks(1, c.heads, Grid(width, width, c.block, c.block)) > 0  # (B, H, R, C)
    kinds = torch.where(whole, 4, torch.where(near, 1, torch.where(ends, 2, 3 * chosen)))  # (B, H, R, C)
    return torch.where(pattern.text, kinds, 5)[0].to(torch.uint8)


class LastLayer(nn.Module):
    """norm(x + mlp(x)), which published answer heads have below their last layer."""

    def __init__(self, c: BigBirdConfig) -> None:
        super().__init__()
        self.mlp = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
        self.add = PostNorm(c.width, c.dropout, c.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.mlp)  # (B, T, D)


class BigBird(BertEncoder):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D)."""

    config: BigBirdConfig

    def __init__(self, config: BigBirdConfig) -> None:
        super().__init__(config)
        extra = self.tokens.weight.new_empty(config.global_tokens, config.width)
        self.extra = nn.Parameter(extra) if config.global_tokens else None
        self.last = LastLayer(config) if config.last_mlp else None
        init_weights(self)

    def block_kinds(self, length: int, padded: int = 0) -> Tensor:
        """Why each block of a text of this length attends to each, with padding after it."""
        return block_kinds(self.config, length, padded)  # (H, R, C)

    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first block (B, T, D), and the output of each; padding is moved to the end meanwhile."""
        assert not isinstance(layout, PackedTexts), "blocks begin with a text: one sequence a row"
        c, (rows, size, _) = self.config, x.shape
        outputs, real = [x], layout.real
        lengths = real.sum(1) if real is not None else torch.full((rows,), size, device=x.device)  # (B,)
        place = None if real is None else real_first(real)[..., None].expand_as(x)  # (B, T, D)
        x = x if place is None else torch.zeros_like(x).scatter(1, place, x)[:, : c.context]  # (B, S, D)
        if self.extra is not None:
            extra = self.dropout(self.norm(self.extra)).to(x.dtype)  # (G, D)
            x = torch.cat([extra.expand(rows, -1, -1), x], 1)  # (B, M, D)
        seen = sight(c, lengths + c.global_tokens, x.shape[1], watched(self.blocks))
        for block in self.blocks:
            x = block(x, seen.mask, seen.bias, past=seen.past)  # (B, M, D)
            y = x[:, c.global_tokens :]
            outputs.append(y if place is None else y.gather(1, place.clamp(max=y.shape[1] - 1)))
        if self.last is not None:
            outputs[-1] = self.last(outputs[-1])
        return outputs
