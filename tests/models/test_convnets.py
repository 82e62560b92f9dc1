"""ConvNets against plain functions of torch, their published sizes, and what makes each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from heedful.blocks.convolution import ConvNormRelu, Inception
from heedful.models import build, config_class
from heedful.models.alexnet.config import SIZES as ALEXNETS
from heedful.models.googlenet.config import SIZES as GOOGLENETS
from heedful.models.googlenet.config import GoogLeNetConfig
from heedful.models.resnet.config import SIZES as RESNETS
from heedful.models.vgg.config import SIZES as VGGS
from tolerance import close

CONVNETS = ("alexnet", "vgg", "googlenet", "resnet")
SIZES: dict[str, Any] = {**ALEXNETS, **VGGS, **GOOGLENETS, **RESNETS}
every_convnet = pytest.mark.parametrize("kind", CONVNETS)


def random_net(config: Any) -> Any:
    """A net with random weights, in which no bias, norm or running statistic is trivial, in float64."""
    torch.manual_seed(0)
    model = build(config).double().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
            elif tensor.dim() == 1:
                tensor.uniform_(-0.5, 1)
    return model


def tiny(kind: str, **settings: Any) -> Any:
    return config_class(kind).model_validate(config_class(kind).tiny().model_dump() | settings)


@pytest.mark.claim("I2")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("alexnet", 61_100_840),
        ("vgg-11", 132_863_336),
        ("vgg-13", 133_047_848),
        ("vgg-16", 138_357_544),
        ("vgg-19", 143_667_240),
        ("vgg-19-norm", 143_678_248),
        ("googlenet", 13_004_888),
        ("resnet-18", 11_689_512),
        ("resnet-34", 21_797_672),
        ("resnet-50", 25_557_032),
        ("resnet-101", 44_549_160),
        ("resnet-152", 60_192_808),
    ],
)
def test_published_sizes(name: str, count: int) -> None:
    with torch.device("meta"):
        model = build(SIZES[name])
    assert sum(weight.numel() for weight in model.parameters()) == SIZES[name].parameters() == count


@pytest.mark.claim("I2")
def test_googlenet_without_side_classifiers() -> None:
    assert GOOGLENETS["googlenet"].model_copy(update={"sides": ()}).parameters() == 6_624_904


@pytest.mark.parametrize("name", [name for name, config in SIZES.items() if config.classes is None])
def test_small_forms(name: str) -> None:
    """Images of 28 x 28 and 32 x 32 leave a feature map, and every config counts its parameters."""
    for channels, side in ((1, 28), (3, 32)):
        config = SIZES[name].model_validate(SIZES[name].model_dump() | {"channels": channels, "size": (side, side)})
        with torch.device("meta"):
            model: Any = build(config)
        assert min(model.map(torch.empty(1, channels, side, side, device="meta")).shape[2:]) >= 1
        assert sum(weight.numel() for weight in model.parameters()) == config.parameters() < 2_000_000


# ------------------------------------------------------------------ the same by plain functions
def conv(s: dict[str, Tensor], name: str, x: Tensor, stride: int = 1, padding: int | None = None) -> Tensor:
    weight = s[f"{name}.weight"]
    return F.conv2d(x, weight, s.get(f"{name}.bias"), stride, weight.shape[-1] // 2 if padding is None else padding)


def norm(s: dict[str, Tensor], name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    shift, scale = s[f"{name}.running_mean"], (s[f"{name}.running_var"] + eps).rsqrt()
    column = lambda values: values[:, None, None]  # noqa: E731
    return (x - column(shift)) * column(scale * s[f"{name}.weight"]) + column(s[f"{name}.bias"])


def dense(s: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ s[f"{name}.weight"].T + s[f"{name}.bias"]


def alexnet(s: dict[str, Tensor], c: Any, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(s, "layers.0.conv", x, c.stride, c.padding).relu(), 3, 2)
    x = F.max_pool2d(conv(s, "layers.2.conv", x).relu(), 3, 2)
    for number in (4, 5, 6):
        x = conv(s, f"layers.{number}.conv", x).relu()
    x = F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2), c.grid).flatten(1)
    return dense(s, "head", dense(s, "dense.4", dense(s, "dense.1", x).relu()).relu())


def vgg(s: dict[str, Tensor], c: Any, x: Tensor) -> Tensor:
    for stage, depth in enumerate(c.depths):
        for number in range(depth):
            x = conv(s, f"stages.{stage}.{number}.conv", x)
            x = norm(s, f"stages.{stage}.{number}.norm", x).relu() if c.norm == "batch" else x.relu()
        x = F.max_pool2d(x, 2)
    x = F.adaptive_avg_pool2d(x, c.grid).flatten(1)
    return dense(s, "head", dense(s, "dense.3", dense(s, "dense.0", x).relu()).relu())


def googlenet(s: dict[str, Tensor], c: Any, x: Tensor) -> Tensor:
    def layer(name: str, x: Tensor, stride: int = 1) -> Tensor:
        return norm(s, f"{name}.norm", conv(s, f"{name}.conv", x, stride), 1e-3).relu()

    large = c.stem == "large"
    x = layer("stem.0", x, 2 if large else 1)
    x = F.max_pool2d(x, 3, 2, ceil_mode=True) if large else x
    x = layer("stem.3", layer("stem.2", x))
    x = F.max_pool2d(x, 3, 2, ceil_mode=True) if large else x
    number = 0
    for stage, modules in enumerate(c.stages):
        for place in range(len(modules)):
            name = f"inceptions.{number}"
            if stage and not place:
                x, name = F.max_pool2d(x, 2 if stage == 2 else 3, 2, ceil_mode=True), f"{name}.1"
            b = f"{name}.branches"
            x = torch.cat(
                [
                    layer(f"{b}.0", x),
                    layer(f"{b}.1.1", layer(f"{b}.1.0", x)),
                    layer(f"{b}.2.1", layer(f"{b}.2.0", x)),
                    layer(f"{b}.3.1", F.max_pool2d(x, 3, 1, 1)),
                ],
                1,
            )
            number += 1
    return dense(s, "head", x.mean((2, 3)))


def resnet(s: dict[str, Tensor], c: Any, x: Tensor) -> Tensor:
    x = norm(s, "stem.0.norm", conv(s, "stem.0.conv", x, 2 if c.stem == "large" else 1)).relu()
    x = F.max_pool2d(x, 3, 2, 1) if c.stem == "large" else x
    for stage, depth in enumerate(c.depths):
        for number in range(depth):
            name, y = f"stages.{stage}.{number}", x
            strides = ((1, 2, 1) if c.block == "bottleneck" else (2, 1)) if stage and not number else (1, 1, 1)
            layers = 3 if c.block == "bottleneck" else 2
            for place, stride in enumerate(strides[:layers]):
                y = norm(s, f"{name}.body.{place}.norm", conv(s, f"{name}.body.{place}.conv", y, stride))
                y = y.relu() if place < layers - 1 else y
            if f"{name}.shortcut.conv.weight" in s:
                x = norm(s, f"{name}.shortcut.norm", conv(s, f"{name}.shortcut.conv", x, max(strides)))
            x = (x + y).relu()
    return dense(s, "head", x.mean((2, 3)))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("alexnet", {}),
        ("alexnet", {"kernel": 11, "stride": 4, "padding": 2, "size": (67, 81), "grid": 3}),
        ("vgg", {}),
        ("vgg", {"norm": "none", "depths": (2, 1, 1), "filters": (4, 5, 6), "size": (33, 21)}),
        ("googlenet", {}),
        ("googlenet", {"stem": "large", "size": (65, 70), "stages": (((4, 3, 5, 2, 3, 2),),) * 3, "large_kernel": 5}),
        ("resnet", {}),
        ("resnet", {"stem": "large", "block": "basic", "depths": (1, 2, 1), "widths": (4, 6, 8), "size": (35, 51)}),
    ],
)
def test_logits_equal_plain_functions(kind: str, settings: dict[str, Any]) -> None:
    model = random_net(tiny(kind, **settings))
    images = torch.randn(3, 1, *model.config.size, dtype=torch.float64)
    reference = {"alexnet": alexnet, "vgg": vgg, "googlenet": googlenet, "resnet": resnet}[kind]
    close(model(images), reference(model.state_dict(), model.config, images))
    close(model.head(model.features(images)), model(images))
    assert min(model.map(images).shape[2:]) >= 1


@every_convnet
def test_other_image_sizes_are_read(kind: str) -> None:
    model = random_net(tiny(kind))
    rows, columns = model.config.size
    assert model(torch.randn(2, 1, rows + 7, columns + 3, dtype=torch.float64)).shape == (2, 3)


@every_convnet
def test_images_of_a_batch_are_independent_in_evaluation(kind: str) -> None:
    model = random_net(tiny(kind))
    images = torch.randn(4, 1, *model.config.size, dtype=torch.float64)
    alone = torch.cat([model(image[None]) for image in images])
    close(model(images), alone)
    close(model(images.flip(0)).flip(0), alone)


@every_convnet
def test_channels_last_changes_nothing(kind: str) -> None:
    model = random_net(tiny(kind, channels=3))
    images = torch.randn(2, 3, *model.config.size, dtype=torch.float64)
    before = model(images)
    close(model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last)), before)


@pytest.mark.parametrize("stem", ["small", "large"])
@pytest.mark.parametrize("kind", ["alexnet", "vgg", "googlenet"])
def test_map_size_of_the_config(kind: str, stem: str) -> None:
    """The config knows without torch which images are too small; a ResNet pads everywhere, so that none is."""
    large = {"alexnet": {"kernel": 11, "stride": 4, "padding": 2}, "googlenet": {"stem": "large"}}.get(kind, {})
    for extra in range(0, 40, 7):
        config = tiny(kind, size=(64 + extra, 71 + extra), **(large if stem == "large" else {}))
        assert build(config).eval().map(torch.randn(1, 1, *config.size)).shape[2:] == config.map_size


# ------------------------------------------------------------------ parts
@pytest.mark.claim("I3")
def test_inceptions_branches_add_up() -> None:
    """The output of an inception module is that of its four branches, beside each other."""
    filters = (3, 2, 5, 2, 4, 6)
    block = Inception(7, filters, 5, 1e-3).double().eval()
    x = torch.randn(2, 7, 6, 9, dtype=torch.float64)
    branches = [branch(x) for branch in block.branches]
    assert [part.shape for part in branches] == [(2, width, 6, 9) for width in (3, 5, 4, 6)]
    assert torch.equal(block(x), torch.cat(branches, 1)) and block.channels == 18
    sizes = {layer.conv.kernel_size for layer in block.modules() if isinstance(layer, ConvNormRelu)}
    assert sizes == {(1, 1), (3, 3), (5, 5)}
    for place, (first, last) in enumerate(((0, 3), (3, 8), (8, 12), (12, 18))):  # each branch has channels of its own
        before = block(x)
        with torch.no_grad():
            for weight in block.branches[place].parameters():
                weight.zero_()
        changed = (block(x) != before).flatten(2).any(-1).any(0)
        assert changed[first:last].any() and not changed[:first].any() and not changed[last:].any()


def test_channels_of_published_inceptions() -> None:
    """Table 1 of the paper: the depth after each module."""
    channels = [sum(module[place] for place in (0, 2, 4, 5)) for module in GoogLeNetConfig().modules]
    assert channels == [256, 480, 512, 512, 512, 528, 832, 832, 1024]
    assert GoogLeNetConfig().map_size == (7, 7)


def test_side_classifiers_are_trained_but_not_asked() -> None:
    model = random_net(tiny("googlenet", dropout=0.0, side_dropout=0.0))
    images = torch.randn(2, 1, *model.config.size, dtype=torch.float64)
    (one, logits), *sides = model.training_logits(images)
    assert one == 1.0 and [weight for weight, _ in sides] == [0.3, 0.3]
    close(logits, model(images))
    sum(weight * each.logsumexp(-1).sum() for weight, each in model.training_logits(images)).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
    model.zero_grad()
    model(images).sum().backward()
    assert all(weight.grad is None for weight in model.sides.parameters())


def test_a_residual_block_with_zero_weights_is_the_identity() -> None:
    """y = relu(F(x) + x): where F is 0, positive inputs pass unchanged."""
    model = random_net(tiny("resnet", depths=(3, 1)))
    block = model.stages[0][1]
    assert isinstance(block.shortcut, nn.Identity)
    with torch.no_grad():
        block.body[-1].norm.weight.zero_()
        block.body[-1].norm.bias.zero_()
    x = torch.rand(2, 8, 5, 6, dtype=torch.float64)
    assert torch.equal(block(x), x)


@every_convnet
def test_he_initialization(kind: str) -> None:
    torch.manual_seed(0)
    wide = {
        "alexnet": {"filters": (64, 64, 64, 64, 64), "hidden": 128},
        "vgg": {"filters": (64, 128), "hidden": 128},
        "googlenet": {"stem_filters": (64, 64, 64), "stages": (((64,) * 6,),), "side_hidden": 128, "sides": (1,)},
        "resnet": {"stem_width": 64, "widths": (128, 256)},
    }[kind]
    for layer in build(tiny(kind, **wide)).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.weight.numel() > 4000:
            fan = layer.weight[0].numel()
            assert float(layer.weight.detach().var()) == pytest.approx(2 / fan, rel=0.15)
            assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("vgg", {"filters": (4, 6, 8)}, "2 stages need as many numbers, not 3"),
        ("resnet", {"widths": (8, 10)}, "a bottleneck of 10 channels has no quarter of them"),
        ("resnet", {"widths": (8,)}, "2 stages need as many numbers, not 1"),
        ("googlenet", {"sides": (1, 1)}, "write different numbers from 1 to 3"),
        ("googlenet", {"sides": (4,)}, "write different numbers from 1 to 3"),
        ("alexnet", {"hidden": 65_536, "grid": 64, "filters": (1, 1, 1, 1, 65_536)}, "more than 200 billion"),
        ("alexnet", {"size": (9, 40)}, "images of 9 x 40 are too small for this net; write a smaller kernel"),
        ("vgg", {"size": (40, 3)}, "images of 40 x 3 are too small for this net; write fewer stages"),
        ("resnet", {"size": (0, 3)}, "greater than or equal to 1"),
    ],
)
def test_impossible_nets_are_rejected_with_advice(kind: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tiny(kind, **settings)
