"""The evidence lower bound of sentences, and its estimates on held-out text.

log p(x) >= E_q log p(x | z) - KL(q(z | x) || p(z)), with q(z | x) = N(mean, variance) and p(z) = N(0, 1).

B batch, S source positions, T target positions, E width of the output, K units of a code, N sentences, I samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.blocks.connectors import Posterior, reparameterize
from heedful.blocks.layouts import Padded
from heedful.blocks.losses import Loss, projected_cross_entropy
from heedful.blocks.noise import gaussian
from heedful.blocks.regularizers import normal_kl, normal_log_density
from heedful.data.pairs.batches import EncodedPairs, PairBatch
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.models.roles import TextAutoencoder
from heedful.tasks.text_autoencoding.recipe import TextAutoencodingTaskConfig
from heedful.training.metrics import Score

PROCESSES = 64  # at most, each of which has a row of the counter
ACTIVE = 0.01  # a unit whose mean varies more than this over the data is active (Burda et al., 2016)


def training_loss(
    model: TextAutoencoder, task: TextAutoencodingTaskConfig, accumulate: int, batch: PairBatch, batches: Tensor
) -> tuple[Loss, Tensor]:
    """The loss of a batch with sampled codes; `batches` (processes, 1) counts the batches so far, for annealing."""
    posterior = model.encode(batch.source, Padded(batch.source_real, gaps=False))
    noise = torch.randn_like(posterior.mean)  # (B, K)
    inputs = batch.target[:, :-1]
    hidden = torch.rand(inputs.shape, device=inputs.device) < task.word_dropout  # (B, T)
    hidden[:, 0] = False  # the start token
    inputs = inputs.masked_fill(hidden, TrainedTokenizer.unk)
    weight = task.anneal.weight(float(batches[0, 0]) // accumulate) if len(batches) else 1.0
    return sentence_loss(model, posterior, inputs, batch, noise, weight, task.free_bits), batches + 1


def sentence_loss(
    model: TextAutoencoder,
    posterior: Posterior,
    inputs: Tensor,
    batch: PairBatch,
    noise: Tensor,
    weight: float = 1.0,
    free: float = 0.0,
) -> Loss:
    """-log p(x | z) + weight sum_k max(free, KL_k) of each sentence, reported as the loss without weight and free bits.

    `noise` (B, K) makes the code; with a connector that is not stochastic, the first term alone is left.
    """
    words = projected_cross_entropy(
        model.features(inputs, model.start(code_of(posterior, noise)))[0].flatten(0, 1),
        model.tokens.weight,
        batch.target[:, 1:].flatten(),
        ignore=TrainedTokenizer.pad,
    )
    if posterior.log_variance is None:
        return words
    each, real = normal_kl(posterior.mean.float(), posterior.log_variance.float()), batch.indices >= 0  # (B, K), (B,)
    kl, charged = ((one * real[:, None]).sum() for one in (each, each.clamp(min=free)))
    parts = {"reconstruction": words.plain, "kl": kl.detach()}
    return Loss(words.total + weight * charged, words.plain + kl.detach(), words.count, parts)


def code_of(posterior: Posterior, noise: Tensor) -> Tensor:
    """The code (B, K) that this noise makes; the mean where nothing is random."""
    if posterior.log_variance is None:
        return posterior.mean
    return reparameterize(posterior.mean, posterior.log_variance, noise)


@dataclass
class Estimates:
    """Sums over a set of sentences."""

    sentences: int
    tokens: int
    reconstruction: float  # -log p(x | z), one code of each sentence
    kl: float
    bound: float  # -log of the mean of p(x | z) p(z) / q(z | x) over sampled codes
    means: Tensor  # (N, K)
    samples: int

    @property
    def loss(self) -> float:
        """The negative evidence lower bound per token."""
        return (self.reconstruction + self.kl) / max(1, self.tokens)

    @property
    def active(self) -> int:
        """How many units of the code vary with the sentence."""
        return int((self.means.var(0) > ACTIVE).sum()) if len(self.means) > 1 else 0

    def scores(self) -> tuple[Score, ...]:
        """The lower bound and its two parts per sentence, the perplexity, and the number of active units."""
        count = max(1, self.sentences)
        each = f"nats:sentence|sentences:{self.sentences}"
        perplexity = math.exp(min(700.0, self.bound / max(1, self.tokens)))
        return (
            Score("elbo", -(self.reconstruction + self.kl) / count, each),
            Score("reconstruction", self.reconstruction / count, each),
            Score("kl", self.kl / count, each),
            Score("perplexity", perplexity, f"tokens:{self.tokens}|samples:{self.samples}"),
            Score("active_units", float(self.active), f"of:{self.means.shape[1]}|variance:{ACTIVE}"),
        )


@torch.inference_mode()
def estimate(
    model: TextAutoencoder, encoded: EncodedPairs, device: torch.device, batch_tokens: int, samples: int
) -> Estimates:
    """The lower bound on held-out sentences, with noise that depends on the sentence's index alone."""
    found = Estimates(0, 0, 0.0, 0.0, 0.0, torch.zeros(0, 0), samples)
    means = []
    for batch in encoded.in_order(batch_tokens):
        batch = batch.to(device)
        posterior = model.encode(batch.source, Padded(batch.source_real, gaps=False))
        inputs, units = batch.target[:, :-1], posterior.mean.shape[1:]
        noise = gaussian(0, batch.indices.new_zeros(()), batch.indices, tuple(units))  # (B, K)
        loss = sentence_loss(model, posterior, inputs, batch, noise)
        kl = float(loss.parts.get("kl", 0.0))
        found.reconstruction, found.kl = found.reconstruction + float(loss.plain) - kl, found.kl + kl
        found.bound -= float(log_likelihood(model, posterior, batch, samples).sum())
        found.sentences, found.tokens = found.sentences + len(batch.indices), found.tokens + int(loss.count)
        means.append(posterior.mean.float().cpu())
    found.means = torch.cat(means)
    return found


def log_likelihood(model: TextAutoencoder, posterior: Posterior, batch: PairBatch, samples: int) -> Tensor:
    """A lower bound of log p(x) (B,): log of the mean weight of sampled codes (Burda et al., 2016).

    Exact where the connector is not stochastic.
    """
    logs = []
    mean, log_variance = posterior
    for number in range(1 if log_variance is None else samples):
        epoch = batch.indices.new_full((), number)
        noise = gaussian(1, epoch, batch.indices, tuple(mean.shape[1:])).to(mean.dtype)  # (B, K)
        z = code_of(posterior, noise)
        log_p = log_probability(model, batch, z)  # (B,)
        if log_variance is not None:
            prior = normal_log_density(z, torch.zeros_like(z), torch.zeros_like(z))  # (B,)
            log_p = log_p + prior - normal_log_density(z, mean, log_variance)  # (B,)
        logs.append(log_p)
    return torch.stack(logs).logsumexp(0) - math.log(len(logs))  # (B,)


def log_probability(model: TextAutoencoder, batch: PairBatch, code: Tensor) -> Tensor:
    """log p(x | z) of each sentence (B,)."""
    labels = batch.target[:, 1:]
    logits, _ = model(batch.target[:, :-1], model.start(code))  # (B, T, V)
    logs = logits.float().log_softmax(-1).gather(-1, labels[:, :, None]).squeeze(-1)  # (B, T)
    return torch.where(labels != TrainedTokenizer.pad, logs, 0.0).sum(-1)
