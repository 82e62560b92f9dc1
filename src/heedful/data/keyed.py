"""Batches with names for their parts, as a lecture shows them: one text, pairs of texts, or texts in n languages.

Conventions of all three: a text is the ids of its tokens between `<bos>` and `<eos>`, the source of a pair only ends
with `<eos>`; lengths count these two and no padding; padding has the id 0, is on the right, and fills up to a multiple
of 8. A batch has texts of similar lengths, and its number times the longest is at most `batch_tokens`. Which batch
comes at a position depends on the seed alone, so that a position is all that there is to resume from.

B texts, T tokens, N rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.data.batch import Epochs, Ints, Ragged
from heedful.data.formats.sources import Pair
from heedful.data.pairs.batches import EncodedPairs, encode_pairs, plan_by_budget
from heedful.data.tokenizers.tokenizer import TokenizerConfig, TrainedTokenizer, WholeWords
from heedful.errors import UserError, shown

AnyTokenizer = TrainedTokenizer | TokenizerConfig


class KeyedBatches(ABC):
    """The base: batches as dicts, by position, and the tokenizer as their vocabulary."""

    def __init__(self, lengths: Ints, tokenizer: TrainedTokenizer, batch_tokens: int, seed: int) -> None:
        self.tokenizer = tokenizer
        self._rows = Epochs(lambda epoch: plan_by_budget(lengths, seed, epoch, batch_tokens))

    @property
    def vocab(self) -> int:
        """The size of the vocabulary."""
        return self.tokenizer.vocab

    def at(self, position: int) -> dict[str, Tensor]:
        """The batch at a position, counted from 0 over all epochs; `indices` are the numbers of its rows."""
        return self.batch(self._rows.at(position))

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that a position belongs to."""
        return self._rows.epoch_of(position)

    def epoch(self, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """The batches from a position to the end of its epoch."""
        position, epoch = start, self.epoch_of(start)
        while self.epoch_of(position) == epoch:
            yield self.at(position)
            position += 1

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self.epoch()

    @abstractmethod
    def batch(self, rows: Ints) -> dict[str, Tensor]:
        """The batch of these rows."""


class ParallelText(KeyedBatches):
    """Texts in n languages: NAME_text_ids (B, T) and NAME_length (B,) for each name; a row means the same in all.

    Rows of which a text is longer than `longest` tokens are left out; `dropped` is their number.
    """

    def __init__(
        self,
        texts: Mapping[str, Sequence[str]],
        tokenizer: AnyTokenizer | None = None,
        *,
        batch_tokens: int = 4096,
        longest: int = 512,
        seed: int = 0,
    ) -> None:
        counts = {name: len(column) for name, column in texts.items()}
        if not counts or len(set(counts.values())) > 1 or not min(counts.values()):
            raise UserError(
                "these texts are not aligned", found=shown(counts), expected="as many texts for each name, at least one"
            )
        words = trained(tokenizer, (text for column in texts.values() for text in column))
        columns = {name: [[words.bos, *ids, words.eos] for ids in words.ids(column)] for name, column in texts.items()}
        fits = [max(map(len, row)) <= longest for row in zip(*columns.values(), strict=True)]
        self.indices = np.flatnonzero(fits)  # (N,)
        self.dropped = len(fits) - len(self.indices)
        if not len(self.indices):
            raise UserError("no text is left", found=f"{self.dropped:,} rows of more than {longest:,} tokens")
        self.longest, self.ids = longest, dict[str, Ragged]()
        for name, column in columns.items():
            rows = [np.array(column[row], np.int32) for row in self.indices.tolist()]
            self.ids[name] = Ragged.of([len(row) for row in rows], rows)
        lengths = np.stack([column.lengths for column in self.ids.values()], axis=1)  # (N, n)
        # A side that is always empty, since orders of batches are those of pairs.
        lengths = np.pad(lengths, ((0, 0), (0, int(len(columns) == 1))), constant_values=1)
        super().__init__(lengths, words, batch_tokens, seed)

    def batch(self, rows: Ints) -> dict[str, Tensor]:
        """The texts of these rows in each language."""
        found = {"indices": torch.from_numpy(self.indices[rows])}
        for name, column in self.ids.items():
            ids, length = column.padded(rows, self.longest)
            found |= {f"{name}_text_ids": ids, f"{name}_length": length}
        return found


class MonoText(ParallelText):
    """Texts in one language: `text_ids` (B, T) and `length` (B,)."""

    def __init__(
        self,
        texts: Iterable[str],
        tokenizer: AnyTokenizer | None = None,
        *,
        batch_tokens: int = 4096,
        longest: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__({"": list(texts)}, tokenizer, batch_tokens=batch_tokens, longest=longest, seed=seed)

    def batch(self, rows: Ints) -> dict[str, Tensor]:
        """The texts of these rows."""
        return {key.removeprefix("_"): value for key, value in super().batch(rows).items()}


class PairedText(KeyedBatches):
    """Pairs of texts, as translation has them.

    The keys are `source_text_ids`, `source_length`, `target_text_ids` and `target_length`.

    Pairs of which a side is longer than `longest` tokens are left out; `dropped` is their number.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[str, str]],
        tokenizer: AnyTokenizer | None = None,
        *,
        batch_tokens: int = 4096,
        longest: int = 512,
        seed: int = 0,
    ) -> None:
        rows = [Pair(*pair) for pair in pairs]
        words = trained(tokenizer, (text for pair in rows for text in pair))
        self.encoded: EncodedPairs = encode_pairs(rows, words, longest)
        self.dropped = self.encoded.dropped
        super().__init__(self.encoded.lengths, words, batch_tokens, seed)

    def batch(self, rows: Ints) -> dict[str, Tensor]:
        """The pairs of these rows."""
        found = self.encoded.batch(rows)
        return {
            "source_text_ids": found.source,
            "source_length": found.source_lengths,
            "target_text_ids": found.target,
            "target_length": found.target_lengths,
            "indices": found.indices,
        }


def trained(tokenizer: AnyTokenizer | None, texts: Iterable[str]) -> TrainedTokenizer:
    """A tokenizer: the given one, or one that is trained on these texts; None: of whole words."""
    if isinstance(tokenizer, TrainedTokenizer):
        return tokenizer
    return TrainedTokenizer.train(tokenizer or WholeWords(), texts)
