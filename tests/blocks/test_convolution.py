"""Convolution with channels last equals torch's."""

import pytest
import torch
from torch import nn

from heedful.blocks.convolution import Convolution
from tolerance import close


@pytest.mark.parametrize(("channels", "filters"), [(1, 32), (32, 1), (3, 5), (1, 1)])
@pytest.mark.parametrize("padding", [0, 1])
def test_outputs_and_gradients_match_torch(channels: int, filters: int, padding: int) -> None:
    torch.manual_seed(0)
    ours = Convolution(channels, filters, 3, padding).double()
    theirs = nn.Conv2d(channels, filters, 3, padding=padding).double()
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, channels, 7, 6, dtype=torch.float64)
    results = []
    for layer in (ours, theirs):
        given = x.clone().requires_grad_(True)
        layer(given).square().sum().backward()
        results.append((layer(x), given.grad, layer.weight.grad, layer.bias.grad))
    for one, other in zip(*results, strict=True):
        close(one, other, slack=524288)
    assert ours.weight.is_contiguous()
    assert ours.weight.grad.is_contiguous()
    if filters > 1:
        assert ours(x).is_contiguous(memory_format=torch.channels_last)
