"""Gradients of scores, and the deconvnet against its definition by transposed layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.extras.vision.gradients import (
    METHODS,
    channel_score,
    class_score,
    deconvnet,
    gradient,
    gradient_times_input,
    guided_backprop,
    integrated_gradients,
    saliency,
    uses_relu,
)
from heedful.extras.vision.layers import feature_maps, layer_names
from heedful.models import build, config_class, kinds_of
from tolerance import close

KINDS = kinds_of("image_encoder")


def tiny(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = config_class(kind).tiny()
    return build(config.model_validate(config.model_dump() | changes)).eval().double()


def some_images(model: Any, count: int = 2) -> Tensor:
    return torch.randn(count, *model.config.input, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.claim("I4")
def test_deconvnet_of_a_linear_convolution_is_its_gradient() -> None:
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1).double()
    images = torch.randn(2, 2, 9, 7).double()

    def score(x: Tensor) -> Tensor:
        return layer(x)[:, 1, 2, 3]

    unit = torch.zeros(2, 3, 5, 4).double()
    unit[:, 1, 2, 3] = 1
    transposed = functional.conv_transpose2d(unit, layer.weight, stride=2, padding=1)
    for method in (deconvnet, guided_backprop, gradient):
        close(method(score, images), transposed)


@pytest.mark.claim("I4")
def test_deconvnet_is_unpooling_relu_and_transposed_filters() -> None:
    """Layer by layer, as Zeiler and Fergus define it; the plain gradient differs."""
    one, two = nn.Conv2d(1, 4, 3, padding=1).double(), nn.Conv2d(4, 5, 3, padding=1).double()
    images = torch.randn(1, 1, 8, 8).double()

    def score(x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(one(x)), 2)
        return functional.max_pool2d(torch.relu(two(x)), 2)[:, 2].amax((1, 2))

    x, first = functional.max_pool2d(functional.relu(one(images)), 2, return_indices=True)
    y, second = functional.max_pool2d(functional.relu(two(x)), 2, return_indices=True)
    back = torch.zeros_like(y)
    back[0, 2].view(-1)[y[0, 2].argmax()] = 1
    back = functional.relu(functional.max_unpool2d(back, second, 2))
    back = functional.conv_transpose2d(back, two.weight, padding=1)
    back = functional.relu(functional.max_unpool2d(back, first, 2))
    back = functional.conv_transpose2d(back, one.weight, padding=1)
    close(deconvnet(score, images), back)
    assert not torch.allclose(gradient(score, images), back)


def test_guided_backprop_applies_both_rules() -> None:
    layer, head = nn.Linear(6, 8).double(), nn.Linear(8, 1).double()
    images = torch.randn(1, 1, 2, 3).double()
    hidden = layer(images.flatten(1))
    back = head.weight.clamp_min(0) * (hidden > 0)
    expected = (back @ layer.weight).view_as(images)
    close(guided_backprop(lambda x: head(torch.relu(layer(x.flatten(1))))[:, 0], images), expected)


@pytest.mark.parametrize("kind", ["lenet", "vgg", "vit"])
def test_integrated_gradients_add_up_to_the_difference(kind: str) -> None:
    model = tiny(kind)
    images = some_images(model)
    baseline = 0.3 * torch.ones_like(images[:1])
    score = class_score(model, torch.tensor([2, 0]))
    found = integrated_gradients(score, images, baseline, steps=400)
    expected = score(images) - score(baseline.expand_as(images))
    assert (found.sum((1, 2, 3)) - expected).abs().max() < 0.01 * expected.abs().max()
    plain = gradient_times_input(score, images)
    assert (plain.sum((1, 2, 3)) - expected).abs().max() > 0.02 * expected.abs().max(), "gradient x input does not"


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_small_steps(kind: str) -> None:
    model = tiny(kind)
    images, layer = some_images(model, 1), layer_names(model)[1]
    for score in (class_score(model, 1), channel_score(model, layer, 1)):
        found = gradient(score, images)
        step = torch.zeros_like(images)
        step.view(-1)[int(found.abs().argmax())] = 1e-6
        slope = (score(images + step) - score(images - step)).detach() / 2e-6
        assert float(slope) == pytest.approx(
            float(found.abs().max() * found.view(-1)[found.abs().argmax()].sign()), rel=1e-4
        )


def test_channel_score_is_the_value_of_the_map() -> None:
    model = tiny("vgg")
    images, layer = some_images(model), layer_names(model)[1]
    map = feature_maps(model, images, layer)[layer]
    close(channel_score(model, layer, 2)(images), map[:, 2].amax((1, 2)))
    close(channel_score(model, layer, 2, (1, 3))(images), map[:, 2, 1, 3])


def test_rules_for_relu_end_with_the_picture() -> None:
    model = tiny("vgg")
    images, score = some_images(model), class_score(model, 0)
    before = gradient(score, images)
    pictures = [method(score, images) for method in METHODS.values()]
    close(gradient(score, images), before)
    distinct = {tuple(picture.flatten()[:5].tolist()) for picture in pictures}
    assert len(distinct) == len(METHODS), "every method draws another picture"
    assert saliency(before).shape == images[:, 0].shape and float(saliency(before).min()) >= 0


def test_relu_is_found_where_there_is_one() -> None:
    found = {kind: uses_relu(tiny(kind), some_images(tiny(kind))) for kind in ("lenet", "vgg", "vit")}
    assert found == {"lenet": False, "vgg": True, "vit": False}
    assert uses_relu(tiny("lenet", activation="relu"), some_images(tiny("lenet")))
