"""Receptive fields from the layers are the support of the gradient; depths are those of the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.convolution import Convolution
from heedful.models import build
from heedful.models.alexnet.config import SIZES as ALEXNETS
from heedful.models.googlenet.config import SIZES as GOOGLENETS
from heedful.models.layer_graph import receptive_fields, weighted_layers
from heedful.models.lenet.config import SIZES as LENETS
from heedful.models.resnet.config import SIZES as RESNETS
from heedful.models.vgg.config import SIZES as VGGS
from heedful.models.vit.config import SIZES as VITS

CONVNETS: dict[str, Any] = {**LENETS, **ALEXNETS, **VGGS, **GOOGLENETS, **RESNETS}


def narrow(name: str, size: tuple[int, int]) -> Any:
    """A published net with the same layers, of few filters each, for images of another size."""
    config = CONVNETS[name]
    few: dict[str, Any] = {"channels": 1, "classes": 2, "size": size}
    if config.kind == "resnet":
        few |= {"stem_width": 2, "widths": (4,) * len(config.widths)}
    elif config.kind == "lenet":
        few |= {"filters": (2, 2), "hidden": (2, 2)}
    elif config.kind == "googlenet":
        few |= {"stem_filters": (2, 2, 2), "stages": tuple(((2,) * 6,) * len(stage) for stage in config.stages)}
    else:
        few |= {"filters": (2,) * len(config.filters), "hidden": 2, "grid": 1}
    return config.model_validate(config.model_dump() | few)


def meaning(model: nn.Module) -> nn.Module:
    """The net with positive weights and with means in place of maxima.

    A gradient then reaches every pixel of a field: that of a maximum would reach one pixel of its window.
    """
    model.double().eval()
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.MaxPool2d):
                mean: Any = nn.AvgPool2d(layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode)
                setattr(parent, name, mean)
            elif isinstance(layer, nn.Conv2d | Convolution):
                nn.init.constant_(layer.weight, 1 / layer.weight[0].numel())
    return model


def outputs(model: nn.Module, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """The output of each layer."""
    found: dict[str, Tensor] = {}
    layers = dict(model.named_modules())
    hooks = [
        layers[name].register_forward_hook(lambda _, given, output, name=name: found.update({name: output}))
        for name in names
    ]
    model(images)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.claim("I1")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("alexnet", (99, 131)),
        ("alexnet-small", (28, 32)),
        ("vgg-11", (64, 35)),
        ("vgg-19-norm", (64, 35)),
        ("vgg-small", (28, 32)),
        ("googlenet", (66, 97)),
        ("googlenet-small", (21, 28)),
        ("resnet-18", (65, 40)),
        ("resnet-50", (65, 40)),
        ("resnet-20-small", (33, 32)),
        ("lenet5", (28, 25)),
        pytest.param("resnet-152", (65, 40), marks=pytest.mark.slow),
    ],
)
def test_fields_are_the_support_of_the_gradient(name: str, size: tuple[int, int]) -> None:
    model = meaning(build(narrow(name, size)))
    fields = receptive_fields(model)
    layers = [one for one, layer in model.named_modules() if isinstance(layer, nn.Conv2d | Convolution | nn.AvgPool2d)]
    assert sorted(fields) == sorted(layer for layer in layers if not layer.startswith("sides."))
    images = torch.ones(1, 1, *size, dtype=torch.float64, requires_grad=True)
    for layer, output in outputs(model, list(fields), images).items():
        rows, columns = output.shape[2:]
        for y, x in {(0, columns - 1), (rows // 2, columns // 2), (rows - 1, 0)}:
            (gradient,) = torch.autograd.grad(output[0, :, y, x].sum(), images, retain_graph=True)
            expected = torch.zeros(size, dtype=torch.bool)
            down, across = fields[layer].rows[y], fields[layer].columns[x]
            expected[down.start : down.stop, across.start : across.stop] = True
            assert torch.equal(gradient[0, 0] > 0, expected), f"{layer} at {y}, {x}: {fields[layer]}"


def test_a_larger_net_sees_more() -> None:
    """Three convolutions of 3 x 3 see as much as one of 7 x 7; published fields of whole nets."""
    vgg = receptive_fields(meta(VGGS["vgg-16"]))
    assert vgg["stages.2.2.conv"].size - vgg["stages.1.2"].size == 6 * 4  # in units of four pixels
    assert [receptive_fields(meta(CONVNETS[name])).popitem()[1].size for name in ("alexnet", "vgg-16")] == [195, 212]
    fields = receptive_fields(meta(VITS["vit-base-16"]))
    assert str(fields) == "{'patches.projection': Field(size=16, stride=16, start=0)}"


def meta(config: Any) -> nn.Module:
    with torch.device("meta"):
        return build(config)


@pytest.mark.claim("I2")
@pytest.mark.parametrize(
    ("name", "depth"),
    [("alexnet", 8), ("vgg-11", 11), ("vgg-13", 13), ("vgg-16", 16), ("vgg-19", 19), ("googlenet", 22),
     ("resnet-18", 18), ("resnet-34", 34), ("resnet-50", 50), ("resnet-101", 101), ("resnet-152", 152),
     ("resnet-20-small", 20)],
)  # fmt: skip
def test_weighted_layers(name: str, depth: int) -> None:
    assert weighted_layers(meta(CONVNETS[name])) == depth


def test_model_is_left_as_it_was() -> None:
    model = build(RESNETS["resnet-8-small"].model_copy(update={"classes": 2})).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    receptive_fields(model)
    assert model.training and all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(layer._forward_hooks for layer in model.modules())


def test_units_beyond_the_image_see_nothing() -> None:
    """With more padding than a filter is wide, the first units read zeros alone."""
    config = LENETS["lenet5"].model_validate(LENETS["lenet5"].model_dump() | {"size": (9, 8), "padding": 6})
    fields = receptive_fields(build(config))
    assert fields["conv1"].rows[:3] == (range(0), range(0), range(1))
    assert fields["conv1"].rows[-3:] == (range(8, 9), range(0), range(0))
    assert fields["conv2"].rows[0] == range(8) and fields["conv2"].columns[-1] == range(8)
