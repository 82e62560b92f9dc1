"""Connectors: shapes, what each keeps of the encoder's state, and gradients through a sampled code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from heedful.blocks.connectors import Constant, Forward, Mlp, Stochastic, reparameterize
from tolerance import close


@pytest.mark.claim("M11")
def test_each_connector_makes_a_state_of_a_state() -> None:
    state = torch.randn(3, 8)
    for connector, units in ((Constant(8, 8), 0), (Forward(8, 8), 8), (Mlp(8, 8, 5), 5), (Stochastic(8, 8, 5), 5)):
        posterior = connector.encode(state)
        assert posterior.mean.shape == (3, units)
        assert connector.decode(posterior.mean).shape == (3, 8)
        assert (posterior.log_variance is not None) == isinstance(connector, Stochastic)
    assert Forward(8, 8).decode(Forward(8, 8).encode(state).mean) is state
    constant = Constant(8, 8)
    nn.init.normal_(constant.state)
    one, other = (constant.decode(constant.encode(torch.randn(1, 8)).mean) for _ in range(2))
    assert one.equal(other)


@pytest.mark.claim("M11")
def test_gradients_through_a_sample_are_the_analytic_ones() -> None:
    """E (z - a)^2 = (mean - a)^2 + variance: its gradients are 2 (mean - a), and variance for log variance."""
    torch.manual_seed(0)
    mean = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    log_variance = torch.tensor([-0.5, 0.4], dtype=torch.float64, requires_grad=True)
    noise = torch.randn(200_000, 2, dtype=torch.float64)
    noise = torch.cat([noise, -noise])
    noise = noise / noise.square().mean(0).sqrt()  # with the moments of N(0, 1), the estimate is exact
    z = reparameterize(mean, log_variance, noise)
    estimate = torch.autograd.grad((z - 0.7).square().mean(0).sum(), (mean, log_variance))
    close(estimate[0], 2 * (mean - 0.7), slack=4096)
    close(estimate[1], log_variance.exp(), slack=4096)


def test_one_sample_follows_the_formula() -> None:
    mean, log_variance = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, math.log(4.0)]])
    close(reparameterize(mean, log_variance, torch.tensor([[1.0, -1.0]])), torch.tensor([[2.0, 0.0]]))
