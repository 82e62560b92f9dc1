"""Questions about stories as batches, in which each distinct sentence is stored once.

B questions, R distinct sentences, S sentences of a story, W words of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX, PAD, Ints, Ragged, TensorBatch, fingerprint
from heedful.data.row_schedule import SequenceBatches, in_order
from heedful.data.stories.story import Asked, distinct, words_of
from heedful.data.tokenizers.vocabulary import TextVocab


@dataclass(frozen=True, slots=True)
class StoryBatch(TensorBatch):
    """Questions about stories, with the classes of their answers."""

    sentences: Tensor  # (R, W) long, the words of each distinct sentence, PAD at the end
    stories: Tensor  # (B, S) long, the rows of a story's sentences in order, -1 at the end
    questions: Tensor  # (B, W) long
    targets: Tensor  # (B,) long: the class of the answer, IGNORE_INDEX for an unknown answer and for padding
    indices: Tensor  # (B,) long, the index of each question in the encoded list, -1 for padding

    @property
    def tokens(self) -> int:
        """The number of questions."""
        return int((self.targets != IGNORE_INDEX).sum())


@dataclass(frozen=True, slots=True)
class EncodedStories:
    """All questions of a split, with the last sentences of their stories."""

    sentences: Ragged  # the words of each distinct sentence
    stories: Ragged  # for each question, the indices of its sentences
    questions: Ragged  # words
    targets: Ints  # (N,) classes of the answers, IGNORE_INDEX where training has not seen it
    forgotten: Ints  # (N,) sentences before those that fit into the memory
    unseen: tuple[str, ...]  # answers that training has not seen

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def dropped(self) -> int:
        """The number of dropped questions: none, since long stories are shortened."""
        return 0

    @property
    def sha256(self) -> str:
        """A hash of these questions, in order."""
        parts = (self.sentences, self.stories, self.questions)
        return fingerprint(*(array for part in parts for array in (part.flat, part.starts)), self.targets)

    @property
    def lengths(self) -> Ints:
        """The number of sentences of each question's story."""
        return self.stories.lengths

    @property
    def with_targets(self) -> Ints:
        """The questions whose answer is a known class."""
        return np.flatnonzero(self.targets != IGNORE_INDEX)

    def batch(self, rows: Ints) -> StoryBatch:
        """A batch of these questions; for none, one about an empty sentence, without a target."""
        if not len(rows):
            nothing = torch.full((1, 1), PAD)  # (1, 1)
            padding = torch.full((1,), -1)  # (1,)
            return StoryBatch(nothing, nothing, nothing, torch.full((1,), IGNORE_INDEX), padding)
        stories, _ = self.stories.padded(rows, int(self.lengths[rows].max()))  # (B, S)
        real = np.arange(stories.shape[1]) < self.lengths[rows][:, None]  # (B, S)
        used, places = np.unique(stories.numpy()[real], return_inverse=True)
        found = np.full(real.shape, -1)  # (B, S)
        found[real] = places
        sentences, _ = self.sentences.padded(used, int(self.sentences.lengths[used].max()))  # (R, W)
        questions, _ = self.questions.padded(rows, int(self.questions.lengths[rows].max()))  # (B, W)
        targets = torch.from_numpy(self.targets[rows])
        return StoryBatch(sentences, torch.from_numpy(found), questions, targets, torch.from_numpy(rows))

    def pack(self, rows: Ints, room: int, most: int) -> StoryBatch:
        """Not supported, since stories share no sequence."""
        raise NotImplementedError

    def in_order(self, sentences: int) -> Iterator[StoryBatch]:
        """Every question once, for evaluation: the longest stories first; `sentences` in a batch, with padding."""
        yield from map(self.batch, in_order(self.lengths, sentences))


class StoryBatches(SequenceBatches[StoryBatch]):
    """The endless sequence of training batches, of stories of similar lengths."""

    kind: ClassVar = StoryBatch


def encode_stories(
    asked: Sequence[Asked], vocabulary: TextVocab, memory: int, answers: Sequence[str | None] | None = None
) -> EncodedStories:
    """Questions with the last `memory` sentences before them; `answers` are classes, by default those of the data."""
    given = [one.question.answer for one in asked] if answers is None else answers
    classes = {label: number for number, label in enumerate(vocabulary.labels)}
    targets = [IGNORE_INDEX if answer is None else classes.get(answer, IGNORE_INDEX) for answer in given]
    texts = distinct(sentence for one in asked for sentence in one.sentences[-memory:])
    places = {text: place for place, text in enumerate(texts)}
    stories = [np.array([places[text] for text in one.sentences[-memory:]], np.int32) for one in asked]
    return EncodedStories(
        _ragged([_ids(text, vocabulary) for text in texts]),
        _ragged(stories),
        _ragged([_ids(one.question.text, vocabulary) for one in asked]),
        np.array(targets, np.int64),
        np.array([max(0, len(one.sentences) - memory) for one in asked], np.int64),
        tuple(distinct(answer for answer in given if answer is not None and answer not in classes)),
    )


def unknown_words(texts: Sequence[str], vocabulary: TextVocab) -> list[str]:
    """The words of texts that are not in the vocabulary, each once."""
    words = distinct(word for text in texts for word in words_of(text))
    return [word for word, ids in zip(words, vocabulary.ids(words), strict=True) if vocabulary.unk in ids]


def _ids(text: str, vocabulary: TextVocab) -> NDArray[np.int32]:
    (found,) = vocabulary.ids([" ".join(words_of(text))])
    return np.array(found, np.int32)


def _ragged(rows: Sequence[NDArray[np.int32]]) -> Ragged:
    return Ragged.of([len(row) for row in rows], [np.zeros(0, np.int32), *rows])
