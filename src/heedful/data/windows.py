"""A text as one long row of ids, and windows of it as batches.

The end of a line is a token, `eos`, and a text begins as if a line had just ended. Every token is to be predicted once:
a window begins with the last token of the window before it, and sees nothing else of what came before.

B batch, T tokens to be predicted in a window, N tokens of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.order import permutation
from heedful.data.text import Text
from heedful.data.tokenizers import Tokenizer, clean

CHUNK = 1024  # lines that are tokenized at a time


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Windows side by side, padded to the right: the first token of each is given, the others are to be predicted."""

    ids: Tensor  # (B, T + 1) long
    lengths: Tensor  # (B,) long, the token that is given counted
    indices: Tensor  # (B,) long, which window of the text each is, -1 for none

    @property
    def real(self) -> Tensor:
        """Where there is no padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]  # (B, T + 1)

    @property
    def tokens(self) -> int:
        """How many tokens are to be predicted; on a GPU this waits for it, so ask before moving there."""
        return int(self.lengths.sum()) - len(self.lengths)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> TextBatch:
        """The same batch on a device."""
        return TextBatch(
            self.ids.to(device, non_blocking=non_blocking),
            self.lengths.to(device, non_blocking=non_blocking),
            self.indices.to(device, non_blocking=non_blocking),
        )


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text as ids, in windows of so many tokens."""

    ids: NDArray[np.int32]  # (N + 1,) the end of a line, then the text
    context: int
    characters: int
    replaced: int  # lone surrogates in the text, read as U+FFFD
    dropped: int = 0  # windows are cut, not left out

    def __len__(self) -> int:
        return len(self.ids) - 1

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return -(-len(self) // self.context)

    @property
    def unknown(self) -> int:
        """How many tokens the tokenizer does not know."""
        return int((self.ids == Tokenizer.unk).sum())

    @property
    def sha256(self) -> str:
        """A name for exactly these ids in this order."""
        return hashlib.sha256(self.ids.tobytes()).hexdigest()

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens some windows have, the one that is given counted."""
        return np.minimum(self.context, len(self) - rows * self.context) + 1

    def batch(self, rows: NDArray[np.int64]) -> TextBatch:
        """Some windows as one batch; of no windows, one row from which there is nothing to learn."""
        if not len(rows):
            one = torch.ones(1, dtype=torch.long)
            return TextBatch(torch.full((1, self.context + 1), Tokenizer.pad), one, -one)
        lengths = self.lengths(rows)  # (B,)
        places = np.arange(int(lengths.max()))  # (T + 1,)
        real = places < lengths[:, None]  # (B, T + 1)
        ids = np.full(real.shape, Tokenizer.pad, dtype=np.int64)  # (B, T + 1)
        ids[real] = self.ids[(rows[:, None] * self.context + places)[real]]
        return TextBatch(torch.from_numpy(ids), torch.from_numpy(lengths), torch.from_numpy(rows))

    def in_order(self, batch_tokens: int) -> Iterator[TextBatch]:
        """Every window once, from the first to the last."""
        size = rows_in(batch_tokens, self.context)
        for start in range(0, self.windows, size):
            yield self.batch(np.arange(start, min(start + size, self.windows)))


class TextBatches:
    """The endless sequence of training batches; which one comes at a position depends on the seed alone."""

    kind = TextBatch
    steady: ClassVar = True  # all batches have one shape, but for those at the end of an epoch
    alike: ClassVar = False

    def __init__(self, encoded: EncodedText, seed: int, batch_tokens: int) -> None:
        self.encoded = encoded
        self.seed = seed
        self.size = rows_in(batch_tokens, encoded.context)
        self.count = -(-encoded.windows // self.size)  # batches of an epoch
        self._orders: dict[int, NDArray[np.int64]] = {}  # of the two epochs that were last looked at

    def at(self, position: int, part: int = 0, parts: int = 1) -> TextBatch:
        """The batch at a position, counted from 0 over all epochs, or one part of it, which may hold no window."""
        return self.encoded.batch(self._rows(position)[part::parts])

    def tokens(self, position: int) -> int:
        """How many tokens are to be predicted in the whole batch at a position."""
        rows = self._rows(position)
        return int(self.encoded.lengths(rows).sum()) - len(rows)

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return position // self.count

    def _rows(self, position: int) -> NDArray[np.int64]:
        epoch, number = divmod(position, self.count)
        if epoch not in self._orders:
            latest = list(self._orders.items())[-1:]
            self._orders = dict([*latest, (epoch, permutation(self.seed, epoch, self.encoded.windows))])
        return self._orders[epoch][number * self.size : (number + 1) * self.size]


def rows_in(batch_tokens: int, context: int) -> int:
    """How many windows a batch has."""
    return max(1, batch_tokens // context)


def encode_text(text: Text, tokenizer: Tokenizer, context: int) -> EncodedText:
    """The ids of a text, line ends included."""
    parts = [np.array([Tokenizer.eos], dtype=np.int32)]
    for start in range(0, len(text.lines), CHUNK):
        parts.append(np.array(line_ids(text.lines[start : start + CHUNK], tokenizer), dtype=np.int32))
    replaced = sum(clean(line)[1] for line in text.lines)
    return EncodedText(np.concatenate(parts), context, text.characters, replaced)


def line_ids(lines: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The ids of some lines, each with its end."""
    return [number for ids in tokenizer.ids(lines) for number in (*ids, Tokenizer.eos)]


def text_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a text whose last line may go on."""
    return line_ids(text.split("\n"), tokenizer)[:-1]


def ids_text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text that ids stand for, line ends included."""
    lines: list[list[int]] = [[]]
    for number in ids:
        if number == Tokenizer.eos:
            lines.append([])
        else:
            lines[-1].append(number)
    return "\n".join(tokenizer.decode(line) for line in lines)
