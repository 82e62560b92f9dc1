"""Claims about PCA and about maps of codes: the lecture's formulas and comparison."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import decomposition
from sklearn.datasets import load_digits

from generators import return_value
from heedful import PCA
from heedful.data.images.batches import EncodedImages, ImageBatches, encode_images
from heedful.data.images.sources import scale_pixels
from heedful.lectures.maps import Maps, Settings, maps
from heedful.models.autoencoder.config import dense
from heedful.models.autoencoder.model import Autoencoder
from heedful.runs.recipe import load_recipe
from heedful.tasks.reconstruction.predictor import Noise, reconstruction_loss
from heedful.training.loop import Counters, fit
from tolerance import close

MNIST = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "mnist")
X, Y = load_digits(return_X_y=True)
X = X / 16


# ------------------------------------------------------------------ K1
@pytest.mark.claim("K1")
@pytest.mark.parametrize("solver", ["exact", "incremental", "randomized"])
def test_pca_projects_on_singular_vectors(solver: str) -> None:
    k = 12
    pca = PCA(k, solver=solver, iterated_power=60, random_state=0).fit(X)
    V = pca.components_.T  # (d, k)
    centred = X - X.mean(0)
    right = np.linalg.svd(centred, full_matrices=False)[2][:k].T
    close(V.T @ V, np.eye(k), slack=8192)
    close(np.abs((V * right).sum(0)), np.ones(k), slack=8388608)  # equal up to signs
    close(pca.transform(X), centred @ V, slack=8192)
    close(pca.reconstruct(X) - X.mean(0), centred @ V @ V.T, slack=8192)
    theirs = decomposition.PCA(k, svd_solver="full").fit(X)
    close(V, theirs.components_.T, slack=2**29)  # even their signs


@pytest.mark.claim("K1")
def test_no_orthogonal_projection_beats_pca() -> None:
    k, r = 12, np.random.default_rng(0)
    V = PCA(k).fit(X).components_.T
    centred = X - X.mean(0)

    def reconstruction_error(columns: np.ndarray) -> float:
        return float(np.square(centred - centred @ columns @ columns.T).sum())

    for size in (1e-3, 1e-2, 1e-1, 1e3):
        for _ in range(10):
            other = np.linalg.qr(V + size * r.standard_normal(V.shape))[0]
            assert reconstruction_error(other) > reconstruction_error(V)


@pytest.mark.claim("K1")
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"no MNIST in {MNIST}; set HEEDFUL_DATA")
def test_20_mnist_components_match_scikit_learn() -> None:
    import gzip

    with gzip.open(MNIST / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(10_000, 784)
    ours = PCA(20).fit(pixels)
    theirs = decomposition.PCA(20, svd_solver="covariance_eigh").fit(pixels.astype(np.float64))
    close(ours.components_, theirs.components_, slack=524288)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-12)


# ------------------------------------------------------------------ K8
def train_autoencoder(images: EncodedImages, *widths: int) -> Autoencoder:
    """A dense autoencoder with the lecture's settings, after 300 steps."""
    settings = load_recipe("mnist-dense", ["train.budget={steps: 300}"]).train
    torch.manual_seed(0)
    model: Any = Autoencoder(dense(784, *widths))
    loss_of: Any = partial(reconstruction_loss, model, noise=Noise(0.0, None))
    batches: Any = ImageBatches(images, 0, 128)
    for _ in fit(model, loss_of, batches, settings, torch.device("cpu"), None, {}, Counters(), records=True):
        pass
    return model.eval()


@pytest.fixture(scope="module")
def mnist_maps() -> Maps:
    """Three maps of 400 MNIST test images, from the codes of two equally trained autoencoders."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST in {MNIST}; set HEEDFUL_DATA")
    data = load_recipe("mnist-dense", [f"data.root={MNIST}"]).data
    images, test = encode_images(data.read("train")), data.read("test")
    pixels = scale_pixels(test.pixels[:400]).reshape(400, 784)

    def codes(*widths: int) -> Any:
        return train_autoencoder(images, *widths).encoder(torch.from_numpy(pixels).float()).detach().numpy()

    made = codes(100, 20), codes(100, 2)
    return return_value(maps(lambda: made[0], lambda: made[1], pixels, test.labels[:400], test.names, Settings()))


@pytest.mark.claim("K8")
def test_tsne_of_codes_beats_two_dimensional_codes(mnist_maps: Maps) -> None:
    codes, flat, pixels = mnist_maps.maps
    assert [one.numbers for one in mnist_maps.maps] == [20, 2, 784]
    assert all(one.points.shape == (400, 2) for one in mnist_maps.maps)
    assert codes.right > 0.65
    assert flat.right < codes.right - 0.15
    assert abs(pixels.right - codes.right) < 0.1  # "the results are good"


@pytest.mark.claim("K8")
def test_map_time_includes_its_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with a fake clock."""
    now = [0.0]
    monkeypatch.setattr("heedful.lectures.maps.time.perf_counter", lambda: now[0])

    def slow(vectors: Any, perplexity: float, seed: int) -> Any:
        now[0] += vectors.shape[1]  # one second per dimension
        return vectors[:, :2]

    monkeypatch.setattr("heedful.lectures.maps.tsne", slow)
    found = return_value(maps(lambda: X[:50, :20], lambda: X[:50, :2], X[:50], Y[:50], "0123456789", Settings()))
    assert [one.seconds for one in found.maps] == [20, 0, 64]
