"""Rows of a table as batches: one tensor for each column, and the targets.

B rows of a batch, N of all, T tokens, K components, C channels, Y rows and X columns of an image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX, Ints, Ragged, TensorBatch, fingerprint
from heedful.data.fields.learned import Encoded, LearnedImage, LearnedNumber, TableSpec
from heedful.data.fields.rows import Rows
from heedful.data.images.file_images import FileImages
from heedful.data.images.normalization import normalize
from heedful.data.row_schedule import SequenceBatches, in_order
from heedful.errors import UserError, shown

MOST_NAMES = 20  # classes that an error lists


@dataclass(frozen=True, slots=True)
class RowBatch(TensorBatch):
    """Some rows: a tensor for each column that is read, in the order of the table's `TableSpec`."""

    values: tuple[Tensor, ...]  # text: ids (B, T) long; numbers: (B, K) float; class: (B,) long; image: (B, C, Y, X)
    targets: Tensor  # (B,): the index of a class, IGNORE_INDEX for padding; or a normalized number
    indices: Tensor  # (B,) long, the index of each row, -1 for padding

    @property
    def tokens(self) -> int:
        """The number of rows."""
        return int((self.indices >= 0).sum())


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """All rows of a split: an array, or the ids of texts, for each column, and the targets."""

    spec: TableSpec
    values: tuple[Encoded, ...]
    targets: NDArray[Any]  # (N,) the indices of classes, or normalized numbers
    truncated: int = 0  # rows of which a text is longer than its column allows

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def dropped(self) -> int:
        """The number of rows that were left out: none, since long texts are truncated."""
        return 0

    @property
    def lengths(self) -> Ints:
        """The tokens of each row, all texts together, by which rows are put into batches; at least one."""
        texts = [column.lengths for column in self.values if isinstance(column, Ragged)]
        return np.sum(texts, axis=0, dtype=np.int64) if texts else np.ones(len(self), np.int64)

    @property
    def with_targets(self) -> Ints:
        """All rows have a target."""
        return np.arange(len(self))

    @property
    def sha256(self) -> str:
        """A hash of these rows, in order."""
        digest = hashlib.sha256(fingerprint(self.targets).encode())
        for column in self.values:
            match column:
                case Ragged():
                    digest.update(fingerprint(column.flat, column.starts).encode())
                case FileImages():
                    digest.update(column.sha256.encode())
                case _:
                    digest.update(fingerprint(column).encode())
        return digest.hexdigest()

    def batch(self, rows: Ints) -> RowBatch:
        """A batch of these rows; for no rows, the first one without a target."""
        some = rows if len(rows) else np.zeros(1, np.int64)
        values = tuple(
            tensor_of(one, column, some) for one, column in zip(self.values, self.spec.inputs.values(), strict=True)
        )
        targets = torch.from_numpy(self.targets[some])  # (B,)
        if self.targets.dtype != np.int64:
            targets = targets.float()
        if len(rows):
            return RowBatch(values, targets, torch.from_numpy(rows))
        padding = torch.full_like(targets, IGNORE_INDEX if self.targets.dtype == np.int64 else 0)
        return RowBatch(values, padding, torch.full((1,), -1))

    def pack(self, rows: Ints, room: int, most: int) -> RowBatch:
        """Rows are not packed."""
        raise NotImplementedError

    def in_order(self, batch_tokens: int) -> Iterator[RowBatch]:
        """Every row once, for evaluation: the longest first, so that running out of memory shows at once."""
        yield from map(self.batch, in_order(self.lengths, batch_tokens))


def tensor_of(encoded: Encoded, column: Any, rows: Ints) -> Tensor:
    """The values of some rows of a column, as a model reads them; images are normalized."""
    if isinstance(encoded, Ragged):
        return encoded.padded(rows, column.longest)[0]
    if isinstance(column, LearnedImage):
        pixels = encoded.take(rows) if isinstance(encoded, FileImages) else encoded[rows]
        return normalize(torch.from_numpy(np.ascontiguousarray(pixels)), column.mean, column.std)
    found = torch.from_numpy(np.asarray(encoded)[rows])
    return found.float() if found.is_floating_point() else found


def encode_rows(rows: Rows, spec: TableSpec) -> EncodedRows:
    """Rows with their targets; a class that no training row has is an error."""
    spec.require(rows, target=True)
    values, targets = encode_inputs(rows, spec), encode_targets(rows, spec)
    return EncodedRows(spec, values, targets, sum(map(bool, spec.unread(rows, values))))


def encode_inputs(rows: Rows, spec: TableSpec) -> tuple[Encoded, ...]:
    """The columns that are read."""
    return tuple(column.encode(rows.read(name, column)) for name, column in spec.inputs.items())


def encode_targets(rows: Rows, spec: TableSpec) -> NDArray[Any]:
    """The indices of the classes to predict, from 0, or normalized numbers (N,)."""
    values = rows.read(spec.name, spec.target)
    if isinstance(spec.target, LearnedNumber):
        return spec.target.encode(values)[:, 0]
    numbers = spec.target.numbers
    for value, place in zip(values, rows.places, strict=True):
        if value not in numbers:
            names = spec.target.names
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            raise UserError(
                "no training row has this class", where=f"{place}, column {shown(spec.name)}", found=shown(value),
                expected="one of " + ", ".join(map(shown, names[:MOST_NAMES])) + more,
                todo="correct it, or add such rows to the training data",
            )  # fmt: skip
    return np.array([numbers[value] - 1 for value in values], np.int64)


class RowBatches(SequenceBatches[RowBatch]):
    """The endless sequence of training batches of rows, in which each value stays in its row."""

    kind: ClassVar = RowBatch
