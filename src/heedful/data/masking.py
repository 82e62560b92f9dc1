"""Masked language modelling: which tokens are masked, and what repositions them (Devlin et al., 2019, section 3.1).

Random numbers are arguments, so that every step is a pure function.

B rows, T positions in a row, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heedful.data.tokenizers.base import MaskTokenizer

MASKED, SWAPPED = 0.8, 0.1  # shares replaced by [MASK] and by a random token; the rest stay unchanged
Ids = NDArray[np.int32]
Numbers = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MaskingVocab:
    """The properties of a vocabulary that masking needs."""

    pad: int
    cls: int
    sep: int
    mask: int
    special: Mask  # (V,) special tokens, the unknown token included
    continues_word: Mask  # (V,) tokens that continue a word
    ordinary: Ids  # tokens that are not special

    @classmethod
    def of(cls, tokenizer: MaskTokenizer) -> MaskingVocab:
        """The properties of a tokenizer's vocabulary."""
        special = np.isin(np.arange(tokenizer.vocab), list(tokenizer.special))  # (V,)
        continues_word = np.array(tokenizer.continues_word)  # (V,)
        ordinary = np.flatnonzero(~special).astype(np.int32)
        return cls(tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, special, continues_word, ordinary)


def count_masked(lengths: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The number of masked tokens of each sequence: a share, rounded, at least one."""
    return np.maximum(1, np.rint(share * lengths)).astype(np.int64)


def choose_tokens(text: Mask, counts: NDArray[np.int64], random: Numbers) -> Mask:
    """Choose `counts` positions (B, T) of text in each row: those with the smallest random numbers."""
    ranked = np.where(text, random, ~np.uint64(0))  # (B, T)
    counts = np.minimum(counts, text.sum(1))  # (B,)
    least = np.sort(ranked, axis=1)[np.arange(len(ranked)), np.maximum(counts, 1) - 1]  # (B,)
    chosen: Mask = text & (ranked <= least[:, None]) & (counts > 0)[:, None]
    return chosen


def choose_whole_words(text: Mask, continues_word: Mask, counts: NDArray[np.int64], random: Numbers) -> Mask:
    """Like `choose_tokens`, for whole words: in random order, each word that fits the remaining count."""
    chosen = np.zeros_like(text)  # (B, T)
    for row, left in enumerate(counts.tolist()):
        positions = np.flatnonzero(text[row])
        if not len(positions):
            continue
        begins = ~continues_word[row, positions] | (np.diff(positions, prepend=-2) > 1)
        begins = np.flatnonzero(begins)  # first piece of each word, among the text positions
        ends = np.append(begins[1:], len(positions))
        for word in np.argsort(random[row, positions[begins]], kind="stable").tolist():
            size = ends[word] - begins[word]
            if size <= left:
                chosen[row, positions[begins[word] : ends[word]]] = True
                left -= size
            if not left:
                break
    return chosen


def apply_masking(ids: Ids, masked: Mask, random: Numbers, other: Numbers, vocab: MaskingVocab) -> Ids:
    """Replace most masked tokens by [MASK] and some by random tokens; the rest stay unchanged.

    `random` and `other` are random numbers for each masked position, row by row.
    """
    share = random / 2.0**64  # uniform in [0, 1) for each masked position
    original = ids[masked]
    swapped = vocab.ordinary[other % np.uint64(len(vocab.ordinary))]
    result = ids.copy()
    result[masked] = np.where(share < MASKED, vocab.mask, np.where(share < MASKED + SWAPPED, swapped, original))
    return result
