"""Regularizers equal their closed forms in float64, and the limits that they have."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.blocks.regularizers import entropy, kl_divergence, l1, l2, normal_kl, normal_log_density
from tolerance import close

torch.manual_seed(0)
LOGITS, TARGETS = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
MEAN, LOG_VARIANCE = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)


@pytest.mark.claim("M16")
def test_entropy_is_its_sum() -> None:
    expected = [-sum(p * math.log(p) for p in row) for row in LOGITS.softmax(-1).tolist()]
    close(entropy(LOGITS), torch.tensor(expected, dtype=torch.float64))
    close(entropy(torch.zeros(8, dtype=torch.float64)), torch.tensor(math.log(8), dtype=torch.float64))
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    assert entropy(certain) == 0


@pytest.mark.claim("M16")
def test_divergence_is_its_sum_and_zero_between_equals() -> None:
    p, q = TARGETS.softmax(-1).tolist(), LOGITS.softmax(-1).tolist()
    expected = [
        sum(a * math.log(a / b) for a, b in zip(one, other, strict=True)) for one, other in zip(p, q, strict=True)
    ]
    close(kl_divergence(LOGITS, TARGETS), torch.tensor(expected, dtype=torch.float64))
    close(kl_divergence(LOGITS, LOGITS + 3), torch.zeros(5, dtype=torch.float64), of=1)
    impossible = torch.tensor([0.0, 0.0, -torch.inf])
    assert kl_divergence(torch.zeros(3), impossible) == pytest.approx(math.log(1.5))
    assert kl_divergence(impossible, torch.zeros(3)) == torch.inf


@pytest.mark.claim("M16")
@pytest.mark.claim("M11")
def test_divergence_from_the_prior_is_the_closed_form_torch_and_a_monte_carlo_estimate() -> None:
    found = normal_kl(MEAN, LOG_VARIANCE)
    each = [
        (m * m + math.exp(v) - 1 - v) / 2
        for m, v in zip(MEAN.flatten().tolist(), LOG_VARIANCE.flatten().tolist(), strict=True)
    ]
    close(found, torch.tensor(each, dtype=torch.float64).view(4, 3))
    q, p = torch.distributions.Normal(MEAN, (0.5 * LOG_VARIANCE).exp()), torch.distributions.Normal(0, 1)
    close(found, torch.distributions.kl_divergence(q, p))
    generator, samples = torch.Generator().manual_seed(1), 40_000
    noise = torch.randn(samples, 4, 3, dtype=torch.float64, generator=generator)
    z, zero = MEAN + (0.5 * LOG_VARIANCE).exp() * noise, torch.zeros(4, 3, dtype=torch.float64)
    ratio = normal_log_density(z, MEAN, LOG_VARIANCE) - normal_log_density(z, zero, zero)  # (I, B)
    error = ratio.std(0) / math.sqrt(samples)
    assert ((ratio.mean(0) - found.sum(-1)).abs() < 5 * error).all()
    close(normal_log_density(z, MEAN, LOG_VARIANCE), q.log_prob(z).sum(-1))


def test_small_divergences_keep_their_digits() -> None:
    tiny = torch.full((1,), 1e-4)
    assert float(normal_kl(torch.zeros(1), tiny)) == pytest.approx(2.5e-9, rel=1e-2)  # v^2 / 4, in float32


@pytest.mark.claim("M16")
def test_penalties_on_weights_and_their_gradients() -> None:
    weights = [torch.randn(3, 4, dtype=torch.float64).requires_grad_(), torch.randn(5, dtype=torch.float64)]
    numbers = [value for weight in weights for value in weight.flatten().tolist()]
    assert l1(weights).item() == pytest.approx(sum(map(abs, numbers)), rel=1e-12)
    assert l2(weights).item() == pytest.approx(sum(value * value for value in numbers) / 2, rel=1e-12)
    close(torch.autograd.grad(l2(weights), weights[0])[0], weights[0])
    close(torch.autograd.grad(l1(weights), weights[0])[0], weights[0].sign())
