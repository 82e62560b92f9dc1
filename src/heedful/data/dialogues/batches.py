"""Batches of dialogues as ids: utterances side by side for models that read them one by one, or joined as one source.

B dialogues, U utterances, T tokens, N dialogues in all, M utterances in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import MULTIPLE, Epochs, Ragged, TensorBatch, fingerprint, round_up
from heedful.data.dialogues.sources import Dialogue
from heedful.data.pairs.batches import POOL, EncodedPairs, plan_pooled
from heedful.data.tokenizers.base import replace_surrogates
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError

CHUNK = 1024  # dialogues tokenized at a time
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DialogueBatch(TensorBatch):
    """Dialogues of several utterances, each from bos to eos and padded to the right; missing utterances are padding."""

    utterances: Tensor  # (B, U, T) long
    lengths: Tensor  # (B, U) long, tokens of each utterance, zero where there is none
    counts: Tensor  # (B,) long, utterances of each dialogue
    speakers: Tensor  # (B, U) long, 0 for the first speaker of a dialogue
    indices: Tensor  # (B,) long, the index of each dialogue in the encoded list

    @property
    def real(self) -> Tensor:
        """The tokens that are not padding."""
        places = torch.arange(self.utterances.shape[2], device=self.utterances.device)  # (T,)
        return places < self.lengths[..., None]  # (B, U, T)

    @property
    def tokens(self) -> int:
        """The number of tokens in replies, the end token of each included: those of all utterances but the first."""
        replies = self.lengths[:, 1:]  # (B, U - 1)
        return int((replies - (replies > 0).long()).sum())


@dataclass(frozen=True, slots=True)
class EncodedDialogues:
    """All dialogues of a split as ids; a long one is split into parts, whose first utterance ends the part before."""

    tokens: Ragged  # the M utterances, each from bos to eos
    speakers: Ints  # (M,)
    begins: Ints  # (N,) the first utterance of each part
    ends: Ints  # (N,) one past its last
    indices: Ints  # (N,) the dialogue that each belongs to
    longest: int  # tokens of an utterance, bos and eos included
    dropped: int  # dialogues left out because an utterance is longer
    blank: int  # utterances without text, left out
    split: int  # dialogues of too many utterances, split into parts
    replaced: int  # lone surrogates in the texts, replaced by U+FFFD

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of utterances of each dialogue, and the tokens of its longest one: (N, 2)."""
        lengths = self.tokens.lengths
        widest = [lengths[begin:end].max() for begin, end in zip(self.begins, self.ends, strict=True)]
        return np.stack([self.ends - self.begins, widest], 1)  # (N, 2)

    @property
    def sha256(self) -> str:
        """A hash of these ids, in order."""
        parts = (self.speakers, self.begins, self.ends, self.indices)
        return fingerprint(self.tokens.flat, self.tokens.starts, *parts)

    def batch(self, rows: Ints) -> DialogueBatch:
        """A batch of these dialogues; for none, one of two utterances without tokens to predict."""
        if not len(rows):
            utterances = torch.full((1, 2, MULTIPLE), TrainedTokenizer.pad)
            utterances[0, :, 0], utterances[0, 0, 1] = TrainedTokenizer.bos, TrainedTokenizer.eos
            one = torch.ones(1, dtype=torch.long)
            return DialogueBatch(utterances, torch.tensor([[2, 1]]), 2 * one, torch.zeros(1, 2, dtype=torch.long), -one)
        counts = self.ends[rows] - self.begins[rows]  # (B,)
        places = np.arange(counts.max())  # (U,)
        real = places < counts[:, None]  # (B, U)
        each = (self.begins[rows][:, None] + places)[real]
        tokens, sizes = self.tokens.padded(each, self.longest)
        utterances = torch.full((*real.shape, tokens.shape[1]), TrainedTokenizer.pad)  # (B, U, T)
        lengths, speakers = (torch.zeros(real.shape, dtype=torch.long) for _ in range(2))  # (B, U)
        where = torch.from_numpy(real)
        utterances[where], lengths[where], speakers[where] = tokens, sizes, torch.from_numpy(self.speakers[each])
        return DialogueBatch(
            utterances, lengths, torch.from_numpy(counts), speakers, torch.from_numpy(self.indices[rows])
        )

    def in_order(self, batch_tokens: int) -> Iterator[DialogueBatch]:
        """Every dialogue once, for evaluation: the longest first, so that running out of memory shows at once."""
        sizes = self.sizes
        for rows in reversed(split_by_area(by_width(np.arange(len(self)), sizes), sizes, batch_tokens)):
            yield self.batch(rows)

    def joined(self, context: int) -> EncodedPairs:
        """Each reply with the utterances before it, end to end, as one source; the first ones go where it is too long.

        Sources and replies are those of the batches: an end token follows each utterance, and a target begins with bos.
        """
        firsts, replies = list[int](), list[int]()
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            first = begin
            for reply in range(begin + 1, end):
                while self._joined_length(first, reply) > context:
                    first += 1
                firsts.append(first)
                replies.append(reply)
        targets = [self.tokens[reply] for reply in replies]
        return EncodedPairs(
            source=self._sources(firsts, replies),
            target=Ragged.of([len(target) for target in targets], targets),
            indices=np.arange(len(targets)),
            longest=context,
            dropped=self.dropped,
            replaced=self.replaced,
        )

    def shortened(self, context: int) -> int:
        """The number of replies for which some earlier utterances do not fit a source of this many tokens."""
        return sum(
            self._joined_length(begin, reply) > context
            for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)
            for reply in range(begin + 1, end)
        )

    def more_speakers(self, count: int) -> int:
        """The number of dialogues with more speakers than this."""
        most = [self.speakers[begin:end].max() for begin, end in zip(self.begins, self.ends, strict=True)]
        return len({index for index, one in zip(self.indices.tolist(), most, strict=True) if one >= count})

    def _joined_length(self, first: int, end: int) -> int:
        """The number of tokens of some utterances end to end, each without bos."""
        starts = self.tokens.starts
        return int(starts[end] - starts[first]) - (end - first)

    def _sources(self, firsts: Sequence[int], ends: Sequence[int]) -> Ragged:
        """The utterances of each source end to end, without bos."""
        keep = np.ones(len(self.tokens.flat), bool)
        keep[self.tokens.starts[:-1]] = False
        flat, starts = self.tokens.flat[keep], self.tokens.starts - np.arange(len(self.tokens.starts))
        parts = [flat[starts[first] : starts[end]] for first, end in zip(firsts, ends, strict=True)]
        return Ragged.of([len(part) for part in parts], parts)


class DialogueBatches:
    """The endless sequence of training batches; which one comes at a position depends on the seed alone.

    A batch has a row for each dialogue; dialogues with utterances of similar lengths are together.
    """

    few_shapes = False
    kind = DialogueBatch

    def __init__(self, encoded: EncodedDialogues, seed: int, batch_tokens: int) -> None:
        self.encoded = encoded
        self._sizes = encoded.sizes
        self._replies = reply_tokens(encoded)
        self._rows = Epochs(lambda epoch: plan_by_area(self._sizes, seed, epoch, batch_tokens))

    def at(self, position: int, part: int = 0, parts: int = 1) -> DialogueBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        return self.encoded.batch(self._rows.at(position)[part::parts])

    def tokens(self, position: int) -> int:
        """The number of tokens in the replies of the whole batch at a position."""
        return int(self._replies[self._rows.at(position)].sum())

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return self._rows.epoch_of(position)


def reply_tokens(encoded: EncodedDialogues) -> Ints:
    """The number of tokens (N,) that are predicted in each dialogue."""
    sums = np.concatenate([[0], np.cumsum(encoded.tokens.lengths - 1)])
    return sums[encoded.ends] - sums[encoded.begins + 1]


def encode_dialogues(
    dialogues: Sequence[Dialogue], tokenizer: TrainedTokenizer, longest: int, utterances: int, blank: int = 0
) -> EncodedDialogues:
    """Encode all dialogues whose utterances have at most `longest` tokens, in parts of at most `utterances`."""
    flat, lengths, speakers = list[NDArray[np.int32]](), list[int](), list[int]()
    begins, ends, indices = list[int](), list[int](), list[int]()
    split = 0
    for start in range(0, len(dialogues), CHUNK):
        chunk = dialogues[start : start + CHUNK]
        texts = iter(tokenizer.ids([text for dialogue in chunk for text in dialogue.utterances]))
        for index, dialogue in enumerate(chunk, start):
            rows = [[tokenizer.bos, *next(texts), tokenizer.eos] for _ in dialogue.utterances]
            if max(map(len, rows)) > longest + 2:
                continue
            first, count = len(lengths), len(rows)
            lengths += map(len, rows)
            speakers += dialogue.speakers
            flat.append(np.array([number for row in rows for number in row], dtype=np.int32))
            cuts = [*range(0, count - 1, utterances - 1), count - 1]
            begins += [first + begin for begin in cuts[:-1]]
            ends += [first + end + 1 for end in cuts[1:]]
            indices += [index] * (len(cuts) - 1)
            split += len(cuts) > 2
    if not indices:
        raise UserError(
            "no dialogue is left", where="data",
            found=f"{len(dialogues):,} dialogues, each with an utterance of more than {longest:,} tokens",
            expected="at least one dialogue with shorter utterances",
            todo="raise task.longest, or use shorter texts",
        )  # fmt: skip
    return EncodedDialogues(
        Ragged.of(lengths, flat),
        np.array(speakers, np.int64),
        np.array(begins, np.int64),
        np.array(ends, np.int64),
        np.array(indices, np.int64),
        longest + 2,
        dropped=len(dialogues) - len(set(indices)),
        blank=blank,
        split=split,
        replaced=sum(replace_surrogates(text)[1] for dialogue in dialogues for text in dialogue.utterances),
    )


def plan_by_area(sizes: NDArray[np.int64], seed: int, epoch: int, batch_tokens: int) -> list[Ints]:
    """The batches of an epoch as row numbers: utterances of similar lengths together, within the token budget."""
    mean = float((sizes[:, 0] * round_up(sizes[:, 1])).mean())
    size = max(1, int(POOL * batch_tokens / mean))
    return plan_pooled(sizes, seed, epoch, size, lambda rows: split_by_area(by_width(rows, sizes), sizes, batch_tokens))


def by_width(rows: Ints, sizes: NDArray[np.int64]) -> Ints:
    """Sort rows by the padded length of their longest utterance, then by their number of utterances."""
    return rows[np.lexsort((sizes[rows, 0], round_up(sizes[rows, 1])))]


def split_by_area(rows: Ints, sizes: NDArray[np.int64], batch_tokens: int) -> list[Ints]:
    """Split rows so that dialogues x utterances x padded length fits the budget; one over it is a batch of its own."""
    begins, most, widest = [0], 0, 0
    for place, (count, width) in enumerate(
        zip(sizes[rows, 0].tolist(), round_up(sizes[rows, 1]).tolist(), strict=True)
    ):
        most, widest = max(most, count), max(widest, width)
        if place > begins[-1] and (place + 1 - begins[-1]) * most * widest > batch_tokens:
            begins.append(place)
            most, widest = count, width
    return [rows[begin:end] for begin, end in pairwise([*begins, len(rows)])]
