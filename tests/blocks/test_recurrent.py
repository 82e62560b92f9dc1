"""Recurrent cells against the slides' equations and torch's modules; fused against step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.recurrent import CELLS, BidirectionalLayer, Cell, Layer, Stack, State, fused, unroll
from heedful.blocks.taps import taps, watch
from tolerance import close

B, T, X, H = 5, 7, 4, 6
KINDS = tuple(CELLS)
MODULES: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
PADDING = {
    "none": [[1] * 7] * 5,
    "right": [[1] * n + [0] * (7 - n) for n in (7, 1, 4, 6, 3)],
    "left": [[0] * (7 - n) + [1] * n for n in (7, 1, 4, 6, 3)],
    "both sides": [[0, 1, 1, 1, 1, 0, 0], [1] * 7, [0, 0, 0, 1, 0, 0, 0], [0] * 6 + [1], [1] + [0] * 6],
    "between": [[1, 0, 1, 1, 0, 0, 1], [1] * 7, [0, 1, 0, 1, 0, 1, 0], [0] * 6 + [1], [1, 1, 0, 0, 0, 1, 1]],
    "empty rows": [[0] * 7, [1] * 7, [0] * 7, [1] * 3 + [0] * 4, [0] * 7],
    "nothing": [[0] * 7] * 5,
}

every_kind = pytest.mark.parametrize("kind", KINDS)
every_precision = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
every_padding = pytest.mark.parametrize("rows", list(PADDING.values()), ids=list(PADDING))


def perturb(module: Any, dtype: torch.dtype = torch.float64) -> Any:
    """A module with random noise on its weights, so that no bias is zero."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return module.to(dtype)


def cell(kind: str, dtype: torch.dtype = torch.float64) -> Cell:
    found: Cell = perturb(CELLS[kind](X, H), dtype)
    return found


def state_of(kind: str, dtype: torch.dtype = torch.float64, zero: bool = False) -> State:
    parts = [torch.randn(B, H, dtype=dtype) for _ in range(CELLS[kind](1, 1).parts)]
    return tuple(torch.zeros_like(part) if zero else part for part in parts)


def torch_module(kind: str, own: Cell) -> nn.Module:
    """The module of torch with the same weights."""
    module = MODULES[kind](X, H, batch_first=True, bias=kind != "rnn").double()
    with torch.no_grad():
        module.weight_ih_l0.copy_(own.x.weight)
        module.weight_hh_l0.copy_(own.h.weight)
        for bias, layer in (("bias_ih_l0", own.x), ("bias_hh_l0", own.h)):
            if kind != "rnn":
                getattr(module, bias).copy_(torch.zeros(()) if layer.bias is None else layer.bias)
    return module


def by_hand(kind: str, own: Cell, x: Tensor, state: State) -> tuple[Tensor, State]:
    """The equations in numpy, row by row and step by step."""
    weights = [w.detach().numpy() for w in (own.x.weight, own.h.weight)]
    bias = [None if w.bias is None else w.bias.detach().numpy() for w in (own.x, own.h)]
    outputs, last = np.zeros((B, T, H)), [part.numpy().copy() for part in state]

    def sigmoid(a: Any) -> Any:
        return 1 / (1 + np.exp(-a))

    for b in range(B):
        h, c = last[0][b], last[-1][b]
        for t in range(T):
            into = weights[0] @ x[b, t].numpy() + (0 if bias[0] is None else bias[0])
            back = weights[1] @ h + (0 if bias[1] is None else bias[1])
            if kind == "rnn":
                h = np.tanh(into + back)
            elif kind == "lstm":
                i, f, g, o = np.split(into + back, 4)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            else:
                (xr, xz, xn), (hr, hz, hn) = np.split(into, 3), np.split(back, 3)
                r, z = sigmoid(xr + hr), sigmoid(xz + hz)
                h = z * h + (1 - z) * np.tanh(xn + r * hn)
            outputs[b, t] = h
        last[-1][b], last[0][b] = c, h
    return torch.from_numpy(outputs), tuple(torch.from_numpy(part) for part in last)


def gradients(run: Callable[[Tensor, State], tuple[Tensor, State]], weights: nn.Module, x: Tensor, state: State) -> Any:
    """Values, states and the gradients of a weighted sum of all of them, in inputs, start and weights."""
    x, state = x.clone().requires_grad_(), tuple(part.clone().requires_grad_() for part in state)
    y, after = run(x, state)
    wave = sum(
        (torch.cos(torch.arange(part.numel(), dtype=part.dtype)).view_as(part) * part).sum() for part in (y, *after)
    )
    found = torch.autograd.grad(wave, [x, *state, *weights.parameters()], allow_unused=True)
    return [y.detach(), *(part.detach() for part in after), *(torch.zeros(()) if g is None else g for g in found)]


@every_kind
@pytest.mark.parametrize("run", [unroll, fused])
def test_cells_match_the_equations(kind: str, run: Any) -> None:
    own, x, state = cell(kind), torch.randn(B, T, X, dtype=torch.float64), state_of(kind)
    y, after = run(own, x, state)
    expected, last = by_hand(kind, own, x, state)
    close([y.detach(), *(part.detach() for part in after)], [expected, *last])


@every_kind
@pytest.mark.parametrize("run", [unroll, fused])
def test_cells_match_torch(kind: str, run: Any) -> None:
    own, x, state = cell(kind), torch.randn(B, T, X, dtype=torch.float64), state_of(kind)
    other = torch_module(kind, own)

    def run_other(x: Tensor, state: State) -> tuple[Tensor, State]:
        parts = tuple(part[None] for part in state)
        y, after = other(x, parts if kind == "lstm" else parts[0])
        return y, tuple(part[0] for part in (after if kind == "lstm" else (after,)))

    ours = gradients(lambda x, state: run(own, x, state), own, x, state)
    theirs = gradients(run_other, other, x, state)
    values = 1 + len(state) + 1 + len(state)  # outputs, states, and the gradients in input and start
    close(ours[:values], theirs[:values])
    for name, grad in zip((name for name, _ in own.named_parameters()), ours[values:], strict=True):
        layer, part = name.split(".")
        their = f"{part}_{'ih' if layer == 'x' else 'hh'}_l0"
        where = [name for name, _ in other.named_parameters()].index(their)
        close([grad], [theirs[values + where]])


@every_kind
@pytest.mark.parametrize("run", [unroll, fused])
def test_gradcheck(kind: str, run: Any) -> None:
    own, state = cell(kind), tuple(part[:2].requires_grad_() for part in state_of(kind))
    x = torch.randn(2, 3, X, dtype=torch.float64, requires_grad=True)
    weights = list(own.parameters())

    def outputs_and_states(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        y, after = run(own, x, rest[: len(state)])
        return (y, *after)

    assert torch.autograd.gradcheck(outputs_and_states, (x, *state, *weights))


@every_kind
@every_precision
@every_padding
def test_fused_equals_unrolled_with_any_padding(kind: str, dtype: torch.dtype, rows: Any) -> None:
    own, x, real = cell(kind, dtype), torch.randn(B, T, X, dtype=dtype), torch.tensor(rows, dtype=torch.bool)
    state = state_of(kind, dtype, zero=True)
    one = gradients(lambda x, _: fused(own, x, state, real), own, x, state)
    two = gradients(lambda x, _: unroll(own, x, state, real), own, x, state)
    close(one, two)


@every_kind
@every_precision
def test_fused_equals_unrolled_from_any_state(kind: str, dtype: torch.dtype) -> None:
    own, x, state = cell(kind, dtype), torch.randn(B, T, X, dtype=dtype), state_of(kind, dtype)
    one, two = (gradients(lambda x, state, run=run: run(own, x, state), own, x, state) for run in (fused, unroll))
    close(one, two)


@every_kind
@every_padding
def test_padded_batch_equals_single_sequences(kind: str, rows: Any) -> None:
    layer, x, real = perturb(Layer(kind, X, H)), torch.randn(B, T, X).double(), torch.tensor(rows, dtype=torch.bool)
    for state in (None, state_of(kind)):
        y, after = layer(x, state, real)
        assert not y[~real].any()
        for row in range(B):
            own = None if state is None else tuple(part[row : row + 1] for part in state)
            kept = x[row : row + 1, real[row]]
            alone, last = layer(kept, own) if kept.shape[1] else (kept.new_zeros(1, 0, H), own or layer.zeros(kept))
            close([y[row : row + 1, real[row]], *(p[row : row + 1] for p in after)], [alone, *last])


@every_kind
@every_padding
def test_padding_values_do_not_matter(kind: str, rows: Any) -> None:
    layer, x, real = perturb(Layer(kind, X, H)), torch.randn(B, T, X).double(), torch.tensor(rows, dtype=torch.bool)
    other = torch.where(real[:, :, None], x, 50 * torch.randn_like(x))
    for state in (None, state_of(kind)):
        (one, first), (two, second) = layer(x, state, real), layer(other, state, real)
        assert one.equal(two)
        assert all(a.equal(b) for a, b in zip(first, second, strict=True))


@every_kind
def test_unrolled_skips_padding_between_steps(kind: str) -> None:
    own, x = cell(kind), torch.randn(1, T, X, dtype=torch.float64)
    real = torch.tensor([[1, 0, 1, 1, 0, 0, 1]], dtype=torch.bool)
    state = tuple(part[:1] for part in state_of(kind))
    y, after = unroll(own, x, state, real)
    alone, last = unroll(own, x[:, real[0]], state)
    assert y[:, real[0]].equal(alone)
    assert all(a.equal(b) for a, b in zip(after, last, strict=True))


@every_kind
def test_layer_continues_from_its_state(kind: str) -> None:
    layer, x = perturb(Layer(kind, X, H)), torch.randn(B, T, X, dtype=torch.float64)
    whole, last = layer(x)
    state, parts = None, []
    for chunk in x.split([2, 1, 3, 1], 1):
        y, state = layer(chunk, state)
        parts.append(y)
    close([torch.cat(parts, 1), *(state or ())], [whole, *last])
    h = layer.zeros(x)
    for t in range(T):
        h = layer.step(x[:, t], h)
    close(list(h), list(last))


@every_kind
@every_padding
def test_bidirectional_padded_batch_equals_single_sequences(kind: str, rows: Any) -> None:
    both, x, real = (
        perturb(BidirectionalLayer(kind, X, H)),
        torch.randn(B, T, X).double(),
        torch.tensor(rows, dtype=torch.bool),
    )
    y, after = both(x, None, real)
    assert y.shape == (B, T, 2 * H)
    for row in range(B):
        kept = x[row : row + 1, real[row]]
        if not kept.shape[1]:
            continue
        alone, last = both(kept)
        close([y[row : row + 1, real[row]], *(p[row : row + 1] for p in after)], [alone, *last])
        backward, _ = both.back(kept.flip(1))
        close([alone[:, :, H:]], [backward.flip(1)])


@every_kind
@pytest.mark.parametrize("both", [False, True])
def test_stack_equals_its_layers_and_torch(kind: str, both: bool) -> None:
    make, factor = (BidirectionalLayer, 2) if both else (Layer, 1)
    stack = perturb(Stack([make(kind, X, H), make(kind, factor * H, H)]))
    x = torch.randn(B, T, X, dtype=torch.float64)
    y, states = stack(x)
    first, one = stack.layers[0](x)
    second, two = stack.layers[1](first)
    assert y.equal(second)
    assert all(a.equal(b) for a, b in zip((*states[0], *states[1]), (*one, *two), strict=True))

    module = MODULES[kind](X, H, 2, batch_first=True, bias=kind != "rnn", bidirectional=both).double()
    with torch.no_grad():
        for number, layer in enumerate(stack.layers):
            for way, part in (("", layer.ahead), ("_reverse", layer.back)) if both else (("", layer),):
                for side, weights in (("ih", part.cell.x), ("hh", part.cell.h)):
                    getattr(module, f"weight_{side}_l{number}{way}").copy_(weights.weight)
                    if kind != "rnn":
                        bias = torch.zeros(()) if weights.bias is None else weights.bias
                        getattr(module, f"bias_{side}_l{number}{way}").copy_(bias)
    close([y], [module(x)[0]])


@every_kind
def test_stack_step_by_step_equals_whole_sequence(kind: str) -> None:
    stack = perturb(Stack([Layer(kind, X, H), Layer(kind, H, H)]))
    x = torch.randn(B, T, X, dtype=torch.float64)
    whole, last = stack(x)
    states, outputs = tuple(layer.zeros(x) for layer in stack.layers), []
    for t in range(T):
        y, states = stack.step(x[:, t], states)
        outputs.append(y)
    close([torch.stack(outputs, 1), *sum(states, ())], [whole, *sum(last, ())])
    chunks, after = [], None
    for chunk in x.split([3, 1, 3], 1):
        y, after = stack(chunk, after)
        chunks.append(y)
    close([torch.cat(chunks, 1)], [whole])


@every_kind
def test_dropout_is_between_layers_only(kind: str) -> None:
    x = torch.randn(B, T, X)
    one = Stack([Layer(kind, X, H)], 0.5).train()
    assert one(x)[0].equal(one(x)[0])
    two = Stack([Layer(kind, X, H), Layer(kind, H, H)], 0.5).train()
    assert not two(x)[0].equal(two(x)[0])
    assert two.eval()(x)[0].equal(two(x)[0])


GATES = {
    "rnn": {"hidden"},
    "lstm": {"forget", "write", "candidate", "reveal", "cell", "hidden"},
    "gru": {"reset", "keep", "candidate", "hidden"},
}


@every_kind
@every_padding
def test_taps_see_every_gate_at_every_step(kind: str, rows: Any) -> None:
    layer, x, real = perturb(Layer(kind, X, H)), torch.randn(B, T, X).double(), torch.tensor(rows, dtype=torch.bool)
    fast, after = layer(x, None, real)
    with watch(layer) as seen:
        slow, last = layer(x, None, real)
    close([slow, *last], [fast, *after])
    assert (
        {name.removeprefix("cell.") for name in seen} == GATES[kind] == {n.removeprefix("cell.") for n in taps(layer)}
    )
    assert all(len(values) == T and values[0].shape == (B, H) for values in seen.all.values())
    states = torch.stack(seen.all["cell.hidden"], 1)
    assert states[real].equal(slow[real])
    for name in ("forget", "write", "reveal", "reset", "keep"):
        for values in seen.all.get(f"cell.{name}", []):
            assert bool(((values > 0) & (values < 1)).all())


@pytest.mark.parametrize(("kind", "gate"), [(kind, gate) for kind in KINDS for gate in sorted(GATES[kind])])
def test_editing_any_gate_changes_the_output(kind: str, gate: str) -> None:
    layer, x = perturb(Layer(kind, X, H)), torch.randn(B, T, X, dtype=torch.float64)
    plain, _ = layer(x)
    with watch(layer, f"cell.{gate}", edit=lambda name, value: 0.5 * value) as seen:
        edited, _ = layer(x)
    assert len(seen.all[f"cell.{gate}"]) == T
    if gate == "hidden":
        torch.testing.assert_close(edited[:, 0], 0.5 * plain[:, 0])
    first = (
        1 if (kind, gate) in (("lstm", "forget"), ("gru", "keep"), ("gru", "reset")) else 0
    )  # these need a previous state
    assert not torch.isclose(edited[:, first + 1 :], plain[:, first + 1 :]).all(-1).any()
    assert layer(x)[0].equal(plain)


@every_kind
@every_padding
def test_half_precision_is_close_and_finite(kind: str, rows: Any) -> None:
    layer, x = perturb(Layer(kind, X, H), torch.float32), torch.randn(B, T, X)
    real = torch.tensor(rows, dtype=torch.bool)
    full, last = layer(x, None, real)
    with torch.autocast("cpu", torch.bfloat16):
        half, after = layer(x, None, real)
        with watch(layer):
            slow, end = layer(x, None, real)
        assert half.dtype == torch.bfloat16
        half.float().square().sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in layer.parameters())
    for found in ((half, *after), (slow, *end)):
        for a, b in zip(found, (full, *last), strict=True):
            torch.testing.assert_close(a.float(), b, rtol=0, atol=0.06)
            assert bool(a.isfinite().all())


@every_kind
def test_step_in_half_precision_is_close_and_finite(kind: str) -> None:
    layer, x, state = perturb(Layer(kind, X, H), torch.float32), torch.randn(B, X), state_of(kind, torch.float32)
    full = layer.step(x, state)
    with torch.autocast("cpu", torch.bfloat16):
        quick = layer.step(x, state)
        with watch(layer):
            slow = layer.step(x, state)
    for found in (quick, slow):
        for a, b in zip(found, full, strict=True):
            torch.testing.assert_close(a.float(), b, rtol=0, atol=0.06)


@every_kind
def test_step_equals_the_cell_with_gradients(kind: str) -> None:
    layer, x, state = perturb(Layer(kind, X, H)), torch.randn(B, X, dtype=torch.float64), state_of(kind)

    def run(step: Any) -> Callable[[Tensor, State], tuple[Tensor, State]]:
        return lambda x, state: ((after := step(x, state))[0], after)

    close(gradients(run(layer.step), layer, x, state), gradients(run(layer.cell), layer, x, state))


@every_kind
def test_parameter_counts_match_the_papers(kind: str) -> None:
    count = sum(weight.numel() for weight in Layer(kind, X, H).parameters())
    assert count == {"rnn": H * (H + X), "lstm": 4 * (H * (H + X) + H), "gru": 3 * (H * (H + X) + 2 * H)}[kind]
    own = MODULES[kind](X, H, bias=kind != "rnn")
    assert count == sum(w.numel() for w in own.parameters()) - (4 * H if kind == "lstm" else 0)  # it has two biases


def test_forget_gate_bias_starts_at_one() -> None:
    layer, x = Layer("lstm", X, H), torch.zeros(B, 1, X)
    with watch(layer) as seen:
        layer(x)
    torch.testing.assert_close(seen["cell.forget"], torch.full((B, H), 1.0).sigmoid())
    assert bool((seen["cell.write"] == 0.5).all())


@pytest.mark.parametrize("kind", CELLS)
def test_empty_sequence_is_rejected(kind: str) -> None:
    with pytest.raises(ValueError, match="the sequence is empty"):
        Layer(kind, 3, 4)(torch.zeros(2, 0, 3))
