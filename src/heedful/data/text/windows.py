"""A text as one long row of ids, and windows of it as batches.

Documents are concatenated, each after the start token. Every token is predicted once: a window
starts with the last token of the window before it, and sees nothing else of it. The token that ends a
document is predicted from that document, and is then the first one that the next document sees.

B batch, T tokens to be predicted in a window, N tokens of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import EpochCache, FixedEpochs, TensorBatch
from heedful.data.order import permutation, random_bits
from heedful.data.text.files import Text
from heedful.data.text.text_stream import Shard, TextCounts, encode_passages, passages, shards
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, codec_of

FILL = 0  # padding id


@dataclass(frozen=True, slots=True)
class TextBatch(TensorBatch):
    """Windows of a text, padded on the right: the first token of each is input only, the others are predicted."""

    ids: Tensor  # (B, T + 1) long
    lengths: Tensor  # (B,) long, the first token included
    indices: Tensor  # (B,) long, the index of each window, -1 for padding
    documents: Tensor | None = None  # (B, T) long, the document of each token within its row; None: there is only one

    @property
    def real(self) -> Tensor:
        """Which positions are not padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]  # (B, T + 1)

    @property
    def tokens(self) -> int:
        """The number of predicted tokens; on a GPU this synchronizes, so call it before moving there."""
        return int(self.lengths.sum()) - len(self.lengths)


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text as ids, in windows of `context` tokens."""

    ids: NDArray[Any]  # (N + 1,), in memory or memory-mapped
    starts: NDArray[np.int64]  # the start of each document, the first at 0
    context: int
    amounts: TextCounts
    file: str | None = None  # hash of the token files, if the ids are on disk
    dropped: int = 0  # windows are split, not dropped

    def __len__(self) -> int:
        return len(self.ids) - 1

    @property
    def windows(self) -> int:
        """The number of windows."""
        return -(-len(self) // self.context)

    @property
    def unknown(self) -> int:
        """The number of unknown tokens."""
        return self.amounts.unknown

    @property
    def sha256(self) -> str:
        """A hash of the ids and of the document starts."""
        if self.file is not None:
            return self.file
        found = hashlib.sha256(self.ids.tobytes())
        found.update(self.starts.tobytes() if len(self.starts) > 1 else b"")
        return found.hexdigest()

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of tokens of these windows, the first one included."""
        return np.minimum(self.context, len(self) - rows * self.context) + 1

    def batch(self, rows: NDArray[np.int64]) -> TextBatch:
        """A batch of these windows; for no windows, one row without targets."""
        if not len(rows):
            one = torch.ones(1, dtype=torch.long)
            same = None if len(self.starts) == 1 else torch.zeros(1, self.context, dtype=torch.long)
            return TextBatch(torch.full((1, self.context + 1), FILL), one, -one, same)
        return self.window(rows * self.context, self.lengths(rows), rows)

    def window(self, begins: NDArray[np.int64], lengths: NDArray[np.int64], numbers: NDArray[np.int64]) -> TextBatch:
        """Spans of the text, by start and length, as one batch."""
        places = np.arange(int(lengths.max()))  # (T + 1,)
        real = places < lengths[:, None]  # (B, T + 1)
        at = np.minimum(begins[:, None] + places, len(self))  # (B, T + 1)
        ids = np.where(real, self.ids[at].astype(np.int64), FILL)  # (B, T + 1)
        documents = None
        if len(self.starts) > 1:
            number = np.searchsorted(self.starts, at[:, :-1], side="right")  # (B, T)
            documents = torch.from_numpy(number - number[:, :1])  # (B, T)
        return TextBatch(torch.from_numpy(ids), torch.from_numpy(lengths), torch.from_numpy(numbers), documents)

    def documents(self, begin: int, count: int) -> Tensor | None:
        """For some tokens, how many documents have begun since the token before them; None: the text has only one."""
        if len(self.starts) == 1:
            return None
        number = np.searchsorted(self.starts, np.arange(max(begin - 1, 0), begin + count), side="right")
        return torch.from_numpy(number[-count:] - number[0])  # (T,)

    def in_order(self, batch_tokens: int) -> Iterator[TextBatch]:
        """Every window once, from the first to the last."""
        size = rows_per_batch(batch_tokens, self.context)
        for start in range(0, self.windows, size):
            yield self.batch(np.arange(start, min(start + size, self.windows)))

    def sliding(self, stride: int, batch_tokens: int) -> Iterator[tuple[TextBatch, Tensor]]:
        """Overlapping windows, and the tokens (B, T) predicted in each: every token once.

        Each has at least `context - stride` tokens before it, as far as its document has them.
        """
        behind = self.context - stride  # tokens of a window that an earlier one has predicted
        begins = np.arange(max(1, -(-(len(self) - behind) // stride))) * stride
        size = rows_per_batch(batch_tokens, self.context)
        for first in range(0, len(begins), size):
            some = begins[first : first + size]
            batch = self.window(some, np.minimum(self.context, len(self) - some) + 1, first + np.arange(len(some)))
            known = torch.from_numpy(np.where(some == 0, 0, behind))  # (B,)
            yield batch, batch.real[:, 1:] & (torch.arange(batch.ids.shape[1] - 1) >= known[:, None])  # (B, T)


class TextBatches(FixedEpochs):
    """The endless sequence of training batches; which one comes at a position depends on the seed alone.

    From the second epoch on, windows are shifted by a random offset, so that tokens are predicted from other contexts;
    each epoch has as many batches as the first.
    """

    kind = TextBatch
    few_shapes: ClassVar = True  # all batches but the last of an epoch have one shape
    one_shape: ClassVar = False

    def __init__(self, encoded: EncodedText, seed: int, batch_tokens: int) -> None:
        self.encoded = encoded
        self.seed = seed
        self.size = rows_per_batch(batch_tokens, encoded.context)
        self.count = -(-encoded.windows // self.size)  # batches per epoch
        self._epochs = EpochCache(self._epoch)

    def at(self, position: int, part: int = 0, parts: int = 1) -> TextBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        begins, lengths, rows = (one[part::parts] for one in self._windows(position))
        return self.encoded.window(begins, lengths, rows) if len(rows) else self.encoded.batch(rows)

    def tokens(self, position: int) -> int:
        """The number of predicted tokens in the whole batch at a position."""
        _, lengths, rows = self._windows(position)
        return int(lengths.sum()) - len(rows)

    def _windows(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Start, length and index of each window of a batch."""
        epoch, number = divmod(position, self.count)
        first, order = self._epochs(epoch)
        rows, context = order[number * self.size : (number + 1) * self.size], self.encoded.context
        begins = np.maximum(0, first + (rows - 1) * context)
        return begins, np.minimum(first + rows * context, len(self.encoded)) - begins + 1, rows

    def _epoch(self, epoch: int) -> tuple[int, NDArray[np.int64]]:
        """The number of tokens in the first window of an epoch, and the order of the windows."""
        whole, context = len(self.encoded), self.encoded.context
        left = whole - (self.encoded.windows - 1) * context  # a shorter first window would add one more window
        least = 1 if self.encoded.windows % self.size else left
        random = least + int(random_bits(self.seed, epoch, 1, 1)[0] % np.uint64(context - least + 1))
        first = min(whole, random if epoch else context)
        return first, permutation(self.seed, epoch, 1 - (first - whole) // context)


def rows_per_batch(batch_tokens: int, context: int) -> int:
    """The number of windows in a batch."""
    return max(1, batch_tokens // context)


def encode_text(text: Text, tokenizer: LanguageTokenizer, context: int) -> EncodedText:
    """Encode a text, with line ends and document ends."""
    codec = codec_of(tokenizer)
    found = [encode_passages(some, codec) for some in shards(passages(text.documents, codec.split_point))]
    return join_shards(found, codec.start_id, context)


def join_shards(found: Sequence[Shard], begins: int, context: int) -> EncodedText:
    """Concatenate the shards of a text; the start token ends it."""
    ids = np.concatenate([*(shard.ids for shard in found), np.array([begins], dtype=np.int32)])
    offsets = np.cumsum([0, *(len(shard.ids) for shard in found)])
    starts = [shard.starts + offset for shard, offset in zip(found, offsets, strict=False)]
    return EncodedText(
        ids, np.concatenate(starts or [np.zeros(1, np.int64)]), context,
        sum((shard.amounts for shard in found), TextCounts()),
    )  # fmt: skip
