"""Principal component analysis: the k orthogonal directions that hold most of the spread of data. Pearson (1901).

x~ = m + V V^T (x - m) is the nearest that a plane of k dimensions comes to all x, by the sum of squares.
n samples, d features, k components. Sums are in float64 whatever the data are in; results are of the data's own type.
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
NARROW = 2048  # features up to which their covariance is accumulated
TALL = 10  # samples per feature from which on that is fastest
LARGE = 2**24  # values, 128 MiB, above which one decomposition takes too long
PIECE = 2**21  # values that are read at once: 16 MiB


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis by the conventions of scikit-learn, signs of the components included.

    `n_components` is an integer, a share of the variance below 1, or None for all. How `fit` solves it:

    - exact: a triangular matrix is gathered from the centred data by QR, piece by piece, and decomposed;
    - randomized: `iterated_power` passes over the data from a random start (Halko et al., 2011);
    - incremental: one pass, and memory that does not grow with the samples. Up to 2048 features the products of all
      pairs of them are summed, which is exact up to rounding; above, what was found so far is merged with each piece
      (Ross et al., 2008), which needs a whole number of components;
    - auto: incremental for tall data (ten samples a feature, at most 2048 features), where it is fast and exact; else
      exact; but incremental where that would be too large and a whole number of components is asked for.

    Data are read `batch_size` samples at a time and never copied whole: a memory map may be larger than memory.
    `partial_fit` is for what comes in pieces. It works as incremental does, and goes on after an incremental fit.
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
        """Find the components of X (n, d)."""
        self._require_settings()
        data = self._table(X, reset=True)
        self._require_room(min(data.shape), "min(n_samples, n_features)")
        solver = self._chosen(*data.shape)
        going: Products | Merged
        if solver == "incremental":
            going = self._begun(data.shape[1])
            for piece in self._pieces(data):
                going.add(piece)
        else:
            going = self._exact(data) if solver == "exact" else self._randomized(data)
        solved = self._solution(going.spread(), _float(data.dtype))  # now, so that to use it changes nothing in it
        self._keep(going, _float(data.dtype), solved)
        return self

    def partial_fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Add more samples X (n, d); the components are computed when they are first used."""
        self._require_settings()
        begun = hasattr(self, "_going")
        data = validate_data(self, X, dtype=[np.float64, np.float32], reset=not begun)
        self._require_room(data.shape[1], "n_features")
        going = self._going if begun else self._begun(data.shape[1])
        for piece in self._pieces(data):
            going.add(piece)
        self._keep(going, _float(data.dtype), None)
        return self

    def _keep(self, going: Products | Merged, dtype: np.dtype[Any], solved: Solution | None) -> None:
        """Store what was accumulated, and its solution if that is known yet."""
        self._going, self._dtype, self._solved = going, dtype, solved
        self.mean_, self.n_samples_seen_ = going.mean.astype(dtype), going.n

    def _require_settings(self) -> None:
        """Check the settings."""
        n = self.n_components
        if n is not None and not (_whole(n) and n >= 1) and not (_share(n) and 0 < n < 1):
            raise ValueError(f"n_components must be a positive integer, a share in (0, 1) or None, got {n!r}")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, got {self.solver!r}")
        if self.solver == "randomized" and _share(n):
            raise ValueError(f"the randomized solver needs an integer number of components, got n_components={n!r}")
        if self.batch_size is not None and not (_whole(self.batch_size) and self.batch_size >= 1):
            raise ValueError(f"batch_size must be a positive integer or None, got {self.batch_size!r}")
        for name in ("iterated_power", "n_oversamples"):
            value = getattr(self, name)
            if not (_whole(value) and value >= 0):
                raise ValueError(f"{name} must be a non-negative integer, got {value!r}")

    def _require_room(self, most: int, named: str) -> None:
        """Refuse more components than the data have."""
        if _whole(self.n_components) and self.n_components > most:
            raise ValueError(f"n_components={self.n_components} must be between 1 and {named}={most}")

    def _chosen(self, n: int, d: int) -> str:
        """The solver for data of this shape."""
        if self.solver != "auto":
            return self.solver
        tall = d <= NARROW and n >= TALL * d
        large = min(n, d) * d > LARGE and _whole(self.n_components)
        return "incremental" if tall or large else "exact"

    def _begun(self, d: int) -> Products | Merged:
        """An empty accumulator for d features."""
        if d <= NARROW:
            return Products(np.zeros(d), np.zeros((d, d)))
        if not _whole(self.n_components):
            raise ValueError(
                f"with more than {NARROW} features, data that come in pieces need a whole number of components; "
                f"found {d} features and n_components={self.n_components!r}"
            )
        return Merged(np.zeros(d), np.zeros((0, d)), self._rows(d))

    def _rows(self, d: int) -> int:
        """How many rows of a decomposition of d features are kept to go on from: all where that is not much."""
        return self.n_components + self.n_oversamples if _whole(self.n_components) and d > NARROW else d

    def _exact(self, data: Array) -> Merged:
        """Two passes: the mean, and the triangle of what is left; its decomposition is that of the data."""
        mean, total = centre(self._pieces(data))
        triangle = np.zeros((0, data.shape[1]))
        for piece in self._pieces(data, min(data.shape)):
            triangle = qr_triangle(triangle, piece - mean)  # (min(n, d), d)
        return Merged(mean, triangle, self._rows(data.shape[1]), len(data), total)

    def _randomized(self, data: Array) -> Merged:
        """Multiply random directions (d, l) by the scatter of the data repeatedly; then decompose within their span."""
        (n, d), k = data.shape, self.n_components or min(data.shape)
        mean, total = centre(self._pieces(data))
        start = check_random_state(self.random_state).standard_normal((d, min(k + self.n_oversamples, n, d)))
        basis: Sums = np.linalg.qr(start)[0]  # (d, l)
        for _ in range(self.iterated_power):
            product = np.zeros_like(basis)
            for piece in self._pieces(data):
                centred = piece - mean
                product += centred.T @ (centred @ basis)
            basis = np.linalg.qr(product)[0]
        triangle = np.zeros((0, basis.shape[1]))
        for piece in self._pieces(data, basis.shape[1]):
            triangle = qr_triangle(triangle, (piece - mean) @ basis)  # (l, l)
        return Merged(mean, triangle @ basis.T, self._rows(d), n, total)

    # ------------------------------------------------------------------ reading
    def _table(self, X: npt.ArrayLike, reset: bool) -> Array:
        """X as a table of numbers; an array is taken as it is, and each piece of it is checked when it is read."""
        if _plain(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=reset, ensure_min_samples=1 + reset)

    def _pieces(self, data: Array, least: int = 1) -> Iterator[Array]:
        """The samples a few at a time, each piece finite and of a floating type."""
        n, d = data.shape
        rows = max(self.batch_size or math.ceil(PIECE / d), least)
        for begin in range(0, n, rows):
            piece = data[begin : begin + rows]
            yield check_array(piece, dtype=[np.float64, np.float32], input_name="X", estimator=self)

    # ------------------------------------------------------------------ what was found
    @property
    def components_(self) -> Array:
        """The directions (k, d), the one with most variance first."""
        return self._found().components

    @property
    def explained_variance_(self) -> Array:
        """The variance along each component (k,)."""
        return self._found().variances

    @property
    def explained_variance_ratio_(self) -> Array:
        """Its share of all variance (k,); of data without any, zero."""
        return self._found().shares

    @property
    def singular_values_(self) -> Array:
        """The length of the data along each component (k,)."""
        return self._found().lengths

    @property
    def noise_variance_(self) -> float:
        """The mean variance along the directions that are left out."""
        return self._found().noise

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        return len(self._found().components)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _found(self) -> Solution:
        """The solution of what was seen so far."""
        check_is_fitted(self, "n_samples_seen_")
        if self._solved is None:
            self._solved = self._solution(self._going.spread(), self._dtype)
        return self._solved

    def _solution(self, found: Spread, dtype: np.dtype[Any]) -> Solution:
        """As many components as are asked for, the largest number of each positive, as in scikit-learn."""
        most = min(found.n, len(found.mean))
        if found.n < 2 or (_whole(self.n_components) and self.n_components > found.n):
            raise NotFittedError(
                f"{found.n} samples are too few for n_components={self.n_components}: call partial_fit with more"
            )
        shares = found.squares[:most] / (found.total or 1.0)
        k = self.n_components or most
        if _share(k):
            k = min(int(np.searchsorted(np.cumsum(shares), k, side="right")) + 1, most)
        directions = found.directions[:k]
        largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)  # (k, 1)
        left = max(found.total - found.squares[:k].sum(), 0.0) / (found.n - 1)
        with np.errstate(over="ignore"):  # a variance may be too large for the numbers that came in
            return Solution(
                (directions * np.where(largest < 0, -1.0, 1.0)).astype(dtype),
                (found.squares[:k] / (found.n - 1)).astype(dtype),
                shares[:k].astype(dtype),
                np.sqrt(found.squares[:k]).astype(dtype),
                left / (most - k) if k < most else 0.0,
            )

    # ------------------------------------------------------------------ use
    def transform(self, X: npt.ArrayLike) -> Array:
        """The samples X (n, d) along the components: V^T (x - m), (n, k)."""
        found = self._found()
        data = self._table(X, reset=False)
        codes = np.empty((len(data), len(found.components)), dtype=_float(data.dtype))
        for part, piece in self._centred(data):
            codes[part] = piece @ found.components.T
        return codes

    def inverse_transform(self, X: npt.ArrayLike) -> Array:
        """The samples (n, d) that codes X (n, k) stand for: m + V a."""
        found = self._found()
        codes = check_array(X, dtype=[np.float64, np.float32], input_name="X", estimator=self)
        if codes.shape[1] != len(found.components):
            raise ValueError(f"X has {codes.shape[1]} features, but this PCA has {len(found.components)} components")
        return codes @ found.components.astype(codes.dtype) + self.mean_.astype(codes.dtype)

    def reconstruct(self, X: npt.ArrayLike) -> Array:
        """What is left of samples X (n, d) when only the components are kept: m + V V^T (x - m)."""
        return self.inverse_transform(np.asarray(self.transform(X)))

    def error(self, X: npt.ArrayLike) -> float:
        """The mean squared error of the reconstruction of X, over samples and features."""
        squares, along = self._lengths(X)
        return float((squares - along.sum(1)).clip(min=0).mean() / self.n_features_in_)

    def score_samples(self, X: npt.ArrayLike) -> Sums:
        """The log-likelihood of each sample (n,) under the model of Tipping and Bishop (1999), as in scikit-learn."""
        found = self._found()
        variances, d, k = found.variances.astype(np.float64), self.n_features_in_, len(found.components)
        if variances[-1] <= 0 or (found.noise <= 0 and k < d):
            raise ValueError(
                "some directions have no variance, so that no likelihood is defined: keep fewer components"
            )
        squares, along = self._lengths(X)
        far = (squares - along.sum(1)).clip(min=0) / found.noise if k < d else 0.0
        spread = np.log(variances).sum() + (d - k) * math.log(found.noise or 1.0) + d * math.log(2 * math.pi)
        return -0.5 * ((along / variances).sum(1) + far + spread)

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """The mean log-likelihood of samples X (n, d)."""
        return float(self.score_samples(X).mean())

    def _lengths(self, X: npt.ArrayLike) -> tuple[Sums, Sums]:
        """The squared length of each centred sample (n,), and of it along each component (n, k)."""
        found = self._found()
        data = self._table(X, reset=False)
        squares, along = np.empty(len(data)), np.empty((len(data), len(found.components)))
        for part, piece in self._centred(data):
            squares[part] = np.square(piece, dtype=np.float64).sum(1)
            along[part] = np.square(piece @ found.components.T, dtype=np.float64)
        return squares, along

    def _centred(self, data: Array) -> Iterator[tuple[slice, Array]]:
        """Pieces without the mean, and where each stands; in float64 only where the data or the components are."""
        begin = 0
        for piece in self._pieces(data):
            yield slice(begin, begin + len(piece)), piece - self.mean_
            begin += len(piece)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@dataclass(frozen=True)
class Spread:
    """How data spread: their mean (d,), sum of squares about it, and parts of that along directions (r, d)."""

    n: int
    mean: Sums
    total: float
    squares: Sums  # (r,), falling
    directions: Sums


@dataclass(frozen=True)
class Solution:
    """The components (k, d) and what is known of each."""

    components: Array
    variances: Array
    shares: Array
    lengths: Array
    noise: float


@dataclass
class Products:
    """The sums over all samples so far of the products of any two centred features (d, d)."""

    mean: Sums
    sums: Sums
    n: int = 0

    def add(self, piece: Array) -> None:
        """Update with a batch (n, d), by the rule of Chan et al. (1979)."""
        n, mean = self.n + len(piece), piece.mean(0, dtype=np.float64)
        centred, apart = piece - mean, mean - self.mean
        with np.errstate(over="ignore", invalid="ignore"):
            self.sums += centred.T @ centred
            self.sums += np.outer(apart * (self.n * len(piece) / n), apart)
        self.mean, self.n = self.mean + apart * (len(piece) / n), n

    def spread(self) -> Spread:
        """The eigenvectors of the sums."""
        total = _finite(float(np.trace(self.sums)))
        squares, directions = np.linalg.eigh(self.sums)
        return Spread(self.n, self.mean, total, squares[::-1].clip(min=0), directions.T[::-1])


@dataclass
class Merged:
    """Rows (r, d) whose products of features are those of all samples so far, but for the least ones left out."""

    mean: Sums
    rows: Sums
    keep: int
    n: int = 0
    total: float = 0.0

    def add(self, piece: Array) -> None:
        """Update with a batch (n, d), by the rule of Ross et al. (2008)."""
        n, mean = self.n + len(piece), piece.mean(0, dtype=np.float64)
        centred, apart = piece - mean, mean - self.mean
        weighed = apart[None] * math.sqrt(self.n * len(piece) / n)
        with np.errstate(over="ignore", invalid="ignore"):
            self.total += float(np.square(centred).sum() + np.square(weighed).sum())
        self.rows = np.concatenate([self.rows, centred, weighed])
        self.mean, self.n = self.mean + apart * (len(piece) / n), n
        self.spread()

    def spread(self) -> Spread:
        """The singular vectors of the rows; the longest of them become the rows."""
        _finite(self.total)
        _, lengths, directions = np.linalg.svd(self.rows, full_matrices=False)
        self.rows = (lengths[:, None] * directions)[: self.keep]
        return Spread(self.n, self.mean, self.total, lengths[: self.keep] ** 2, directions[: self.keep])


def qr_triangle(triangle: Sums, more: Sums) -> Sums:
    """The triangle whose products of columns are those of this one with more rows."""
    found: Any = np.linalg.qr(np.concatenate([triangle, more]), mode="r")
    return found


def centre(pieces: Iterable[Array]) -> tuple[Sums, float]:
    """The mean of samples (d,), and the sum of their squares about it."""
    n, mean, total = 0, np.zeros(1), 0.0
    for piece in pieces:
        own = piece.mean(0, dtype=np.float64)
        apart, both = own - mean, n + len(piece)
        with np.errstate(over="ignore", invalid="ignore"):
            total += float(np.square(piece - own).sum() + np.square(apart).sum() * (n * len(piece) / both))
        n, mean = both, mean + apart * (len(piece) / both)
    return mean, _finite(total)


def _finite(total: float) -> float:
    if not math.isfinite(total):
        raise ValueError("the values of X are too large for their squares to be summed: scale them down")
    return total


def _plain(X: Any) -> TypeGuard[Array]:
    """Whether X is an array or a memory map of numbers, with samples and features."""
    return (
        type(X) in (np.ndarray, np.memmap) and X.ndim == 2 and X.dtype.kind in "fiub" and len(X) > 1 and X.shape[1] > 0
    )


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _share(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, Integral)


def _float(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The type of results about data of this type."""
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)
