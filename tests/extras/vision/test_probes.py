"""Linear probes of the layers, and nearest neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from heedful.data.embedded import Digits
from heedful.extras.vision.layers import layer_names
from heedful.extras.vision.probes import layer_vectors, nearest_neighbours, probe_layers, small
from heedful.lectures.learning import learn, seeded
from heedful.models import build
from heedful.models.lenet.config import LeNetConfig
from tolerance import close

Split = tuple[Tensor, Tensor]


def digits(split: Any) -> Split:
    read = Digits().read(split)
    assert read.labels is not None
    return torch.from_numpy(read.pixels).float() * 2 - 1, torch.from_numpy(read.labels).long()


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Split, Split]:
    """A small net of digits, trained for a second or two, and its data."""
    config = LeNetConfig(
        size=(8, 8), padding=4, classes=10, filters=(16, 32), hidden=(64, 32), activation="relu", pooling="max"
    )
    model, (images, labels) = seeded(lambda: build(config), 0), digits("train")
    generator = torch.Generator().manual_seed(0)

    def loss() -> Tensor:
        rows = torch.randint(len(labels), (64,), generator=generator)
        return cross_entropy(model(images[rows]), labels[rows])

    list(learn(model, loss, 200, 5e-3))
    return model.eval(), (images, labels), digits("test")


@pytest.mark.claim("M25")
@torch.no_grad()
def test_probe_on_the_last_features_reaches_the_accuracy_of_the_head(trained: tuple[Any, Split, Split]) -> None:
    model, known, tested = trained
    found = probe_layers(model, known, tested)
    head = float((model(tested[0]).argmax(1) == tested[1]).float().mean())
    assert list(found) == ["pixels", *layer_names(model), "features"]
    assert head > 0.93 and found["features"] >= head - 0.01
    assert found["map1"] > found["pixels"] < found["features"], "the net has made classes easier to separate"


def test_vectors_are_those_of_the_layers(trained: tuple[Any, Split, Split]) -> None:
    model, (images, _), _ = trained
    found = layer_vectors(model, images[:300])
    assert {name: tuple(one.shape) for name, one in found.items()} == {
        "pixels": (300, 64), "map1": (300, 16 * 8 * 8), "map2": (300, 32 * 2 * 2), "features": (300, 32),
    }  # fmt: skip
    close(found["features"][260:264], model.features(images[260:264]).detach())


def test_large_maps_are_averaged() -> None:
    assert small(torch.zeros(2, 3, 224, 100)).shape == (2, 3 * 18 * 18)
    assert small(torch.zeros(2, 2048, 7, 7)).shape == (2, 2048)
    map = torch.randn(2, 256, 4, 4)
    close(small(map).view(2, 256, 2, 2)[:, :, 1, 0], map[:, :, 2:, :2].mean((2, 3)))


def test_neighbours_are_the_nearest_by_brute_force() -> None:
    queries, features = torch.randn(3, 5), torch.randn(20, 5)
    found = nearest_neighbours(queries, features, 4)
    for query, rows in zip(queries, found, strict=True):
        cosine = [float(cosine_similarity(query, one, 0)) for one in features]
        assert rows.tolist() == sorted(range(20), key=lambda row: -cosine[row])[:4]
    assert nearest_neighbours(queries, features, 99).shape == (3, 20)
    assert nearest_neighbours(7 * features, features, 1)[:, 0].tolist() == list(range(20))
