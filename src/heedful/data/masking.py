"""Masked language modelling: which tokens are masked, and what replaces them (Devlin et al., 2019, section 3.1).

All randomness is passed in as numbers, so that every step is a pure function.

B rows, T positions in a row, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heedful.data.tokenizers.base import MaskTokenizer

MASKED, SWAPPED = 0.8, 0.1  # shares of the masked tokens: [MASK], a random token; the rest stay unchanged
Ids = NDArray[np.int32]
Numbers = NDArray[np.uint64]
Places = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MaskingVocab:
    """What masking needs to know about a vocabulary."""

    pad: int
    cls: int
    sep: int
    mask: int
    special: Places  # (V,) special tokens, the unknown token included
    continues_word: Places  # (V,) tokens that continue a word
    ordinary: Ids  # the tokens that are text

    @classmethod
    def of(cls, tokenizer: MaskTokenizer) -> MaskingVocab:
        """From a tokenizer."""
        special = np.isin(np.arange(tokenizer.vocab), list(tokenizer.special))  # (V,)
        continues_word = np.array(tokenizer.continues_word)  # (V,)
        ordinary = np.flatnonzero(~special).astype(np.int32)
        return cls(tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, special, continues_word, ordinary)


def count_masked(lengths: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many tokens of each sequence are masked: a share, rounded, at least one."""
    return np.maximum(1, np.rint(share * lengths)).astype(np.int64)


def choose_tokens(text: Places, counts: NDArray[np.int64], luck: Numbers) -> Places:
    """Choose `counts` positions (B, T) of text in each row: those with the smallest random numbers."""
    ranked = np.where(text, luck, ~np.uint64(0))  # (B, T)
    counts = np.minimum(counts, text.sum(1))  # (B,)
    least = np.sort(ranked, axis=1)[np.arange(len(ranked)), np.maximum(counts, 1) - 1]  # (B,)
    found: Places = text & (ranked <= least[:, None]) & (counts > 0)[:, None]
    return found


def choose_whole_words(text: Places, continues_word: Places, counts: NDArray[np.int64], luck: Numbers) -> Places:
    """Like `choose_tokens`, for whole words: in random order, each word that still fits."""
    found = np.zeros_like(text)  # (B, T)
    for row, left in enumerate(counts.tolist()):
        places = np.flatnonzero(text[row])
        if not len(places):
            continue
        begins = ~continues_word[row, places] | (np.diff(places, prepend=-2) > 1)
        begins = np.flatnonzero(begins)  # first piece of each word, among the text positions
        ends = np.append(begins[1:], len(places))
        for word in np.argsort(luck[row, places[begins]], kind="stable").tolist():
            size = ends[word] - begins[word]
            if size <= left:
                found[row, places[begins[word] : ends[word]]] = True
                left -= size
            if not left:
                break
    return found


def apply_masking(ids: Ids, hidden: Places, luck: Numbers, other: Numbers, marks: MaskingVocab) -> Ids:
    """Replace most masked tokens by [MASK] and some by random tokens; the rest stay unchanged.

    `luck` and `other` are random numbers for each masked position, row by row.
    """
    share = luck / 2.0**64  # of each masked position
    kept = ids[hidden]
    some = marks.ordinary[other % np.uint64(len(marks.ordinary))]
    changed = ids.copy()
    changed[hidden] = np.where(share < MASKED, marks.mask, np.where(share < MASKED + SWAPPED, some, kept))
    return changed
