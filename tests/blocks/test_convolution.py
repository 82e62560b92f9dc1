"""Convolution with channels last, and batch norm with what follows it, equal torch's."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from heedful.blocks.convolution import ConvNorm, ConvNormRelu, Convolution, Residual, batch_norm, in_blocks, track
from heedful.blocks.taps import watch
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


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [1, 3, 5, 7, 11])
def test_convolution_over_blocks_of_pixels_is_that_with_stride_two(size: int, channels: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, channels, 12, 20), torch.randn(6, channels, size, size), torch.randn(6)
    given = [part.double().requires_grad_() for part in (x, weight, bias)]
    results = []
    for y in (in_blocks(*given), functional.conv2d(*given, stride=2, padding=size // 2)):
        probe = torch.arange(y.numel(), dtype=torch.float64).view_as(y).sin()
        results.append((y, *torch.autograd.grad((y * probe).sum(), given)))
    for one, other in zip(*results, strict=True):
        close(one, other)


def test_statistics_are_tracked_as_torch_does() -> None:
    x = 3 * torch.randn(4, 5, 6, 7) + 2
    ours, theirs = nn.BatchNorm2d(5, momentum=0.3), nn.BatchNorm2d(5, momentum=0.3)
    for _ in range(2):
        theirs(x)
        track(ours, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0), x.numel() // 5)
    close(list(ours.buffers()), list(theirs.buffers()))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_batch_norm_with_what_follows(add: bool, relu: bool) -> None:
    x, y = torch.randn(4, 5, 6, 7), torch.randn(4, 5, 6, 7)
    norm = nn.BatchNorm2d(5)
    expected = functional.batch_norm(x, None, None, norm.weight, norm.bias, True) + (y if add else 0)
    close(batch_norm(x, norm, y if add else None, relu), expected.relu() if relu else expected)


def test_watched_residual_block_is_the_same() -> None:
    block, x = Residual(nn.Sequential(ConvNormRelu(4, 6), ConvNorm(6, 4)), nn.Identity()), torch.randn(2, 4, 5, 5)
    fast = block.eval()(x)
    with watch(block) as seen:
        close(block(x), fast)
    close((seen["body.1.output"] + x).relu(), fast)
