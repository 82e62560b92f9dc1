"""Multi-label classification with an encoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.formats.tables import Items
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch
from heedful.data.tokenizers.base import PairTokenizer
from heedful.models.heads.config import MultiLabelConfig
from heedful.tasks.base import Evaluated, HeldOut
from heedful.tasks.classification.predictor import outputs_of
from heedful.tasks.classification.task import TextTask, sample_text
from heedful.tasks.imbalance import label_weights
from heedful.tasks.multi_label.predictor import MultiLabelClassifier, label_loss, label_scores, label_targets
from heedful.training.class_report import ClassReport, label_report


class MultiLabelTask(TextTask[MultiLabelClassifier]):
    """Predict all labels of a text or of a pair of texts."""

    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """Which labels each text has (N, C)."""
        return label_targets(read.items, self.recipe.model.labels)

    def text_loss(self, model: Any, batch: LabelledBatch) -> Loss:
        """Binary cross-entropy."""
        return label_loss(model, batch)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The binary cross-entropy of the labels."""
        return partial(label_loss, model)

    def loss_on(
        self, model: Any, packed: bool, encoded: EncodedTexts, vocabulary: PairTokenizer
    ) -> Callable[[Any], Loss]:
        """The binary cross-entropy of the labels with their weights."""
        recipe = self.recipe
        weights = label_weights(model, encoded.targets, recipe.model.labels, recipe.task.class_weights)
        return partial(label_loss, model, weights=weights)

    @staticmethod
    def predictor(
        model: Any,
        config: MultiLabelConfig,
        vocabulary: PairTokenizer,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> MultiLabelClassifier:
        """The classifier of a trained model."""
        return MultiLabelClassifier(model, vocabulary, device, config.labels or (), config.context, notes)

    def evaluate(self, predictor: MultiLabelClassifier, held_out: HeldOut[Items, EncodedTexts]) -> Evaluated:
        """F1 and accuracy, and a few texts with predicted labels."""
        items, encoded = held_out.read.items, held_out.encoded
        logits = outputs_of(predictor.model, encoded, predictor.device)  # (N, C)
        samples = []
        for row in held_out.rows(len(items), self.recipe.train.samples):
            found = predictor.chosen(logits[row].sigmoid().tolist()).labels
            samples.append((sample_text(items[row].text, items[row].pair), items[row].label, ", ".join(found)))
        return held_out.result(label_scores(predictor.above(logits), encoded.targets), samples)

    def details(self, predictor: MultiLabelClassifier, split: Split) -> ClassReport:
        """Scores of each label, calibration, and the most confident wrong labels."""
        read = self.read(split)
        encoded = self.encode(read, predictor.tokenizer)
        logits = outputs_of(predictor.model, encoded, predictor.device)  # (N, C)
        found, shares = predictor.above(logits), logits.sigmoid().numpy()

        def show(row: int) -> str:
            return sample_text(read.items[row].text, read.items[row].pair)

        return label_report(split, "texts", encoded.targets, found, shares, predictor.labels, show)
