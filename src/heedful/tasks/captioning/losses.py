"""The losses of captioners: cross-entropy with coverage, the bound of hard attention, and self-critical training.

B images, R captions, T words, P places of the map, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from heedful.blocks.losses import Loss, projected_cross_entropy
from heedful.data.images.caption_batches import CaptionBatch, EncodedCaptions
from heedful.data.images.normalization import normalize
from heedful.tasks.sampling import (
    PAD,
    generating,
    greedy_sequences,
    inputs_of,
    policy_gradient,
    sampled_sequences,
    sequence_logs,
    tokens_in,
)
from heedful.training.caption_metrics import CiderD

BATCH_SIZE = 256  # captions of a batch in evaluation
LEAST = 1e-20  # weight in a logarithm
PROCESSES = 64  # at most, each of which has a row of the baseline


class ReadCaptions(Protocol):
    """What a decoder leaves of whole captions: see `models/captioner/model.py`."""

    @property
    def x(self) -> Tensor: ...  # (R, T, D)

    @property
    def weights(self) -> Tensor | None: ...  # (R, T, P)

    @property
    def choices(self) -> Tensor | None: ...  # (R, T)


class HardSettings(Protocol):
    """The settings of hard attention that its loss reads."""

    reinforce: float
    entropy: float
    decay: float


class Forced(NamedTuple):
    """Captions as the decoder reads them: what it is given, what it predicts, and which of that is no padding."""

    read: ReadCaptions
    labels: Tensor  # (R, T)
    real: Tensor  # (R, T)


def read_captions(model: Any, batch: CaptionBatch) -> Forced:
    """Teacher forcing: each word from the image and the words before it."""
    inputs, labels = batch.captions[:, :-1], batch.captions[:, 1:]  # (R, T)
    images = normalize(batch.pixels, batch.mean, batch.std)
    return Forced(model.read(images, inputs), labels, labels != PAD)


def word_loss(model: Any, forced: Forced, label_smoothing: float = 0.0) -> Loss:
    """The cross-entropy of each word, summed."""
    x, labels = forced.read.x.flatten(0, 1), forced.labels.flatten()
    return projected_cross_entropy(x, model.tokens.weight, labels, label_smoothing, ignore=PAD)


def caption_loss(model: Any, batch: CaptionBatch, label_smoothing: float = 0.0, coverage: float = 0.0) -> Loss:
    """-log p(caption | image) + coverage * sum_i (1 - sum_t alpha_ti)^2 (Xu et al., 2015).

    The second term asks that every place is attended to over the whole caption: the weights of a word sum to one, those
    of a place then too.
    """
    forced = read_captions(model, batch)
    loss = word_loss(model, forced, label_smoothing)
    if not coverage or forced.read.weights is None:
        return loss
    seen = (forced.read.weights * forced.real[:, :, None]).sum(1)  # (R, P)
    return replace(loss, total=loss.total + coverage * (1 - seen).square().sum())


def hard_loss(
    model: Any, batch: CaptionBatch, baseline: Tensor, settings: HardSettings, label_smoothing: float = 0.0
) -> tuple[Loss, Tensor]:
    """The loss of hard attention, whose places s are sampled, and the new baseline (Xu et al., 2015).

    It raises L = sum_s p(s | image) log p(caption | s, image), a lower bound of log p(caption | image), by REINFORCE:
    the log p of a place is weighted by the log p of this word and those after it, less a moving average of that. The
    average is of earlier batches, so that the gradient is unbiased. The entropy of the weights is raised as well.
    """
    forced = read_captions(model, batch)
    loss = word_loss(model, forced, label_smoothing)
    read, real = forced.read, forced.real
    assert read.weights is not None and read.choices is not None, "only hard attention samples"
    with torch.no_grad():
        rewards = rewards_to_go(model, forced)  # (R, T)
        mean = baseline.mean(0)[: real.shape[1]]  # (T,)
        advantage = torch.where(real, rewards - mean, 0.0)  # (R, T)
        after = moving_average(baseline, rewards, real, settings.decay)
    entropy = -(read.weights * read.weights.clamp(min=LEAST).log()).sum(-1)[real].sum()  # log 0 has no gradient
    total = loss.total - settings.reinforce * (read.choices * advantage).sum() - settings.entropy * entropy
    return replace(loss, total=total), after


def rewards_to_go(model: Any, forced: Forced) -> Tensor:
    """log p of each word and those after it, given the sampled places: what a choice of a place affects."""
    x = forced.read.x
    logs = model.tokens.logits(x).log_softmax(-1, torch.promote_types(x.dtype, torch.float32))  # (R, T, V)
    logs = logs.gather(-1, forced.labels[:, :, None]).squeeze(-1) * forced.real  # (R, T)
    return logs.flip(1).cumsum(1).flip(1)  # (R, T)


def moving_average(baseline: Tensor, rewards: Tensor, real: Tensor, decay: float) -> Tensor:
    """The baseline (processes, positions) moved towards the mean reward at each position; positions unseen stay."""
    count = real.sum(0)  # (T,)
    mean = (rewards * real).sum(0) / count.clamp(min=1)  # (T,)
    width = real.shape[1]
    moved = torch.where(count > 0, decay * baseline[:, :width] + (1 - decay) * mean, baseline[:, :width])
    return torch.cat([moved, baseline[:, width:]], 1)


def self_critical_loss(model: Any, batch: CaptionBatch, rewards: CiderD[int], samples: int, longest: int) -> Loss:
    """-(r(sampled) - r(greedy)) log p(sampled), where r is CIDEr-D (Rennie et al., 2017).

    The model is its own baseline: a sampled caption becomes likelier if it is better than the greedy one. The end of a
    caption counts as a word, or captions would end anywhere.
    """
    images = normalize(batch.pixels, batch.mean, batch.std)
    numbers, device = batch.indices.tolist(), images.device
    with generating(model):
        state, limit = model.start(images), torch.full((len(images),), longest)
        best = greedy_sequences(model, state, limit, device)  # (B, T)
        sampled = sampled_sequences(model, state, limit, device, samples).flatten(0, 1)  # (R, T)
    gained = rewards.scores(tokens_in(sampled), [number for number in numbers for _ in range(samples)])
    expected = np.repeat(rewards.scores(tokens_in(best), numbers), samples)
    advantage = torch.from_numpy(gained - expected).to(device)  # (R,)
    reported = {"reward": gained.mean(), "above_baseline": (advantage > 0).double().mean().item()}
    parts = {name: torch.full((), value * batch.tokens, device=device) for name, value in reported.items()}
    logits = model.tokens.logits(model.read(images, inputs_of(sampled)).x)  # (R, T, V)
    logs = sequence_logs(logits, sampled)  # (R, T)
    return Loss(policy_gradient(logs, advantage[:, None]), -logs.detach().sum(), (sampled != PAD).sum(), parts)


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedCaptions, device: torch.device) -> float:
    """The mean cross-entropy per token over all captions of a split."""
    total, count = 0.0, 0
    for batch in encoded.in_order(BATCH_SIZE):
        there = batch.to(device)
        total += word_loss(model, read_captions(model, there)).plain.item()
        count += batch.tokens
    return total / count
