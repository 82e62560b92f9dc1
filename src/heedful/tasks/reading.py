"""What a model that reads gives of sequences, however they lie in a batch.

B rows, T places in a row, D width, N sequences.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.blocks.layouts import PackedTexts, Padded
from heedful.data.labelled.sequences import Sequences


def layout_of(sequences: Sequences) -> PackedTexts | Padded:
    """Where each token stands, and what it may see."""
    if sequences.packed:
        return PackedTexts.of(sequences.lengths, sequences.ids.shape[1], sequences.longest)
    return Padded(sequences.real, gaps=False)


def vectors(model: Any, sequences: Sequences) -> Tensor:
    """The model's vectors (B * T, D), by the tokens' numbers."""
    return model(sequences.ids, sequences.segments, layout_of(sequences)).flatten(0, 1)
