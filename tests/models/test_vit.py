"""The Vision Transformer: published sizes, patches and positions, and what it does not see."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from heedful.blocks.encoder import EncoderBlock
from heedful.blocks.patches import Patches, resize_positions, sinusoid_grid
from heedful.blocks.positions import sinusoids
from heedful.blocks.taps import watch
from heedful.models import build
from heedful.models.vit.config import SIZES, VitConfig
from tolerance import close


def tiny(**settings: Any) -> VitConfig:
    return VitConfig.model_validate(VitConfig.tiny().model_dump() | settings)


def random_vit(**settings: Any) -> Any:
    """A model in float64 with weights that are not small, biases and norms included."""
    torch.manual_seed(0)
    model = build(tiny(**settings)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def images(config: VitConfig, count: int = 2) -> Tensor:
    return torch.randn(count, config.channels, *config.size, dtype=torch.float64)


@pytest.mark.claim("I5")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vit-tiny-16", 5_717_416),
        ("vit-small-16", 22_050_664),
        ("vit-base-16", 86_567_656),
        ("vit-base-32", 88_224_232),
        ("vit-large-16", 304_326_632),
        ("vit-huge-14", 632_045_800),
        ("deit-base-16", 87_338_192),
    ],
)
def test_published_sizes(name: str, count: int) -> None:
    with torch.device("meta"):
        model = build(SIZES[name])
    assert sum(weight.numel() for weight in model.parameters()) == SIZES[name].parameters() == count


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoid", "none"])
def test_parameter_count_of_all_forms(pool: Any, positions: Any) -> None:
    for distillation in ("none", "token", "head") if pool == "class" else ("none",):
        config = tiny(pool=pool, positions=positions, distillation=distillation, score="additive")
        assert sum(weight.numel() for weight in build(config).parameters()) == config.parameters()


def test_it_is_made_of_the_transformers_blocks() -> None:
    model = random_vit()
    assert all(type(block) is EncoderBlock for block in model.blocks)
    with watch(model, "blocks.*.attention.weights") as seen:
        model(images(model.config))
    assert {tuple(weights.shape) for weights in seen.values()} == {(2, 2, 7, 7)}, "a class token and six patches"
    close(seen["blocks.1.attention.weights"].sum(-1), torch.ones(2, 2, 7, dtype=torch.float64))


def test_logits_equal_loops() -> None:
    """Every patch and every head on its own, in float64."""
    model, c = random_vit(), VitConfig.tiny()
    image = images(c, 1)
    w, b = model.patches.projection.weight.flatten(1), model.patches.projection.bias
    tokens = [model.tokens[0][0, 0]]
    for row in range(2):
        for column in range(3):
            square = image[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            tokens.append(w @ square.flatten() + b)
    x = torch.stack(tokens) + model.positions.table[0]
    for block in model.blocks:
        normed = F.layer_norm(x, (16,), block.add1.norm.weight, block.add1.norm.bias, 1e-6)
        q, k, v = block.attention.qkv(normed).chunk(3, -1)
        heads = []
        for head in (slice(0, 8), slice(8, 16)):
            rows = [torch.stack([q[t, head] @ k[s, head] / math.sqrt(8) for s in range(7)]) for t in range(7)]
            heads.append(torch.stack([row.softmax(0) @ v[:, head] for row in rows]))
        x = x + block.attention.out(torch.cat(heads, -1))
        x = x + block.mlp(F.layer_norm(x, (16,), block.add2.norm.weight, block.add2.norm.bias, 1e-6))
    final = F.layer_norm(x, (16,), model.norm.weight, model.norm.bias, 1e-6)
    close(model(image)[0], model.head(final[0]))
    close(model.map(image)[0], final[1:].T.reshape(16, 2, 3))


# ------------------------------------------------------------------ what it sees
@pytest.mark.claim("I5")
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_patches_of_one_pixel_without_positions_are_a_bag(pool: Any) -> None:
    model = random_vit(patch=1, positions="none", pool=pool, size=(3, 4))
    x = images(model.config)
    order = torch.randperm(12)
    close(model(x.flatten(2)[..., order].view_as(x)), model(x))
    learned = random_vit(patch=1, pool=pool, size=(3, 4))
    assert not torch.allclose(learned(x.flatten(2)[..., order].view_as(x)), learned(x))


@pytest.mark.claim("I5")
def test_one_patch_is_a_bag_of_pixels() -> None:
    """A patch is a list of pixels: in another order, with the columns of the projection, it is the same."""
    model = random_vit(patch=12, size=(12, 12), positions="none")
    x = images(model.config)
    before, order = model(x), torch.randperm(144)
    with torch.no_grad():
        weight = model.patches.projection.weight
        weight.copy_(weight.flatten(2)[..., order].view_as(weight))
    close(model(x.flatten(2)[..., order].view_as(x)), before)


def shuffled(x: Tensor, order: Tensor, patch: int) -> Tensor:
    """Images whose patches stand in another order."""
    parts = F.unfold(x, patch, stride=patch)[..., order]
    return F.fold(parts, x.shape[2:], patch, stride=patch)


@pytest.mark.claim("I5")
@pytest.mark.parametrize(("pool", "distillation"), [("class", "none"), ("class", "head"), ("mean", "none")])
def test_permuted_patches_with_permuted_positions_give_the_same(pool: Any, distillation: Any) -> None:
    model = random_vit(pool=pool, distillation=distillation)
    x, order, first = images(model.config), torch.tensor([4, 2, 0, 5, 1, 3]), model.config.first
    before, other = model(x), shuffled(x, order, 4)
    assert not torch.allclose(model(other), before), "positions count"
    with torch.no_grad():
        table = model.positions.table
        table[:, first:] = table[:, first:][:, order].clone()
    close(model(other), before)


def test_images_of_a_batch_are_independent() -> None:
    model = random_vit()
    x = images(model.config, 4)
    close(model(x), torch.cat([model(one[None]) for one in x]))


# ------------------------------------------------------------------ positions
def test_sinusoids_of_row_and_column() -> None:
    table = sinusoid_grid((3, 5), 16)
    for row in range(3):
        for column in range(5):
            expected = torch.cat([sinusoids(3, 8)[row], sinusoids(5, 8)[column]])
            assert torch.equal(table[5 * row + column], expected)


def test_fixed_positions_of_any_size_are_their_own() -> None:
    """A model made for a larger image has the same sinusoids as this one computes for it."""
    small, large = random_vit(positions="sinusoid"), random_vit(positions="sinusoid", size=(16, 20))
    large.load_state_dict(small.state_dict())
    x = torch.randn(2, 1, 16, 20, dtype=torch.float64)
    close(small(x), large(x), dtype=torch.float32)


def test_interpolated_positions() -> None:
    table = torch.randn(1, 2 + 12, 6, dtype=torch.float64)
    assert resize_positions(table, (3, 4), (3, 4)) is table
    larger = resize_positions(table, (3, 4), (6, 8))
    assert larger.shape == (1, 2 + 48, 6) and torch.equal(larger[:, :2], table[:, :2])
    flat = torch.cat([table[:, :2], torch.ones(1, 12, 6, dtype=torch.float64)], 1)
    close(resize_positions(flat, (3, 4), (5, 2))[:, 2:], torch.ones(1, 10, 6, dtype=torch.float64))
    rows = torch.arange(3, dtype=torch.float64)[:, None].expand(3, 4).reshape(1, 12, 1)
    wider = resize_positions(rows, (3, 4), (3, 8)).view(3, 8)
    close(wider, wider[:, :1].expand(3, 8))  # what depends on the row alone still does
    mirrored = table[:, 2:].unflatten(1, (3, 4)).flip(1, 2).flatten(1, 2)
    turned = resize_positions(mirrored, (3, 4), (6, 8)).unflatten(1, (6, 8)).flip(1, 2).flatten(1, 2)
    close(turned, larger[:, 2:])


@pytest.mark.parametrize("distillation", ["none", "token", "head"])
def test_last_block_of_class_tokens_alone_changes_nothing(distillation: Any) -> None:
    config = tiny(distillation=distillation, classes=3)
    model, x = random_vit(distillation=distillation, classes=3), images(config)
    whole, _ = model.encode(x)
    alone = model.class_tokens(x)
    assert alone.shape[1] == config.first < whole.shape[1]
    close(alone, whole[:, : config.first])
    with watch(model, "blocks.*") as seen:  # then the last block is computed as a whole
        close(model.class_tokens(x), alone)
    name = f"blocks.{config.layers - 1}"
    assert seen[f"{name}.output"].shape == whole.shape
    assert seen[f"{name}.attention.weights"].shape[-2:] == (whole.shape[1],) * 2
    grads = [
        torch.autograd.grad(tokens.square().sum(), list(model.blocks.parameters()))
        for tokens in (alone, whole[:, : config.first])
    ]
    close(grads[0], grads[1])


def test_images_need_whole_patches() -> None:
    with pytest.raises(ValueError, match="images of 8 x 13 have no whole patches of 4 x 4; resize them to multiples"):
        random_vit()(torch.randn(1, 1, 8, 13, dtype=torch.float64))
    assert Patches(1, 5, 4).grid(torch.zeros(2, 1, 8, 16)) == (2, 4)


# ------------------------------------------------------------------ DeiT
def test_two_heads_are_averaged() -> None:
    model = random_vit(distillation="head")
    x = images(model.config)
    (one, first), (two, second) = model.training_logits(x)
    assert one == two == 0.5
    close(model(x), (first + second) / 2)
    close(first, model.head(model.features(x)))
    with torch.no_grad():
        model.tokens[1].normal_()
    assert not torch.allclose(model.training_logits(x)[1][1], second)


def test_a_distillation_token_without_a_head_is_attended_to() -> None:
    model = random_vit(distillation="token")
    x = images(model.config)
    before = model(x)
    assert [weight for weight, _ in model.training_logits(x)] == [1.0]
    with torch.no_grad():
        model.tokens[1].normal_()
    assert not torch.allclose(model(x), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": (8, 13)}, r"images of 8 x 13 have no whole patches of 4 x 4; write size: \[8, 12\]"),
        ({"width": 18, "positions": "sinusoid"}, "write width: 20"),
        ({"width": 15}, "cannot be shared by 2 heads"),
        ({"pool": "mean", "distillation": "token"}, "write pool: class"),
    ],
)
def test_impossible_models_are_rejected_with_advice(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tiny(**settings)
