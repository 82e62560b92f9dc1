"""The loss surface around a minimum, with and without skip connections (Li et al., 2018)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from generators import return_value
from heedful.models import build, config_class
from heedful.plots.gallery.surface import filter_normalized, loss_surface, trained_surface
from tolerance import close


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * 4, 3))


@pytest.mark.claim("C15")
def test_directions_are_filter_normalized() -> None:
    net = convnet()
    net[0].weight.data[2] *= 100
    direction = filter_normalized(net, torch.Generator().manual_seed(0))
    for name, weight in net.named_parameters():
        if weight.dim() == 1:
            assert not direction[name].any()
            continue
        for row, filter_ in zip(direction[name], weight, strict=True):
            close(row.norm(), filter_.detach().norm())
            assert not torch.allclose(row, filter_)


@pytest.mark.claim("C15")
def test_surface_is_the_loss_along_the_directions() -> None:
    config = config_class("bert").tiny()
    torch.manual_seed(0)
    model, tokens = build(config).eval(), torch.arange(8)[None]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps = np.linspace(-1, 1, 3)
    found = return_value(loss_surface(model, lambda: model(tokens).square().mean() + model(tokens)[0, 0, 0], steps, 5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    generator = torch.Generator().manual_seed(5)
    first, second = (filter_normalized(model, generator) for _ in range(2))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight += first[name] - second[name]
        x = model(tokens)
        close(torch.tensor(found.losses[2, 0]).float(), x.square().mean() + x[0, 0, 0], slack=100)


@pytest.mark.claim("C15")
@pytest.mark.parametrize("seed", [0, 1])
def test_skip_connections_flatten_the_surface(seed: int) -> None:
    steps = np.linspace(-1, 1, 9)
    plain, residual = (return_value(trained_surface(skips, 16, 32, 120, steps, seed)) for skips in (False, True))
    middle = plain.losses[4, 4], residual.losses[4, 4]
    assert max(middle) < 2.0, "both have learned: guessing costs 2.3 nats"
    assert residual.rise < plain.rise / 5
    assert residual.roughness <= plain.roughness and residual.roughness < 0.1
