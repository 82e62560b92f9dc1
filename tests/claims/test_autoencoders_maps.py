"""Rows about PCA and about maps of codes: they are the lecture's formulas and comparison, on data that are at hand."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.datasets import load_digits

from heedful import PCA
from heedful.studies import Progress
from heedful.studies.maps import Maps, Settings, maps

MNIST = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "mnist")
X, Y = load_digits(return_X_y=True)
X = X / 16


# ------------------------------------------------------------------ K1
@pytest.mark.claim("K1")
@pytest.mark.parametrize("solver", ["exact", "incremental", "randomized"])
def test_pca_is_the_projection_on_orthogonal_columns_that_singular_vectors_give(solver: str) -> None:
    k = 12
    pca = PCA(k, solver=solver, iterated_power=60, random_state=0).fit(X)
    V = pca.components_.T  # (d, k)
    centred = X - X.mean(0)
    right = np.linalg.svd(centred, full_matrices=False)[2][:k].T
    np.testing.assert_allclose(V.T @ V, np.eye(k), atol=1e-12)
    np.testing.assert_allclose(np.abs((V * right).sum(0)), 1, atol=1e-9)  # equal up to signs
    np.testing.assert_allclose(pca.transform(X), centred @ V, atol=1e-12)
    np.testing.assert_allclose(pca.reconstruct(X) - X.mean(0), centred @ V @ V.T, atol=1e-12)
    theirs = decomposition.PCA(k, svd_solver="full").fit(X)
    np.testing.assert_allclose(V, theirs.components_.T, atol=1e-7)  # even their signs


@pytest.mark.claim("K1")
def test_no_other_orthogonal_columns_come_nearer() -> None:
    k, r = 12, np.random.default_rng(0)
    V = PCA(k).fit(X).components_.T
    centred = X - X.mean(0)

    def apart(columns: np.ndarray) -> float:
        return float(np.square(centred - centred @ columns @ columns.T).sum())

    for size in (1e-3, 1e-2, 1e-1, 1e3):
        for _ in range(10):
            other = np.linalg.qr(V + size * r.standard_normal(V.shape))[0]
            assert apart(other) > apart(V)


@pytest.mark.claim("K1")
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"no MNIST in {MNIST}; set HEEDFUL_DATA")
def test_of_mnist_twenty_components_are_those_of_scikit_learn() -> None:
    import gzip

    with gzip.open(MNIST / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(10_000, 784)
    ours = PCA(20).fit(pixels)
    theirs = decomposition.PCA(20, svd_solver="covariance_eigh").fit(pixels.astype(np.float64))
    np.testing.assert_allclose(ours.components_, theirs.components_, atol=1e-10)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-12)


# ------------------------------------------------------------------ K8
@pytest.fixture(scope="module")
def mapped() -> Maps:
    """The three maps of 600 digits: codes of ten numbers and of two by PCA, which is the linear autoencoder."""
    some = X[:600]
    going: Generator[Progress, None, Maps] = maps(
        lambda: PCA(10).fit_transform(some), lambda: PCA(2).fit_transform(some), some, Y[:600], "0123456789", Settings()
    )
    while True:
        try:
            next(going)
        except StopIteration as end:
            found: Maps = end.value
            return found


@pytest.mark.claim("K8")
def test_codes_by_tsne_make_a_better_map_than_codes_of_two_numbers(mapped: Maps) -> None:
    codes, flat, pixels = mapped.maps
    assert all(one.points.shape == (600, 2) and one.seconds > 0 for one in mapped.maps)
    assert codes.right > 0.85
    assert flat.right < codes.right - 0.15
    assert abs(pixels.right - codes.right) < 0.1  # "the results are good"
