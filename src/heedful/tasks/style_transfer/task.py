"""Text style transfer: two players, a generator and a discriminator, learn from texts that are not parallel."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.formats.tables import Items, collect_labels
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, LabelledBatches
from heedful.data.labelled.registers import Registers
from heedful.data.own import labelled
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Task
from heedful.tasks.classification.task import TextClassificationTask, truncation_notes
from heedful.tasks.style_transfer.losses import mean_loss, transfer_loss
from heedful.tasks.style_transfer.predictor import (
    TextStyleTransfer,
    encode_items,
    grammar_scores,
    judged_scores,
    transferred,
)
from heedful.tasks.style_transfer.recipe import StyleTransferRecipe
from heedful.training.configs import PlayerConfig


class StyleTransferTask(Task[Items, TextVocab, EncodedTexts, TextStyleTransfer]):
    """Say a text in another style."""

    words: ClassVar = Names(
        examples="texts",
        tokens="tokens",
        too_long="texts that are too long",
        blank="blank texts, left out",
        learning="building the vocabulary",
        encoding="encoding the texts",
        testing="transferring the {} set",
        sample=("text", "target style", "transferred"),
        counted="texts",
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"tokenizer.json": Codec(TextVocab, TextVocab.load)}
    searches: ClassVar = False
    recipe: StyleTransferRecipe

    def read(self, split: Split) -> Items:
        """The texts of a split, with their styles."""
        found: Items = self.recipe.data.read(split)
        return found

    @staticmethod
    def collect(examples: Any, split: Split) -> Items:
        """(text, style)."""
        found = labelled(examples, split)
        for item in found.items:
            if item.pair is not None:
                raise UserError("a style belongs to one text", where=item.where, found="two texts", expected="one text")
        return found

    def learn(self, read: Items) -> TextVocab:
        """The vocabulary of the texts, and the styles."""
        config = self.recipe.tokenizer
        labels = self.recipe.model.labels or collect_labels(read.items, "the training data")
        return TextVocab.learn(
            (item.text for item in read.items), labels, config.kind, config.lowercase, config.at_least
        )

    fitted = staticmethod(TextClassificationTask.fitted)

    def encode(self, read: Items, vocabulary: TextVocab) -> EncodedTexts:
        """Token ids of texts, which are truncated to the context."""
        return encode_items(read.items, vocabulary.labels, vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedTexts) -> list[str]:
        """A note on the number of truncated texts."""
        return truncation_notes(encoded)

    def batches(self, encoded: EncodedTexts, packed: bool, even: bool) -> LabelledBatches:
        """Padded batches of texts of similar lengths."""
        train = self.recipe.train
        return LabelledBatches(encoded, train.seed, train.batch_tokens, train.batch_examples)

    def loss_of(self, model: Any, packed: bool) -> Callable[[LabelledBatch], Loss]:
        """The losses of both players."""
        return partial(transfer_loss, model, settings=self.recipe.task)

    @property
    def players(self) -> Mapping[str, PlayerConfig]:
        """The discriminator; all other weights are the generator's."""
        return {"discriminator": self.recipe.task.discriminator}

    @staticmethod
    def predictor(
        model: Any, config: Any, vocabulary: TextVocab, decode: None, device: torch.device, notes: tuple[str, ...] = ()
    ) -> TextStyleTransfer:
        """The predictor of a trained model."""
        return TextStyleTransfer(model, vocabulary, device, config.context, notes)

    def loss(self, predictor: TextStyleTransfer, encoded: EncodedTexts) -> float:
        """The reconstruction loss."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: TextStyleTransfer, held_out: HeldOut[Items, EncodedTexts]) -> Evaluated:
        """Style and content of every text in another style, and a few of them."""
        items, wanted = held_out.read.items, transferred(held_out.encoded, len(predictor.styles))
        written = predictor.write(wanted)
        if isinstance(self.recipe.data, Registers):
            scores = grammar_scores(items, written)
        else:
            scores = judged_scores(items, written, predictor)
        rows = held_out.rows(len(items), self.recipe.train.samples)
        samples = [(items[row].text, predictor.styles[wanted.targets[row]], written[row]) for row in rows]
        return held_out.result(scores, samples)

    @property
    def metric(self) -> str:
        """The score in `task.metric`."""
        return self.recipe.task.metric

    def examples(self, split: Split) -> Iterator[Example]:
        """The texts of a split."""
        return (Example(item.text, None, item.label) for item in self.read(split).items)

    def remarks(self, result: Evaluated) -> list[str]:
        """A remark if the discriminator judges the generator that it was trained with."""
        if isinstance(self.recipe.data, Registers):
            return []
        return ["style is the discriminator's own judgement; a classifier trained apart is a stricter judge"]

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that transfer texts, and that evaluate."""
        name = shlex.quote(str(folder))
        return [
            f"heedful transfer {name} 'a text of your own' --style NAME",
            f"heedful eval {name} --split valid",
        ]
