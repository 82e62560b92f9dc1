"""Rows about recurrent networks that a figure shows: each is checked on the study behind the picture."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.recurrent import Layer
from heedful.blocks.taps import watch
from heedful.studies import Progress, alignment, cell_gradient, gradient_distance, length, recall

Found = TypeVar("Found")


def run(study: Generator[Progress, None, Found]) -> Found:
    """What a study returns."""
    while True:
        try:
            next(study)
        except StopIteration as end:
            found: Found = end.value
            return found


# ------------------------------------------------------------------ J2
@pytest.mark.claim("J2")
def test_gradients_explode_above_a_singular_value_of_one_and_vanish_below() -> None:
    found = run(gradient_distance.study(gradient_distance.Settings(singular=(0.5, 1.0, 1.5), distance=30, hidden=8)))
    for value, norms in found.small.items():
        assert norms == pytest.approx([value**k for k in range(1, 31)], rel=1e-4)
    assert found.small[0.5][-1] < 1e-9
    assert found.small[1.5][-1] > 1e5


@pytest.mark.claim("J2")
def test_below_one_they_vanish_whatever_the_inputs_and_above_one_tanh_may_stop_them() -> None:
    found = run(gradient_distance.study(gradient_distance.Settings(singular=(0.5, 1.5), distance=30, hidden=8)))
    for value, norms in found.large.items():
        assert all(norm <= value**k * (1 + 1e-9) for k, norm in enumerate(norms, 1))  # the bound
    assert found.large[1.5][-1] < 1e-2 * found.small[1.5][-1]


# ------------------------------------------------------------------ J7
def test_an_open_forget_gate_lets_the_gradient_through_where_a_plain_rnn_loses_it() -> None:
    found = run(cell_gradient.study(cell_gradient.Settings(biases=(0.0, 1.0, 5.0), distance=40, hidden=16)))
    shut, half, wide = (found.cell[bias][-1] for bias in (0.0, 1.0, 5.0))
    assert shut < half < wide
    assert wide > 0.5
    assert found.plain[-1] < 1e-3


# ------------------------------------------------------------------ J4, A18
@pytest.fixture(scope="module")
def recalled() -> recall.Recalled:
    """Nets of one width, trained for as many steps, near and far from the word that they are asked for."""
    return run(recall.study(recall.Settings(distances=(2, 15, 40), width=32, steps=250, lr=1e-2)))


@pytest.mark.claim("J4")
def test_what_is_far_back_is_not_learnt_by_a_plain_rnn(recalled: recall.Recalled) -> None:
    near, further, far = recalled.right["plain RNN"]
    assert near > 0.95
    assert max(further, far) < 2.5 / recall.KEYS  # about as good as guessing


@pytest.mark.claim("J4")
def test_an_lstm_learns_to_recall_from_further_back(recalled: recall.Recalled) -> None:
    plain, lstm = (recalled.right[name][1] for name in ("plain RNN", "LSTM"))
    assert lstm > plain + 0.3


@pytest.mark.claim("A18")
def test_attention_learns_it_at_any_distance(recalled: recall.Recalled) -> None:
    near, _, far = recalled.right["LSTM with attention"]
    assert min(near, far) > 0.95
    assert far > recalled.right["LSTM"][2] + 0.3


# ------------------------------------------------------------------ B1
@pytest.mark.claim("B1")
def test_one_vector_is_overloaded_by_long_strings_and_attention_is_not() -> None:
    found = run(length.study(length.Settings(longest=10, beyond=10, width=32, steps=700, lr=1e-2)))
    plain, attentive = found.exact["without attention"], found.exact["with attention"]
    assert min(plain[0], attentive[0]) > 0.95  # one letter is easy for both
    fall, attentive_fall = plain[0] - plain[-1], attentive[0] - attentive[-1]
    assert fall > attentive_fall + 0.3


# ------------------------------------------------------------------ B5
@pytest.mark.claim("B5")
def test_the_learned_alignment_is_a_diagonal_for_copies_and_the_other_one_for_reversals() -> None:
    found = run(alignment.study(alignment.Settings(longest=7, shown=7, width=32, steps=900, lr=1e-2)))
    order = torch.arange(7)
    for task, expected in {"copied": order, "reversed": order.flip(0)}.items():
        one = found.maps[task]
        assert one.target == (one.source if task == "copied" else one.source[::-1])
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(7))
        assert one.weights.argmax(-1).equal(expected)


# ------------------------------------------------------------------ J12
WIDTH, SIZE, DEPTH = 3, 3, 2


class Convolutions(nn.Module):
    """A ConvNet over time: each layer sees a few steps of the one below, none of them later than its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, SIZE) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        for layer in self.layers:
            x = torch.tanh(layer(nn.functional.pad(x, (SIZE - 1, 0))))
        return x.mT


def reach(y: Tensor, x: Tensor) -> int:
    """How many steps, the last one included, the last output depends on."""
    (gradient,) = torch.autograd.grad(y[0, -1].sum(), x)
    felt = (gradient[0] != 0).any(-1)
    return len(felt) - int(felt.nonzero()[0])


@pytest.mark.claim("J12")
@pytest.mark.parametrize("steps", [1, 4, 9, 30])
def test_a_convnet_takes_a_fixed_number_of_steps_and_an_rnn_as_many_as_its_input_has(steps: int) -> None:
    x = torch.randn(1, steps, WIDTH, dtype=torch.float64, requires_grad=True)
    convolutions, recurrent = Convolutions().double(), Layer("rnn", WIDTH, 5).double()
    calls: list[nn.Module] = []
    for layer in convolutions.layers:
        layer.register_forward_hook(lambda layer, *_: calls.append(layer))
    assert reach(convolutions(x), x) == min(steps, 1 + DEPTH * (SIZE - 1))
    assert len(calls) == DEPTH
    with watch(recurrent, "cell.hidden") as seen:
        y, _ = recurrent(x)
    assert reach(y, x) == steps
    assert len(seen.all["cell.hidden"]) == steps
