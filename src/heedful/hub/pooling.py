"""One vector per text from those of its tokens, as in sentence-transformers.

B texts, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.hub.sentence_transformers import Poolings


def pool(x: Tensor, real: Tensor | None, how: Poolings) -> Tensor:
    """The vectors (B, D) of texts from those of their tokens (B, T, D); `real` (B, T) are no padding, None: all.

    Several are concatenated: (B, 2 D) of two.
    """
    if isinstance(how, tuple):
        return torch.cat([pool(x, real, one) for one in how], -1)
    if how == "first":
        return x[:, 0]  # (B, D)
    if how == "mean" and real is None:
        return x.mean(1)  # (B, D)
    mask = x.new_ones(x.shape[:2]) if real is None else real.to(x.dtype)  # (B, T)
    if how == "max":
        return x.masked_fill(mask[:, :, None] == 0, torch.finfo(x.dtype).min).amax(1)  # (B, D)
    weights = mask * mask.cumsum(1) if how == "weighted_mean" else mask  # (B, T), 1, 2, 3 ... or 1 each
    total = weights.sum(1, keepdim=True).clamp(min=1e-9)  # (B, 1)
    share = weights / (total.sqrt() if how == "mean_sqrt_length" else total)  # (B, T)
    return torch.einsum("bt,btd->bd", share, x)
