"""Classification by glimpses: runs, exact resume, the predictor with its path, and pictures of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.cli.texts import classify_command
from heedful.data.images.cluttered import VisualSearch
from heedful.errors import UserError
from heedful.models.recurrent_attention.config import RecurrentAttentionConfig
from heedful.plots.gallery import glimpses
from heedful.plots.gallery.glimpses import looked
from heedful.plots.glimpse_plots import plot_glimpses
from heedful.runs.images import test_images as own_images
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Step, train
from heedful.training.checkpoint.folder import newest

SHORT = [
    "data={kind: cluttered, images: {kind: digits, train: 600, valid: 60, test: 60}, size: [12, 12], clutter: 0}",
    "model={kind: recurrent_attention, size: [12, 12], glimpses: 3, patch: 8, scales: 1, hidden: 48, width: 64}",
    "train.batch_examples=50", "train.log_every=1", "train.device=cpu",
]  # fmt: skip


def run(folder: Path, steps: int, until: int = 10**9, *more: str) -> list[Any]:
    every = [f"train.budget={{steps: {steps}}}", f"train.save_every={steps // 2}", f"train.evaluate_every={steps}"]
    events = list[Any]()

    def stop() -> bool:
        return any(isinstance(event, Step) and event.step >= until for event in events)

    for event in train(load_recipe("digits-glimpse", [*SHORT, *every, *more]), folder, stop):
        events.append(event)
    return events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glimpses") / "run"
    run(folder, 300, 10**9, "train.optimizer.lr=3e-3")
    return folder


@pytest.fixture(scope="module")
def classifier(trained: Path) -> heedful.GlimpseClassifier:
    return heedful.load(trained, heedful.GlimpseClassifier, device="cpu")


@pytest.mark.claim("I12")
def test_glimpses_learn_to_find_and_read_a_digit(trained: Path, classifier: heedful.GlimpseClassifier) -> None:
    """By policy gradient: after 300 steps most digits are read, and the second glimpse depends on the image."""
    tests = own_images(trained)
    assert tests.labels is not None
    results = classifier.predict(list(tests.pixels))
    right = [result.label == tests.names[label] for result, label in zip(results, tests.labels, strict=True)]
    assert np.mean(right) > 0.6
    second = np.array([result.path[1] for result in results])
    assert second.std(0).min() > 0.1


@pytest.mark.claim("N3")
def test_model_names_the_red_shape_among_others() -> None:
    """Unseen scenes: four shapes are possible, and those beside the red one do not matter; other colours are wrong."""
    data = VisualSearch(train=3000, valid=1, test=200, distractors=1, size=(14, 14))
    config = RecurrentAttentionConfig(glimpses=3, patch=8, scales=2, noise=0.3, hidden=64, width=96)
    steps = glimpses.train(data, config, 350, 0)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        searcher: heedful.GlimpseClassifier = end.value
    scenes = data.scenes("test")
    found = [result.label for result in searcher.predict(list(data.read("test").pixels))]
    right, other = (
        np.mean(
            [label == one.things[(target + away) % 2].shape for label, (one, target) in zip(found, scenes, strict=True)]
        )
        for away in (0, 1)
    )
    assert right > 0.8 and other < 0.4


def test_prediction_has_its_path(trained: Path, classifier: heedful.GlimpseClassifier) -> None:
    image = own_images(trained).pixels[0]
    (result,) = classifier.predict([image], top=3)
    assert len(result.probabilities) == 3 and result.probability == max(result.probabilities.values())
    assert len(result.path) == 3 and result.path[0] == (6.0, 6.0)
    assert all(0 <= value <= 12 for place in result.path for value in place)
    assert json.loads(json.dumps(result.to_dict()))["path"][0] == [6.0, 6.0]
    assert "path" not in repr(result)
    assert classifier.predict([image], top=3) == [result]  # deterministic
    logits = classifier.model(classifier.inputs([image]))
    assert classifier.labels[int(logits.argmax())] == result.label
    plain = heedful.load(trained, heedful.ImageClassifier, device="cpu")
    assert type(plain) is heedful.GlimpseClassifier


def test_views_show_the_image_around_each_place(trained: Path, classifier: heedful.GlimpseClassifier) -> None:
    image = own_images(trained).pixels[0]
    views, (result,) = classifier.views(image), classifier.predict([image])
    assert views.shape == (3, 1, 8, 8)
    np.testing.assert_allclose(views[0], image[:, 2:10, 2:10], atol=1e-6)
    for view, (row, column) in zip(views, result.path, strict=True):
        top, left = round(row) - 4, round(column) - 4
        inside = [(y, x) for y in range(8) for x in range(8) if 0 <= top + y < 12 and 0 <= left + x < 12]
        seen, there = ([part[0, y + a, x + b] for y, x in inside] for part, a, b in ((view, 0, 0), (image, top, left)))
        np.testing.assert_allclose(seen, there, atol=1e-6)


def test_saved_classifier_predicts_the_same(classifier: heedful.GlimpseClassifier, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 1, 12, 12), np.float32)
    classifier.save(tmp_path / "saved")
    again = heedful.load(tmp_path / "saved", device="cpu")
    assert isinstance(again, heedful.GlimpseClassifier)
    assert [*again.predict(list(images))] == [*classifier.predict(list(images))]


def test_stopped_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    """The sampled places depend on the seed and the step alone."""
    run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 6, 3)
    run(tmp_path / "parts", 6)
    whole, parts = (newest(tmp_path / name, 1)[0][0].load("model") for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], value) for name, value in whole.items())
    run(tmp_path / "other", 6, 10**9, "train.seed=1")
    assert not torch.equal(newest(tmp_path / "other", 1)[0][0].load("model")["policy.bias"], whole["policy.bias"])


def test_picture_of_the_path(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray((own_images(trained).pixels[0, 0] * 255).astype(np.uint8)).save(tmp_path / "one.png")
    classify_command(trained, [str(tmp_path / "one.png")], False, True, 2, tmp_path / "path.png")
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["path"]) == 3 and len(shown["probabilities"]) == 2
    with Image.open(tmp_path / "path.png") as picture:
        assert picture.width > picture.height
    with pytest.raises(UserError, match="does not say which format"):
        classify_command(trained, [str(tmp_path / "one.png")], False, True, 2, tmp_path / "path.txt")


def test_picture_needs_glimpses() -> None:
    lenet = Path(__file__).parents[1] / "golden" / "runs" / "image_classification-lenet"
    with pytest.raises(UserError, match="no glimpses to draw"):
        classify_command(lenet, ["one.png"], False, True, 2, Path("path.png"))


def test_figure_shows_paths_and_views(trained: Path, classifier: heedful.GlimpseClassifier) -> None:
    figure = heedful.figure("glimpses", model=trained, count=2)
    assert len(figure.axes) == 2 * (1 + 3)
    tests = own_images(trained)
    assert tests.labels is not None
    first = looked(classifier, tests.pixels[int(np.flatnonzero(tests.labels == 0)[0])], "0")
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(np.stack([line.get_ydata(), line.get_xdata()], 1), np.array(first.path) - 0.5)
    assert figure.axes[0].get_title("left") == first.title
    assert len(plot_glimpses([first]).axes) == 4


@pytest.mark.parametrize("name", ["glimpses", "visual-search"])
def test_figure_trains_a_small_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glimpses, "DIGITS", glimpses.DIGITS.model_copy(update={"copies": 1}))
    monkeypatch.setattr(glimpses, "SCENES", glimpses.SCENES.model_copy(update={"train": 70, "test": 10}))
    state = torch.random.get_rng_state()
    drawn: Callable[[], Any] = lambda: heedful.figure(name, count=1, steps=2)  # noqa: E731
    titles = [drawn().axes[0].get_title("left") for _ in range(2)]
    assert titles[0] == titles[1] and torch.equal(torch.random.get_rng_state(), state)


def test_figure_needs_a_model_with_glimpses() -> None:
    lenet = Path(__file__).parents[1] / "golden" / "runs" / "image_classification-lenet"
    with pytest.raises(UserError, match="this model has no glimpses"):
        heedful.figure("glimpses", model=lenet)
