"""Filters, feature maps, and the patches that activate a channel most."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.extras.vision.layers import feature_maps, first_filters, layer_names, require_layer, top_patches
from heedful.models import build, config_class, kinds_of
from heedful.models.layer_graph import tap_fields
from tolerance import close

KINDS = kinds_of("image_encoder")
every_kind = pytest.mark.parametrize("kind", KINDS)


def tiny(kind: str) -> Any:
    torch.manual_seed(0)
    return build(config_class(kind).tiny()).eval()


def some_images(model: Any, count: int = 3) -> torch.Tensor:
    return torch.randn(count, *model.config.input, generator=torch.Generator().manual_seed(1))


@every_kind
def test_maps_are_what_passes_the_layers(kind: str) -> None:
    model = tiny(kind)
    images = some_images(model)
    maps, fields = feature_maps(model, images), tap_fields(model)
    assert list(maps) == layer_names(model) and len(maps) >= 2
    for name, map in maps.items():
        assert map.dim() == 4 and len(map) == 3
        assert tuple(map.shape[2:]) == (len(fields[name].rows), len(fields[name].columns)), name
    alone = feature_maps(model, images[1:2])
    for name, map in maps.items():
        close(map[1:2], alone[name])


def test_last_map_of_a_residual_net_is_that_of_the_model() -> None:
    model = tiny("resnet")
    images = some_images(model)
    close(feature_maps(model, images)[layer_names(model)[-1]], model.map(images))


def test_tokens_of_patches_become_a_map() -> None:
    """The class token is left out, and patches stay in their places."""
    model = tiny("vit")
    images = some_images(model, 1)
    found = feature_maps(model, images)["embedded"]
    grid, first = model.config.grid, model.config.first
    tokens, _ = model.embed(images)
    for y in range(grid[0]):
        for x in range(grid[1]):
            close(found[0, :, y, x], tokens[0, first + y * grid[1] + x])


@every_kind
def test_first_filters_read_the_image(kind: str) -> None:
    model = tiny(kind)
    filters = first_filters(model)
    assert filters.dim() == 4 and filters.shape[1] == model.config.channels
    if kind == "lenet":
        assert torch.equal(filters, model.conv1.weight)


@pytest.mark.claim("I4")
@every_kind
def test_top_patches_are_the_largest_by_brute_force(kind: str) -> None:
    model = tiny(kind)
    images = some_images(model, 7)
    layer = layer_names(model)[0]
    found = top_patches(model, images, layer, 3)
    maps, field = feature_maps(model, images)[layer], tap_fields(model)[layer]
    assert len(found) == maps.shape[1]
    for channel, patches in enumerate(found):
        best = sorted(range(7), key=lambda image: -float(maps[image, channel].max()))[:3]
        assert [patch.image for patch in patches] == best
        for patch in patches:
            map = maps[patch.image, channel]
            y, x = divmod(int(map.argmax()), map.shape[1])
            assert patch.value == pytest.approx(float(map.max()), rel=1e-4)
            assert (patch.rows, patch.columns) == (field.rows[y], field.columns[x])
            expected = images[patch.image][:, patch.rows.start : patch.rows.stop]
            assert torch.equal(patch.cut(images), expected[:, :, patch.columns.start : patch.columns.stop])


@pytest.mark.claim("I4")
def test_a_patch_alone_activates_its_unit_as_much() -> None:
    """What lies outside of the patch does not matter."""
    model = tiny("lenet")
    images = some_images(model, 5)
    for channel, (patch,) in enumerate(top_patches(model, images, "map2", 1)):
        other = torch.full_like(images[:1], 9.0)
        down, across = (slice(side.start, side.stop) for side in (patch.rows, patch.columns))
        other[0, :, down, across] = patch.cut(images)
        map, same = (feature_maps(model, x, "map2")["map2"][0, channel] for x in (images[patch.image, None], other))
        y, x = divmod(int(map.argmax()), map.shape[1])
        close(same[y, x], map[y, x])


def test_looking_leaves_a_model_in_training() -> None:
    model = tiny("resnet").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    top_patches(model, some_images(model), layer_names(model)[1], 2)
    assert model.training and all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_unknown_layer_is_refused_with_the_names() -> None:
    model = tiny("lenet")
    assert require_layer(model, None) == "map2" and require_layer(model, "map1") == "map1"
    with pytest.raises(UserError, match="no such layer") as error:
        require_layer(model, "map3")
    assert error.value.expected == "map1, map2"
