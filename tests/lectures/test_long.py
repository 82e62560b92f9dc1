"""What layers cost over length: counted operations and bytes, and exponents with intervals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from generators import drain_generator
from heedful.blocks.attention import attend
from heedful.blocks.masks import window
from heedful.blocks.sparse import BlockSparse
from heedful.errors import UserError
from heedful.lectures import long
from heedful.lectures.counting import Counted
from heedful.lectures.long import Fit, Growth, Settings


def test_operations_and_bytes_are_those_of_the_formulas() -> None:
    x, layer = torch.randn(50, 8), nn.Linear(8, 6)
    with Counted() as counted:
        y = layer(x)
    assert (counted.operations, counted.peak, counted.held) == (2 * 50 * 8 * 6, 4 * 50 * 6, 4 * 50 * 6)
    del y
    assert counted.held == 0
    with Counted() as counted:
        y = x + 1
        for _ in range(5):
            y = y * 2
    assert counted.peak == 2 * x.nbytes and counted.held == x.nbytes, "the value before is released"
    lstm = nn.LSTM(4, 5, bias=False)
    with Counted() as counted, torch.no_grad():
        lstm(torch.randn(30, 1, 4))
    assert counted.operations == 30 * 2 * 4 * 5 * (4 + 5)


@pytest.mark.parametrize("backward", [False, True])
def test_blocks_are_counted_without_those_that_are_masked(backward: bool) -> None:
    q, k, v = (torch.randn(1, 2, 640, 4, requires_grad=True) for _ in range(3))
    mask, found = BlockSparse.of(window(64), 1, 2, 640), {}
    for name, given in (("full", None), ("window", mask)):
        with Counted() as counted, torch.set_grad_enabled(backward):
            o = attend(q, k, v, given)
            if backward:
                torch.autograd.grad(o.sum(), (q, k, v))
        found[name] = counted.operations
    pairs = 64 * 64 * (10 * 3 - 2)  # three blocks of each row, but two of the first and the last
    # Two products forwards and five backwards, in which the scores are computed again.
    assert found == {
        "full": (7 if backward else 2) * 2 * 2 * 640**2 * 4,
        "window": (7 if backward else 2) * 2 * 2 * pairs * 4,
    }


def test_exponents_and_intervals() -> None:
    lengths = (64, 128, 256, 512)
    exact = Fit.of(lengths, [3 * n**2 for n in lengths])
    assert (exact.exponent, exact.low, exact.high) == pytest.approx((2, 2, 2)) and str(exact) == "2.00 (2.00 to 2.00)"
    rough = Fit.of(lengths, [2.0**y for y in (6.0, 7.5, 7.5, 9.5)])
    assert rough.exponent == pytest.approx(1.05)
    left = sum((y - 7.625 - 1.05 * (x - 7.5)) ** 2 for x, y in zip((6, 7, 8, 9), (6.0, 7.5, 7.5, 9.5), strict=True))
    assert rough.high - rough.exponent == pytest.approx(4.303 * math.sqrt(left / 2 / 5))
    assert Fit.of(lengths, [1.0, 2.0, 4.0, math.nan]).exponent == pytest.approx(1), "what did not fit is left out"
    assert math.isnan(Fit.of(lengths, [1.0, 2.0, math.nan, math.nan]).exponent)


def test_memory_that_is_not_enough_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(settings: Settings, length: int) -> nn.Module:
        if length > 100:
            raise torch.OutOfMemoryError
        return nn.Linear(settings.width, settings.width)

    monkeypatch.setattr(long, "LAYERS", {"it": layer})
    _, found = drain_generator(long.study(Settings(lengths=(64, 80, 100, 128), width=4, repeats=1, device="cpu")))
    assert isinstance(found, Growth)
    assert math.isnan(found.seconds["it"][3]) and math.isnan(found.bytes["it"][3]) and found.bytes["it"][2] > 0
    long.plot(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_and_short_texts_are_refused() -> None:
    with pytest.raises(UserError, match="there is no GPU"):
        drain_generator(long.study(Settings(device="cuda")))
    with pytest.raises(UserError, match="every token of a short text"):
        drain_generator(long.study(Settings(device="cpu", lengths=(64, 128, 256), width=2, repeats=1)))
