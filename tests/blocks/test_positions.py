"""Position encodings use the given positions, not the indices in the tensor."""

import pytest
import torch

from heedful.blocks.positions import FixedPositions, LearnedPositions, NoPositions, Rotary, sinusoid_halves, sinusoids
from tolerance import near


@pytest.mark.parametrize(
    "module", [FixedPositions(sinusoids(9, 4)), FixedPositions(sinusoid_halves(9, 4)), LearnedPositions(9, 4)]
)
def test_position_embeddings_are_added(module: FixedPositions | LearnedPositions) -> None:
    at = torch.tensor([[0, 5, 8], [1, 1, 2]])
    x = torch.randn(2, 3, 4)
    for b in range(2):
        for t in range(3):
            assert module(x, at)[b, t].equal(x[b, t] + module.table[at[b, t]])
    assert module(x, at[0]).equal(module(x, at[:1].expand(2, -1)))


def test_only_learned_tables_are_stored() -> None:
    assert list(FixedPositions(sinusoids(3, 2)).state_dict()) == []
    assert list(LearnedPositions(3, 2).state_dict()) == ["table"]
    assert list(Rotary(3, 2).state_dict()) == []


def test_no_positions_leave_the_input_unchanged() -> None:
    x = torch.randn(2, 3, 4)
    assert NoPositions()(x, torch.arange(3)) is x


def test_rotary_keeps_norms_and_products_depend_on_distance() -> None:
    rotary, x, y = Rotary(40, 6), torch.randn(1, 1, 1, 6), torch.randn(1, 1, 1, 6)

    def product(i: int, j: int) -> float:
        return float((rotary(x, torch.tensor([i])) * rotary(y, torch.tensor([j]))).sum())

    assert float(rotary(x, torch.tensor([17])).norm()) == pytest.approx(float(x.norm()), rel=1e-6)
    assert product(3, 1) == near(product(33, 31))
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def test_rotary_by_rows_equals_rotary_by_batch() -> None:
    rotary, x = Rotary(9, 4), torch.randn(2, 3, 5, 4)
    at = torch.tensor([0, 3, 4, 7, 8])
    assert rotary(x, at).equal(rotary(x, at.expand(2, -1)))


def test_odd_width_is_rejected() -> None:
    with pytest.raises(ValueError, match="width must be even, got 5"):
        sinusoids(3, 5)
