"""More models with one fault each, of the habits of research code, and correct ones that were blamed or refused once.

B rows, S source tokens, T tokens, D width, V vocabulary, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from contracts.planted import CORRECT, LONGEST, PLANTED, C, D, Decoder, Encoder, Pooled, Tied, V, plant

__all__ = ["CAUSES", "CORRECT", "PLANTED"]


# ------------------------------------------------------------------ what a call leaves behind, or changes
@plant("finite")
class NotANumber(Encoder):
    """NaN in a weight."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.out.weight[0, :1].detach(), math.nan)


@plant("inputs")
class OverwritesPadding(Encoder):
    """Argument changed in place."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        tokens[~mask] = 0
        return super().forward(tokens, mask)


@plant("determinism")
class KeepsMask(Encoder):
    """Mask of the first batch of a shape kept."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[torch.Size, Tensor] = {}

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return super().weights(scores, self.seen.setdefault(mask.shape, mask))


class Translator(Encoder):
    """A source, its mask and a target -> logits of the target, whose tokens attend to the source."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(D, V)

    def memory(self, src: Tensor, mask: Tensor) -> Tensor:
        return super().forward(src, mask)

    def cross(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.weights(x @ memory.mT, mask) @ memory

    def forward(self, src: Tensor, mask: Tensor, tgt: Tensor) -> Tensor:  # type: ignore[override]
        x = self.embed(tgt)
        return self.logits(x + self.cross(x, self.memory(src, mask), mask))


@plant("determinism")
class KeepsSource(Translator):
    """Encoded source kept while its shape is the same."""

    kept: Tensor | None = None

    def memory(self, src: Tensor, mask: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape[:2] != src.shape:
            self.kept = super().memory(src, mask)
        return self.kept


@plant("dropout")
class TrainsInForward(Encoder):
    """Training mode turned on in forward."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(x, 0.1, self.train().training))


@plant("batch", "shape=[3,8,8]")
class NeverEvaluates(nn.Module):
    """Batch norm that eval() does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, C))

    def train(self, mode: bool = True) -> NeverEvaluates:
        super().train(True)
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


@plant("batch")
class Squeezed(Pooled):
    """Batch dimension squeezed away."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().finish(x, mask).squeeze()


# ------------------------------------------------------------------ padding and causality
@plant("padding-left")
class FirstColumn(Pooled):
    """First column in place of the first token."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x[:, 0])


@plant("padding-right")
class CrossUnmasked(Translator):
    """Attention of a decoder to padding."""

    def cross(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return super().cross(x, memory, torch.ones_like(mask))


@plant("causal", "causal=true")
class NormOverTime(nn.Module):
    """Norm over time in a causal model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.norm, self.out = (
            nn.Embedding(V, D), nn.Conv1d(D, D, 3), nn.GroupNorm(2, D), nn.Linear(D, V),
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.pad(self.embed(tokens).mT, (2, 0))
        return self.out(self.norm(self.conv(x)).mT.relu())


@plant("causal", "causal=true")
class ReadsBackwards(Tied):
    """Bidirectional GRU in a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(D, D // 2, batch_first=True, bidirectional=True)


# ------------------------------------------------------------------ caches
@plant("cache")
class ModuleCache(Decoder):
    """Cache kept in the module."""

    def forward(self, tokens: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        logits, after = super().forward(tokens, None if cache is None else self.kept)
        self.kept = [(k.detach(), v.detach()) for k, v in after]
        return logits, len(self.kept)


@plant("cache")
class SharedCache(Decoder):
    """Cache of one row for all."""

    def joined(self, old: Tensor, new: Tensor) -> Tensor:
        return super().joined(old[:1].expand(len(new), -1, -1), new)


@plant("cache", "chunks=true")
class ChunkUnmasked(Decoder):
    """Chunks that see ahead after a cache."""

    def visible(self, queries: int, keys: int) -> Tensor:
        return super().visible(queries, keys) | (keys > queries)


# ------------------------------------------------------------------ precisions, devices and files
@plant("dtype")
class SinglePositions(Encoder):
    """float32 positions added to bfloat16."""

    def layers(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().layers(x + self.positions(mask)[..., None].float() / LONGEST, mask)


@plant("dtype")
class BeyondHalf(Encoder):
    """Constant that float16 does not hold."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask[:, None, :], -1e9).softmax(-1) * mask[:, None, :]


@plant("dtype")
class TinyEps(Pooled):
    """eps that is 0 in float16."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out((x * mask[..., None]).sum(1) / (mask.sum(1, keepdim=True).to(x.dtype) + 1e-12))


@plant("device")
class MadeOnCpu(Encoder):
    """Index made on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = nn.Embedding(1, D)

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x + self.segment(torch.zeros(1, dtype=torch.long)))


@plant("device")
class NoBuffer(Encoder):
    """Table that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.linspace(0, 1, D)

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x + self.table.to(x.dtype))


@plant("save")
class LeavesOut(Encoder):
    """state_dict that leaves out a weight."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return {key: value for key, value in super().state_dict(*args, **kwargs).items() if "out" not in key}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state, strict=False, assign=assign)


# What the likely cause has to say, by fault.
CAUSES = {
    "Mask not used in attention": "norm (LayerNorm)",
    "Causal mask off by one": "off by one",
    "Causal leak by a symmetric convolution": "by convs.0 (Conv1d)",
    "Cache that drops a key": "step 6",
    "Training mode turned on in forward": "training mode",
    "Batch norm that eval() does not reach": "training mode",
    "Batch dimension squeezed away": "squeeze()",
    "First column in place of the first token": "the first column is taken",
    "Attention of a decoder to padding": "attention over all positions",
    "Norm over time in a causal model": "norm (GroupNorm)",
    "Bidirectional GRU in a language model": "rnn (GRU) also reads from the end",
    "Cache kept in the module": "kept in the module",
    "Cache of one row for all": "rows share the cache",
    "Chunks that see ahead after a cache": "chunks of several tokens",
    "Constant that float16 does not hold": "at most 65504",
    "state_dict that leaves out a weight": "leaves it out",
}


# ------------------------------------------------------------------ without a fault
class KeepsWeights(Pooled):
    """It keeps its attention weights, for plots: tensors of a graph."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        self.seen = {"last": [super().weights(scores, mask)]}
        return self.seen["last"][0]


class NeverPadding(Decoder):
    """A logit of -inf excludes a token."""

    def forward(self, tokens: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        logits, after = super().forward(tokens, cache)
        return logits.index_fill(-1, torch.tensor([0], device=logits.device), -math.inf), after


class Smallest(nn.Module):
    """Two tokens, three positions, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place, self.out = nn.Embedding(2, 4), nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.out(self.embed(tokens) + self.place((mask.cumsum(1) - 1).clamp(min=0)))


def compiled() -> nn.Module:
    """As torch.compile returns it."""
    return torch.compile(Pooled(), backend="eager")  # type: ignore[return-value]


more: dict[str, Callable[[], nn.Module]] = {
    "attention weights kept for plots": KeepsWeights, "a logit of -inf": NeverPadding, "two tokens": Smallest,
    "a compiled module": compiled, "encoder-decoder": Translator,
}  # fmt: skip
CORRECT.update(more)
