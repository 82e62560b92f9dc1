"""Linear autoencoders and PCA."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from heedful import PCA, Autoencoder


@pytest.mark.claim("K2")
def test_linear_autoencoder_reaches_the_pca_subspace() -> None:
    X = load_digits().data / 16
    X -= X.mean(0)  # zero mean, as in the lecture
    pca = PCA(8).fit(X)
    ours = Autoencoder(
        8, hidden_layer_sizes=(), activation="linear", solver="adam", learning_rate_init=0.01, batch_size=len(X),
        max_iter=800, random_state=0, device="cpu",
    ).fit(X)  # fmt: skip
    basis, _ = np.linalg.qr(ours.model_.decoder.layers[0].weight.detach().double().numpy())  # (64, 8)
    cosines = np.linalg.svd(basis.T @ pca.components_.T, compute_uv=False)  # cosines of the principal angles
    assert np.degrees(np.arccos(cosines.clip(max=1))).max() < 0.1
    assert pca.error(X) <= ours.error(X) * (1 + 1e-6)  # the linear optimum
    assert ours.error(X) == pytest.approx(pca.error(X), rel=1e-5)
    assert ours.reconstruct(X) == pytest.approx(pca.reconstruct(X), abs=1e-2)
    assert ours.loss_curve_[0] > 1.5 * ours.loss_


@pytest.mark.claim("K2")
def test_nonlinear_code_beats_every_linear_projection() -> None:
    """Points on a parabola have one degree of freedom: a line loses their height, a curve almost nothing."""
    width = np.linspace(-1, 1, 200)
    X = np.stack([width, width**2], 1)
    nonlinear = Autoencoder(
        1, hidden_layer_sizes=(32,), solver="adam", learning_rate_init=0.01, batch_size=50, max_iter=100,
        random_state=0, device="cpu",
    ).fit(X)  # fmt: skip
    assert nonlinear.error(X) < 0.05 * PCA(1).fit(X).error(X)
