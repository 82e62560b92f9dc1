"""Linear layers in int8: close to float for every token, and the kernel matches its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.blocks import int8 as module
from heedful.blocks.int8 import Int8Linear, PlainInt8, int8
from heedful.blocks.linear import Linear
from heedful.models import build
from heedful.models.bert.config import BertConfig
from tolerance import close


def token_rows() -> Tensor:
    """Tokens of many scales: small, large, all zeros, constant, and one with an outlier."""
    x = torch.randn(9, 64) * torch.logspace(-4, 4, 9)[:, None]
    x[0], x[1], x[2, 3], x[3] = 0.0, 5.0, 300.0, -x[3].abs()
    return x


def linear() -> Linear:
    made = Linear(64, 40)
    torch.nn.init.normal_(made.bias)
    return made


def relative_error(found: Tensor, right: Tensor) -> Tensor:
    """The relative error of each row."""
    return (found - right).norm(dim=1) / right.norm(dim=1)


@torch.no_grad()
def test_int8_is_close_to_float_for_every_token() -> None:
    exact, x = linear(), token_rows()
    assert float(relative_error(Int8Linear(exact)(x), exact(x)).max()) < 0.03


@torch.no_grad()
def test_rows_are_quantized_independently() -> None:
    small, x = Int8Linear(linear()), token_rows()
    alone = torch.cat([small(row[None]) for row in x])
    assert small(x).equal(alone)


@torch.no_grad()
def test_kernel_matches_its_definition() -> None:
    small, x = Int8Linear(linear()), token_rows()
    if isinstance(small.weight, PlainInt8):
        pytest.skip("this CPU has no such kernel")
    whole = torch.randint(0, 256, (9, 64), dtype=torch.uint8)
    plain = PlainInt8(small.weight.packed.to_dense().t())
    close(small.weight.product(whole, small.step), plain.product(whole, small.step))
    quick = small(x)
    small.weight = plain
    close(small(x), quick)


@torch.no_grad()
def test_overflowing_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older CPUs add pairs of products in 16 bits; then the definition runs."""
    right = torch.ops.onednn.qlinear_pointwise
    monkeypatch.setattr(module.torch.ops.onednn, "qlinear_pointwise", lambda *a: right(*a) * 0.9)
    exact, x = linear(), token_rows()
    small = Int8Linear(exact)
    assert isinstance(small.weight, PlainInt8)
    assert float(relative_error(small(x), exact(x)).max()) < 0.03


@torch.no_grad()
def test_nan_stays_in_its_row() -> None:
    x = token_rows()
    x[4, 5] = float("nan")
    found = Int8Linear(linear())(x)
    assert bool(found[4].isnan().all())
    assert bool(found[[0, 1, 2, 3, 5, 6, 7, 8]].isfinite().all())


@torch.no_grad()
def test_int8_encoder_is_a_close_copy() -> None:
    torch.manual_seed(0)
    model = build(BertConfig(vocab=50, width=32, heads=2, layers=3, hidden=64, context=20)).eval()
    tokens = torch.randint(0, 50, (4, 11))
    before = model(tokens)
    small = int8(model)
    found = small(tokens)
    assert model(tokens).equal(before)
    assert 0 < float((found - before).norm() / before.norm()) < 0.02
    assert sum(isinstance(part, Int8Linear) for part in small.modules()) == 4 * 3
    assert not any(isinstance(part, Linear) for part in small.blocks.modules())
