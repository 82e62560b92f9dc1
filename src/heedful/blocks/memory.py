"""A recurrent decoder's attention to the encoder's outputs, with a tap at each of its stages.

`scores` compares the decoder's state with each source vector, `weights` normalizes the scores (softmax by default),
`products` is each vector times its weight, and `context` is their sum.

B sentences, R rows (sentences times hypotheses), T queries, S source tokens, H width of a query, M width of the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV, attend
from heedful.blocks.linear import Linear
from heedful.blocks.normalizers import Normalize, softmax
from heedful.blocks.scores import Additive, General, Location, Weightless
from heedful.blocks.taps import Tap


@dataclass(frozen=True)
class Source:
    """A memory to attend to: keys and values (B, 1, S, M), which of them are real, and their positions."""

    kv: KV
    real: Tensor  # (B, S)
    at: Tensor  # (S,) or (B, S)


class Span(NamedTuple):
    """The keys a query may attend to, (B, T, S), and a bias that favours keys near the centre."""

    mask: Tensor
    bias: Tensor | None = None


class GlobalSpan(nn.Module):
    """Global attention: the whole source."""

    def forward(self, q: Tensor, source: Source, step: Tensor) -> Span:
        return Span(source.real[:, None, :])


class MonotonicSpan(nn.Module):
    """Local attention around the target's own position: |s - t| <= window (Luong et al., 2015, local-m)."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, q: Tensor, source: Source, step: Tensor) -> Span:
        end = source.real.sum(1)[:, None] - 1  # (B, 1)
        middle = torch.minimum(step, end)[:, :, None]  # (B, T, 1)
        near = (source.at.expand_as(source.real)[:, None, :] - middle).abs() <= self.window  # (B, T, S)
        return Span(near & source.real[:, None, :])


class PredictiveSpan(nn.Module):
    """Local attention around p = S sigmoid(v . tanh(W q)), where |s - p| <= window (Luong et al., 2015, local-p).

    Differs: the Gaussian exp(-(s - p)^2 / 2 (window / 2)^2) is applied before the softmax, so that the weights sum to
    one; in the paper it multiplies them.
    """

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.hidden, self.v = Linear(width, width, bias=False), Linear(width, 1, bias=False)
        self.middle = Tap()

    def forward(self, q: Tensor, source: Source, step: Tensor) -> Span:
        length = source.real.sum(1)[:, None, None]  # (B, 1, 1)
        p = self.v(torch.tanh(self.hidden(q)))  # (B, T, 1)
        p = p.to(torch.promote_types(p.dtype, torch.float32))  # half precision cannot represent large positions
        p = self.middle(length * torch.sigmoid(p))  # (B, T, 1)
        distance = source.at.expand_as(source.real)[:, None, :] - p  # (B, T, S)
        near = (distance.abs() <= self.window) & source.real[:, None, :]  # (B, T, S)
        return Span(near, -2 * (distance / self.window).square())


class MemoryAttention(nn.Module):
    """context = sum_s weight_s v_s, where weight = normalize(score(q, k)) over the span.

    Soft attention is this sum. Hard attention uses a single v_s: in training sampled with the weights as probabilities,
    in evaluation the most probable (Xu et al., 2015). With probability `soft`, a query of training takes the sum.
    """

    def __init__(
        self,
        score: Weightless | General | Additive | Location,
        span: GlobalSpan | MonotonicSpan | PredictiveSpan,
        normalize: Normalize = softmax,
        hard: bool = False,
        soft: float = 0.0,
    ) -> None:
        super().__init__()
        self.score, self.span, self.normalize, self.hard, self.soft = score, span, normalize, hard, soft
        self.scores, self.weights, self.products, self.context = Tap(), Tap(), Tap(), Tap()
        if hard:
            self.choice = Tap()

    def prepare(self, memory: Tensor, real: Tensor, at: Tensor) -> Source:
        """The memory that queries attend to, with its keys projected once."""
        return Source(KV(self.score.project_keys(memory, at)[:, None], memory[:, None]), real, at)

    def forward(
        self, q: Tensor, source: Source, at: Tensor, see: Callable[[Tensor], None] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Contexts (R, T, M) of queries (R, T, H) at the steps `at` (T,); and log p(choice) (R, T) if hard.

        `see` is called with the weights (R, T, S).
        """
        rows, steps, count = q.shape[0], q.shape[1], source.real.shape[0]
        q = q.unflatten(0, (count, -1)).flatten(1, 2)  # (B, W * T, H)
        mask, bias = self.span(q, source, at.repeat(rows // count))
        logs: list[Tensor] = []

        def choose(weights: Tensor) -> Tensor:
            if see is not None:
                see(weights[:, 0].unflatten(1, (-1, steps)).flatten(0, 1))
            if not self.hard:
                return weights
            one = self.choice(one_hot_sample(weights) if self.training else one_hot_argmax(weights))
            log = torch.where(one > 0, weights, 1.0).log().sum((1, 3))  # (B, W * T)
            if self.training and self.soft:
                whole = torch.rand_like(log, dtype=torch.float32) < self.soft
                one, log = torch.where(whole[:, None, :, None], weights, one), log.masked_fill(whole, 0.0)
            logs.append(log)
            return one

        o = attend(
            q[:, None], source.kv.k, source.kv.v, mask[:, None], None if bias is None else bias[:, None],
            self.score.compare, self.normalize, self.scores, self.weights, self.products,
            choose if self.hard or see is not None else None,
        )  # fmt: skip
        context = self.context(o[:, 0].unflatten(1, (-1, steps)).flatten(0, 1))  # (R, T, M)
        return context, logs[0].unflatten(1, (-1, steps)).flatten(0, 1) if logs else None


def one_hot_argmax(weights: Tensor) -> Tensor:
    """One-hot argmax of the weights; zeros where no key is allowed."""
    best = torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), 1.0)
    return best.masked_fill(weights == 0, 0.0)


@torch.no_grad()
def one_hot_sample(weights: Tensor) -> Tensor:
    """A one-hot sample from the weights, by the smallest of exponential random variables with these rates."""
    times = torch.empty_like(weights, dtype=torch.float32).exponential_()  # half precision would tie
    return one_hot_argmax(weights / times).to(weights.dtype)
