"""A text in parallel lanes, each read in order, a window per step, for truncated back-propagation through time
through time needs it (Transformer-XL, Dai et al., 2019).

Lane i of a batch continues where lane i of the last batch ended, so that a model may carry its state along. Every
token of the text is predicted once an epoch, in which each lane goes through its stretch once.

B lanes, T tokens to be predicted in a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import FixedEpochs
from heedful.data.order import random_bits
from heedful.data.text.windows import EncodedText, TextBatch, rows_per_batch
from heedful.errors import UserError


@dataclass(frozen=True, slots=True)
class LaneBatch(TextBatch):
    """The next window of each lane.

    A lane that is `fresh`, and tokens whose document is not 0, must not use the carried state.
    """

    fresh: Tensor = field(default_factory=lambda: torch.empty(0))  # (B,) bool, the lane or a document starts here


class Lanes(FixedEpochs):
    """The endless sequence of training batches; which one comes at a position depends on the seed and the lanes alone.

    All lanes are equally long, up to one token. From the second epoch on, windows are shifted by a random offset, and
    each epoch has as many batches as the first.
    """

    kind = LaneBatch
    few_shapes: ClassVar = True
    one_shape: ClassVar = False

    def __init__(self, encoded: EncodedText, seed: int, batch_tokens: int) -> None:
        self.encoded, self.seed = encoded, seed
        self.lanes = rows_per_batch(batch_tokens, encoded.context)
        if self.lanes > len(encoded):
            raise UserError(
                "the training text is too short for its lanes", where="train.batch_tokens",
                found=f"{len(encoded):,} tokens in {self.lanes:,} lanes",
                todo="use more text, or lower train.batch_tokens",
            )  # fmt: skip
        self.edges = np.arange(self.lanes + 1) * len(encoded) // self.lanes  # lane boundaries
        self.longest = -(-len(encoded) // self.lanes)
        self.count = -(-self.longest // encoded.context)  # batches per epoch

    def at(self, position: int, part: int = 0, parts: int = 1) -> LaneBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it: every `parts`-th lane."""
        lanes = np.arange(part, self.lanes, parts)
        begins, ends = (edges[lanes] for edges in self._windows(position))
        number = position % self.count
        batch = self.encoded.window(begins, ends - begins + 1, np.where(ends > begins, lanes * self.count + number, -1))
        fresh = np.full(len(lanes), number == 0) | np.isin(begins, self.encoded.starts)
        return LaneBatch(batch.ids, batch.lengths, batch.indices, batch.documents, torch.from_numpy(fresh))

    def tokens(self, position: int) -> int:
        """The number of predicted tokens in the whole batch at a position."""
        begins, ends = self._windows(position)
        return int((ends - begins).sum())

    def _windows(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the end token of each lane's window."""
        epoch, number = divmod(position, self.count)
        context = self.encoded.context
        least = self.longest - (self.count - 1) * context  # a shorter first window would add one more window
        random = least + int(random_bits(self.seed, epoch, 2, 1)[0] % np.uint64(context - least + 1))
        first = random if epoch else context
        begin, end = max(0, first + (number - 1) * context), first + number * context
        return np.minimum(self.edges[:-1] + begin, self.edges[1:]), np.minimum(self.edges[:-1] + end, self.edges[1:])
