"""Which tokens are hidden, and what stands in their place: the corruption that a denoising model learns to undo.

All chance comes in as numbers, so that each step is a plain function of what it is given.

B rows, T places in a row, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heedful.data.tokenizers.base import MaskTokenizer

MASKED, SWAPPED = 0.8, 0.1  # shares of the hidden tokens: [MASK], another token; the rest stay as they are
Ids = NDArray[np.int32]
Numbers = NDArray[np.uint64]
Places = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Marks:
    """What there is to know of a vocabulary's tokens."""

    pad: int
    cls: int
    sep: int
    mask: int
    special: Places  # (V,) which tokens are no text, the unknown one among them
    inner: Places  # (V,) which tokens go on with a word
    ordinary: Ids  # the tokens that are text

    @classmethod
    def of(cls, tokenizer: MaskTokenizer) -> Marks:
        """Those of a tokenizer."""
        special = np.isin(np.arange(tokenizer.vocab), list(tokenizer.special))  # (V,)
        inner = np.array(tokenizer.inner)  # (V,)
        ordinary = np.flatnonzero(~special).astype(np.int32)
        return cls(tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, special, inner, ordinary)


def wanted(lengths: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many tokens of sequences are hidden: a share of them, rounded, and one at least."""
    return np.maximum(1, np.rint(share * lengths)).astype(np.int64)


def chosen(text: Places, counts: NDArray[np.int64], luck: Numbers) -> Places:
    """So many places (B, T) of each row, out of those that hold text: the ones of the least numbers."""
    ranked = np.where(text, luck, ~np.uint64(0))  # (B, T)
    counts = np.minimum(counts, text.sum(1))  # (B,)
    least = np.sort(ranked, axis=1)[np.arange(len(ranked)), np.maximum(counts, 1) - 1]  # (B,)
    found: Places = text & (ranked <= least[:, None]) & (counts > 0)[:, None]
    return found


def chosen_words(text: Places, inner: Places, counts: NDArray[np.int64], luck: Numbers) -> Places:
    """The same for whole words: in the order of their first pieces' numbers, each that is not too long any more."""
    found = np.zeros_like(text)  # (B, T)
    for row, left in enumerate(counts.tolist()):
        places = np.flatnonzero(text[row])
        if not len(places):
            continue
        begins = ~inner[row, places] | (np.diff(places, prepend=-2) > 1)
        begins = np.flatnonzero(begins)  # of each word, among the places
        ends = np.append(begins[1:], len(places))
        for word in np.argsort(luck[row, places[begins]], kind="stable").tolist():
            size = ends[word] - begins[word]
            if size <= left:
                found[row, places[begins[word] : ends[word]]] = True
                left -= size
            if not left:
                break
    return found


def corrupted(ids: Ids, hidden: Places, luck: Numbers, other: Numbers, marks: Marks) -> Ids:
    """The ids with most of the hidden ones masked, some exchanged for any other and some left as they are.

    `luck` and `other` are numbers for each hidden place, row by row.
    """
    share = luck / 2.0**64  # of each hidden place
    kept = ids[hidden]
    some = marks.ordinary[other % np.uint64(len(marks.ordinary))]
    changed = ids.copy()
    changed[hidden] = np.where(share < MASKED, marks.mask, np.where(share < MASKED + SWAPPED, some, kept))
    return changed
