"""Texts and pairs of texts, each with a target, as batches: one per row, or packed into one row.

B rows, T positions in a row, N texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX, Ints, Ragged, fingerprint
from heedful.data.labelled.sequences import SequenceBatch, Sequences, Windows, pad_sequences
from heedful.data.pairs.batches import CHUNK
from heedful.data.row_schedule import SequenceBatches, in_order
from heedful.data.tokenizers.base import PairTokenizer, count_special_tokens, last_segment, truncate_pair


@dataclass(frozen=True, slots=True)
class LabelledBatch(SequenceBatch):
    """Texts as ids, with their targets."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    lengths: Tensor  # (N,) long
    targets: Tensor  # (N,) long: a class, or the bits of a number; (N, C): which labels; IGNORE_INDEX for padding
    indices: Tensor  # (N,) long, the index of each text in the encoded list, -1 for padding
    longest: int  # no text is longer

    @property
    def numbers(self) -> Tensor:
        """Targets that are numbers, one or several of a text, 0 for padding."""
        real = self.indices >= 0  # (N,)
        real = real[:, None] if self.targets.dim() == 2 else real
        return torch.where(real, self.targets.view(torch.float64), 0.0).float()  # (N,) or (N, C)

    @property
    def tokens(self) -> int:
        """The number of texts."""
        return int((self.indices >= 0).sum())


@dataclass(frozen=True, slots=True)
class EncodedTexts(Windows):
    """All texts of a split as ids, special tokens included, and their targets."""

    ids: Ragged
    firsts: Ints  # (N,) tokens of the first segment
    targets: Ints  # (N,) or (N, C)
    lost: Ints  # (N,) tokens truncated because they exceed the model's context
    context: int  # of the model, so that no text is longer
    pad: int
    nothing: tuple[int, ...]  # the ids of an empty text
    last: int | None = None  # the segment of the last token, if it has one of its own

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def dropped(self) -> int:
        """The number of dropped texts: none, since long ones are truncated."""
        return 0

    @property
    def with_targets(self) -> Ints:
        """All texts have a target."""
        return np.arange(len(self))

    @property
    def sha256(self) -> str:
        """A hash of these texts and targets, in order."""
        return fingerprint(self.ids.flat, self.ids.starts, self.firsts, self.targets)

    def row(self, row: int) -> tuple[NDArray[np.int32], Ints]:
        ids = self.ids[row]
        return ids, self.segments(len(ids), int(self.firsts[row]))

    def batch(self, rows: Ints) -> LabelledBatch:
        """A batch of these texts, one per row; for no texts, one row without a target."""
        if not len(rows):
            return self._batch(pad_sequences([(self.nothing, [0] * len(self.nothing))], self.pad), rows)
        return self._batch(self._padded(rows, self.widest(rows)), rows)

    def pack(self, rows: Ints, room: int, most: int) -> LabelledBatch:
        """A batch of these texts packed into one row of `room` positions, with space for `most` texts."""
        return self._batch(self._packed(rows, room, most), rows)

    def _batch(self, found: Sequences, rows: Ints) -> LabelledBatch:
        spare = (0, len(found.lengths) - len(rows))
        more = [(0, 0)] * (self.targets.ndim - 1)
        targets = torch.from_numpy(np.pad(self.targets[rows], [spare, *more], constant_values=IGNORE_INDEX))
        indices = torch.from_numpy(np.pad(rows, spare, constant_values=-1))
        return LabelledBatch(found.ids, found.segments, found.lengths, targets, indices, found.longest)

    def in_order(self, batch_tokens: int) -> Iterator[LabelledBatch]:
        """Every text once, for evaluation: the longest first, so that running out of memory shows at once."""
        yield from map(self.batch, in_order(self.lengths, batch_tokens))


def encode_texts(
    texts: Sequence[tuple[str, str | None]], targets: Ints, tokenizer: PairTokenizer, context: int
) -> EncodedTexts:
    """Encode texts and pairs, truncated to the model's context; of a pair, the longer text first."""
    parts: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    firsts: list[int] = []
    lost: list[int] = []
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        ones = tokenizer.ids([text for text, _ in chunk])
        others = iter(tokenizer.ids([pair for _, pair in chunk if pair is not None]))
        for one, (_, pair) in zip(ones, chunk, strict=True):
            other = None if pair is None else next(others)
            a, b = truncate(one, other, tokenizer, context)
            ids, segments = tokenizer.pair(a, b)
            ids, segments = (ids, segments) if ids else ([tokenizer.pad], [0])  # a row has at least one token
            lost.append(len(one) + len(other or ()) - len(a) - len(b or ()))
            lengths.append(len(ids))
            firsts.append(segments.count(0))
            parts.append(np.array(ids, dtype=np.int32))
    return EncodedTexts(
        ids=Ragged.of(lengths, parts),
        firsts=np.array(firsts, dtype=np.int64),
        targets=targets,
        lost=np.array(lost, dtype=np.int64),
        context=context,
        pad=tokenizer.pad,
        nothing=tuple(tokenizer.pair(())[0]) or (tokenizer.pad,),
        last=last_segment(tokenizer),
    )


def truncate(
    a: Sequence[int], b: Sequence[int] | None, tokenizer: PairTokenizer, context: int
) -> tuple[Sequence[int], Sequence[int] | None]:
    """Truncate one text or a pair to the context, leaving room for special tokens."""
    room = context - count_special_tokens(tokenizer, 1 if b is None else 2)
    return (a[:room], None) if b is None else truncate_pair(a, b, room)


class LabelledBatches(SequenceBatches[LabelledBatch]):
    """The endless sequence of training batches of texts."""

    kind: ClassVar = LabelledBatch
