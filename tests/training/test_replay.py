"""A recording matches its function on new inputs, and refuses what it cannot record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heedful.training import replay
from heedful.training.replay import CannotRecordError, Recording

F = nn.functional
WEIGHT = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
SQUARE = torch.ones(6, 6)
LEARNED = WEIGHT.clone().requires_grad_()
Function = Callable[..., tuple[Tensor, ...]]


def random_tensors(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng) for shape in shapes]


def transposed(x: Tensor) -> tuple[Tensor, ...]:
    return ((x @ WEIGHT).t(),)


def in_place(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y.mul_(3).add_(x)
    y[1].zero_()
    y[:, 2:4].relu_()
    return y.sum(), y


def views(x: Tensor) -> tuple[Tensor, ...]:
    left, right = x[:, :2], x[:, 2:]
    return torch.cat([right, left], 1).view(2, -1).t().contiguous(), x[:, ::2] + left[:, :1].expand(-1, 3)


def shared_results(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y + y.sum(), y.detach(), y  # three results, two of them share memory


def returned_inputs(x: Tensor) -> tuple[Tensor, ...]:
    return x, x.view(-1), WEIGHT


def two_ways(x: Tensor) -> tuple[Tensor, ...]:
    square = x[:4, :4] * 1.0
    return square + square.t(), square.t() * square.sigmoid(), (square.double() * 2).float()


def gradient(x: Tensor) -> tuple[Tensor, ...]:
    total = (torch.relu(x @ LEARNED) - 0.3).square().sum()
    return total.detach(), *torch.autograd.grad(total, [LEARNED], grad_outputs=x[0, 0])


FUNCTIONS: dict[str, Function] = {
    one.__name__: one for one in (transposed, in_place, views, shared_results, returned_inputs, two_ways, gradient)
}


def check_recording(function: Function, *shapes: tuple[int, ...]) -> Recording:
    """A recording, checked against the function on new inputs."""
    outputs = [torch.full_like(one, 7.0).contiguous() for one in function(*random_tensors(0, *shapes))]
    recording = Recording(function, random_tensors(0, *shapes), outputs)
    for seed in (1, 2, 3, 4):
        inputs = random_tensors(seed, *shapes)
        for room, x in zip(recording.inputs, inputs, strict=True):
            room.copy_(x)
        recording.run()
        for output, expected in zip(outputs, function(*inputs), strict=True):
            assert torch.equal(output, expected)
    return recording


@pytest.mark.parametrize("name", FUNCTIONS)
def test_recording_matches_the_function(name: str) -> None:
    check_recording(FUNCTIONS[name], (4, 6))


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "product": lambda x, y: x @ y.t() @ x,
    "relu": lambda x, y: torch.relu(x - y),
    "tanh in place": lambda x, y: (x + 0).tanh_(),
    "mean": lambda x, y: x - y.mean(0),
    "row": lambda x, y: x + y[1:2],
    "transposed": lambda x, y: (x.t() + y.t()).t(),
    "clamped": lambda x, y: x.clamp(-1, 1),
    "into a part": lambda x, y: torch.cat([x[:2], y[2:]]).mul_(0.5),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_recording_of_random_graphs_matches(wiring: list[tuple[str, int, int]]) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x, y]
        for name, one, other in wiring:
            values.append(STEPS[name](values[one % len(values)], values[other % len(values)]))
        return values[-1], values[len(values) // 2] * 1.0, values[-1].sum()

    outputs = [torch.zeros_like(one).contiguous() for one in function(*random_tensors(0, (3, 3), (3, 3)))]
    recording = Recording(function, random_tensors(0, (3, 3), (3, 3)), outputs)
    for seed in (1, 2):
        inputs = random_tensors(seed, (3, 3), (3, 3))
        for room, x in zip(recording.inputs, inputs, strict=True):
            if room is not None:
                room.copy_(x)
        recording.run()
        for output, expected in zip(outputs, function(*inputs), strict=True):
            torch.testing.assert_close(output, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_a_buffer_keeps_its_shape_where_a_result_changes_its_own_in_place() -> None:
    """Autograd squeezes gradients so; run again, the product would be written into a buffer of another shape."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return ((x.mT @ torch.ones(4, 3)).squeeze_(0).t_() * 2,)

    output = torch.empty(3)
    recording = Recording(function, [torch.arange(4.0)[:, None]], [output])
    for _ in range(2):  # warnings are errors
        recording.run()
        assert output.tolist() == [12.0] * 3


def test_recording_reads_current_weights() -> None:
    weight = torch.ones(3)
    output = torch.zeros(3)
    recording = Recording(lambda x: (x * weight,), [torch.arange(3.0)], [output])
    weight.fill_(5)
    recording.run()
    assert output.tolist() == [0, 5, 10]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.bernoulli(x.sigmoid()) * x,
        lambda x: F.max_pool2d(x[None], 2),
        lambda x: x.topk(2).values,
    ],
    ids=["dropout", "random numbers", "pooling, which gives two", "the largest, which are two"],
)
def test_unrecordable_operations_are_rejected(function: Callable[[Tensor], Tensor]) -> None:
    inputs = random_tensors(0, (4, 6))
    with pytest.raises(CannotRecordError, match="aten"):
        Recording(lambda x: (function(x),), inputs, [torch.zeros_like(function(inputs[0]))])


def test_buffers_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    def long(x: Tensor) -> tuple[Tensor, ...]:
        for _ in range(40):
            x = (x @ SQUARE).tanh()
        return (x,)

    made, room_of = list[Tensor](), replay.Planner._room

    def noted(planner: replay.Planner, example: Tensor) -> Tensor:
        made.append(room_of(planner, example))
        return made[-1]

    monkeypatch.setattr(replay.Planner, "_room", noted)
    check_recording(long, (4, 6))
    assert len(made) >= 40
    assert len({room.data_ptr() for room in made}) <= 4
