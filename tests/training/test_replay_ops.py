"""Operations decomposed for replay match the original ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.training import replay_ops as forms
from heedful.training.replay import Recording
from tolerance import close

F = nn.functional


def random_tensors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_values_and_gradients(function: Any, *inputs: Tensor) -> None:
    """A recording of values and gradients matches the function on new inputs."""

    def both(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in given]
        y = function(*leaves)
        return y.detach().contiguous(), *(g.contiguous() for g in torch.autograd.grad((y * y).sum(), leaves))

    outputs = [torch.full_like(one, 7.0) for one in both(*inputs)]
    recording = Recording(both, inputs, outputs)
    others = [x.flip(0) * 1.5 for x in inputs]
    for room, x in zip(recording.inputs, others, strict=True):
        room.copy_(x)
    recording.run()
    close(outputs, both(*others))


@pytest.mark.parametrize("kind", ["tanh", "none"])
def test_gelu_twice(kind: str) -> None:
    check_values_and_gradients(
        lambda x: F.gelu(F.gelu(x * 2, approximate=kind) - 1, approximate=kind), random_tensors(5, 40) * 3
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("queries", [6, 4])
def test_attention(causal: bool, scale: float | None, queries: int) -> None:
    if causal and queries == 4:
        pytest.skip("torch lets the first query see the first key then, which nothing here asks for")
    check_values_and_gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale),
        random_tensors(2, 3, queries, 8), random_tensors(2, 3, 6, 8, seed=1), random_tensors(2, 3, 6, 8, seed=2),
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(6, 6), (2, 1, 6, 6), (1, 3, 6, 6), (2, 3, 6, 6)])
@pytest.mark.parametrize("kind", [bool, float])
def test_attention_with_mask(shape: tuple[int, ...], kind: type) -> None:
    mask = (random_tensors(*shape, seed=5) > 0) | torch.eye(6, dtype=torch.bool)
    given = mask if kind is bool else torch.where(mask, random_tensors(*shape, seed=6), -math.inf)
    check_values_and_gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=given),
        random_tensors(2, 3, 6, 8), random_tensors(2, 3, 6, 8, seed=1), random_tensors(2, 3, 6, 8, seed=2),
    )  # fmt: skip


def test_softmax_of_fully_masked_rows() -> None:
    x = random_tensors(4, 6)
    x[1] = -math.inf
    x[2, 3] = -math.inf
    torch.testing.assert_close(forms.safe_softmax(x, -1), torch.ops.aten._safe_softmax(x, -1))


def test_layer_norm() -> None:
    check_values_and_gradients(
        lambda x, w, b: F.layer_norm(x @ w.T, (6,), w[0], b[0]),
        random_tensors(3, 4, 6),
        random_tensors(6, 6, seed=1),
        random_tensors(2, 6, seed=2),
    )


def test_embedding_and_overlapping_slices() -> None:
    places = torch.tensor([2, 0, 2])

    def function(x: Tensor) -> Tensor:
        left, right = x.unbind(1)
        return (left * right + left)[places].cummax(0).values + x[places, 1] * x.new_full((1,), 2.0)

    check_values_and_gradients(function, random_tensors(4, 2, 5))


def test_writes_into_a_slice_persist() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        room = torch.empty_like(x)
        torch.mm(x[:2], x.T @ x, out=room[:2])
        torch.mm(x[2:], x.T @ x, out=room[2:])
        return (room * 2,)

    output = torch.zeros(4, 4)
    recording = Recording(function, [random_tensors(4, 4)], [output])
    recording.inputs[0].copy_(random_tensors(4, 4, seed=1))  # type: ignore[union-attr]
    recording.run()
    torch.testing.assert_close(output, function(random_tensors(4, 4, seed=1))[0])
