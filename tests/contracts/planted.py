"""Small plain models without a fault, and the same with one fault each: the check that has to report it stands beside.

B rows, T tokens, S keys, D width, V vocabulary, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, D, C, LONGEST = 31, 16, 3, 32


# ------------------------------------------------------------------ without a fault
class Encoder(nn.Module):
    """Tokens and their mask -> a vector for each token: two layers of attention, positions that the mask counts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(LONGEST, D)
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(D, D) for _ in range(2)) for _ in range(3))
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, D)

    def positions(self, mask: Tensor) -> Tensor:
        return (mask.cumsum(1) - 1).clamp(min=0)

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        keys = mask[:, None, :]
        return torch.where(keys, scores, -1e4).softmax(-1) * keys

    def attend(self, x: Tensor, mask: Tensor, layer: int) -> Tensor:
        q, k, v = self.q[layer](x), self.k[layer](x), self.v[layer](x)
        return self.weights(q @ k.mT / math.sqrt(D), mask) @ v

    def layers(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in range(2):
            x = self.norm(x + self.attend(x, mask, layer))
        return x

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.finish(self.layers(self.embed(tokens) + self.place(self.positions(mask)), mask), mask)


class Pooled(Encoder):
    """The mean over the real tokens."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class Decoder(nn.Module):
    """Tokens and a cache -> logits and the cache after them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(LONGEST, D)
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(D, D) for _ in range(2)) for _ in range(3))
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, V, bias=False)

    def visible(self, queries: int, keys: int) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool, device=self.out.weight.device).tril(keys - queries)

    def joined(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([old, new], 1)

    def start(self, cache: Any) -> int:
        return 0 if cache is None else int(cache[0][0].shape[1])

    def numbered(self, begin: int, tokens: Tensor) -> Tensor:
        return torch.arange(begin, begin + tokens.shape[1], device=tokens.device)

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def forward(self, tokens: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        begin = self.start(cache)
        x = self.embed(tokens) + self.place(self.numbered(begin, tokens))
        after = []
        for layer in range(2):
            k, v = self.k[layer](x), self.v[layer](x)
            if cache is not None:
                k, v = self.joined(cache[layer][0], k), self.joined(cache[layer][1], v)
            after.append((k, v))
            scores = self.q[layer](x) @ k.mT / math.sqrt(D)
            hidden = ~self.visible(x.shape[1], k.shape[1])
            x = self.norm(x + self.softmax(scores.masked_fill(hidden, -1e4)) @ v)
        return self.out(x), after


class Recurrent(nn.Module):
    """Tokens and lengths -> classes, by a packed bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = (
            nn.Embedding(V, D),
            nn.LSTM(D, D, 1, batch_first=True, bidirectional=True),
            nn.Linear(2 * D, C),
        )

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][0].transpose(0, 1).flatten(1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.out(self.last(self.embed(tokens), lengths))


class CausalConvolutions(nn.Module):
    """Tokens -> logits, by convolutions that are padded on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(V, D), nn.Linear(D, V)
        self.convs = nn.ModuleList(nn.Conv1d(D, D, 3) for _ in range(2))

    def pad(self, x: Tensor) -> Tensor:
        return F.pad(x, (2, 0))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).mT
        for conv in self.convs:
            x = x + conv(self.pad(x)).relu()
        return self.out(x.mT)


class ConvTagger(nn.Module):
    """Tokens and their mask -> a vector for each: convolutions over zeros in padding, a norm of running statistics."""

    running = True

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.out = nn.Embedding(V, D), nn.Conv1d(D, D, 3, padding=1), nn.Linear(D, C)
        self.norm = nn.BatchNorm1d(D, track_running_stats=self.running)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(tokens) * mask[..., None]
        return self.out(self.norm(self.conv(x.mT)).mT.relu())


class Tied(nn.Module):
    """Tokens -> logits, by the table that also embeds them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(V, D), nn.GRU(D, D, batch_first=True), nn.Linear(D, V, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(tokens))[0])


# ------------------------------------------------------------------ with one fault each
PLANTED: dict[str, tuple[Callable[[], nn.Module], str, list[str]]] = {}  # by name: builder, check, settings


def plant(check: str, *settings: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(cls: type[nn.Module]) -> type[nn.Module]:
        assert cls.__doc__ is not None
        PLANTED[cls.__doc__.rstrip(".")] = cls, check, list(settings)
        return cls

    return add


@plant("causal")
class OffByOne(Decoder):
    """Causal mask off by one."""

    def visible(self, queries: int, keys: int) -> Tensor:
        ones = torch.ones(queries, keys, dtype=torch.bool, device=self.out.weight.device)
        return ones.tril(keys - queries + 1)


@plant("causal", "causal=true")
class Symmetric(CausalConvolutions):
    """Causal leak by a symmetric convolution."""

    def pad(self, x: Tensor) -> Tensor:
        return F.pad(x, (1, 1))


@plant("causal", "causal=true")
class WrongAxisCausal(Decoder):
    """Softmax over queries in a causal model."""

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


@plant("causal-gradient", "causal=true")
class BackwardLeak(CausalConvolutions):
    """Later tokens in the gradient alone."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        later = self.embed(tokens).flip(1).cumsum(1).flip(1).mean(-1, keepdim=True)
        return logits + later - later.detach()


@plant("padding-left")
class CountedPadding(Encoder):
    """Positions that count padding."""

    def positions(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)


@plant("padding-right")
class WrongAxis(Encoder):
    """Softmax over the wrong axis."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask[:, None, :], scores, -1e4).softmax(-2)


@plant("padding-right")
class Inverted(Encoder):
    """Mask read the other way round."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return super().forward(tokens, ~mask)


@plant("padding-right")
class Unmasked(Encoder):
    """Mask not used in attention."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.softmax(-1)


@plant("padding-right")
class MeanOfAll(Pooled):
    """Mean pooling over padding."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x.mean(1))


@plant("padding-right")
class LastColumn(Pooled):
    """Last column in place of the last token."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x[:, -1])


@plant("padding-right")
class Unpacked(Recurrent):
    """LSTM that runs over padding."""

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.rnn(x)[1][0].transpose(0, 1).flatten(1)


@plant("empty-row")
class NanOnEmpty(Encoder):
    """NaN on an empty row."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask[:, None, :], -torch.inf).softmax(-1)


@plant("empty-row")
class MaskedTwice(Encoder):
    """Mask added twice."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        least = (~mask[:, None, :]) * torch.finfo(scores.dtype).min
        return (scores + least + least).softmax(-1)


@plant("empty-row")
class DividedByZero(Pooled):
    """Mean over no tokens."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


@plant("dropout")
class AlwaysDropout(Encoder):
    """Dropout left on."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(F.dropout(x, 0.1))


@plant("dropout")
class RandomTies(Pooled):
    """Ties broken at random."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        votes = (x[..., 0] > 0) * mask
        chosen = (votes + torch.rand(votes.shape, device=x.device)).argmax(1)
        return self.out(x[torch.arange(len(x)), chosen])


@plant("determinism")
class Remembers(Encoder):
    """State kept between calls."""

    kept: Tensor | None = None

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        before, self.kept = self.kept, x.detach().mean((0, 1))
        return self.out(x if before is None else x + 0.1 * before)


@plant("determinism")
class MovingStatistics(Encoder):
    """Running mean moved in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(D))

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        self.mean: Tensor = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return self.out(x - self.mean)


@plant("batch")
class BatchStatistics(ConvTagger):
    """Batch norm over the batch and its padding."""

    running = False


@plant("batch")
class RowsAsPositions(nn.Module):
    """Attention over rows (batch_first)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(V, D), nn.TransformerEncoderLayer(D, 2, 32, batch_first=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.embed(tokens))


@plant("batch")
class Centred(Pooled):
    """Outputs centred over the batch."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        found = super().finish(x, mask)
        return found - found.mean(0)


@plant("order")
class Capacity(Pooled):
    """Limit that the first rows use up."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().finish(x, mask) * (mask.sum(1).cumsum(0) <= 8)[:, None]


@plant("order")
class SortedByLength(Recurrent):
    """Rows sorted by length and not sorted back."""

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True, stable=True)
        packed = nn.utils.rnn.pack_padded_sequence(x[order], lengths[order].cpu(), batch_first=True)
        return self.rnn(packed)[1][0].transpose(0, 1).flatten(1)


@plant("cache")
class DropsKey(Decoder):
    """Cache that drops a key."""

    def joined(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([old[:, -4:], new], 1)

    def start(self, cache: Any) -> int:
        return 0 if cache is None else int(cache[-1])

    def forward(self, tokens: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        begin = self.start(cache)
        logits, after = super().forward(tokens, cache)
        return logits, [*after, begin + tokens.shape[1]]


@plant("cache")
class RestartsPositions(Decoder):
    """Positions that start over with each step."""

    def start(self, cache: Any) -> int:
        return 0


@plant("positions")
class Clamped(Encoder):
    """Positions clamped."""

    def positions(self, mask: Tensor) -> Tensor:
        return super().positions(mask).clamp(max=6)


@plant("gradient")
class Unused(Encoder):
    """Parameter never used."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, D)


@plant("gradient")
class Detached(Encoder):
    """Gradient cut by detach."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x.detach())


@plant("gradient")
class RootOfZero(Pooled):
    """Gradient of a root at zero."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().finish(x, mask) + (x - x).square().sum((1, 2)).sqrt()[:, None]


@plant("save")
class PlainList(Encoder):
    """Layers in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(D, D)]

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(self.more[0](x))


@plant("save")
class RandomBuffer(Encoder):
    """Random buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(D), persistent=False)

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x + self.noise)


@plant("save")
class Untied(Tied):
    """Tied weights untied by loading."""

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        found = super().load_state_dict(state, strict, assign)
        self.out.weight = nn.Parameter(state["out.weight"].clone())
        return found


@plant("dtype")
class Double(Encoder):
    """float64 leak."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().finish(x, mask) * torch.from_numpy(np.ones(D)).to(x.device)


@plant("dtype")
class SingleConstant(Encoder):
    """float32 made inside, whatever the weights."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(x) @ torch.eye(D, dtype=torch.float32, device=x.device)


@plant("dtype")
class Cancelled(Encoder):
    """Difference of large numbers."""

    def finish(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.out(x) * 1e-3 + 4096) - 4096


CORRECT: dict[str, Callable[[], nn.Module]] = {
    "attention encoder": Encoder, "mean pooling": Pooled, "GPT with a cache": Decoder, "packed LSTM": Recurrent,
    "causal convolutions": CausalConvolutions, "tied GRU": Tied, "tagger of convolutions": ConvTagger,
}  # fmt: skip
