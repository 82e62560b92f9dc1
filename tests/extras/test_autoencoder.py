"""Autoencoders as scikit-learn estimators, compared with recipes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import heedful
from heedful import Autoencoder, ConvAutoencoder, DenoisingAutoencoder, UserError
from heedful.data.embedded import Digits
from heedful.extras.estimators import autoencoder
from heedful.extras.estimators.autoencoder import BaseAutoencoder, crop
from heedful.models.autoencoder.config import SIZES
from heedful.tasks.reconstruction.recipe import ReconstructionRecipe
from heedful.training.configs import Budget, TrainConfig
from heedful.training.optim import Constant, RMSprop
from tolerance import near

IMAGES = Digits(train=200).read("train")
X: np.ndarray = IMAGES.vectors  # (200, 64) float32, from 0 to 1
KINDS = (Autoencoder, ConvAutoencoder, DenoisingAutoencoder)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More would only wait for each other, on so little."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@parametrize_with_checks([kind(max_iter=2, random_state=0) for kind in KINDS])
def test_scikit_learn_estimator_checks(estimator: BaseAutoencoder, check: Any) -> None:
    check(estimator)


def equal(one: BaseAutoencoder, other: BaseAutoencoder) -> bool:
    """Whether two have the same weights, bit for bit."""
    weights = other.model_.state_dict()
    return all(torch.equal(weight, weights[name]) for name, weight in one.model_.state_dict().items())


# ---------------------------------------------------------------- networks
@pytest.mark.parametrize(
    ("estimator", "name", "parameters"),
    [
        (Autoencoder(output_activation="relu"), "dense", 161_804),
        (ConvAutoencoder(output_activation="relu"), "conv", 1_185),
        (DenoisingAutoencoder(output_activation="relu"), "denoising", 28_353),
    ],
)
def test_networks_are_those_of_the_lecture(estimator: BaseAutoencoder, name: str, parameters: int) -> None:
    images = np.random.default_rng(0).random((2, 784), dtype=np.float32)
    model = estimator.set_params(max_iter=1).fit(images).model_
    assert model.config == SIZES[name]
    assert model.summary().parameters == parameters
    assert f"Total parameters: {parameters:,}" in str(model.summary())


@pytest.mark.parametrize("times", range(1, 6))
def test_every_square_image_is_reconstructed_in_its_size(times: int) -> None:
    for side in range(1, 66):
        estimator = ConvAutoencoder(filters=(1,) * times)
        config = estimator._config((1, side, side))  # which refuses a decoder that ends with another shape
        assert config.code == (1, -(-side // 2**times), -(-side // 2**times))


def test_crops_are_symmetric_if_possible() -> None:
    assert crop([28, 28], 3) == (2, 2)  # the lecture's: 16 becomes 14
    assert crop([8, 8], 3)[1] == crop([16, 24], 3)[1] == 0
    assert crop([7, 7], 1) == (1, 1)
    assert crop([28, 20], 3) == (2, 2)
    with pytest.raises(ValueError, match="images of 28 x 32 do not have the same size after 3 halvings"):
        crop([28, 32], 3)


@pytest.mark.parametrize(
    ("image_shape", "filters", "features", "taken", "code"),
    [
        (None, (8, 4, 4), 64, (1, 8, 8), (4, 1, 1)),
        (None, (8, 4), 10, (10, 1, 1), (4, 1, 1)),
        ((4, 16), (8, 4), 64, (1, 4, 16), (4, 1, 4)),
        ((4, 4, 4), (8, 8), 64, (4, 4, 4), (8, 1, 1)),
        ([7, 7], (3,), 49, (1, 7, 7), (3, 4, 4)),
    ],
)
def test_rows_are_flattened_images(image_shape: Any, filters: Any, features: int, taken: Any, code: Any) -> None:
    data = X[:, :features]
    estimator = ConvAutoencoder(image_shape, filters=filters, max_iter=1).fit(data)
    assert (estimator.image_shape_, estimator.model_.config.code) == (taken, code)
    assert estimator.transform(data).shape == (200, estimator.n_components_) == (200, np.prod(code))
    assert estimator.reconstruct(data).shape == data.shape


# ---------------------------------------------------------------- training
@every_kind
def test_training_equals_that_of_a_recipe(kind: type[BaseAutoencoder], tmp_path: Path) -> None:
    ours = kind(max_iter=2, batch_size=64, random_state=7).fit(X)
    recipe = ReconstructionRecipe(
        task=ours._task(),
        data=Digits(train=200, valid=10, test=10),
        model=ours.model_.config,
        train=TrainConfig(
            seed=7,
            budget=Budget(epochs=2),
            batch_examples=64,
            optimizer=RMSprop(),
            schedule=Constant(),
            clip=None,
            threads=1,
            device="cpu",
        ),
    )
    events = list(heedful.train(recipe, tmp_path / "run"))
    theirs = heedful.load(tmp_path / "run", "cpu").model.state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.model_.state_dict().items())
    steps = [event for event in events if type(event).__name__ == "Step"]
    assert len(steps) == 8
    for epoch, epoch_loss in enumerate(ours.loss_curve_):
        losses = [step.loss for step in steps if step.epoch == epoch]
        assert epoch_loss == pytest.approx(
            np.average(losses, weights=[64, 64, 64, 8])
        )  # the last batch is what is left


@every_kind
def test_replayed_steps_give_the_same_bits(kind: type[BaseAutoencoder], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = kind(max_iter=2, random_state=0).fit(X)
    monkeypatch.setattr(autoencoder, "WORTH_RECORDING", 1)
    assert equal(kind(max_iter=2, random_state=0).fit(X), plain)


@pytest.mark.parametrize("solver", ["rmsprop", "adam"])
def test_loss_falls(solver: str, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = Autoencoder(10, solver=solver, max_iter=30, batch_size=32, random_state=0, verbose=True).fit(X)
    assert estimator.loss_ == estimator.loss_curve_[-1] < 0.4 * estimator.loss_curve_[0]
    assert estimator.n_iter_ == len(estimator.loss_curve_) == 30
    assert -estimator.score(X) == pytest.approx(estimator.loss_, rel=0.1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Iteration 30, loss = {estimator.loss_:.8f}"
    assert len(lines) == 30


def test_adam_is_that_of_torch() -> None:
    estimator = Autoencoder(4, solver="adam", learning_rate_init=0.01, batch_size=200, max_iter=9, random_state=0)
    start = clone(estimator).set_params(max_iter=1, learning_rate_init=1e-30).fit(X).model_
    optimizer = torch.optim.Adam(start.parameters(), lr=0.01)
    given = torch.from_numpy(X)
    for _ in range(9):
        optimizer.zero_grad()
        (start(given) - given).square().mean().backward()
        optimizer.step()
    made = estimator.fit(X).reconstruct(X)
    assert made == pytest.approx(start(given).detach().numpy(), abs=4e-3)


def test_denoising_autoencoder_removes_noise() -> None:
    images = (load_digits().data / 16).astype(np.float32)
    noisy = images + np.random.default_rng(0).normal(scale=0.5, size=images.shape).astype(np.float32)
    noisy = noisy.clip(0, 1)
    denoiser = DenoisingAutoencoder(filters=(16,), solver="adam", learning_rate_init=0.01, max_iter=12, random_state=0)
    restored = denoiser.fit(images).reconstruct(noisy)
    assert np.square(restored - images).mean() < 0.5 * np.square(noisy - images).mean()
    assert np.square(restored - images).mean() < 0.75 * images.var(0).mean()  # what the mean image leaves
    still = DenoisingAutoencoder(noise=0, max_iter=1, random_state=0).fit(images)
    loud = DenoisingAutoencoder(noise=3, clip=None, max_iter=1, random_state=0).fit(images)
    assert still.loss_ < denoiser.loss_curve_[0] < loud.loss_


# ---------------------------------------------------------------- chance, and what is around
@every_kind
def test_equal_seeds_give_equal_bits_and_global_state_is_restored(kind: type[BaseAutoencoder]) -> None:
    torch.set_num_threads(2)
    chance, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    one, two, other = (kind(max_iter=1, random_state=seed).fit(X) for seed in (3, np.int64(3), 4))
    assert torch.equal(torch.get_rng_state(), chance)
    assert (np.random.get_state()[1] == numbers).all()  # type: ignore[index]
    assert torch.get_num_threads() == 2
    assert equal(one, two) and not equal(one, other)
    assert one.transform(X).tobytes() == two.transform(X).tobytes()
    drawn = [kind(max_iter=1, random_state=np.random.RandomState(5)).fit(X) for _ in range(2)]
    assert equal(*drawn) and not equal(drawn[0], one)
    assert not equal(*(kind(max_iter=1).fit(X) for _ in range(2)))


def test_global_state_is_restored_after_a_failed_training() -> None:
    chance, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(ValueError, match=r"training diverged .*: scale X, or lower learning_rate_init"):
        Autoencoder(learning_rate_init=1e10, random_state=0).fit(X)
    assert torch.equal(torch.get_rng_state(), chance) and torch.get_num_threads() == threads


# ---------------------------------------------------------------- use
@every_kind
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_results_have_the_dtype_of_the_data(kind: type[BaseAutoencoder], dtype: Any) -> None:
    data = np.round(X).astype(dtype)
    estimator = kind(max_iter=1, random_state=0).fit(data)
    kept = np.float32 if dtype is np.float32 else np.float64
    codes, made = estimator.transform(data), estimator.reconstruct(data)
    assert codes.dtype == made.dtype == estimator.inverse_transform(codes).dtype == kept
    assert {weight.dtype for weight in estimator.model_.parameters()} == {torch.float32}
    assert made == near(kind(max_iter=1, random_state=0).fit(np.round(X)).reconstruct(np.round(X)))


@every_kind
def test_transform_and_inverse_transform_are_encoder_and_decoder(kind: type[BaseAutoencoder]) -> None:
    estimator = kind(max_iter=2, random_state=0).fit(X)
    model = estimator.model_
    with torch.no_grad():
        made = model(torch.from_numpy(X).view(-1, *model.config.input)).flatten(1).numpy()
    assert estimator.reconstruct(X) == near(made, 16)
    assert estimator.inverse_transform(estimator.transform(X)).tobytes() == estimator.reconstruct(X).tobytes()
    assert estimator.fit_transform(X).tobytes() == estimator.transform(X).tobytes()
    assert estimator.error(X) == -estimator.score(X) == pytest.approx(np.square(made - X).mean(), rel=1e-5)
    many = np.concatenate([X] * 6)  # more than are read at once
    assert estimator.transform(many)[1000:] == near(estimator.transform(X), 16)
    names = estimator.get_feature_names_out()
    assert len(names) == estimator.n_components_ and names[0] == f"{kind.__name__.lower()}0"


@pytest.mark.parametrize(("scaler", "least"), [(StandardScaler, 0.9), (MinMaxScaler, 0.93)])
def test_pipeline_classifies_digits_by_their_codes(scaler: type, least: float) -> None:
    digits = load_digits()
    train, test, labels, wanted = train_test_split(digits.data, digits.target, random_state=0)
    whole = make_pipeline(scaler(), Autoencoder(20, random_state=0), StandardScaler(), LogisticRegression(max_iter=500))
    assert whole.fit(train, labels).score(test, wanted) > least


def test_grid_search_prefers_more_components() -> None:
    search = GridSearchCV(Autoencoder(max_iter=20, random_state=0), {"n_components": np.array([1, 16])}, cv=2).fit(X)
    assert search.best_params_ == {"n_components": 16}
    assert search.best_estimator_.n_components_ == 16
    assert search.best_score_ < 0


def test_set_output_gives_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"pixel {number}" for number in range(64)])
    estimator = Autoencoder(3, max_iter=1, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(estimator.transform(frame).columns) == ["autoencoder0", "autoencoder1", "autoencoder2"]
    assert estimator.feature_names_in_[0] == "pixel 0"
    assert estimator.score(frame) < 0


# ---------------------------------------------------------------- keeping
@every_kind
def test_saved_model_is_loaded_by_heedful(kind: type[BaseAutoencoder], tmp_path: Path) -> None:
    estimator = kind(max_iter=1, random_state=0).fit(X)
    estimator.save(tmp_path / "model")
    autoencoder = heedful.load(tmp_path / "model", "cpu")
    assert autoencoder.reconstruct(IMAGES.pixels).reshape(200, 64).tobytes() == estimator.reconstruct(X).tobytes()
    assert autoencoder.encode(IMAGES.pixels).tobytes() == estimator.transform(X).tobytes()
    assert autoencoder.noise.deviation == (0.5 if kind is DenoisingAutoencoder else 0)
    with pytest.raises(UserError, match="the target already exists"):
        estimator.save(tmp_path / "model")
    with pytest.raises(UserError, match="there is no such folder"):
        estimator.save(tmp_path / "none" / "model")
    with pytest.raises(NotFittedError):
        kind().save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_saved_model_of_plain_features_is_loaded(tmp_path: Path) -> None:
    for kind, image in ((Autoencoder, (1, 1, 10)), (ConvAutoencoder, (10, 1, 1))):
        estimator = kind(max_iter=1, random_state=0).fit(X[:, :10])
        estimator.save(tmp_path / kind.__name__)
        autoencoder = heedful.load(tmp_path / kind.__name__, "cpu")
        made = autoencoder.reconstruct(np.ascontiguousarray(X[:, :10]).reshape(-1, *image))
        assert made.reshape(200, 10).tobytes() == estimator.reconstruct(X[:, :10]).tobytes()


@every_kind
def test_copies_are_equal_and_independent(kind: type[BaseAutoencoder]) -> None:
    estimator = kind(max_iter=1, output_activation="linear", random_state=0).fit(X)
    for other in (copy.deepcopy(estimator), copy.copy(estimator), pickle.loads(pickle.dumps(estimator))):  # noqa: S301
        assert equal(estimator, other) and other.loss_curve_ == estimator.loss_curve_
        assert other.reconstruct(X).tobytes() == estimator.reconstruct(X).tobytes()
        with torch.no_grad():
            next(other.model_.parameters()).zero_()
        assert not equal(estimator, other)
    assert not hasattr(clone(estimator), "model_")


# ---------------------------------------------------------------- what is refused
def few() -> Autoencoder:
    return Autoencoder(max_iter=1).fit(X)


def broken(value: float) -> np.ndarray:
    data = X.astype(np.float64)
    data[7, 3] = value
    return data


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (lambda: Autoencoder().fit(broken(np.nan)), "Input X contains NaN"),
        (lambda: Autoencoder().fit(broken(np.inf)), "Input X contains infinity"),
        (lambda: Autoencoder().fit(broken(1e300)), r"infinity or a value too large for dtype\('float32'\)"),
        (lambda: Autoencoder().fit(X[0]), "Expected 2D array, got 1D array"),
        (lambda: Autoencoder().fit(X[:0]), r"Found array with 0 sample\(s\)"),
        (lambda: Autoencoder().fit(X[:, :0]), r"Found array with 0 feature\(s\)"),
        (lambda: Autoencoder().fit(X * 1j), "Complex data not supported"),
        (lambda: Autoencoder().fit([["a", "b"]]), "could not convert string to float"),
        (lambda: Autoencoder(0).fit(X), "n_components must be a positive integer, got 0"),
        (lambda: Autoencoder(0.5).fit(X), "n_components must be a positive integer"),  # type: ignore[arg-type]
        (lambda: Autoencoder(10**9).fit(X), "invalid network or training settings: width: .* 1048576"),
        (lambda: Autoencoder(max_iter=10**6).fit(X), "invalid network or training settings: epochs: .* 100000"),
        (lambda: Autoencoder(hidden_layer_sizes=(3, 0)).fit(X), "each of hidden_layer_sizes must be"),
        (lambda: Autoencoder(hidden_layer_sizes=7).fit(X), "hidden_layer_sizes must be a tuple"),  # type: ignore[arg-type]
        (lambda: Autoencoder(activation="gelu").fit(X), "activation must be one of relu, .*, got 'gelu'"),  # type: ignore[arg-type]
        (lambda: Autoencoder(solver="sgd").fit(X), "solver must be one of rmsprop, adam, got 'sgd'"),
        (lambda: Autoencoder(device="tpu").fit(X), "device must be one of auto, cpu, cuda, got 'tpu'"),
        (lambda: Autoencoder(batch_size=True).fit(X), "batch_size must be a positive integer, got True"),
        (lambda: Autoencoder(max_iter=0).fit(X), "max_iter must be a positive integer"),
        (lambda: Autoencoder(learning_rate_init=0).fit(X), "learning_rate_init must be a number above 0"),
        (lambda: Autoencoder(random_state=-1).fit(X), "Seed must be between 0"),
        (lambda: ConvAutoencoder((28, 28)).fit(X), r"image_shape=\(28, 28\) has 784 pixels, but X has 64 features"),
        (lambda: ConvAutoencoder((64,)).fit(X), r"image_shape must be \(rows, columns\)"),
        (lambda: ConvAutoencoder(8).fit(X), "image_shape must be a tuple"),  # type: ignore[arg-type]
        (lambda: ConvAutoencoder((2, 32)).fit(X), "images of 2 x 32 do not have the same size"),
        (lambda: ConvAutoencoder(filters=()).fit(X), "filters must not be empty"),
        (lambda: DenoisingAutoencoder(noise=-1).fit(X), "noise must be a number from 0 to 100, got -1"),
        (lambda: DenoisingAutoencoder(clip=(1, 0)).fit(X), "clip must be two numbers, the lower one first"),
        (lambda: DenoisingAutoencoder(clip=1).fit(X), "clip must be two numbers"),  # type: ignore[arg-type]
        (lambda: few().transform(X[:, :3]), "X has 3 features, but Autoencoder is expecting 64 features"),
        (lambda: few().score(X[:, :3]), "X has 3 features, but Autoencoder is expecting 64 features"),
        (lambda: few().inverse_transform(X), "X has 64 features, but codes of this Autoencoder have 20"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(fit: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit()


@every_kind
def test_unfitted_estimator_is_an_error(kind: type[BaseAutoencoder]) -> None:
    for use in (kind().transform, kind().inverse_transform, kind().reconstruct, kind().score):
        with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
            use(X)


@every_kind
def test_one_sample_and_constant_features_work(kind: type[BaseAutoencoder]) -> None:
    for data in (X[:1], np.ones((30, 64)), np.zeros((30, 1))):
        estimator = kind(max_iter=1, random_state=0).fit(data)
        assert np.isfinite(estimator.reconstruct(data)).all() and np.isfinite(estimator.loss_)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_an_error() -> None:
    with pytest.raises(ValueError, match="torch finds no GPU here: use device='auto'"):
        Autoencoder(device="cuda").fit(X)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@every_kind
def test_gpu_and_cpu_agree(kind: type[BaseAutoencoder]) -> None:
    chance = torch.cuda.get_rng_state()
    there = kind(max_iter=3, random_state=0, device="cuda").fit(X)
    here = kind(max_iter=3, random_state=0, device="cpu").fit(X)
    assert torch.equal(torch.cuda.get_rng_state(), chance)
    assert there.loss_curve_ == pytest.approx(here.loss_curve_, rel=1e-3)
    assert there.reconstruct(X) == pytest.approx(here.reconstruct(X), abs=1e-2)
    assert next(there.model_.parameters()).device.type == "cpu"
