"""Principal component analysis (Pearson, 1901): the k orthogonal directions of greatest variance.

The reconstruction x~ = m + V V^T (x - m) has the least squared error of all k-dimensional subspaces.
n samples, d features, k components. Sums are computed in float64; results have the dtype of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self, TypeGuard

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

Array = npt.NDArray[Any]
Sums = npt.NDArray[np.float64]

SOLVERS = ("auto", "exact", "randomized", "incremental")
NARROW = 2048  # features at most for which the covariance matrix is accumulated
TALL = 10  # samples per feature from which on this is the fastest
LARGE = 2**24  # values (128 MiB) above which a single decomposition takes too long
PIECE = 2**21  # values in a batch (16 MiB)


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis with the interface and results of scikit-learn, including the signs of components.

    `n_components` is an integer, a share of the variance below 1, or None for all. `solver` is one of

    - exact: QR of the centered data, batch by batch, and an SVD of the triangular factor;
    - randomized: `iterated_power` power iterations from a random start (Halko et al., 2011);
    - incremental: one pass with constant memory. Up to 2048 features the covariance matrix is accumulated, which is
      exact up to rounding; above, the decomposition is merged with each batch (Ross et al., 2008), which needs an
      integer `n_components`;
    - auto: incremental for at least ten samples per feature and at most 2048 features, where it is fast and exact, and
      for data that are too large for exact, if `n_components` is an integer; else exact.

    Data are read `batch_size` samples at a time and never copied as a whole: a memory map may be larger than memory.
    `partial_fit` adds samples as the incremental solver does, also after `fit`.
    """

    def __init__(
        self,
        n_components: float | None = None,
        *,
        solver: str = "auto",
        batch_size: int | None = None,
        iterated_power: int = 7,
        n_oversamples: int = 10,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.batch_size = batch_size
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.random_state = random_state

    # ------------------------------------------------------------------ fitting
    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Compute the components of X (n, d)."""
        self._require_settings()
        data = self._table(X, reset=True)
        self._require_components(min(data.shape), "min(n_samples, n_features)")
        solver = self._choose_solver(*data.shape)
        accumulator: Products | Merged
        if solver == "incremental":
            accumulator = self._new_accumulator(data.shape[1])
            for piece in self._pieces(data):
                accumulator.add(piece)
        else:
            accumulator = self._exact(data) if solver == "exact" else self._randomized(data)
        solved = self._solution(
            accumulator.moments(), _result_dtype(data.dtype)
        )  # now, so that a fitted estimator does not change when it is used
        self._store(accumulator, _result_dtype(data.dtype), solved)
        return self

    def partial_fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Add more samples X (n, d); the components are computed when they are first used."""
        self._require_settings()
        fitted = hasattr(self, "_accumulator")
        data = validate_data(self, X, dtype=[np.float64, np.float32], reset=not fitted)
        self._require_components(data.shape[1], "n_features")
        accumulator = self._accumulator if fitted else self._new_accumulator(data.shape[1])
        for piece in self._pieces(data):
            accumulator.add(piece)
        self._store(accumulator, _result_dtype(data.dtype), None)
        return self

    def _store(self, accumulator: Products | Merged, dtype: np.dtype[Any], solved: Solution | None) -> None:
        """Store the accumulated sums, and their solution if it is computed already."""
        self._accumulator, self._dtype, self._solved = accumulator, dtype, solved
        self.mean_, self.n_samples_seen_ = accumulator.mean.astype(dtype), accumulator.n

    def _require_settings(self) -> None:
        """Check the settings."""
        n = self.n_components
        if n is not None and not (_is_integer(n) and n >= 1) and not (_is_fraction(n) and 0 < n < 1):
            raise ValueError(f"n_components must be a positive integer, a share in (0, 1) or None, got {n!r}")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, got {self.solver!r}")
        if self.solver == "randomized" and _is_fraction(n):
            raise ValueError(f"the randomized solver needs an integer number of components, got n_components={n!r}")
        if self.batch_size is not None and not (_is_integer(self.batch_size) and self.batch_size >= 1):
            raise ValueError(f"batch_size must be a positive integer or None, got {self.batch_size!r}")
        for name in ("iterated_power", "n_oversamples"):
            value = getattr(self, name)
            if not (_is_integer(value) and value >= 0):
                raise ValueError(f"{name} must be a non-negative integer, got {value!r}")

    def _require_components(self, limit: int, name: str) -> None:
        """Raise an error if there are more components than the data allow."""
        if _is_integer(self.n_components) and self.n_components > limit:
            raise ValueError(f"n_components={self.n_components} must be between 1 and {name}={limit}")

    def _choose_solver(self, n: int, d: int) -> str:
        """The solver for data of this shape."""
        if self.solver != "auto":
            return self.solver
        tall = d <= NARROW and n >= TALL * d
        large = min(n, d) * d > LARGE and _is_integer(self.n_components)
        return "incremental" if tall or large else "exact"

    def _new_accumulator(self, d: int) -> Products | Merged:
        """An empty accumulator for d features."""
        if d <= NARROW:
            return Products(np.zeros(d), np.zeros((d, d)))
        if not _is_integer(self.n_components):
            raise ValueError(
                f"with more than {NARROW} features, incremental fitting needs an integer n_components; "
                f"got {d} features and n_components={self.n_components!r}"
            )
        return Merged(np.zeros(d), np.zeros((0, d)), self._rows(d))

    def _rows(self, d: int) -> int:
        """The number of rows of a decomposition that are kept for the next batch: all if d is small."""
        return self.n_components + self.n_oversamples if _is_integer(self.n_components) and d > NARROW else d

    def _exact(self, data: Array) -> Merged:
        """Two passes: the mean, and the triangular factor of the centered data, which has the same singular vectors."""
        mean, total = mean_and_squares(self._pieces(data))
        triangle = np.zeros((0, data.shape[1]))
        for piece in self._pieces(data, min(data.shape)):
            triangle = qr_triangle(triangle, piece - mean)  # (min(n, d), d)
        return Merged(mean, triangle, self._rows(data.shape[1]), len(data), total)

    def _randomized(self, data: Array) -> Merged:
        """Power iterations from random directions (d, l), and a decomposition within their span."""
        (n, d), k = data.shape, self.n_components or min(data.shape)
        mean, total = mean_and_squares(self._pieces(data))
        start = check_random_state(self.random_state).standard_normal((d, min(k + self.n_oversamples, n, d)))
        basis: Sums = np.linalg.qr(start)[0]  # (d, l)
        for _ in range(self.iterated_power):
            product = np.zeros_like(basis)
            for piece in self._pieces(data):
                centered = piece - mean
                product += centered.T @ (centered @ basis)
            basis = np.linalg.qr(product)[0]
        triangle = np.zeros((0, basis.shape[1]))
        for piece in self._pieces(data, basis.shape[1]):
            triangle = qr_triangle(triangle, (piece - mean) @ basis)  # (l, l)
        return Merged(mean, triangle @ basis.T, self._rows(d), n, total)

    # ------------------------------------------------------------------ input
    def _table(self, X: npt.ArrayLike, reset: bool) -> Array:
        """X as an array; a NumPy array is not copied, and each batch of it is checked when it is read."""
        if _is_array(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=reset, ensure_min_samples=1 + reset)

    def _pieces(self, data: Array, least: int = 1) -> Iterator[Array]:
        """The samples in batches of at least `least`, each checked to be finite floats."""
        n, d = data.shape
        rows = max(self.batch_size or math.ceil(PIECE / d), least)
        for begin in range(0, n, rows):
            piece = data[begin : begin + rows]
            yield check_array(piece, dtype=[np.float64, np.float32], input_name="X", estimator=self)

    # ------------------------------------------------------------------ fitted attributes
    @property
    def components_(self) -> Array:
        """The components (k, d), by falling variance."""
        return self._solve().components

    @property
    def explained_variance_(self) -> Array:
        """The variance along each component (k,)."""
        return self._solve().variances

    @property
    def explained_variance_ratio_(self) -> Array:
        """The share of the variance along each component (k,); zeros for constant data."""
        return self._solve().shares

    @property
    def singular_values_(self) -> Array:
        """The singular values of the centered data (k,)."""
        return self._solve().lengths

    @property
    def noise_variance_(self) -> float:
        """The mean variance along the other directions."""
        return self._solve().noise

    @property
    def n_components_(self) -> int:
        """The number of components."""
        return len(self._solve().components)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _solve(self) -> Solution:
        """The solution for all samples so far."""
        check_is_fitted(self, "n_samples_seen_")
        if self._solved is None:
            self._solved = self._solution(self._accumulator.moments(), self._dtype)
        return self._solved

    def _solution(self, moments: Moments, dtype: np.dtype[Any]) -> Solution:
        """The requested components; the entry of largest magnitude of each is positive, as in scikit-learn."""
        most = min(moments.n, len(moments.mean))
        if moments.n < 2 or (_is_integer(self.n_components) and self.n_components > moments.n):
            raise NotFittedError(
                f"{moments.n} samples are too few for n_components={self.n_components}: call partial_fit with more"
            )
        shares = moments.squares[:most] / (moments.total or 1.0)
        k = self.n_components or most
        if _is_fraction(k):
            k = min(int(np.searchsorted(np.cumsum(shares), k, side="right")) + 1, most)
        directions = moments.directions[:k]
        largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)  # (k, 1)
        left = max(moments.total - moments.squares[:k].sum(), 0.0) / (moments.n - 1)
        with np.errstate(over="ignore"):  # a variance may exceed the range of the data's dtype
            return Solution(
                (directions * np.where(largest < 0, -1.0, 1.0)).astype(dtype),
                (moments.squares[:k] / (moments.n - 1)).astype(dtype),
                shares[:k].astype(dtype),
                np.sqrt(moments.squares[:k]).astype(dtype),
                left / (most - k) if k < most else 0.0,
            )

    # ------------------------------------------------------------------ use
    def transform(self, X: npt.ArrayLike) -> Array:
        """Project samples X (n, d) onto the components: V^T (x - m), (n, k)."""
        solution = self._solve()
        data = self._table(X, reset=False)
        codes = np.empty((len(data), len(solution.components)), dtype=_result_dtype(data.dtype))
        for part, piece in self._centered(data):
            codes[part] = piece @ solution.components.T
        return codes

    def inverse_transform(self, X: npt.ArrayLike) -> Array:
        """The reconstructions (n, d) of codes X (n, k): m + V x."""
        solution = self._solve()
        codes = check_array(X, dtype=[np.float64, np.float32], input_name="X", estimator=self)
        if codes.shape[1] != len(solution.components):
            raise ValueError(f"X has {codes.shape[1]} features, but this PCA has {len(solution.components)} components")
        return codes @ solution.components.astype(codes.dtype) + self.mean_.astype(codes.dtype)

    def reconstruct(self, X: npt.ArrayLike) -> Array:
        """The reconstructions (n, d) of samples X (n, d): m + V V^T (x - m)."""
        return self.inverse_transform(np.asarray(self.transform(X)))

    def error(self, X: npt.ArrayLike) -> float:
        """The mean squared error of the reconstruction of X, over samples and features."""
        squares, along = self._squared_norms(X)
        return float((squares - along.sum(1)).clip(min=0).mean() / self.n_features_in_)

    def score_samples(self, X: npt.ArrayLike) -> Sums:
        """The log-likelihood of each sample (n,) under the model of Tipping and Bishop (1999), as in scikit-learn."""
        solution = self._solve()
        variances, d, k = solution.variances.astype(np.float64), self.n_features_in_, len(solution.components)
        if variances[-1] <= 0 or (solution.noise <= 0 and k < d):
            raise ValueError("some directions have no variance, so the likelihood is not defined: use fewer components")
        squares, along = self._squared_norms(X)
        residual = (squares - along.sum(1)).clip(min=0) / solution.noise if k < d else 0.0
        log_determinant = (
            np.log(variances).sum() + (d - k) * math.log(solution.noise or 1.0) + d * math.log(2 * math.pi)
        )
        return -0.5 * ((along / variances).sum(1) + residual + log_determinant)

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """The mean log-likelihood of samples X (n, d)."""
        return float(self.score_samples(X).mean())

    def _squared_norms(self, X: npt.ArrayLike) -> tuple[Sums, Sums]:
        """The squared norm of each centered sample (n,), and its part along each component (n, k)."""
        solution = self._solve()
        data = self._table(X, reset=False)
        squares, along = np.empty(len(data)), np.empty((len(data), len(solution.components)))
        for part, piece in self._centered(data):
            squares[part] = np.square(piece, dtype=np.float64).sum(1)
            along[part] = np.square(piece @ solution.components.T, dtype=np.float64)
        return squares, along

    def _centered(self, data: Array) -> Iterator[tuple[slice, Array]]:
        """Centered batches and their rows, in float64 only if the data or the components are."""
        begin = 0
        for piece in self._pieces(data):
            yield slice(begin, begin + len(piece)), piece - self.mean_
            begin += len(piece)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@dataclass(frozen=True)
class Moments:
    """The mean (d,) of data, their total sum of squares about it, and that along each of r directions (r, d)."""

    n: int
    mean: Sums
    total: float
    squares: Sums  # (r,), from the largest to the smallest
    directions: Sums


@dataclass(frozen=True)
class Solution:
    """The components (k, d), with their variances, shares of the variance and singular values (k,)."""

    components: Array
    variances: Array
    shares: Array
    lengths: Array
    noise: float


@dataclass
class Products:
    """The unnormalized covariance matrix (d, d) of all samples so far."""

    mean: Sums
    sums: Sums
    n: int = 0

    def add(self, piece: Array) -> None:
        """Update with a batch (n, d), by the rule of Chan et al. (1979)."""
        n, mean = self.n + len(piece), piece.mean(0, dtype=np.float64)
        centered, shift = piece - mean, mean - self.mean
        with np.errstate(over="ignore", invalid="ignore"):
            self.sums += centered.T @ centered
            self.sums += np.outer(shift * (self.n * len(piece) / n), shift)
        self.mean, self.n = self.mean + shift * (len(piece) / n), n

    def moments(self) -> Moments:
        """The eigenvalues and eigenvectors of the matrix."""
        total = _finite(float(np.trace(self.sums)))
        squares, directions = np.linalg.eigh(self.sums)
        return Moments(self.n, self.mean, total, squares[::-1].clip(min=0), directions.T[::-1])


@dataclass
class Merged:
    """Rows (r, d) with the same covariance as all samples so far, truncated to the largest singular values."""

    mean: Sums
    rows: Sums
    keep: int
    n: int = 0
    total: float = 0.0

    def add(self, piece: Array) -> None:
        """Update with a batch (n, d), by the rule of Ross et al. (2008)."""
        n, mean = self.n + len(piece), piece.mean(0, dtype=np.float64)
        centered, shift = piece - mean, mean - self.mean
        weighted = shift[None] * math.sqrt(self.n * len(piece) / n)
        with np.errstate(over="ignore", invalid="ignore"):
            self.total += float(np.square(centered).sum() + np.square(weighted).sum())
        self.rows = np.concatenate([self.rows, centered, weighted])
        self.mean, self.n = self.mean + shift * (len(piece) / n), n
        self.moments()

    def moments(self) -> Moments:
        """The singular values and vectors of the rows, which are truncated to the largest."""
        _finite(self.total)
        _, lengths, directions = np.linalg.svd(self.rows, full_matrices=False)
        self.rows = (lengths[:, None] * directions)[: self.keep]
        return Moments(self.n, self.mean, self.total, lengths[: self.keep] ** 2, directions[: self.keep])


def qr_triangle(triangle: Sums, more: Sums) -> Sums:
    """The triangular factor of the QR decomposition of these rows and more."""
    factor: Any = np.linalg.qr(np.concatenate([triangle, more]), mode="r")
    return factor


def mean_and_squares(pieces: Iterable[Array]) -> tuple[Sums, float]:
    """The mean (d,) of samples, and the sum of their squared distances from it."""
    n, mean, total = 0, np.zeros(1), 0.0
    for piece in pieces:
        batch_mean = piece.mean(0, dtype=np.float64)
        shift, both = batch_mean - mean, n + len(piece)
        with np.errstate(over="ignore", invalid="ignore"):
            total += float(np.square(piece - batch_mean).sum() + np.square(shift).sum() * (n * len(piece) / both))
        n, mean = both, mean + shift * (len(piece) / both)
    return mean, _finite(total)


def _finite(total: float) -> float:
    if not math.isfinite(total):
        raise ValueError("the values of X are too large for their squares to be summed: scale them down")
    return total


def _is_array(X: Any) -> TypeGuard[Array]:
    """Whether X is a NumPy array or memory map of numbers with two axes."""
    return (
        type(X) in (np.ndarray, np.memmap) and X.ndim == 2 and X.dtype.kind in "fiub" and len(X) > 1 and X.shape[1] > 0
    )


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_fraction(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, Integral)


def _result_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype of results for data of this dtype."""
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)
