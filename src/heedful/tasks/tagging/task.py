"""Token tagging: F1 of the chunks of IOB tags, or accuracy of other tags."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.conll import Sentences, chunks, marks_chunks
from heedful.data.formats.sources import Split
from heedful.data.labelled.tagging import EncodedTags, TagBatches, encode_tags
from heedful.data.own import tagged
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.models.heads.config import TaggerConfig
from heedful.tasks.base import Evaluated, Example, HeldOut, Names
from heedful.tasks.finetuning.task import FinetuningTask
from heedful.tasks.imbalance import weights_for
from heedful.tasks.tagging.predictor import TokenTagger, mean_loss, most_probable_tags, tag_loss
from heedful.tasks.tagging.report import tag_report
from heedful.training.class_report import ClassReport
from heedful.training.span_metrics import tag_scores


class TaggingTask(FinetuningTask[Sentences, MaskTokenizer, EncodedTags, TokenTagger]):
    """Predict the tag of each word of a sentence."""

    words: ClassVar = Names(
        examples="sentences",
        tokens="tokens",
        too_long="sentences that are too long",
        blank="sentences without words, left out",
        learning="preparing the tokenizer",
        encoding="tokenizing the sentences",
        testing="tagging the {} set",
        sample=("sentence", "expected", "predicted"),
        counted="words",
    )

    collect = staticmethod(tagged)

    def texts(self, read: Sentences) -> list[str]:
        """The sentences, with words joined by spaces."""
        return [" ".join(sentence.words) for sentence in read.sentences]

    def encode(self, read: Sentences, vocabulary: MaskTokenizer) -> EncodedTags:
        """Token ids of words; a sentence that is too long is split into windows."""
        return encode_tags(read.sentences, vocabulary, self.recipe.model.labels, self.recipe.model.context)

    def notes(self, encoded: EncodedTags) -> list[str]:
        """A note on the number of truncated words."""
        note = f"{encoded.cut:,} words have more than {encoded.context} tokens, and are truncated"
        return [note] if encoded.cut else []

    def batches(self, encoded: EncodedTags, packed: bool, even: bool) -> TagBatches:
        """Padded batches of sentences of similar lengths, or packed batches."""
        train = self.recipe.train
        return TagBatches(encoded, train.seed, train.batch_tokens, train.batch_examples, packed)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the tags."""
        return partial(tag_loss, model, penalty=self.recipe.task.confidence_penalty)

    def loss_on(
        self, model: Any, packed: bool, encoded: EncodedTags, vocabulary: MaskTokenizer
    ) -> Callable[[Any], Loss]:
        """Cross-entropy of the tags with their weights."""
        recipe = self.recipe
        weights = weights_for(model, encoded.labels, recipe.model.labels, recipe.task.class_weights)
        return partial(tag_loss, model, penalty=self.recipe.task.confidence_penalty, weights=weights)

    @staticmethod
    def predictor(
        model: Any,
        config: TaggerConfig,
        vocabulary: MaskTokenizer,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TokenTagger:
        """The tagger of a trained model."""
        return TokenTagger(model, vocabulary, device, config.labels or (), config.context, notes)

    def loss(self, predictor: TokenTagger, encoded: EncodedTags) -> float:
        """The mean loss per word."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: TokenTagger, held_out: HeldOut[Sentences, EncodedTags]) -> Evaluated:
        """Scores of chunks or tags (during training without those of each tag), and a few sentences with their tags."""
        sentences, found = held_out.read.sentences, predictor.tags(held_out.encoded)
        right, words = [sentence.tags for sentence in sentences], [sentence.words for sentence in sentences]
        show = format_chunks if predictor.has_chunks else format_tags
        rows = held_out.rows(len(right), self.recipe.train.samples)
        samples = [(" ".join(words[row]), show(words[row], right[row]), show(words[row], found[row])) for row in rows]
        return held_out.result(tag_scores(found, right, predictor.labels, each=held_out.beams is None), samples)

    def details(self, predictor: TokenTagger, split: Split) -> ClassReport:
        """Of entities, or of words if no tags mark entities: confusion, scores of each kind, calibration, mistakes."""
        read = self.read(split)
        encoded = self.encode(read, predictor.tokenizer)
        tags, shares = most_probable_tags(predictor.model, encoded, predictor.device)
        words = [sentence.words for sentence in read.sentences]
        right, found = [sentence.tags for sentence in read.sentences], predictor.tags_of(tags, encoded)
        parts = np.split(shares, np.cumsum(encoded.counts)[:-1])
        return tag_report(split, words, right, found, parts, predictor.labels)

    def examples(self, split: Split) -> Iterator[Example]:
        """The sentences of a split."""
        sentences = self.read(split).sentences
        return (Example(" ".join(one.words), None, format_chunks(one.words, one.tags)) for one in sentences)

    @property
    def metric(self) -> str:
        """F1 of the chunks of IOB tags, or accuracy of other tags."""
        labels = self.recipe.model.labels
        return "f1" if labels is None or marks_chunks(labels) else "accuracy"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that tag texts, and that evaluate."""
        name = shlex.quote(str(folder))
        return [f"heedful tag {name} 'Ada Lovelace was born in London.'", f"heedful eval {name} --split valid"]


def format_chunks(words: Sequence[str], tags: Sequence[str]) -> str:
    """The chunks of a sentence as a sample shows them."""
    return "; ".join(f"{kind} {' '.join(words[start:end])}" for start, end, kind in chunks(tags)) or "nothing"


def format_tags(words: Sequence[str], tags: Sequence[str]) -> str:
    """The words of a sentence with their tags, as a sample shows them."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
