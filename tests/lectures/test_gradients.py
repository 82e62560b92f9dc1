"""The gradients that two of the figures show, against their definitions."""

from __future__ import annotations

import pytest
import torch

from heedful.blocks.recurrent import LSTM, Elman
from heedful.lectures.cell_gradient import along_the_cell, forget_with
from heedful.lectures.gradient_distance import net, norms
from tolerance import close

T, H = 7, 5


def inputs(size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(T, H, dtype=torch.float64)


@pytest.mark.parametrize("singular", [0.5, 1.0, 2.0])
def test_matrix_has_one_singular_value(singular: float) -> None:
    values = torch.linalg.svdvals(net(H, singular, 0).h.weight)
    torch.testing.assert_close(values, torch.full_like(values, singular), rtol=1e-12, atol=0)


def test_norm_is_that_of_the_jacobian_product() -> None:
    cell, x = Elman(H, H).double(), inputs()
    h, states = torch.zeros(H, dtype=torch.float64), []
    for step in x:
        h = torch.tanh(cell.x.weight @ step + cell.h.weight @ h)
        states.append(h.detach())
    product, expected = torch.eye(H, dtype=torch.float64), []
    for h in reversed(states):
        product = product @ ((1 - h * h)[:, None] * cell.h.weight.detach())
        expected.append(float(torch.linalg.svdvals(product)[0]))
    assert norms(cell, x) == pytest.approx(expected, rel=1e-12)


def test_cell_gradient_is_the_product_of_forget_gates() -> None:
    for bias in (-1.0, 0.0, 3.0):
        found, products = along_the_cell(forget_with(LSTM(H, H).double(), bias), inputs())
        assert found.shape == (T, H)
        close(found, products, slack=8192)


def test_bias_is_added_to_the_forget_gates_only() -> None:
    before, after = LSTM(H, H), LSTM(H, H)
    forget_with(after, 7.0)
    assert before.x.bias is not None and after.x.bias is not None
    changed = (before.x.bias != after.x.bias).view(4, H)
    assert changed.any(1).tolist() == [False, True, False, False]
    x, state = torch.zeros(1, H), (torch.zeros(1, H), torch.ones(1, H))
    assert bool((after(x, state)[1] > 0.999).all())  # nothing is forgotten
