"""Fine-tuning against `transformers`: the same weights, batches and settings give the same losses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, encode_texts
from heedful.data.row_schedule import split_rows
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.runs.load import load
from heedful.tasks.classification.predictor import (
    TextClassifier,
    TextRegressor,
    class_loss,
    mean_loss,
    number_loss,
    outputs_of,
)
from heedful.training.carry import stateless
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.team import ParallelLoss
from heedful.training.optim import AdamW, make_optimizer
from heedful.training.step import PlainStep
from tolerance import close

transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")
WORDS = [
    "a",
    "the",
    "film",
    "book",
    "was",
    "is",
    "very",
    "not",
    "good",
    "bad",
    "fine",
    "poor",
    "plot",
    "story",
    "and",
    "or",
]
TEXTS = [
    (" ".join(WORDS[(3 * row + 5 * place) % 16] for place in range(2 + row % 9)), WORDS[row % 16] if row % 3 else None)
    for row in range(48)
]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=60), [" ".join(WORDS)])
NUMBERS = np.linspace(0, 5, 48)


def folder(path: Path, outputs: int) -> Any:
    """A model of `transformers` without dropout, and a folder of it with a vocabulary."""
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=TOKENIZER.vocab, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            num_labels=outputs, problem_type="regression" if outputs == 1 else None,
        )
    )  # fmt: skip
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(TOKENIZER.json, encoding="utf-8")
    return model.train()


def their_loss(model: Any, batch: LabelledBatch, number: bool) -> Any:
    real = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long()
    labels = batch.numbers if number else batch.targets
    return model(batch.ids, attention_mask=real, token_type_ids=batch.segments, labels=labels).loss


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_training_steps_match_transformers(outputs: int, packed: bool, tmp_path: Path) -> None:
    theirs = folder(tmp_path, outputs)
    predictor = load(tmp_path, "cpu")
    assert type(predictor) is (TextRegressor if outputs == 1 else TextClassifier)
    ours = predictor.model.train()
    ours.dropout.p = 0.0
    targets = NUMBERS.view(np.int64) if outputs == 1 else np.arange(48) % 3
    encoded = encode_texts(TEXTS, targets, TOKENIZER, 32)

    settings = AdamW(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    config = TrainConfig(budget=Budget(steps=1), optimizer=settings)
    learn = partial(number_loss if outputs == 1 else class_loss, ours)
    step = PlainStep(ours, ParallelLoss(stateless(learn)), make_optimizer(settings, ours, CPU), config, CPU, None)
    bare = ("bias", "LayerNorm.weight")
    named = list(theirs.named_parameters())
    groups = [
        {"params": [weight for name, weight in named if not name.endswith(bare)], "weight_decay": 0.1},
        {"params": [weight for name, weight in named if name.endswith(bare)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.999), eps=1e-8)
    for rows in split_rows(np.arange(48), 8):
        batch = encoded.batch(rows)
        loss = step.gradients(encoded.pack(rows, 256, 8) if packed else batch, batch.tokens)
        expected = their_loss(theirs, batch, outputs == 1)
        assert float(loss.plain) / batch.tokens == pytest.approx(expected.item(), rel=2e-5)
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        assert float(step.norm()) == pytest.approx(float(norm), rel=2e-4)
        step.update(2e-3)
        optimizer.step()
        optimizer.zero_grad()


def encoded_texts() -> EncodedTexts:
    return encode_texts(TEXTS, np.arange(48) % 3, TOKENIZER, 32)


def test_predictions_are_in_order_and_the_loss_is_their_mean(tmp_path: Path) -> None:
    folder(tmp_path, 3)
    predictor = load(tmp_path, "cpu")
    found = outputs_of(predictor.model, encoded_texts(), CPU)
    alone = torch.cat(
        [outputs_of(predictor.model, encode_texts([text], np.zeros(1, np.int64), TOKENIZER, 32), CPU) for text in TEXTS]
    )
    close(found, alone)
    by_hand = torch.nn.functional.cross_entropy(found, torch.arange(48) % 3)
    assert mean_loss(class_loss, predictor.model, encoded_texts(), CPU) == pytest.approx(float(by_hand), rel=1e-5)
