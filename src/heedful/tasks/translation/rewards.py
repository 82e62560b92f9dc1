"""Objectives that raise the reward of the model's own translations, such as their BLEU.

B sources, K translations of each, R = B * K rows, T tokens, D width of the last layer, F features of a baseline.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.losses import Loss
from heedful.blocks.state import regroup
from heedful.data.pairs.batches import PairBatch
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError
from heedful.models.roles import Seq2Seq
from heedful.tasks.sampling import (
    PAD,
    best_sequences,
    generating,
    greedy_sequences,
    inputs_of,
    policy_gradient,
    sampled_sequences,
    sequence_logs,
    tokens_in,
)
from heedful.tasks.translation.predictor import length_limits, translation_loss
from heedful.tasks.translation.recipe import (
    LearnedBaseline,
    MinimumRisk,
    MovingAverage,
    PolicyGradient,
    RewardObjective,
    SelfCritical,
)
from heedful.training.sentence_metrics import METRICS, SentenceMetric

PROCESSES = 64  # at most, each of which has a row of the baseline


@dataclass(frozen=True)
class TextReward:
    """The reward of translations: a metric of their texts against the references."""

    metric: SentenceMetric
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def of(cls, reward: str, references: Sequence[str], decode: Callable[[Sequence[int]], str]) -> TextReward:
        """The reward of a recipe; every reference must have a text."""
        for number, text in enumerate(references):
            if not text.strip():
                raise UserError(
                    "a reward needs a reference", where="data.train", found=f"no text in reference {number + 1:,}",
                    expected="a target text for every source", todo="leave this pair out, or translate it",
                )  # fmt: skip
        return cls(METRICS[reward](references), decode)

    def score(self, sequences: Tensor, numbers: Tensor) -> Tensor:
        """The rewards (B, K) of translations (B, K, T) of the pairs with these numbers (B,); 0 where that is -1."""
        texts = [self.decode(tokens) for tokens in tokens_in(sequences.flatten(0, 1))]
        each = numbers.clamp(min=0).repeat_interleave(sequences.shape[1]).tolist()
        scores = torch.from_numpy(self.metric.scores(texts, each)).unflatten(0, (len(numbers), -1))  # (B, K)
        return scores.to(sequences.device) * (numbers >= 0)[:, None]


class Read(NamedTuple):
    """What a model makes of translations: the last layer before each token, and log p of the token."""

    x: Tensor  # (R, T, D)
    logs: Tensor  # (R, T), zero for padding


def read_sequences(model: Seq2Seq, batch: PairBatch, sequences: Tensor) -> Read:
    """Teacher forcing with the model's own translations (B, K, T); each source is encoded once."""
    count, each, _ = sequences.shape
    rows = torch.arange(count * each, device=sequences.device) // each  # (R,)
    state = regroup(model.start(batch.source, Padded(batch.source_real, gaps=False)), rows)
    flat = sequences.flatten(0, 1)  # (R, T)
    x, _ = model.features(inputs_of(flat), state)  # (R, T, D)
    return Read(x, sequence_logs(model.tokens.logits(x), flat))


# ------------------------------------------------------------------ baselines
class Baseline:
    """b = w . f, where f are features before a token and w is moved towards the reward after every step:

        w <- w + rate mean((r - w . f) f) / mean(|f|^2)

    The weights of earlier steps are used, so that the gradient of the expected reward stays unbiased.
    """

    rate: float

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The features (R, T, F) before each token, from the last layer (R, T, D)."""

    @abstractmethod
    def size(self, width: int) -> int:
        """The number of features F of a last layer of this width."""

    def first(self, width: int, device: torch.device) -> Tensor:
        """The weights before the first step, a row for each process."""
        return torch.zeros(PROCESSES, self.size(width), device=device)

    def expect(self, weights: Tensor, x: Tensor) -> Tensor:
        """The reward (R, T) that is expected before each token."""
        return (self.features(x).to(weights) * weights.mean(0)).sum(-1)  # (R, T)

    def learn(self, weights: Tensor, x: Tensor, rewards: Tensor, real: Tensor) -> Tensor:
        """The weights after rewards (R,) of sequences with real tokens (R, T)."""
        features = self.features(x).to(weights)[real]  # (N, F)
        if not len(features):
            return weights
        errors = (rewards.to(weights)[:, None] - self.expect(weights, x))[real]  # (N,)
        step = (errors[:, None] * features).mean(0) / features.square().sum(-1).mean()  # (F,)
        return weights + self.rate * step


class MovingAverageBaseline(Baseline):
    """The moving average of rewards: the only feature is 1."""

    def __init__(self, settings: MovingAverage) -> None:
        self.rate = 1 - settings.decay

    def features(self, x: Tensor) -> Tensor:
        return x.new_ones(*x.shape[:2], 1)  # (R, T, 1)

    def size(self, width: int) -> int:
        return 1


class LinearBaseline(Baseline):
    """A linear function of the decoder's last layer (Ranzato et al., 2016)."""

    def __init__(self, settings: LearnedBaseline) -> None:
        self.rate = settings.rate

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_ones(*x.shape[:2], 1)], -1)  # (R, T, D + 1)

    def size(self, width: int) -> int:
        return width + 1


def baseline_of(settings: MovingAverage | LearnedBaseline) -> Baseline:
    """The baseline of a recipe."""
    return MovingAverageBaseline(settings) if isinstance(settings, MovingAverage) else LinearBaseline(settings)


# ------------------------------------------------------------------ objectives
@dataclass(frozen=True)
class Generator:
    """How translations are generated in training: by which model, and how long they may be."""

    model: Any
    reward: TextReward
    context: int
    max_length: int | None
    label_smoothing: float

    def limits(self, batch: PairBatch) -> Tensor:
        """The maximum number of tokens (B,) of each translation."""
        return length_limits(batch.source_lengths.cpu(), self.max_length, self.context)

    def start(self, batch: PairBatch) -> Any:
        """The state once the source is read."""
        return self.model.start(batch.source, Padded(batch.source_real, gaps=False))

    def sampled(self, batch: PairBatch, samples: int) -> Tensor:
        """Sampled translations (B, K, T)."""
        with generating(self.model):
            return sampled_sequences(self.model, self.start(batch), self.limits(batch), batch.source.device, samples)

    def best(self, batch: PairBatch, beams: int) -> Tensor:
        """The translations of a beam search (B, K, T)."""
        with generating(self.model):
            return best_sequences(self.model, self.start(batch), self.limits(batch), batch.source.device, beams)

    def loss(
        self, objective: Tensor, logs: Tensor, batch: PairBatch, rewards: Tensor, expected: Tensor, likelihood: float
    ) -> Loss:
        """The loss of a batch with the mean reward (B, K), and the share that is above what was expected, as parts.

        What is reported as the loss is -log p of the translations (B, K), the mean over those of a source.
        """
        real = batch.indices >= 0  # (B,)
        count = (batch.target_lengths - 1).sum()
        parts = {
            "reward": mean_of(rewards, real) * count,
            "above_baseline": mean_of(rewards > expected, real) * count,
        }
        total = objective
        if likelihood:
            loss = translation_loss(self.model, batch, self.label_smoothing)
            total, parts["likelihood"] = total + likelihood * loss.total, loss.plain
        return Loss(total, -(logs.detach().mean(1) * real).sum(), count, parts)


def mean_of(values: Tensor, real: Tensor) -> Tensor:
    """The mean of values (B, K) over real rows (B,)."""
    return (values.float().mean(1) * real).sum() / real.sum().clamp(min=1)


def reward_loss(generator: Generator, objective: RewardObjective) -> Callable[..., Any]:
    """The loss of a batch by an objective of a recipe; for a policy gradient, of a batch and the baseline."""
    if isinstance(objective, PolicyGradient):
        return partial(policy_gradient_loss, generator=generator, objective=objective)
    if isinstance(objective, SelfCritical):
        return partial(self_critical_loss, generator=generator, objective=objective)
    assert isinstance(objective, MinimumRisk)
    return partial(minimum_risk_loss, generator=generator, objective=objective)


def policy_gradient_loss(
    batch: PairBatch, carry: Tensor, generator: Generator, objective: PolicyGradient
) -> tuple[Loss, Tensor]:
    """-(r - b) log p(sampled), where the baseline b was learned in earlier steps; and the new baseline."""
    baseline, samples = baseline_of(objective.baseline), objective.samples
    sequences = generator.sampled(batch, samples)  # (B, K, T)
    rewards = generator.reward.score(sequences, batch.indices)  # (B, K)
    read = read_sequences(generator.model, batch, sequences)
    x, flat = read.x.detach(), rewards.flatten()  # (R, T, D), (R,)
    real = (sequences.flatten(0, 1) != PAD) & (batch.indices >= 0).repeat_interleave(samples)[:, None]  # (R, T)
    expected = baseline.expect(carry, x)  # (R, T)
    total = policy_gradient(read.logs, (flat[:, None] - expected) * real) / samples
    logs, first = (each.unflatten(0, (-1, samples)) for each in (read.logs.sum(1), expected[:, 0]))  # (B, K)
    loss = generator.loss(total, logs, batch, rewards, first, objective.likelihood)
    return loss, baseline.learn(carry, x, flat, real)


def self_critical_loss(batch: PairBatch, generator: Generator, objective: SelfCritical) -> Loss:
    """-(r(sampled) - r(greedy)) log p(sampled) (Rennie et al., 2017): the model is its own baseline."""
    model, reward = generator.model, generator.reward
    with generating(model):
        state, limit, device = generator.start(batch), generator.limits(batch), batch.source.device
        best = greedy_sequences(model, state, limit, device)[:, None]  # (B, 1, T)
        sequences = sampled_sequences(model, state, limit, device, objective.samples)  # (B, K, T)
    rewards, expected = reward.score(sequences, batch.indices), reward.score(best, batch.indices)  # (B, K), (B, 1)
    read = read_sequences(model, batch, sequences)
    total = policy_gradient(read.logs, (rewards - expected).flatten()[:, None]) / objective.samples
    logs = read.logs.sum(1).unflatten(0, rewards.shape)  # (B, K)
    return generator.loss(total, logs, batch, rewards, expected, objective.likelihood)


def minimum_risk_loss(batch: PairBatch, generator: Generator, objective: MinimumRisk) -> Loss:
    """The expected risk of candidates y of each source (Shen et al., 2016):

    sum_y q(y) (1 - r(y)), q(y) = p(y)^alpha / sum_y' p(y')^alpha
    """
    model, generated = generator.model, objective.samples
    if objective.candidates == "sampled":
        sequences = generator.sampled(batch, generated)  # (B, K, T)
    else:
        sequences = generator.best(batch, generated)  # (B, K, T)
    if objective.reference:
        sequences = with_reference(sequences, batch.target[:, 1:])  # (B, K + 1, T)
    rewards = generator.reward.score(sequences, batch.indices)  # (B, K)
    logs = read_sequences(model, batch, sequences).logs.sum(1).unflatten(0, rewards.shape)  # (B, K)
    kept = candidates(sequences) & (batch.indices >= 0)[:, None]  # (B, K)
    risks = expected_risk(logs, 1 - rewards, kept, objective.alpha)  # (B,)
    return generator.loss(
        risks.sum(), logs[:, :generated], batch, rewards[:, :generated], 1 - risks.detach()[:, None],
        objective.likelihood,
    )  # fmt: skip


def expected_risk(logs: Tensor, risks: Tensor, kept: Tensor, alpha: float) -> Tensor:
    """sum q risk (B,) over the candidates that are kept (B, K); q is proportional to p^alpha, from log p (B, K)."""
    some = kept | ~kept.any(1, keepdim=True)  # (B, K): without any, their risks are not counted
    q = (alpha * logs).masked_fill(~some, -torch.inf).softmax(1)  # (B, K)
    return (q * (risks * kept).to(q)).sum(1)  # (B,)


def with_reference(sequences: Tensor, reference: Tensor) -> Tensor:
    """The candidates (B, K, T), with the reference (B, T) as the last, padded to one length."""
    longest = max(sequences.shape[2], reference.shape[1])
    more, last = (
        torch.nn.functional.pad(x, (0, longest - x.shape[-1]), value=PAD) for x in (sequences, reference[:, None])
    )
    return torch.cat([more, last], 1)  # (B, K + 1, T)


def candidates(sequences: Tensor) -> Tensor:
    """Which of the sequences (B, K, T) count (B, K): those that the model can generate, and of equal ones the first."""
    equal = (sequences[:, :, None] == sequences[:, None]).all(-1)  # (B, K, K)
    special = torch.tensor([TrainedTokenizer.unk, TrainedTokenizer.bos], device=sequences.device)
    possible = (sequences != PAD).any(-1) & ~torch.isin(sequences, special).any(-1)  # (B, K)
    return possible & ~equal.tril(-1).any(-1)
