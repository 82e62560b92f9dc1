"""Occlusion against covering by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful.extras.vision.gradients import channel_score, class_score
from heedful.extras.vision.occlusion import occlusion
from heedful.models import build, config_class
from heedful.models.layer_graph import tap_fields
from tolerance import close


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return build(config_class("vgg").tiny()).eval()


@pytest.fixture(scope="module")
def image(model: Any) -> torch.Tensor:
    return torch.randn(model.config.input, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_each_place_is_covered(model: Any, image: torch.Tensor) -> None:
    score = class_score(model, 1)
    found = occlusion(score, image, 3, stride=2, value=0.5)
    rows, columns = image.shape[1:]
    assert found.shape == (-(-rows // 2), -(-columns // 2))
    for y, x in ((0, 0), (2, 3), (found.shape[0] - 1, found.shape[1] - 1)):
        covered = image.clone()
        covered[:, max(0, 2 * y - 1) : 2 * y + 2, max(0, 2 * x - 1) : 2 * x + 2] = 0.5
        expected = score(image[None]) - score(covered[None])
        close(found[y, x], expected[0], of=score(image[None]))


@pytest.mark.parametrize("layer", ["map1", "map2"])
def test_a_pixel_outside_of_the_receptive_field_changes_nothing(layer: str) -> None:
    torch.manual_seed(0)
    model: Any = build(config_class("lenet").tiny()).eval()
    image = torch.randn(model.config.input, generator=torch.Generator().manual_seed(1))
    field = tap_fields(model)[layer]
    y, x = len(field.rows) // 2, 0
    found = occlusion(channel_score(model, layer, 0, (y, x)), image, 1, value=9.0)
    inside = torch.zeros(found.shape, dtype=torch.bool)
    inside[field.rows[y].start : field.rows[y].stop, field.columns[x].start : field.columns[x].stop] = True
    assert not inside.all() and torch.equal(found != 0, inside)


def test_many_places_are_covered_in_parts(model: Any, image: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = occlusion(class_score(model, 0), image, 2)
    monkeypatch.setattr("heedful.extras.vision.occlusion.BATCH", 7)
    close(occlusion(class_score(model, 0), image, 2), whole, of=class_score(model, 0)(image[None]))
