"""Tags for words: which ones are a name, say, and of what.

M words, C tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.batch import IGNORE_INDEX
from heedful.data.formats.conll import Conll, JsonTags, Sentence, chunks, marks_chunks
from heedful.data.labelled.tagging import EncodedTags, TagBatch, encode_tags, encode_words
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.errors import UserError
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.tasks.reading import layout_of
from heedful.training.span_metrics import tag_scores

BATCH_TOKENS = 16384  # tokens that are read together
MOST = 4096  # texts that are encoded together
# Words of a text as CoNLL-2003 has them, nearly: 's is one, U.S. and 1996-08-22 are one each, other marks stand alone.
WORD = re.compile(r"['’]s\b|(?:\w\.){2,}|\w+(?:(?:[-.,&/@:]|['’](?!s\b))\w+)*|[^\w\s]")

Words = str | Sequence[str]  # a text, or its words


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


@dataclass(frozen=True, repr=False)
class Entity(Result):
    """A span of a text and its type; the probability is that of its least probable tag."""

    kind: str
    text: str
    start: int  # character
    end: int  # one past the last character
    probability: float


@dataclass(frozen=True, repr=False)
class TaggedText(Result):
    """The words of a text with their tags, and the entities that IOB tags mark; none where the tags are others."""

    text: str
    words: tuple[str, ...] = field(repr=False)
    tags: tuple[str, ...]
    entities: tuple[Entity, ...]
    spans: tuple[tuple[int, int], ...] = field(repr=False)  # first character of each word, and one past its last
    probabilities: tuple[float, ...] = field(repr=False)  # of each word's tag


@dataclass
class TokenTagger(Predictor[Words, TaggedText, tuple[Words, Sequence[str]]]):
    """Predicts a tag for each word, such as the entity that it belongs to."""

    task: ClassVar = "tagging"

    model: nn.Module
    tokenizer: MaskTokenizer
    device: torch.device
    labels: tuple[str, ...]
    context: int
    notes: tuple[str, ...] = ()

    @property
    def has_chunks(self) -> bool:
        """Whether the tags mark chunks, such as names, in IOB."""
        return marks_chunks(self.labels)

    def predict(self, inputs: Sequence[Words]) -> list[TaggedText]:
        """The words of each text with their tags, as `tag` gives them."""
        return self.tag(inputs)

    def _evaluate(self, data: Path | Sequence[tuple[Words, Sequence[str]]]) -> Evaluation:
        if isinstance(data, Path):
            kind = JsonTags if data.name.removesuffix(".gz").endswith(".jsonl") else Conll
            sentences = kind(train=str(data), valid=str(data)).read("valid").sentences
        else:
            texts = [(split(given), tags) for given, tags in data]
            sentences = [
                Sentence(tuple(text[start:end] for start, end in spans), tuple(tags), f"example {number}")
                for number, ((text, spans), tags) in enumerate(texts, 1)
            ]
            for one in sentences:
                if len(one.words) != len(one.tags):
                    raise UserError(
                        "there is not one tag for each word", where=one.where, expected=f"{len(one.words)} tags",
                        found=f"{len(one.tags)} tags", todo="give the sentence as a list of its words",
                    )  # fmt: skip
        encoded = encode_tags(sentences, self.tokenizer, self.labels, self.context)
        right = [one.tags for one in sentences]
        loss = mean_loss(self.model, encoded, self.device)
        return Evaluation.of(tag_scores(self.tags(encoded), right, self.labels), loss, len(sentences))

    def tag(self, texts: Sequence[Words]) -> list[TaggedText]:
        """The words of each text with their tags; a text may also be given as its words."""
        batch_of(texts)
        return [
            marked
            for start in range(0, len(texts), MOST)
            for marked in self._tag([split(text) for text in texts[start : start + MOST]])
        ]

    def tags(self, encoded: EncodedTags) -> list[tuple[str, ...]]:
        """The predicted tags of the words of each sentence of an encoded set."""
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
            predicted = [self.labels[number] for number in tags[part]]
            entities = tuple(
                Entity(
                    kind, text[(first := places[start][0]) : (last := places[stop - 1][1])], first, last, float(least)
                )
                for start, stop, kind in (chunks(predicted) if self.has_chunks else ())
                for least in [sure[part][start:stop].min()]
            )
            found.append(TaggedText(text, some, tuple(predicted), entities, tuple(places), tuple(sure[part].tolist())))
        return found


def split(text: Words) -> tuple[str, list[tuple[int, int]]]:
    """A text with the characters of each of its words; of words alone, the text with a space between them."""
    if isinstance(text, str):
        return text, [match.span() for match in WORD.finditer(text)]
    ends = np.cumsum([len(word) + 1 for word in text]).tolist() if text else []
    return " ".join(text), [(end - len(word) - 1, end - 1) for word, end in zip(text, ends, strict=True)]
