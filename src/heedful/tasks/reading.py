"""Running an encoder on padded or packed sequences.

B rows, T positions in a row, N sequences.
"""

from __future__ import annotations

from heedful.blocks.layouts import PackedTexts, Padded
from heedful.data.labelled.sequences import Sequences


def layout_of(sequences: Sequences) -> PackedTexts | Padded:
    """The layout of a batch: positions and masks."""
    if sequences.packed:
        return PackedTexts.of(sequences.lengths, sequences.ids.shape[1], sequences.longest)
    return Padded(sequences.real, gaps=False)
