"""Image classification: the loss, runs, fine-tuning, the predictor, and images that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import heedful
from heedful.blocks.patches import resize_positions
from heedful.data.images.image_files import image_pixels, read_image_file
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import prepare
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatch
from heedful.data.images.normalization import channel_statistics, normalize
from heedful.data.own import Dataset
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe, recipe_of
from heedful.runs.train import Finished, Started, Step, train
from heedful.tasks.image_classification.predictor import ImageClassifier, image_loss
from heedful.tasks.image_classification.task import ImageClassificationTask
from heedful.tasks.imbalance import class_weights
from heedful.training.checkpoint.folder import newest
from heedful.training.distributed.team import Team
from tolerance import close, near
from training.test_distributed import run_team

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 3, 20, 18), np.uint8)
SPEC = ImageSpec((3, 20, 18), ("cat", "dog", "owl"), (0.5, 0.4, 0.3), (0.2, 0.2, 0.25))
RECIPE = """
task: {kind: image_classification}
data: {kind: own}
model: {kind: lenet, channels: 3, size: [20, 18], filters: [3, 4], hidden: [6, 5]}
train: {budget: {steps: 8}, batch_examples: 5, save_every: 4, evaluate_every: 4, log_every: 1, device: cpu}
"""
DATA = Dataset(
    [(image, SPEC.names[number % 3]) for number, image in enumerate(PIXELS)],
    [(image, SPEC.names[number % 2]) for number, image in enumerate(PIXELS[:4])],
)


def run(folder: Path, *changes: str, data: Dataset = DATA, until: int = 99, **more: Any) -> list[Any]:
    events = list[Any]()
    file = folder.with_suffix(".yaml")
    file.write_text(RECIPE)

    def stop() -> bool:
        return any(isinstance(event, Step) and event.step >= until for event in events)

    for event in train(load_recipe(str(file), changes), folder, stop, data=data, **more):
        events.append(event)
    return events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "run"
    run(folder)
    return folder


@pytest.fixture
def classifier(trained: Path) -> ImageClassifier:
    return heedful.load(trained, heedful.ImageClassifier, device="cpu")


# ------------------------------------------------------------------ the loss
def batch(**changes: Any) -> LabelledImageBatch:
    made = EncodedLabelledImages(torch.from_numpy(PIXELS), np.arange(12) % 3, SPEC).batch(torch.arange(12))
    parts = {name: getattr(made, name) for name in LabelledImageBatch.__dataclass_fields__}
    return LabelledImageBatch(**{**parts, **changes})


def test_loss_is_the_cross_entropy_with_label_smoothing() -> None:
    logits = torch.randn(12, 3)
    loss = image_loss(lambda x: [(1.0, logits)], batch(), 0.1)
    wanted = F.cross_entropy(logits, torch.arange(12) % 3, label_smoothing=0.1, reduction="sum")
    close(loss.total, wanted)
    close(loss.plain, F.cross_entropy(logits, torch.arange(12) % 3, reduction="sum"))
    assert int(loss.count) == 12


def test_loss_of_mixed_images_is_that_of_soft_targets() -> None:
    logits, shares, others = torch.randn(12, 3), torch.rand(12), torch.arange(12) % 2
    soft = shares[:, None] * F.one_hot(torch.arange(12) % 3, 3) + (1 - shares)[:, None] * F.one_hot(others, 3)
    loss = image_loss(lambda x: [(1.0, logits)], batch(shares=shares, others=others))
    close(loss.total, F.cross_entropy(logits, soft, reduction="sum"))


def test_side_classifiers_and_class_weights_count_by_their_weights() -> None:
    first, side, targets, weights = torch.randn(12, 3), torch.randn(12, 3), torch.arange(12) % 3, torch.rand(12)
    loss = image_loss(lambda x: [(1.0, first), (0.3, side)], batch(weights=weights))
    each = [F.cross_entropy(logits, targets, reduction="none") * weights for logits in (first, side)]
    close(loss.total, each[0].sum() + 0.3 * each[1].sum())
    close(loss.plain, F.cross_entropy(first, targets, reduction="sum"))


def test_pixels_are_normalized() -> None:
    seen = []
    image_loss(lambda x: [(1.0, seen.append(x) or torch.zeros(12, 3))], batch())  # type: ignore[func-returns-value]
    mean, std = (np.array(values)[:, None, None] for values in (SPEC.mean, SPEC.std))
    close(seen[0], ((PIXELS / 255 - mean) / std).astype(np.float32))
    close(normalize(torch.ones(1, 1, 2, 2), (), ()), torch.ones(1, 1, 2, 2))


def test_statistics_of_channels() -> None:
    mean, std = channel_statistics(PIXELS)
    assert mean == near((PIXELS / 255).mean((0, 2, 3)).tolist(), 1000)
    assert std == near((PIXELS / 255).std((0, 2, 3)).tolist(), 1000)
    assert channel_statistics(np.zeros((2, 1, 3, 3), np.float32)) == ((0.0,), (1.0,))


def test_class_weights_have_a_mean_of_one() -> None:
    encoded = EncodedLabelledImages(torch.from_numpy(PIXELS), np.array([0] * 6 + [1] * 4 + [2] * 2), SPEC)
    balanced = class_weights(encoded.labels, encoded.spec.names, "balanced")
    assert balanced == near([12 / 18, 1.0, 2.0])
    given = class_weights(encoded.labels, encoded.spec.names, {"owl": 3.0})
    assert given == near([12 / 16, 12 / 16, 36 / 16])
    assert class_weights(encoded.labels, encoded.spec.names, None) == []
    with pytest.raises(UserError, match="no such class"):
        class_weights(encoded.labels, encoded.spec.names, {"cow": 2.0})


# ------------------------------------------------------------------ runs
AUGMENTED = ("augment={crop: 2, flip: 0.5, brightness: 0.2, mixup: 0.2, cutmix: 1.0, erase: 0.5}",)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (last,), _ = newest(folder, 1)
    return last.load("model")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_stopped_run_resumes_bit_for_bit_with_or_without_workers(tmp_path: Path) -> None:
    more = (*AUGMENTED, "task.sampling=balanced", "task.label_smoothing=0.1", "task.class_weights=balanced")
    run(tmp_path / "whole", *more)
    run(tmp_path / "parts", *more, until=3)
    run(tmp_path / "parts", *more, "train.workers=2")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    run(tmp_path / "other", *more, "train.seed=1")
    assert not same(weights(tmp_path / "whole"), weights(tmp_path / "other"))


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    eps = "train.optimizer.eps=1e-3"
    (tmp_path / "two.yaml").write_text(RECIPE)

    def together(team: Team) -> None:
        list(train(load_recipe(str(tmp_path / "two.yaml"), [*AUGMENTED, eps]), tmp_path / "two", team=team, data=DATA))

    run_team(2, together, tmp_path)
    run(tmp_path / "one", *AUGMENTED, eps)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        close(two[name], one[name], 2**13, of=one["head.weight"])


def test_classes_are_named_everywhere(trained: Path) -> None:
    spec = json.loads((trained / "images.json").read_text())
    assert spec["names"] == ["cat", "dog", "owl"] and len(spec["mean"]) == len(spec["std"]) == 3
    report = (trained / "report.html").read_text()
    assert all(name in report for name in ("cat", "dog", "owl", "Confusion matrix", "precision"))
    assert (trained / "pictures" / "confusion.png").is_file()


def test_given_statistics_are_used(tmp_path: Path) -> None:
    run(tmp_path / "run", "task.mean=[0.5, 0.5, 0.5]", "task.std=[0.25, 0.25, 0.25]")
    assert json.loads((tmp_path / "run" / "images.json").read_text())["std"] == [0.25] * 3


# ------------------------------------------------------------------ fine-tuning
OTHERS = Dataset(
    [(image, "ab"[number % 2]) for number, image in enumerate(PIXELS)],
    [(image, "ab"[number % 2]) for number, image in enumerate(PIXELS[:4])],
)


def test_other_classes_get_a_new_last_layer(trained: Path, tmp_path: Path) -> None:
    events = run(tmp_path / "run", f"start.folder={trained}", "train.optimizer.lr=1e-9", data=OTHERS)
    (started,) = (event for event in events if isinstance(event, Started))
    assert any("has other classes: head.weight, head.bias are randomly initialized" in note for note in started.notes)
    before, after = heedful.load(trained).model.state_dict(), weights(tmp_path / "run")
    assert after["head.weight"].shape[0] == 2
    for name in before:
        if not name.startswith("head."):
            close(after[name], before[name])
    first, second = (json.loads((folder / "images.json").read_text()) for folder in (trained, tmp_path / "run"))
    assert second["names"] == ["a", "b"] and second["mean"] == first["mean"]


def test_same_number_of_other_classes_get_a_new_last_layer_too(trained: Path, tmp_path: Path) -> None:
    data = Dataset(*([(image, f"new {label}") for image, label in part] for part in (DATA.train, DATA.valid)))  # type: ignore[attr-defined]
    run(tmp_path / "run", f"start.folder={trained}", "train.optimizer.lr=1e-9", data=data)
    before, after = heedful.load(trained).model.state_dict(), weights(tmp_path / "run")
    close(after["hidden2.weight"], before["hidden2.weight"])
    assert not torch.allclose(after["head.weight"], before["head.weight"], atol=1e-3)


def test_frozen_features_do_not_change(trained: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", f"start.folder={trained}", "model.freeze=true", data=OTHERS)
    before, after = heedful.load(trained).model.state_dict(), weights(tmp_path / "run")
    for name in before:
        if not name.startswith("head."):
            assert torch.equal(after[name], before[name]), name
    with pytest.raises(UserError, match="randomly initialized layers must be trained"):
        recipe_of(RECIPE.replace("hidden: [6, 5]", "hidden: [6, 5], freeze: true"), "here")


def test_model_of_another_shape_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the model in this folder differs from model in the recipe"):
        run(tmp_path / "run", f"start.folder={trained}", "model.filters=[5, 4]", data=OTHERS)


VIT = "model={kind: vit, channels: 3, size: [20, 16], patch: 4, width: 16, heads: 2, layers: 2, hidden: 16}"


def test_vision_transformer_starts_at_another_image_size(tmp_path: Path) -> None:
    small = Dataset(*([(image[:, :, :16], label) for image, label in part] for part in (DATA.train, DATA.valid)))  # type: ignore[attr-defined]
    large = Dataset(*([(np.tile(image, (1, 1, 2)), label) for image, label in part] for part in small[:2]))  # type: ignore[attr-defined]
    run(tmp_path / "small", VIT, "train.budget.steps=2", data=small)
    start = (f"start.folder={tmp_path / 'small'}", "train.budget.steps=1", "train.optimizer.lr=1e-9")
    run(tmp_path / "large", VIT.replace("[20, 16]", "[20, 32]"), *start, data=large)
    before, after = weights(tmp_path / "small"), weights(tmp_path / "large")
    assert after["positions.table"].shape == (1, 1 + 5 * 8, 16)
    close(after["positions.table"], resize_positions(before["positions.table"], (5, 4), (5, 8)))
    for name in before:
        if name != "positions.table":
            close(after[name], before[name])


# ------------------------------------------------------------------ the predictor
def test_predictions_are_the_same_for_files_pillow_and_arrays(classifier: ImageClassifier, tmp_path: Path) -> None:
    image = PIXELS[0].transpose(1, 2, 0)
    Image.fromarray(image).save(tmp_path / "one.png")
    given = [PIXELS[0], image, Image.fromarray(image), tmp_path / "one.png", str(tmp_path / "one.png")]
    results = classifier.predict(given)
    assert len({json.dumps(result.to_dict()) for result in results}) == 1
    alone = classifier.predict([PIXELS[0]])[0]
    assert alone.label == results[0].label and alone.probability == near(results[0].probability)
    assert next(iter(alone.probabilities)) == alone.label and sum(alone.probabilities.values()) == near(1.0)
    assert list(alone.probabilities.values()) == sorted(alone.probabilities.values(), reverse=True)
    assert len(classifier.predict([PIXELS[0]], top=2)[0].probabilities) == 2
    assert classifier.predict([]) == [] and classifier.features([]).shape == (0, 5)


def test_large_photographs_are_the_same_as_files_pillow_and_arrays(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    Image.fromarray(RNG.integers(0, 256, (300, 200, 3), np.uint8)).save(path)
    small = np.asarray(Image.open(path).resize((8, 12), Image.Resampling.LANCZOS)).transpose(2, 0, 1)
    for given in (path, Image.open(path), np.asarray(Image.open(path))):
        np.testing.assert_array_equal(prepare(given, ImageSpec((3, 12, 8))), small)


def test_features_are_what_the_head_reads(classifier: ImageClassifier) -> None:
    features = classifier.features(list(PIXELS[:4]))
    assert features.shape == (4, 5)
    model: Any = classifier.model
    logits = model.head(torch.from_numpy(features))
    found = classifier.predict(list(PIXELS[:4]))
    assert [classifier.labels[row] for row in logits.argmax(-1).tolist()] == [result.label for result in found]


def test_evaluation_of_examples_and_folders(classifier: ImageClassifier, tmp_path: Path) -> None:
    examples = list(zip(PIXELS, [SPEC.names[number % 3] for number in range(12)], strict=True))
    from_list = classifier.evaluate(examples)
    assert from_list.count == 12 and set(from_list.scores) == {"accuracy", "f1"}
    for number, (image, label) in enumerate(examples):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / label / f"{number}.png")
    from_folder = classifier.evaluate(tmp_path)
    assert from_folder.scores == from_list.scores and from_folder.loss == near(from_list.loss)
    np.savez(tmp_path / "all.npz", images=PIXELS.transpose(0, 2, 3, 1), labels=np.arange(12) % 3)
    with pytest.raises(UserError, match="no training images of this class"):
        classifier.evaluate(tmp_path / "all.npz")  # whose classes are numbers
    with pytest.raises(UserError, match="no examples"):
        classifier.evaluate([])


def test_saved_classifier_is_the_same(classifier: ImageClassifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "model")
    other = heedful.load(tmp_path / "model", heedful.ImageClassifier, device="cpu")
    one, two = (each.predict(list(PIXELS[:3])) for each in (classifier, other))
    assert [result.to_dict() for result in one] == [result.to_dict() for result in two]


def test_preprocessing_of_published_models(tmp_path: Path) -> None:
    image = Image.fromarray(RNG.integers(0, 256, (50, 80, 3), np.uint8))
    found = image_pixels(image, "here", 3, (32, 32), shorter=40, resample="bicubic")
    whole = np.asarray(image.resize((64, 40), Image.Resampling.BICUBIC))
    assert np.array_equal(found.transpose(1, 2, 0), whole[4:36, 16:48])
    spec = ImageSpec((3, 32, 32), ("a", "b"), (0.5,) * 3, (0.5,) * 3, 40, "bicubic")
    assert ImageSpec.parse(spec.json, "here") == spec
    assert "shorter" not in ImageSpec((3, 32, 32), ("a", "b")).json


# ------------------------------------------------------------------ images that cannot be used
@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            for place in range(3):
                Image.fromarray(PIXELS[3 * number + place].transpose(1, 2, 0)).save(
                    tmp_path / split / name / f"{place}.png"
                )
    return tmp_path


def of_folders(folder: Path, *changes: str) -> ImageClassificationTask:
    data = f"data={{kind: image_folder, root: {folder}, train: train, test: test}}"
    (folder / "recipe.yaml").write_text(RECIPE)
    return ImageClassificationTask(load_recipe(str(folder / "recipe.yaml"), [data, *changes]))  # type: ignore[arg-type]


def test_folders_are_classes(folders: Path) -> None:
    task = of_folders(folders)
    read = task.read("train")
    spec = task.learn(read)
    assert spec.names == ("cat", "dog")
    assert task.fitted(task.recipe.model, spec, "model").classes == 2
    assert task.encode(task.read("test"), spec).labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_unreadable_images_are_named_and_counted(folders: Path) -> None:
    whole = (folders / "train/cat/0.png").read_bytes()
    (folders / "train/cat/1.png").write_bytes(whole[: len(whole) // 2])
    (folders / "train/dog/2.png").write_bytes(b"not an image")
    with pytest.raises(UserError, match="2 of 6 images cannot be read") as error:
        of_folders(folders).read("train")
    assert "cat/1.png" in str(error.value) and "dog/2.png" in str(error.value)


def test_folder_without_classes_is_refused(folders: Path) -> None:
    for name in ("cat", "dog"):
        for file in (folders / "train" / name).iterdir():
            file.rename(folders / "train" / f"{name}-{file.name}")
        (folders / "train" / name).rmdir()
    with pytest.raises(UserError, match="these images have no labels"):
        of_folders(folders).read("train")


def test_one_class_alone_is_refused(tmp_path: Path) -> None:
    data = Dataset([(image, "cat") for image in PIXELS], DATA.valid)
    with pytest.raises(UserError, match="all training images are of one class"):
        run(tmp_path / "run", data=data)


def test_unknown_class_in_validation_is_refused(tmp_path: Path) -> None:
    data = Dataset(DATA.train, [(PIXELS[0], "cow")])
    with pytest.raises(UserError, match="no training images of this class"):
        run(tmp_path / "run", data=data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.channels=1", "the model does not fit the images"),
        ("model.size=[20, 20]", "the model does not fit the images"),
        ("model.classes=5", "another number of classes"),
        ("model.size=[6, 6]", "nothing is left of an image"),
        ("task.mean=[0.5]", "one mean for each channel"),
        ("train.batch_examples=null", "the number of images per batch is needed"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_training(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", change)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((0, 4, 3), np.uint8), "no image for this model"),
        (np.zeros((9, 9, 3), np.float32), "no image for this model"),
        (np.zeros((2, 3, 20, 18), np.uint8), "no image for this model"),
        (Image.new("I;16", (9, 9)), "more than 8 bits"),
    ],
)
def test_odd_arrays_and_images_are_refused(classifier: ImageClassifier, image: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        classifier.predict([image])


def test_hostile_and_unusual_files(
    classifier: ImageClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image.fromarray(PIXELS[0].transpose(1, 2, 0))
    image.convert("CMYK").save(tmp_path / "cmyk.jpg")
    image.save(tmp_path / "animated.gif", save_all=True, append_images=[Image.new("RGB", image.size)])
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    image.resize((7, 900)).save(tmp_path / "thin.png")
    files = [tmp_path / name for name in ("cmyk.jpg", "animated.gif", "turned.png", "thin.png")]
    assert len(classifier.predict(files)) == 4
    assert np.array_equal(read_image_file(tmp_path / "turned.png", 3), PIXELS[0])
    first = np.asarray(Image.open(tmp_path / "animated.gif").convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(read_image_file(tmp_path / "animated.gif", 3), first)
    Image.new("L", (300, 300)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UserError, match="suspiciously large"):
        classifier.predict([tmp_path / "bomb.png"])


# ------------------------------------------------------------------ examples
def test_wrong_examples_are_refused(tmp_path: Path) -> None:
    for bad in ([PIXELS[0]], [(PIXELS[0], 1.5)], []):
        with pytest.raises(UserError, match=r"invalid example|no examples"):
            run(tmp_path / "run", data=Dataset(bad, DATA.valid))


def test_run_ends(tmp_path: Path) -> None:
    assert isinstance(run(tmp_path / "run", "train.budget.steps=2")[-1], Finished)
