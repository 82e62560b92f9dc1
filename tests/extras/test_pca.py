"""PCA as a scikit-learn estimator, compared with scikit-learn's own."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import decomposition
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from heedful import PCA
from heedful.extras.estimators import pca
from tolerance import close, near

DIGITS = load_digits().data
SOLVERS = ("auto", "exact", "randomized", "incremental")
every_solver = pytest.mark.parametrize("solver", SOLVERS)


@parametrize_with_checks([PCA(solver=solver, random_state=0) for solver in SOLVERS])
def test_scikit_learn_estimator_checks(estimator: PCA, check: Any) -> None:
    check(estimator)


def tables() -> dict[str, np.ndarray]:
    """Tables of many kinds."""
    r = np.random.default_rng(0)
    spread = np.diag(0.8 ** np.arange(12))
    tall = r.normal(size=(300, 12)) @ spread + r.normal(size=12)
    low = r.normal(size=(80, 3)) @ r.normal(size=(3, 20))
    fixed = np.concatenate([tall[:90], np.full((90, 3), 7.0)], 1)
    return {
        "tall": tall,
        "wide": r.normal(size=(15, 60)) * 0.9 ** np.arange(60),
        "square": r.normal(size=(30, 30)) * 0.8 ** np.arange(30),
        "of low rank": low,
        "with constant features": fixed,
        "far from zero": tall + 1e6,
        "two samples": tall[:2],
        "digits": DIGITS,
    }


@every_solver
@pytest.mark.parametrize("kind", tables())
@pytest.mark.parametrize("batch", [None, 7])
def test_results_match_scikit_learn(solver: str, kind: str, batch: int | None) -> None:
    X = tables()[kind]
    k = {"of low rank": 3, "two samples": 1}.get(kind, 5)
    ours = PCA(k, solver=solver, batch_size=batch, iterated_power=40, random_state=0).fit(X)
    theirs = decomposition.PCA(k, svd_solver="full").fit(X)
    error = 1e-6 if solver == "randomized" else 1e-9
    assert ours.components_ == pytest.approx(theirs.components_, abs=error)
    assert ours.mean_ == pytest.approx(theirs.mean_, rel=1e-12)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=error), name
    scale = theirs.explained_variance_[0]
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=error, abs=1e-12 * scale)
    assert (ours.n_components_, ours.n_features_in_, ours.n_samples_seen_) == (k, X.shape[1], len(X))
    codes = theirs.transform(X)
    scale = error / torch.finfo(torch.float64).eps
    close(ours.transform(X), codes, slack=scale, of=X)
    close(ours.inverse_transform(codes), theirs.inverse_transform(codes), slack=scale, of=X)
    if kind not in ("of low rank", "two samples", "far from zero"):
        assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-6)


@pytest.mark.parametrize("n_components", [None, 0.5, 0.9, 0.999, 1, 64])
@pytest.mark.parametrize("solver", ["auto", "exact", "incremental"])
def test_number_of_components_matches_scikit_learn(n_components: float | None, solver: str) -> None:
    ours = PCA(n_components, solver=solver).fit(DIGITS)
    theirs = decomposition.PCA(n_components, svd_solver="full").fit(DIGITS)
    assert ours.n_components_ == theirs.n_components_
    assert ours.explained_variance_ratio_ == near(theirs.explained_variance_ratio_, 8192, dtype=torch.float64)
    assert ours.components_ @ ours.components_.T == near(np.eye(ours.n_components_), 8192, dtype=torch.float64)


@every_solver
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.float16])
def test_results_have_the_dtype_of_the_data(solver: str, dtype: type) -> None:
    X = DIGITS.astype(dtype)
    ours = PCA(4, solver=solver, random_state=0).fit(X)
    kept = np.float32 if dtype is np.float32 else np.float64
    for found in (ours.components_, ours.mean_, ours.explained_variance_, ours.transform(X), ours.reconstruct(X)):
        assert found.dtype == kept
    whole = PCA(4, solver=solver, random_state=0).fit(DIGITS)
    assert ours.components_ == near(whole.components_, 16)


@every_solver
def test_error_is_the_variance_of_the_other_components(solver: str) -> None:
    ours = PCA(10, solver=solver, random_state=0).fit(DIGITS)
    made = ours.reconstruct(DIGITS)
    V = ours.components_.T
    close(made, ours.mean_ + (DIGITS - ours.mean_) @ V @ V.T, slack=8388608)
    assert ours.error(DIGITS) == pytest.approx(np.square(DIGITS - made).mean(), rel=1e-12)
    left = ours.noise_variance_ * (64 - 10) * (len(DIGITS) - 1)
    assert ours.error(DIGITS) == pytest.approx(left / DIGITS.size, rel=1e-3)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("rows", [1, 10, 100, 5000])
def test_batches_give_the_result_of_the_whole(wide: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if wide:
        monkeypatch.setattr(pca, "NARROW", 10)  # decompositions are merged; with room for all of them nothing is lost
    ours = PCA(10, n_oversamples=54)
    X = DIGITS[:400]
    for begin in range(0, len(X), rows):
        ours.partial_fit(X[begin : begin + rows])
    whole = decomposition.PCA(10, svd_solver="full").fit(X)
    assert ours.n_samples_seen_ == 400
    assert ours.components_ == near(whole.components_, 0.125)
    assert ours.explained_variance_ == pytest.approx(whole.explained_variance_, rel=1e-10)
    assert ours.noise_variance_ == pytest.approx(whole.noise_variance_, rel=1e-8)


def test_truncated_incremental_fits_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pca, "NARROW", 10)
    ours = PCA(10, solver="incremental", batch_size=200).fit(DIGITS)
    whole = decomposition.PCA(10, svd_solver="full").fit(DIGITS)
    assert ours.explained_variance_ == pytest.approx(whole.explained_variance_, rel=0.01)
    assert ours.explained_variance_ratio_.sum() == pytest.approx(whole.explained_variance_ratio_.sum(), rel=0.003)


@every_solver
def test_partial_fit_continues_after_fit(solver: str) -> None:
    ours = PCA(10, solver=solver, random_state=0, n_oversamples=54).fit(DIGITS[:900]).partial_fit(DIGITS[900:])
    whole = decomposition.PCA(10, svd_solver="full").fit(DIGITS)
    assert ours.n_samples_seen_ == len(DIGITS)
    assert ours.components_ == near(whole.components_, 0.125)


def test_invalid_batch_does_not_change_the_estimator() -> None:
    ours = PCA(3).partial_fit(DIGITS[:100])
    before = ours.components_.copy()
    bad = DIGITS[100:200].copy()
    bad[-1, -1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        ours.partial_fit(bad)
    assert ours.n_samples_seen_ == 100
    assert (ours.components_ == before).all()


def test_too_few_samples_are_an_error_when_components_are_used() -> None:
    ours = PCA(5).partial_fit(DIGITS[:3])
    with pytest.raises(NotFittedError, match="3 samples are too few for n_components=5"):
        ours.transform(DIGITS[:3])
    assert ours.partial_fit(DIGITS[3:50]).transform(DIGITS[:3]).shape == (3, 5)


def test_randomized_solver_is_reproducible() -> None:
    one, same, other = (
        PCA(5, solver="randomized", iterated_power=1, random_state=seed).fit(DIGITS).components_ for seed in (0, 0, 1)
    )
    assert (one == same).all()
    assert not (one == other).all()


@every_solver
def test_memory_map_is_not_copied(solver: str, tmp_path: Path) -> None:
    shape, k = (60_000, 40), 3
    r = np.random.default_rng(0)
    X = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=shape)  # 9.6 MB; 19.2 in float64
    X[:] = r.normal(size=(shape[0], k)) @ r.normal(size=(k, shape[1])) + 0.01 * r.normal(size=shape)
    tracemalloc.start()
    ours = PCA(k, solver=solver, batch_size=1000, random_state=0).fit(X)
    ours.error(X)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5e6
    assert ours.explained_variance_ratio_.sum() > 0.999


def test_memory_does_not_grow_with_the_samples() -> None:
    ours, r, most = PCA(3), np.random.default_rng(0), []
    tracemalloc.start()
    for _ in range(30):
        ours.partial_fit(r.normal(size=(2000, 16)))
        most.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert most[-1] - most[1] < 20_000


def test_constant_data_have_components_without_variance() -> None:
    for solver in SOLVERS:
        ours = PCA(2, solver=solver, random_state=0).fit(np.full((30, 5), 3.0))
        assert ours.explained_variance_ == pytest.approx([0, 0], abs=1e-25)
        assert ours.explained_variance_ratio_ == pytest.approx([0, 0])
        assert ours.components_ @ ours.components_.T == pytest.approx(np.eye(2))
        assert ours.reconstruct(np.full((1, 5), 3.0)) == pytest.approx(np.full((1, 5), 3.0))
        with pytest.raises(ValueError, match="use fewer components"):
            ours.score(np.full((1, 5), 3.0))


@every_solver
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X[:1], "1 sample"),
        (lambda X: np.where(X[2, 2] == X, np.nan, X), "contains NaN"),
        (lambda X: np.where(X[2, 2] == X, np.inf, X), "contains infinity"),
        (lambda X: X[:, 0], "Expected 2D array"),
        (lambda X: X[:, :0], r"0 feature\(s\)"),
        (lambda X: [["a", "b"], ["c", "d"]], "could not convert string to float"),
        (lambda X: X[:, :3], "n_components=4 must be between 1 and min"),
        (lambda X: X[:3], "n_components=4 must be between 1 and min"),
        (lambda X: X * 1e200, "too large for their squares"),
    ],
)
def test_invalid_data_are_rejected(solver: str, change: Any, message: str) -> None:
    X = tables()["tall"]
    ours = PCA(4, solver=solver, random_state=0)
    with pytest.raises(ValueError, match=message):
        ours.fit(change(X))
    with pytest.raises(NotFittedError):
        ours.transform(X)


def test_sparse_data_and_other_widths_are_rejected() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match="dense data is required"):
        PCA().fit(sparse.csr_array(DIGITS))
    ours = PCA(4).fit(DIGITS)
    with pytest.raises(ValueError, match="X has 63 features, but PCA is expecting 64"):
        ours.transform(DIGITS[:, 1:])
    with pytest.raises(ValueError, match="X has 63 features"):
        ours.partial_fit(DIGITS[:, 1:])
    with pytest.raises(ValueError, match="X has 5 features, but this PCA has 4 components"):
        ours.inverse_transform(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="n_components=65 must be between 1 and n_features=64"):
        PCA(65).partial_fit(DIGITS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components must be"),
        ({"n_components": -1}, "n_components must be"),
        ({"n_components": 1.0}, "n_components must be"),
        ({"n_components": "mle"}, "n_components must be"),
        ({"n_components": True}, "n_components must be"),
        ({"solver": "full"}, "solver must be one of auto, exact, randomized, incremental, got 'full'"),
        ({"solver": "randomized", "n_components": 0.5}, "needs an integer number of components"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"iterated_power": -1}, "iterated_power must be"),
        ({"n_oversamples": 1.5}, "n_oversamples must be"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    for fit in (PCA(**settings).fit, PCA(**settings).partial_fit):
        with pytest.raises(ValueError, match=message):
            fit(DIGITS)


def test_incremental_fits_of_many_features_need_an_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pca, "NARROW", 63)
    for ours in (PCA(), PCA(0.5)):
        with pytest.raises(ValueError, match="incremental fitting needs an integer n_components"):
            ours.partial_fit(DIGITS)
        assert ours.fit(DIGITS).n_components_ > 4  # at once, any share will do


@pytest.mark.parametrize(
    ("shape", "n_components", "solver"),
    [
        ((60_000, 784), 20, "incremental"),
        ((60_000, 784), None, "incremental"),
        ((600, 784), 20, "exact"),
        ((100_000, 3000), 20, "exact"),
        ((100_000, 9000), 20, "incremental"),
        ((100_000, 9000), 0.9, "exact"),
    ],
)
def test_auto_selects_the_solver_by_size(shape: tuple[int, int], n_components: Any, solver: str) -> None:
    assert PCA(n_components)._choose_solver(*shape) == solver


def test_pipeline_grid_search_and_feature_names() -> None:
    X, y = load_digits(return_X_y=True)
    pipe = make_pipeline(PCA(20), LogisticRegression(max_iter=2000))
    assert pipe.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.85
    search = GridSearchCV(PCA(), {"n_components": [2, 10, 20]}, cv=3).fit(X[:, X.std(0) > 0.5])
    assert search.best_params_ == {"n_components": 20}  # by likelihood
    ours = clone(PCA(2, random_state=3)).fit(X)
    assert ours.get_feature_names_out().tolist() == ["pca0", "pca1"]
    assert ours.get_params()["random_state"] == 3
    pandas = pytest.importorskip("pandas")
    framed = ours.set_output(transform="pandas").transform(X)
    assert isinstance(framed, pandas.DataFrame) and list(framed.columns) == ["pca0", "pca1"]
    assert isinstance(ours.reconstruct(X), np.ndarray)
