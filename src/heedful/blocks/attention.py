"""Attention, written once: normalize(score(q, k) + bias, where mask) v.

Five independent parts: the score (how a query and a key are compared), the mask (which keys a query may attend to), the
bias (how position or segment shifts a score), the normalization (how scores become weights; softmax by default) and
the heads.

B batch, T queries, S keys, D width, H heads, K width of one head.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.block_values import attend_in_blocks
from heedful.blocks.linear import Linear, linear
from heedful.blocks.masks import AnyMask, Bias, BlockDiagonal, Mask, Ranges, dense
from heedful.blocks.normalizers import Normalize, attention_weights, normalizer, softmax
from heedful.blocks.positions import Rotary
from heedful.blocks.scores import Score, scaled_dot
from heedful.blocks.sparse import BlockSparse, sparse_attention, sparse_self_attention
from heedful.blocks.sparse import has_kernel as has_block_kernel
from heedful.blocks.taps import Tap, take_blocks, tapped


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    dropout: float,
    finite: bool = False,
) -> Tensor:
    """Scaled dot-product attention in one kernel; the same values as the definition in `attend`.

    A bias that is `finite` masks no key.
    """
    if bias is None and (is_causal or mask is None):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, dropout_p=dropout)
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    if mask is not None and finite:  # the mask has no heads, so that it is cheaper to look for empty rows there
        empty = ~mask.any(-1, keepdim=True)
        shift = torch.where(mask | empty, bias.to(q.dtype), -math.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=shift, dropout_p=dropout).masked_fill(empty, 0.0)
    if finite:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=dropout)
    shift = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, -math.inf)
    empty = (shift == -math.inf).all(-1, keepdim=True)  # queries that attend to no key; the kernel gives NaN for them
    shift = shift.masked_fill(empty, 0.0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shift, dropout_p=dropout).masked_fill(empty, 0.0)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Ranges) -> Tensor:
    """Attention among packed sequences, in a Triton kernel that computes only the keys a query attends to."""
    from heedful.blocks.kernels import attention  # needs Triton, which comes with torch's GPU builds only

    return attention.packed(q, k, v, mask.lo, mask.hi, mask.first, mask.last)  # (B, H, T, E)


def packed_self_attention(qkv: Tensor, mask: BlockDiagonal, dropout: float) -> Tensor:
    """Self-attention within packed sequences, in a Triton kernel, from queries, keys and values (1, T, 3, H, K)."""
    from heedful.blocks.kernels import sequences  # needs Triton, which comes with torch's GPU builds only

    return sequences.attend(qkv.flatten(0, 1), mask.begin, mask.end, mask.longest, dropout)[None]  # (1, T, H, K)


SHORT, NARROW = 256, 64  # positions of a row, and width of a head, that the kernel of packed sequences takes at once


def has_short_kernel(qkv: Tensor) -> bool:
    """Whether queries, keys and values (B, T, 3, H, K) are better off in the kernel of packed sequences."""
    half = qkv.dtype in (torch.bfloat16, torch.float16)
    return qkv.is_cuda and half and qkv.requires_grad and 64 < qkv.shape[1] <= SHORT and qkv.shape[-1] <= NARROW


def short_self_attention(qkv: Tensor, dropout: float) -> Tensor:
    """Full self-attention of rows of equal length in that kernel, from queries, keys and values (B, T, 3, H, K)."""
    from heedful.blocks.kernels import sequences  # needs Triton, which comes with torch's GPU builds only

    rows, length = qkv.shape[:2]
    begin = torch.arange(rows + 1, dtype=torch.int32, device=qkv.device) * length  # (B + 1,)
    o = sequences.attend(qkv.flatten(0, 1), begin, (begin + length).clamp(max=rows * length), length, dropout)
    return o.unflatten(0, (rows, length))  # (B, T, H, K)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AnyMask = None,
    bias: Bias | Tensor | None = None,
    score: Score = scaled_dot,
    normalize: Normalize | str = softmax,
    scores: Tap | None = None,
    weights: Tap | None = None,
    products: Tap | None = None,
    choose: Callable[[Tensor], Tensor] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """normalize(score(q, k) + bias, where mask) v, with q (B, H, T, K), k (B, H, S, K), v (B, H, S, E).

    All three may come without heads, (B, T, K), or without heads and batch, (T, K). Masks and biases are rules, or
    tensors of two dimensions up to those of q that broadcast to the scores (B, H, T, S). A tensor of -inf masks a key;
    rules of biases are finite.
    `normalize` is softmax, sparsemax, entmax15, their names, or a function (scores, mask) -> weights. The scaled dot
    product with softmax runs in a fused kernel as long as no tap has a hook. Block-sparse masks of more than 1,024
    positions never become a tensor of T x S, if hooks take blocks (`watch`).

    When q has W times the rows of k, W hypotheses of a sentence attend to the same memory. `choose` replaces the
    weights by others (hard attention), and `dropout` is the dropout probability of the weights.
    """
    if not q.dim() == k.dim() == v.dim() or not 2 <= q.dim() <= 4 or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"q, k and v have the shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}, but attention takes "
            "q (T, K), k (S, K) and v (S, E), with the same leading dimensions: none, (B,) or (B, H)"
        )
    normalize = normalizer(normalize)
    if q.dim() < 4:
        lead = (None,) * (4 - q.dim()) if q.dim() == 2 else (slice(None), None)
        mask = mask[:, None] if isinstance(mask, Tensor) and mask.dim() == q.dim() == 3 else mask
        bias = bias[:, None] if isinstance(bias, Tensor) and bias.dim() == q.dim() == 3 else bias
        o = attend(q[lead], k[lead], v[lead], mask, bias, score, normalize, scores, weights, products, choose, dropout)
        return o[0, 0] if q.dim() == 2 else o[:, 0]
    rows, _, queries, _ = q.shape
    if rows != k.shape[0]:
        q = q.unflatten(0, (k.shape[0], -1)).transpose(1, 2).flatten(2, 3)  # (B, H, W * T, K)
    if isinstance(mask, Mask) and mask.diagonal is not None and mask.diagonal >= k.shape[2] - 1:
        mask = None  # even the first query attends to every key
    is_causal = isinstance(mask, Mask) and mask.diagonal == 0 and q.shape[2] == k.shape[2]
    fast = score is scaled_dot and normalize is softmax and choose is None and not tapped(scores, weights, products)
    if isinstance(mask, Ranges):
        if fast and bias is None and q.is_cuda and not dropout:
            return packed_attention(q, k, v, mask)
        mask = mask.dense()
    linear = bias is None or (isinstance(bias, Bias) and bias.linear is not None)
    if isinstance(mask, BlockSparse) and fast and linear and rows == k.shape[0]:
        return sparse_attention(q, k, v, mask, bias if isinstance(bias, Bias) else None, dropout)
    whole = choose is not None or tapped(products) or isinstance(bias, Tensor) or rows != k.shape[0]
    if isinstance(mask, BlockSparse) and mask.long and not whole and take_blocks(scores, weights):
        rule = bias if isinstance(bias, Bias) else None
        return attend_in_blocks(q, k, v, mask, rule, score, normalize, scores, weights, dropout)
    if isinstance(mask, BlockDiagonal | BlockSparse):
        mask = mask.dense()
    if isinstance(mask, Mask) and not (is_causal and fast and bias is None):
        mask = dense(mask, q, k)
    finite = isinstance(bias, Bias)
    if isinstance(bias, Bias):
        bias = dense(bias, q, k)
    if fast:
        o = fused_attention(
            q, k, v, None if isinstance(mask, Mask) else mask, bias, is_causal and bias is None, dropout, finite
        )
    else:
        a = score(q, k)  # (B, H, T, S)
        a = a if bias is None else a + bias
        a = a if scores is None else scores(a)
        allowed = mask if isinstance(mask, Tensor) else None
        if bias is not None or tapped(scores):
            allowed = a > -math.inf if allowed is None else allowed & (a > -math.inf)
        b = attention_weights(a, allowed, normalize)
        b = b if weights is None else apply_hook(b, allowed, weights)
        b = F.dropout((b if choose is None else choose(b)).to(v.dtype), dropout)
        o = b @ v  # (B, H, T, E)
        if products is not None and tapped(products):
            o = products(b[..., None] * v[:, :, None]).sum(-2)  # (B, H, T, E)
    if rows != k.shape[0]:
        o = o.unflatten(2, (-1, queries)).transpose(1, 2).flatten(0, 1)  # (B * W, H, T, E)
    return o


def apply_hook(weights: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
    """The weights as a hook returns them; no gradient passes through weights of zero, not even that of log(0)."""
    if not tapped(tap):
        return tap(weights)
    replaced = tap(weights.masked_fill(weights == 0, 0.0))
    return replaced if mask is None else replaced.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def attend_cached(q: Tensor, memory: "KV") -> Tensor:
    """One query per row over a cache whose keys may be stored in other rows, in a Triton kernel."""
    from heedful.blocks.kernels import attention

    assert memory.rows is not None and memory.length is not None
    return attention.attend_cached(q, memory.k, memory.v, memory.rows, memory.length, memory.skip)  # (B, H, T, K)


class KV(NamedTuple):
    """Keys and values, split into heads: (B, H, S, K) each. A decoder caches them and appends those of each token.

    With `rows` (B, S), key s of row b is stored in row rows[b, s], and only the first `length` keys are valid; with
    `skip` (B,), the first `skip` of these are padding.
    """

    k: Tensor
    v: Tensor
    rows: Tensor | None = None
    length: Tensor | None = None
    skip: Tensor | None = None

    def append(self, more: "KV") -> "KV":
        """These keys and values, followed by those of later positions."""
        return KV(torch.cat([self.k, more.k], 2), torch.cat([self.v, more.v], 2))

    def take(self, kept: Tensor) -> "KV":
        """The keys and values at the places kept (B, S) of each row."""
        k, v = (x.gather(2, kept[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])) for x in (self.k, self.v))
        return KV(k, v)

    def gather(self) -> "KV":
        """The same keys and values, each stored in its own row."""
        if self.rows is None:
            return self
        place = torch.arange(self.rows.shape[1], device=self.rows.device)
        k, v = (x[self.rows, :, place].transpose(1, 2) for x in (self.k, self.v))  # (B, H, S, K)
        return KV(k, v)


def unchanged(kv: KV) -> KV:
    """Keys and values as they are."""
    return kv


class MultiHead(nn.Module):
    """o = W_o [o_1; ...; o_H], where o_i = attend(W_q x, W_k m, W_v m) in head i (Vaswani et al., 2017).

    `heads(x)` is self-attention, `heads(x, memory)` cross-attention. `keys_values(m)` projects a memory once, and may
    be passed in its place: a decoder caches it, and appends the keys and values of each new token.

        cache = heads.keys_values(x[:, :1])
        y = heads(x[:, :1], cache)
        cache = cache.append(heads.keys_values(x[:, 1:2]))
        y = heads(x[:, 1:2], cache)

    A score with weights is shared by the heads. Without `output` there is no W_o, as in some lectures.
    """

    entrances = ("keys_values",)  # methods that use weights outside of `forward`, which FSDP must know

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        memory_width: int | None = None,
        score: Score = scaled_dot,
        normalize: Normalize | str = softmax,
        rotary: Rotary | None = None,
        output: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} does not split into {heads} heads")
        self.heads, self.score, self.normalize, self.rotary = heads, score, normalizer(normalize), rotary
        self.q = Linear(width, width, bias=bias)
        self.kv = Linear(memory_width or width, 2 * width, bias=bias)
        self.out = Linear(width, width, bias=bias) if output else nn.Identity()
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights = Tap(), Tap()

    def self_attend(
        self,
        x: Tensor,
        mask: AnyMask = None,
        bias: Bias | None = None,
        at: Tensor | None = None,
        past: Callable[[KV], KV] = unchanged,
    ) -> Tensor:
        """Self-attention of x (B, T, D), to `past` of its keys and values; `at` is used by rotary positions only."""
        return self(x, None, mask, bias, at, past)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, K)

    def keys_values(self, memory: Tensor, at: Tensor | None = None) -> KV:
        """Keys and values of the memory (B, S, D); its positions `at` are used by rotary positions only."""
        return self._keys_values(memory, at)

    def _keys_values(
        self, memory: Tensor, at: Tensor | None = None
    ) -> KV:  # called within `forward`, where FSDP has gathered the weights
        k, v = map(self.split, self.kv(memory).chunk(2, -1))  # (B, H, S, K)
        return KV(k if self.rotary is None or at is None else self.rotary(k, at), v)

    def forward(
        self,
        x: Tensor,
        memory: KV | Tensor | None = None,
        mask: AnyMask = None,
        bias: Bias | Tensor | None = None,
        at: Tensor | None = None,
        past: Callable[[KV], KV] = unchanged,
    ) -> Tensor:
        """`at` are the positions of x; for a memory with other positions, pass `keys_values(memory, positions)`."""
        if memory is None or memory is x:
            memory = past(self._keys_values(x, at))
        elif isinstance(memory, Tensor):
            memory = self._keys_values(memory)
        q = self.split(self.q(x))  # (B, H, T, K)
        q = self.queries(q if self.rotary is None or at is None else self.rotary(q, at))
        fast = self.score is scaled_dot and self.normalize is softmax
        fast = fast and not tapped(self.keys, self.values, self.scores, self.weights)
        if memory.rows is not None and q.is_cuda and q.shape[2] == 1 and bias is None and fast:
            o = attend_cached(q, memory)  # (B, H, T, K)
        else:
            k, v, *_ = memory.gather()
            k, v = self.keys(k), self.values(v)
            o = attend(q, k, v, mask, bias, self.score, self.normalize, self.scores, self.weights)  # (B, H, T, K)
        return self.out(o.transpose(1, 2).flatten(2))  # (B, T, D)


class SelfAttention(nn.Module):
    """Self-attention with queries, keys and values from one matrix product, and dropout on the weights."""

    entrances = ("self_attend",)

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        rotary: Rotary | None = None,
        score: Score = scaled_dot,
        normalize: Normalize = softmax,
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.rotary = heads, dropout, rotary
        self.score, self.normalize = score, normalize
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights = Tap(), Tap()

    def self_attend(
        self,
        x: Tensor,
        mask: AnyMask = None,
        bias: Bias | None = None,
        at: Tensor | None = None,
        past: Callable[[KV], KV] = unchanged,
    ) -> Tensor:
        """Self-attention of x (B, T, D); its positions `at` are used by rotary positions only.

        Queries attend to `past` of the keys and values of x: a cache appends them to those of all positions so far.
        """
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, K)
        if isinstance(mask, BlockDiagonal) and qkv.is_cuda and bias is None and self.has_kernel:
            return self.out(packed_self_attention(qkv, mask, self.dropout if self.training else 0.0).flatten(2))
        linear = bias is None or bias.linear is not None
        alone = past is unchanged and (self.rotary is None or at is None)
        if isinstance(mask, BlockSparse) and linear and alone and self.has_kernel and has_block_kernel(qkv):
            o = sparse_self_attention(qkv, mask, bias, self.dropout if self.training else 0.0)
            return self.out(o.transpose(1, 2).flatten(2))
        if mask is None and bias is None and alone and self.has_kernel and has_short_kernel(qkv):
            return self.out(short_self_attention(qkv, self.dropout if self.training else 0.0).flatten(2))
        q, kv = self.split_qkv(qkv, at)
        return self.attend_to(q, past(kv), mask, bias)  # (B, T, D)

    def attend_from(self, x: Tensor, count: int) -> Tensor:
        """Self-attention of the first `count` positions of x (B, T, D) alone, to all of them."""
        if tapped(self.queries, self.keys, self.values, self.scores, self.weights) or self.rotary is not None:
            return self.self_attend(x)[:, :count]
        width, bias = x.shape[-1], self.qkv.bias
        assert bias is not None
        q = linear(x[:, :count], self.qkv.weight[:width], bias[:width]).unflatten(-1, (self.heads, -1))
        kv = linear(x, self.qkv.weight[width:], bias[width:]).unflatten(-1, (2, self.heads, -1))  # (B, T, 2, H, K)
        k, v = kv.transpose(1, 3).unbind(2)  # (B, H, T, K)
        return self.attend_to(q.transpose(1, 2), KV(k, v), None, None)

    @property
    def has_kernel(self) -> bool:
        """Whether a fused kernel computes it: softmax of scaled dot products, and no tap has a hook."""
        plain = self.score is scaled_dot and self.normalize is softmax
        return plain and not tapped(self.queries, self.keys, self.values, self.scores, self.weights)

    def split_qkv(self, qkv: Tensor, at: Tensor | None) -> tuple[Tensor, KV]:
        q, k, v = qkv.transpose(1, 3).unbind(2)  # (B, H, T, K)
        return (q, KV(k, v)) if self.rotary is None or at is None else (self.rotary(q, at), KV(self.rotary(k, at), v))

    def attend_to(self, q: Tensor, memory: KV, mask: AnyMask, bias: Bias | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if memory.rows is not None and q.is_cuda and q.shape[2] == 1 and bias is None and self.has_kernel:
            o = attend_cached(q, memory)  # (B, H, T, K)
        else:
            k, v, *_ = memory.gather()
            q, k, v = self.queries(q), self.keys(k), self.values(v)
            o = attend(
                q, k, v, mask, bias, self.score, self.normalize, self.scores, self.weights, dropout=dropout
            )  # (B, H, T, K)
        return self.out(o.transpose(1, 2).flatten(2))  # (B, T, D)

    forward = self_attend
