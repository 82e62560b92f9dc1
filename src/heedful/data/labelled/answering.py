"""Questions with their passages to batches of `[CLS] question [SEP] passage [SEP]`.

A passage too long for the model is split into overlapping windows, each a stride after the last. The prediction for
a token is taken from the window in which it has the most context on both sides.

B rows, T positions in a row, N windows, P positions of a passage.
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
from heedful.data.formats.squad import Question, WindowsConfig
from heedful.data.labelled.sequences import SequenceBatch, Sequences, Windows
from heedful.data.row_schedule import SequenceBatches, in_order
from heedful.data.tokenizers.base import MaskTokenizer, count_around, count_special_tokens, last_segment


@dataclass(frozen=True, slots=True)
class AnswerBatch(SequenceBatch):
    """Windows, one per row or packed into one row, and the start and end of each answer in its passage."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    lengths: Tensor  # (N,) long
    begins: Tensor  # (N,) long, the flat position of each passage's first token
    sizes: Tensor  # (N,) long, the tokens of each passage
    starts: Tensor  # (N,) long, position in the passage of the answer's first token, IGNORE_INDEX where there is none
    ends: Tensor  # (N,) long, the same for its last token
    longest: int  # no window is longer
    most: int  # P: no passage has more tokens

    @property
    def tokens(self) -> int:
        """The number of answers to find; on a GPU this synchronizes, so call it before moving there."""
        return int((self.starts != IGNORE_INDEX).sum())


@dataclass(frozen=True, slots=True)
class EncodedQuestions(Windows):
    """All questions of a split in windows, and the character offsets of the passages' tokens."""

    ids: Ragged  # of N windows
    begins: Ints  # (N,) position in the window of the passage's first token
    firsts: Ints  # (N,) which token of the passage that is
    sizes: Ints  # (N,)
    starts: Ints  # (N,) position in the window's part of the passage, IGNORE_INDEX where the answer is not inside it
    ends: Ints  # (N,)
    windows: Ints  # (questions + 1,) the first window of each question
    offsets: list[NDArray[np.int32]]  # of each question, (tokens of its passage, 2): from and to before a character
    pad: int
    context: int
    dropped: int  # questions whose answer is in no window; they are not trained on
    cut: int  # questions that are truncated
    last: int | None = None  # the segment of the last token, if it has one of its own

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def sha256(self) -> str:
        """A hash of these ids and answers, in order."""
        ids = self.ids
        return fingerprint(ids.flat, ids.starts, self.begins, self.firsts, self.starts, self.ends, self.windows)

    @property
    def with_targets(self) -> Ints:
        """The windows that have a whole answer."""
        return np.flatnonzero(self.starts != IGNORE_INDEX)

    def batch(self, rows: Ints) -> AnswerBatch:
        """A batch of these windows, one per row; for none, one token without an answer."""
        width = self.widest(rows)
        some = self._padded(rows, width)
        most = int(self.sizes[rows].max(initial=1))
        return self._with_answers(some, rows, np.arange(len(rows)) * width, max(1, most))

    def pack(self, rows: Ints, room: int, most: int) -> AnswerBatch:
        """A batch of these windows packed into one row of `room` positions, with space for `most` windows."""
        some = self._packed(rows, room, most)
        lengths = self.lengths[rows]
        return self._with_answers(some, rows, np.cumsum(lengths) - lengths, max(1, int(self.sizes.max())))

    def in_order(self, rows: Ints, batch_tokens: int) -> Iterator[tuple[AnswerBatch, Ints]]:
        """These windows, each once, for evaluation, with their indices."""
        for some in in_order(self.lengths[rows], batch_tokens):
            yield self.batch(rows[some]), rows[some]

    def row(self, row: int) -> tuple[NDArray[np.int32], Ints]:
        ids = self.ids[row]
        return ids, self.segments(len(ids), int(self.begins[row]))

    def _with_answers(self, some: Sequences, rows: Ints, numbers: Ints, most: int) -> AnswerBatch:
        """A batch with the answers of its windows, which start at the flat positions `numbers`."""
        spare = (0, len(some.lengths) - len(rows))
        begins, sizes = np.pad(numbers + self.begins[rows], spare), np.pad(self.sizes[rows], spare)
        starts, ends = (
            np.pad(places[rows], spare, constant_values=IGNORE_INDEX) for places in (self.starts, self.ends)
        )
        first, count, start, end = map(torch.from_numpy, (begins, sizes, starts, ends))
        return AnswerBatch(some.ids, some.segments, some.lengths, first, count, start, end, some.longest, most)


class AnswerBatches(SequenceBatches[AnswerBatch]):
    """The endless sequence of training batches of windows that have a whole answer."""

    kind: ClassVar = AnswerBatch


def passage_windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Start and length of each window over a passage; together they cover it."""
    firsts = [0]
    while firsts[-1] + room < length:
        firsts.append(firsts[-1] + min(stride, room))
    return [(first, min(room, length - first)) for first in firsts]


def best_windows(windows: Sequence[tuple[int, int]], length: int) -> Ints:
    """For each token of a passage, the window with the most context: the maximum of min(left, right)."""
    place = np.arange(length)
    firsts, sizes = np.array(windows, np.int64).T[:, :, None]  # (windows, 1) each
    before, after = place - firsts, firsts + sizes - 1 - place
    return np.minimum(before, after).argmax(0)


def encode_questions(
    questions: Sequence[Question], tokenizer: MaskTokenizer, context: int, config: WindowsConfig
) -> EncodedQuestions:
    """Encode questions and passages with the first correct answer, if there is one."""
    special, (_, after) = count_special_tokens(tokenizer, 2), count_around(tokenizer, 2)
    asked = tokenizer.ids([question.question for question in questions])
    most = min(config.question, (context - special) // 2)
    passages = dict.fromkeys(question.passage for question in questions)
    read = dict(zip(passages, tokenizer.encode_batch(list(passages)), strict=True))
    offsets = {text: np.array(one.offsets, np.int32).reshape(-1, 2) for text, one in read.items()}
    ids: list[NDArray[np.int32]] = []
    rows: list[tuple[int, int, int, int, int]] = []
    counts = [0]
    for question, words in zip(questions, asked, strict=True):
        words, passage, answer = words[:most], read[question.passage].ids, answer_tokens(question, offsets)
        windows = passage_windows(len(passage), context - special - len(words), config.stride)
        for first, size in windows:
            ids.append(np.array(tokenizer.pair(words, passage[first : first + size])[0], np.int32))
            begin = len(ids[-1]) - size - after  # of the passage
            whole = answer is not None and first <= answer[0] and answer[1] < first + size
            start, end = (answer[0] - first, answer[1] - first) if answer and whole else (IGNORE_INDEX, IGNORE_INDEX)
            rows.append((begin, first, size, start, end))
        counts.append(len(windows))
    begins, firsts, sizes, starts, ends = np.array(rows, np.int64).T.copy()
    bounds = np.cumsum(counts)
    known = np.add.reduceat(starts != IGNORE_INDEX, bounds[:-1], dtype=np.int64)
    return EncodedQuestions(
        ids=Ragged.of([len(some) for some in ids], ids),
        begins=begins,
        firsts=firsts,
        sizes=sizes,
        starts=starts,
        ends=ends,
        windows=bounds,
        offsets=[offsets[question.passage] for question in questions],
        pad=tokenizer.pad,
        context=context,
        dropped=int((known == 0).sum()),
        cut=sum(len(words) > most for words in asked),
        last=last_segment(tokenizer),
    )


def answer_tokens(question: Question, offsets: dict[str, NDArray[np.int32]]) -> tuple[int, int] | None:
    """The first and the last token of the passage that overlap with the first answer."""
    if not question.answers:
        return None
    text, start = question.answers[0]
    tokens = offsets[question.passage]
    inside = np.flatnonzero((tokens[:, 1] > start) & (tokens[:, 0] < start + len(text)))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
