"""Tags for words: which ones are a name, say, and of what.

M words, C tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.data.batch import IGNORE_INDEX
from heedful.data.formats.conll import chunks, marks_chunks
from heedful.data.labelled.tagging import EncodedTags, TagBatch, encode_words
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.tasks.reading import layout_of

BATCH_TOKENS = 16384  # tokens that are read together
MOST = 4096  # texts that are encoded together
# Words of a text as CoNLL-2003 has them, nearly: 's is one, U.S. and 1996-08-22 are one each, other marks stand alone.
WORD = re.compile(r"['’]s\b|(?:\w\.){2,}|\w+(?:(?:[-.,&/@:]|['’](?!s\b))\w+)*|[^\w\s]")


def outputs(model: Any, batch: TagBatch) -> Tensor:
    """The logits (M, C) of the words of a batch."""
    found: Tensor = model(batch.ids, batch.segments, layout_of(batch.sequences), batch.words)
    return found


def tag_loss(model: Any, batch: TagBatch) -> Loss:
    """Cross-entropy of the tag of each word; no other token has any."""
    total = F.cross_entropy(outputs(model, batch).float(), batch.labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return Loss(total, total.detach(), (batch.labels != IGNORE_INDEX).sum())


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedTags, device: torch.device) -> float:
    """The mean loss a word over a whole set."""
    total = sum(tag_loss(model, batch.to(device)).plain.item() for batch, _ in encoded.in_order(BATCH_TOKENS))
    return total / len(encoded.labels)


@torch.inference_mode()
def likeliest(model: Any, encoded: EncodedTags, device: torch.device) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The number of the likeliest tag of each word of a set, and how likely it is."""
    tags, sure = np.zeros(len(encoded.labels), np.int64), np.zeros(len(encoded.labels), np.float32)
    for batch, places in encoded.in_order(BATCH_TOKENS):
        best = outputs(model, batch.to(device)).float().softmax(-1).max(-1)
        tags[places], sure[places] = best.indices.cpu().numpy(), best.values.cpu().numpy()
    return tags, sure


@dataclass(frozen=True)
class Entity:
    """A part of a text, and what it is; the probability is that of its least likely tag."""

    kind: str
    text: str
    start: int  # character
    end: int  # one past the last character
    probability: float


@dataclass(frozen=True)
class TaggedText:
    """A text's words with their tags, as the model has them, and what they mark; nothing, where they are no IOB."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    entities: tuple[Entity, ...]
    spans: tuple[tuple[int, int], ...]  # the characters of each word, from and to before
    probabilities: tuple[float, ...]  # of each word's tag


@dataclass
class TokenTagger:
    """A model with its tokenizer, ready to tag texts."""

    model: Any
    tokenizer: MaskTokenizer
    device: torch.device
    labels: tuple[str, ...]
    context: int
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    @property
    def has_chunks(self) -> bool:
        """Whether the tags mark chunks, such as names, and are not any labels."""
        return marks_chunks(self.labels)

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[TaggedText]:
        """The words of each text with their tags; a text may also be given as its words."""
        if isinstance(texts, str):
            raise TypeError("give a list of texts, as [text]")
        return [
            marked
            for start in range(0, len(texts), MOST)
            for marked in self._tag([split(text) for text in texts[start : start + MOST]])
        ]

    def tags(self, encoded: EncodedTags) -> list[tuple[str, ...]]:
        """The tags of the words of each sentence of a set, as the model says them."""
        found = likeliest(self.model, encoded, self.device)[0]
        parts = np.split(found, np.cumsum(encoded.counts)[:-1])
        return [tuple(self.labels[number] for number in part) for part in parts]

    def _tag(self, texts: Sequence[tuple[str, list[tuple[int, int]]]]) -> list[TaggedText]:
        words = [tuple(text[start:end] for start, end in places) for text, places in texts]
        encoded = encode_words(words, self.tokenizer, self.context)
        tags, sure = likeliest(self.model, encoded, self.device)
        found, end = [], 0
        for (text, places), some in zip(texts, words, strict=True):
            part = slice(end, end := end + len(some))
            said = [self.labels[number] for number in tags[part]]
            entities = tuple(
                Entity(
                    kind, text[(first := places[start][0]) : (last := places[stop - 1][1])], first, last, float(least)
                )
                for start, stop, kind in (chunks(said) if self.has_chunks else ())
                for least in [sure[part][start:stop].min()]
            )
            found.append(TaggedText(text, some, tuple(said), entities, tuple(places), tuple(sure[part].tolist())))
        return found


def split(text: str | Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """A text with the characters of each of its words; of words alone, the text with a space between them."""
    if isinstance(text, str):
        return text, [match.span() for match in WORD.finditer(text)]
    ends = np.cumsum([len(word) + 1 for word in text]).tolist() if text else []
    return " ".join(text), [(end - len(word) - 1, end - 1) for word, end in zip(text, ends, strict=True)]
