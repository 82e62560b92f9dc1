"""Figures of image models show what the functions of the library compute, for runs and image files too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import heedful
from heedful.data.embedded import Digits
from heedful.errors import UserError
from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.extras.vision.gradients import METHODS, class_score
from heedful.extras.vision.layers import first_filters
from heedful.plots.gallery.image_nets import data
from heedful.plots.image_grid import shares, signed_pixels
from heedful.runs.images import test_images as own
from heedful.tasks.image_classification.predictor import ImageClassifier

SHORT = ["data.train=64", "data.valid=10", "data.test=20", "train.budget={steps: 1}", "train.device=cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one step: a ConvNet and a Vision Transformer of digits, and an autoencoder."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("digits-lenet", "digits-vit", "digits"):
        list(heedful.train(heedful.load_recipe(name, SHORT), folder / name))
    return folder


def pictures(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in figure.axes[0].images]


def test_saliency_of_a_run(runs: Path) -> None:
    """Test images in the order of their classes, then a row for each method; tanh has no rule of relu."""
    drawn = pictures(heedful.figure("saliency", model=runs / "digits-lenet", count=2))
    predictor, images = ImageClassifier.load(runs / "digits-lenet"), own(runs / "digits-lenet")
    rows = [int(np.flatnonzero(images.labels == label)[0]) for label in sorted(set(images.labels.tolist()))[:2]]
    x = predictor.inputs(list(images.pixels[rows]))
    assert len(drawn) == 2 * 4
    assert (drawn[1] == (images.pixels[rows[1], 0] * 255 + 0.5).astype(np.uint8)).all()
    with torch.no_grad():
        score = class_score(predictor.model, predictor.model(x).argmax(1))
    for row, method in enumerate(("gradient", "gradient x input", "integrated gradients"), 1):
        assert (drawn[2 * row + 1] == signed_pixels(METHODS[method](score, x).numpy())[1]).all(), method


def test_attention_of_an_image_file(runs: Path, tmp_path: Path) -> None:
    pixels = (np.arange(64).reshape(8, 8) * 4).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    figure = heedful.figure("vit-attention", model=runs / "digits-vit", images=[str(tmp_path / "a.png")])
    image, *layers, last = pictures(figure)
    predictor = ImageClassifier.load(runs / "digits-vit")
    weights = attention_weights(predictor.model, predictor.inputs([pixels[None] / np.float32(255)]))
    assert (image == pixels).all() and len(layers) == len(weights)
    for drawn, layer in zip(layers, weights, strict=True):
        assert np.abs(drawn - shares(over_image(layer.mean(1), (4, 4)).numpy())[0]).max() < 1e-4
    assert np.abs(last - shares(over_image(rollout(weights), (4, 4)).numpy())[0]).max() < 1e-4


def test_filters_of_a_run(runs: Path) -> None:
    drawn = pictures(heedful.figure("filters", model=runs / "digits-lenet"))
    expected = signed_pixels(first_filters(ImageClassifier.load(runs / "digits-lenet").model).numpy())
    assert len(drawn) == len(expected) and all((one == two).all() for one, two in zip(drawn, expected, strict=True))


@pytest.mark.parametrize("name", ["feature-maps", "receptive-field", "top-patches", "neighbours", "image-probes"])
def test_other_figures_of_runs(runs: Path, name: str) -> None:
    model = "digits-lenet" if name == "receptive-field" else "digits-vit"
    assert isinstance(heedful.figure(name, model=runs / model), Figure)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vit-attention", {"model": "digits-lenet"}, "has no attention"),
        ("receptive-field", {"model": "digits-vit"}, "sees the whole image"),
        ("saliency", {"model": "digits"}, "does not classify images"),
        ("top-patches", {"model": "digits-lenet", "layer": "map9"}, "no such layer"),
        ("occlusion", {"model": "digits-lenet", "images": ["nowhere.png"]}, "nowhere.png"),
        ("filters", {"model": "nowhere"}, "no such folder"),
    ],
)
def test_mistakes_are_named(runs: Path, name: str, settings: dict[str, object], message: str) -> None:
    model = runs / str(settings["model"])
    with pytest.raises(UserError) as error:
        heedful.figure(name, **{**settings, "model": model})
    assert message in str(error.value)


def test_digits_stand_at_nine_places() -> None:
    images = data("test").pixels
    assert images.shape[1:] == (1, 16, 16)
    corners = {tuple((image[0].any(side).argmax() // 4) for side in (1, 0)) for image in images}
    assert len(corners) >= 9 and images.sum() == pytest.approx(Digits().read("test").pixels.sum())
