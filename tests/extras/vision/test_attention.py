"""Attention of a Vision Transformer over the image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.models import build, config_class
from tolerance import close


def vit(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = config_class("vit").tiny()
    return build(config.model_validate(config.model_dump() | changes)).eval()


def some_images(model: Any) -> Tensor:
    return torch.randn(2, *model.config.input, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def layers() -> list[Tensor]:
    return [torch.rand(2, 3, 5, 5).double().softmax(-1) for _ in range(4)]


@pytest.mark.claim("I6")
def test_rows_of_a_rollout_sum_to_one(layers: list[Tensor]) -> None:
    model = vit(layers=3)
    weights = attention_weights(model, some_images(model))
    assert len(weights) == 3 and weights[0].shape == (2, 2, 7, 7)
    for found in (rollout(weights), rollout(layers)):
        close(found.sum(-1), torch.ones_like(found[..., 0]))
        assert float(found.min()) >= 0


@pytest.mark.claim("I6")
def test_rollout_of_one_layer_without_residual_is_its_attention(layers: list[Tensor]) -> None:
    close(rollout(layers[:1], residual=0.0), layers[0].mean(1))
    close(rollout(layers, residual=1.0), torch.eye(5).double().expand(2, 5, 5))


@pytest.mark.claim("I6")
def test_rollout_is_the_product_from_the_last_layer_to_the_first(layers: list[Tensor]) -> None:
    expected = torch.eye(5).double()
    for weights in reversed(layers):
        expected = expected @ (0.5 * torch.eye(5).double() + 0.5 * weights[1].mean(0))
    close(rollout(layers)[1], expected)


@pytest.mark.claim("I6")
def test_a_token_that_nobody_attends_to_is_never_read() -> None:
    """What reaches a token through any number of layers is zero where every path is closed."""
    weights = torch.rand(1, 2, 4, 4)
    weights[..., :3, 3] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    found = rollout([weights, weights, weights])[0]
    assert (found[:3, 3] == 0).all() and float(found[3, 3]) > 0 and (found[:3, :3] > 0).all()


@pytest.mark.parametrize("changes", [{}, {"distillation": "token"}, {"pool": "mean"}])
def test_weights_lie_over_the_image(changes: dict[str, Any]) -> None:
    model = vit(**changes)
    (weights, *_), (rows, columns), first = (
        attention_weights(model, some_images(model)), model.config.grid, model.config.first,
    )  # fmt: skip
    found = over_image(weights, model.config.grid)
    assert found.shape == (2, 2, rows, columns)
    for y in range(rows):
        for x in range(columns):
            to = weights[..., first + y * columns + x]  # (B, H, T)
            close(found[..., y, x], to[..., 0] if first else to.mean(-1))
