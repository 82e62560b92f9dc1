"""Rows J of the claim sheet: the recurrent cells of the lecture, their gates and their gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.recurrent import LSTM, BidirectionalLayer, Elman, Layer, unroll
from heedful.blocks.taps import watch
from tolerance import close

B, T, X, H = 3, 6, 4, 5


def inputs(steps: int = T) -> Tensor:
    return torch.randn(B, steps, X, dtype=torch.float64)


def lstm() -> Layer:
    """A layer with nonzero biases."""
    layer = Layer("lstm", X, H).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return layer


Edit = Callable[[str, Tensor], Tensor | None]


def set_gate(gate: str, step: int, value: float) -> Edit:
    """An edit that sets one gate to a value at one step."""
    calls = {"forget": 0, "write": 0, "reveal": 0}

    def edit(name: str, x: Tensor) -> Tensor | None:
        name = name.removeprefix("cell.")
        if name not in calls:
            return None
        calls[name] += 1
        return torch.full_like(x, value) if (name, calls[name] - 1) == (gate, step) else None

    return edit


def first_edit(*edits: Edit) -> Edit:
    """The result of the first edit that changes the tensor."""

    def edit(name: str, x: Tensor) -> Tensor | None:
        return next((found for found in [edit(name, x) for edit in edits] if found is not None), None)

    return edit


def detach_input(name: str, x: Tensor) -> Tensor | None:
    """Detach the input gate and the candidate, so that no gradient flows through them."""
    return x.detach() if name in ("cell.write", "cell.candidate") else None


@pytest.mark.claim("J1")
def test_elman_cell_equation() -> None:
    cell, x, h = Elman(X, H).double(), inputs(), torch.randn(B, H, dtype=torch.float64)
    assert {name: tuple(weight.shape) for name, weight in cell.named_parameters()} == {
        "x.weight": (H, X),
        "h.weight": (H, H),
    }
    y, _ = unroll(cell, x, (h,))
    for t in range(T):
        h = torch.tanh(h @ cell.h.weight.T + x[:, t] @ cell.x.weight.T)
        close(y[:, t], h, slack=8192)
    zero, _ = unroll(cell, torch.zeros_like(x), (torch.zeros_like(h),))
    assert not zero.any()


@pytest.mark.claim("J5")
def test_lstm_equations_on_the_concatenated_vector() -> None:
    layer, x = lstm(), inputs()
    cell = layer.cell
    assert isinstance(cell, LSTM) and cell.x.bias is not None
    joined = torch.cat([cell.h.weight, cell.x.weight], 1)  # W [h, x]
    (wi, wf, wc, wo), (bi, bf, bc, bo) = joined.chunk(4), cell.x.bias.chunk(4)
    y, (h_last, c_last) = layer(x)
    h = c = torch.zeros(B, H, dtype=torch.float64)
    for t in range(T):
        hx = torch.cat([h, x[:, t]], 1)
        f = torch.sigmoid(hx @ wf.T + bf)
        i = torch.sigmoid(hx @ wi.T + bi)
        candidate = torch.tanh(hx @ wc.T + bc)
        c = f * c + i * candidate
        o = torch.sigmoid(hx @ wo.T + bo)
        h = o * torch.tanh(c)
        close(y[:, t], h, slack=8192)
    close((h_last, c_last), (h, c), slack=8192)


@pytest.mark.claim("J5")
def test_lstm_matches_torch_and_lecture_parameter_count() -> None:
    layer, x = lstm(), inputs()
    module = nn.LSTM(X, H, batch_first=True).double()
    assert layer.cell.x.bias is not None
    with torch.no_grad():
        module.weight_ih_l0.copy_(layer.cell.x.weight)
        module.weight_hh_l0.copy_(layer.cell.h.weight)
        module.bias_ih_l0.copy_(layer.cell.x.bias)
        module.bias_hh_l0.zero_()
    (y, (h, c)), (own, state) = module(x), layer(x)
    close((own, *state), (y, h[0], c[0]), slack=8192)
    for width, hidden in ((X, H), (1, 1), (300, 168)):
        count = sum(weight.numel() for weight in Layer("lstm", width, hidden).parameters())
        assert count == 4 * (hidden * (hidden + width) + hidden)


@pytest.mark.claim("J6")
def test_forget_gate_resets_the_cell() -> None:
    layer, one = lstm(), inputs()
    with watch(layer, edit=set_gate("forget", 3, 0.0)) as seen:
        layer(one)
    cell, written = seen.all["cell.cell"][3], seen.all["cell.write"][3] * seen.all["cell.candidate"][3]
    assert cell.equal(written)  # the past is erased
    with watch(layer, edit=set_gate("forget", 3, 1.0)) as seen:
        layer(one)
    cell, written = seen.all["cell.cell"][3], seen.all["cell.write"][3] * seen.all["cell.candidate"][3]
    assert cell.equal(seen.all["cell.cell"][2] + written)


@pytest.mark.claim("X9")
def test_forget_gate_acts_on_the_cell_not_the_hidden_state() -> None:
    layer, x = lstm(), inputs()
    gates = ("write", "candidate", "reveal")
    with watch(layer) as plain:
        layer(x)
    with watch(layer, edit=set_gate("forget", 3, 0.0)) as seen:
        layer(x)
    # The step's other gates read the whole previous hidden state; only the cell has lost its past.
    assert all(seen.all[f"cell.{gate}"][3].equal(plain.all[f"cell.{gate}"][3]) for gate in gates)
    assert seen.all["cell.hidden"][2].equal(plain.all["cell.hidden"][2])
    lost = plain.all["cell.cell"][3] - seen.all["cell.cell"][3]
    torch.testing.assert_close(lost, plain.all["cell.forget"][3] * plain.all["cell.cell"][2])


@pytest.mark.claim("J6")
def test_input_gate_controls_writing() -> None:
    layer, x = lstm(), inputs()
    with watch(layer, edit=set_gate("write", 3, 0.0)) as seen:
        layer(x)
    assert seen.all["cell.cell"][3].equal(seen.all["cell.forget"][3] * seen.all["cell.cell"][2])
    other = x.clone()
    other[:, 3] += 1
    # With the input gate closed and the forget gate open, the cell does not depend on the step's input.
    ends = []
    for sequence in (x, other):
        with watch(layer, edit=first_edit(set_gate("write", 3, 0.0), set_gate("forget", 3, 1.0))) as seen:
            layer(sequence)
        assert seen.all["cell.cell"][3].equal(seen.all["cell.cell"][2])
        ends.append(seen.all["cell.cell"][3])
    assert ends[0].equal(ends[1])


@pytest.mark.claim("J6")
def test_output_gate_controls_reading_and_leaves_the_cell() -> None:
    layer, x = lstm(), inputs()
    with watch(layer) as plain:
        layer(x)
    with watch(layer, edit=set_gate("reveal", 3, 0.0)) as seen:
        y, _ = layer(x)
    assert not y[:, 3].any()
    assert seen.all["cell.cell"][3].equal(plain.all["cell.cell"][3])
    with watch(layer, edit=set_gate("reveal", 3, 1.0)) as seen:
        y, _ = layer(x)
    assert y[:, 3].equal(torch.tanh(seen.all["cell.cell"][3]))


@pytest.mark.claim("J6")
def test_gate_activations_can_be_watched() -> None:
    layer, x = lstm(), inputs()
    with watch(layer, "cell.*") as seen:
        layer(x)
    for gate in ("forget", "write", "reveal"):
        trace = torch.stack(seen.all[f"cell.{gate}"], 1)
        assert trace.shape == (B, T, H)
        assert bool(((trace > 0) & (trace < 1)).all())


def set_forget_gates(gates: Tensor) -> Edit:
    """An edit that sets the forget gate to the given values (T, H), step by step."""
    steps = iter(gates)
    return lambda name, x: next(steps).expand_as(x) if name == "cell.forget" else None


def cell_path(layer: Layer, x: Tensor, start: Tensor) -> tuple[Tensor, list[Tensor]]:
    """dC_T/dC_0 with detached gates, (B, H, H), and the forget gates."""

    with watch(
        layer, edit=first_edit(detach_input, lambda name, x: x.detach() if name == "cell.forget" else None)
    ) as seen:
        _, (_, cell) = layer(x, (torch.zeros_like(start), start))
    columns = [torch.autograd.grad(cell[:, k].sum(), start, retain_graph=True)[0] for k in range(H)]
    return torch.stack(columns, 1), seen.all["cell.forget"]


@pytest.mark.claim("J7")
def test_cell_gradient_is_the_product_of_forget_gates() -> None:
    layer, x = lstm(), inputs(12)
    start = torch.randn(B, H, dtype=torch.float64, requires_grad=True)
    found, forget = cell_path(layer, x, start)
    product = torch.ones(B, H, dtype=torch.float64)
    for gate in reversed(forget):  # in the order of backpropagation
        product = product * gate
    assert found.equal(torch.diag_embed(product))


@pytest.mark.claim("J7")
def test_cell_path_is_the_whole_gradient_with_detached_gates() -> None:
    layer, x = lstm(), inputs(12)
    with torch.no_grad():
        layer.cell.h.weight.zero_()  # the gates then see the input only
    start = torch.randn(B, H, dtype=torch.float64, requires_grad=True)
    with watch(layer) as seen:
        layer(x)
    product = torch.stack(seen.all["cell.forget"]).prod(0)
    _, (_, cell) = layer(x, (torch.zeros_like(start), start))
    (grad,) = torch.autograd.grad(cell.sum(), start)
    torch.testing.assert_close(grad, product, rtol=1e-12, atol=0)


@pytest.mark.claim("J7")
def test_recurrent_matrix_is_in_the_elman_path_only() -> None:
    x, start = inputs(8), torch.randn(B, H, dtype=torch.float64, requires_grad=True)
    forget = 0.9 + 0.05 * torch.rand(8, H, dtype=torch.float64)
    found = []
    for _ in range(2):  # two layers with different weights, the same forget gates
        layer = lstm()
        with watch(layer, edit=first_edit(detach_input, set_forget_gates(forget))):
            _, (_, cell) = layer(x, (torch.zeros_like(start), start))
        found.append(torch.autograd.grad(cell.sum(), start)[0])
    assert found[0].equal(found[1])
    torch.testing.assert_close(found[0], forget.prod(0).expand(B, H), rtol=1e-12, atol=0)

    cell = Elman(X, H).double()
    y, (last,) = unroll(cell, x, (start,))
    jacobian = torch.eye(H, dtype=torch.float64).expand(B, H, H)
    for t in range(8):
        jacobian = torch.diag_embed(1 - y[:, t] ** 2) @ cell.h.weight @ jacobian
    columns = [torch.autograd.grad(last[:, k].sum(), start, retain_graph=True)[0] for k in range(H)]
    close(torch.stack(columns, 1), jacobian, slack=8192)


@pytest.mark.claim("J8")
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_bidirectional_outputs_are_concatenated_and_ignore_padding(kind: str) -> None:
    both, x = BidirectionalLayer(kind, X, H).double(), inputs()
    y, _ = both(x)
    assert y.shape == (B, T, 2 * H)
    assert y[:, :, :H].equal(both.ahead(x)[0])
    assert y[:, :, H:].equal(both.back(x.flip(1))[0].flip(1))
    lengths = (6, 2, 4)
    real = torch.arange(T) < torch.tensor(lengths)[:, None]
    padded, _ = both(x, None, real)
    for row, length in enumerate(lengths):
        alone, _ = both(x[row : row + 1, :length])
        close(padded[row : row + 1, :length], alone, slack=8192)
    naive, _ = both(x)  # without lengths, the backward direction reads the padding first
    assert not torch.allclose(naive[1, :2, H:], padded[1, :2, H:], atol=1e-3)


@pytest.mark.claim("J8")
def test_backward_half_depends_on_this_and_later_positions() -> None:
    both, x = BidirectionalLayer("lstm", X, H).double(), inputs().requires_grad_()
    y, _ = both(x)
    for half, steps in ((y[:, 3, :H], range(4)), (y[:, 3, H:], range(3, T))):
        (grad,) = torch.autograd.grad(half.sum(), x, retain_graph=True)
        assert [t for t in range(T) if grad[:, t].any()] == list(steps)
