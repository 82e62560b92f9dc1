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

from heedful.blocks.losses import Loss, confidence_penalty, cross_entropy
from heedful.data.batch import IGNORE_INDEX
from heedful.data.formats.conll import Conll, JsonTags, Sentence, chunks, marks_chunks
from heedful.data.labelled.tagging import EncodedTags, TagBatch, encode_tags, encode_words
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.errors import UserError
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.tasks.reading import layout_of
from heedful.training.span_metrics import tag_scores

BATCH_TOKENS = 16384  # tokens of a batch
CHUNK = 4096  # texts that are tokenized at a time
# Approximately the words of CoNLL-2003: 's, U.S. and 1996-08-22 are words, and so is any other punctuation mark.
WORD = re.compile(r"['’]s\b|(?:\w\.){2,}|\w+(?:(?:[-.,&/@:]|['’](?!s\b))\w+)*|[^\w\s]")

Words = str | Sequence[str]  # a text, or its words


def outputs(model: Any, batch: TagBatch) -> Tensor:
    """The logits (M, C) of the words of a batch."""
    found: Tensor = model(batch.ids, batch.segments, layout_of(batch.sequences), batch.words)
    return found


def tag_loss(model: Any, batch: TagBatch, penalty: float = 0.0, weights: Tensor | None = None) -> Loss:
    """Cross-entropy of the tag of each word, with a confidence penalty; tags may have weights (C,)."""
    logits, keep = outputs(model, batch).float(), batch.labels != IGNORE_INDEX
    if weights is not None:
        loss = cross_entropy(logits, batch.labels, ignore=IGNORE_INDEX, weights=weights)
    else:
        total = F.cross_entropy(logits, batch.labels, ignore_index=IGNORE_INDEX, reduction="sum")
        loss = Loss(total, total.detach(), keep.sum())
    return confidence_penalty(loss, logits, keep, penalty)


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedTags, device: torch.device) -> float:
    """The mean loss per word over a set."""
    total = sum(tag_loss(model, batch.to(device)).plain.item() for batch, _ in encoded.in_order(BATCH_TOKENS))
    return total / len(encoded.labels)


@torch.inference_mode()
def most_probable_tags(
    model: Any, encoded: EncodedTags, device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The index of the most probable tag of each word of a set, and its probability."""
    tags, probabilities = np.zeros(len(encoded.labels), np.int64), np.zeros(len(encoded.labels), np.float32)
    for batch, indices in encoded.in_order(BATCH_TOKENS):
        best = outputs(model, batch.to(device)).float().softmax(-1).max(-1)
        tags[indices], probabilities[indices] = best.indices.cpu().numpy(), best.values.cpu().numpy()
    return tags, probabilities


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
    """The words of a text with their tags, and the entities if the tags are IOB tags."""

    text: str
    words: tuple[str, ...] = field(repr=False)
    tags: tuple[str, ...]
    entities: tuple[Entity, ...]
    spans: tuple[tuple[int, int], ...] = field(repr=False)  # start and end character of each word
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
        """Whether the tags are IOB tags, which mark chunks such as names."""
        return marks_chunks(self.labels)

    def predict(self, inputs: Sequence[Words]) -> list[TaggedText]:
        """The words of each text with their tags; see `tag`."""
        return self.tag(inputs)

    def _evaluate(self, data: Path | Sequence[tuple[Words, Sequence[str]]]) -> Evaluation:
        if isinstance(data, Path):
            kind = JsonTags if data.name.removesuffix(".gz").endswith(".jsonl") else Conll
            sentences = kind(train=str(data), valid=str(data)).read("valid").sentences
        else:
            texts = [(split(sentence), tags) for sentence, tags in data]
            sentences = [
                Sentence(tuple(text[start:end] for start, end in spans), tuple(tags), f"example {number}")
                for number, ((text, spans), tags) in enumerate(texts, 1)
            ]
            for one in sentences:
                if len(one.words) != len(one.tags):
                    raise UserError(
                        "the number of tags is not the number of words", where=one.where, found=f"{len(one.tags)} tags",
                        expected=f"{len(one.words)} tags", todo="pass the sentence as a list of words",
                    )  # fmt: skip
        encoded = encode_tags(sentences, self.tokenizer, self.labels, self.context)
        expected = [one.tags for one in sentences]
        loss = mean_loss(self.model, encoded, self.device)
        return Evaluation.of(tag_scores(self.tags(encoded), expected, self.labels), loss, len(sentences))

    def tag(self, texts: Sequence[Words]) -> list[TaggedText]:
        """The words of each text with their tags; a text may also be a list of words."""
        batch_of(texts)
        return [
            tagged
            for start in range(0, len(texts), CHUNK)
            for tagged in self._tag([split(text) for text in texts[start : start + CHUNK]])
        ]

    def tags(self, encoded: EncodedTags) -> list[tuple[str, ...]]:
        """The predicted tags of the words of each sentence of an encoded set."""
        return self.tags_of(most_probable_tags(self.model, encoded, self.device)[0], encoded)

    def tags_of(self, found: NDArray[np.int64], encoded: EncodedTags) -> list[tuple[str, ...]]:
        """The names of the tags with these indices, sentence by sentence."""
        parts = np.split(found, np.cumsum(encoded.counts)[:-1])
        return [tuple(self.labels[number] for number in part) for part in parts]

    def _tag(self, texts: Sequence[tuple[str, list[tuple[int, int]]]]) -> list[TaggedText]:
        words = [tuple(text[start:end] for start, end in spans) for text, spans in texts]
        encoded = encode_words(words, self.tokenizer, self.context)
        tags, probabilities = most_probable_tags(self.model, encoded, self.device)
        found, end = [], 0
        for (text, spans), text_words in zip(texts, words, strict=True):
            part = slice(end, end := end + len(text_words))
            predicted = [self.labels[number] for number in tags[part]]
            entities = tuple(
                Entity(kind, text[(first := spans[start][0]) : (last := spans[stop - 1][1])], first, last, float(least))
                for start, stop, kind in (chunks(predicted) if self.has_chunks else ())
                for least in [probabilities[part][start:stop].min()]
            )
            of_tags = tuple(probabilities[part].tolist())
            found.append(TaggedText(text, text_words, tuple(predicted), entities, tuple(spans), of_tags))
        return found


def split(text: Words) -> tuple[str, list[tuple[int, int]]]:
    """A text and the spans of its words; a list of words is joined by spaces."""
    if isinstance(text, str):
        return text, [match.span() for match in WORD.finditer(text)]
    ends = np.cumsum([len(word) + 1 for word in text]).tolist() if text else []
    return " ".join(text), [(end - len(word) - 1, end - 1) for word, end in zip(text, ends, strict=True)]
