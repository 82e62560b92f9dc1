"""Linformer ("Self-attention with linear complexity", Wang et al., 2020).

BERT's encoder, whose keys and values are projected along the length: attention over n tokens costs n k, not n^2.

    head = softmax(Q (E K)^T / sqrt(d)) (F V), with E and F (k x n)

A text of L < n tokens uses the first L columns of E and F, wherever its padding is: padded keys and values are zero
before the projection. A slot that no token reaches, since its row is zero in these columns, is masked. The context is
fixed: there is no column for a longer text.

B batch, T positions, D width, H heads, K width of one head, C slots, N context; P = 1 or H projections of a layer.
"""

from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV
from heedful.blocks.layouts import Layout, PackedTexts, real_first
from heedful.models.bert.model import BertEncoder
from heedful.models.linformer.config import LinformerConfig


class Projection(nn.Module):
    """The projections of keys and values along the length, E and F: (2, P, C, N), or (1, P, C, N) if E = F."""

    entrances = ("reached",)

    def __init__(self, both: int, heads: int, slots: int, context: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(both, heads, slots, context))
        nn.init.normal_(self.weight, std=context**-0.5)  # a slot of a whole context is about as long as a key

    def forward(self, kv: KV, real: Tensor | None) -> KV:
        """Keys and values (B, H, T, K) of tokens, and of padding where not real (B, T), in C slots."""
        columns = min(kv.k.shape[2], self.weight.shape[-1])
        e, f = self.weight[0, ..., :columns], self.weight[-1, ..., :columns]  # (P, C, T)
        k, v = (p.to(x.dtype) @ in_order(x, real)[:, :, :columns] for p, x in ((e, kv.k), (f, kv.v)))  # (B, H, C, K)
        return KV(k, v)

    def reached(self, lengths: Tensor) -> Tensor:
        """Whether a slot gets something from texts of these lengths (B,)."""
        place = torch.arange(self.weight.shape[-1], device=self.weight.device)  # (N,)
        first = torch.where(self.weight != 0, place, len(place)).amin((0, -1))  # (P, C)
        return first[:, None] < lengths[:, None, None, None]  # (B, P, 1, C)


def in_order(x: Tensor, real: Tensor | None) -> Tensor:
    """x (B, H, T, K) with its padding set to zero and moved to the end."""
    if real is None:
        return x
    to = real_first(real)[:, None, :, None].expand_as(x)  # (B, H, T, K)
    return torch.zeros_like(x).scatter(2, to, x * real[:, None, :, None])  # (B, H, T, K)


class Linformer(BertEncoder):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D)."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        sets, both, heads = config.projections
        self.projections = nn.ModuleList(Projection(both, heads, config.slots, config.context) for _ in range(sets))

    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first block (B, T, D), and the output of each; layers may share their projections."""
        assert not isinstance(layout, PackedTexts), "projections along the length take one sequence a row"
        outputs, real = [x], layout.real
        lengths = real.sum(1) if real is not None else torch.full(x.shape[:1], x.shape[1], device=x.device)  # (B,)
        shared: Any = self.projections  # a ModuleList does not know the type of its parts
        for block, projection in zip(self.blocks, cycle(shared)):
            project = partial(projection, real=real)
            outputs.append(block(outputs[-1], projection.reached(lengths), past=project))
        return outputs
