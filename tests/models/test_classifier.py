"""Classification and regression heads on an encoder: batching, gradients, freezing, settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heedful.config import parse
from heedful.data.labelled.batches import LabelledBatch, encode_texts
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.heads.config import ClassifierConfig, RegressorConfig
from heedful.tasks.classification.predictor import class_loss, number_loss, outputs
from heedful.training.optim import AdamW, make_optimizer
from tolerance import close

TEXTS = [
    ("a cat sat", None),
    ("the dog ran off", "it never came back"),
    ("no", None),
    ("so long a text as this one", "ok"),
]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=60), [text for pair in TEXTS for text in pair if text])
ENCODER = BertConfig(vocab=TOKENIZER.vocab, width=8, heads=2, layers=2, hidden=12, context=40)
CLASSIFIER = ClassifierConfig(encoder=ENCODER, labels=("no", "perhaps", "yes"))
REGRESSOR = RegressorConfig(encoder=ENCODER)
CONFIGS = [pytest.param(CLASSIFIER, id="classifier"), pytest.param(REGRESSOR, id="regressor")]


def batches(targets: np.ndarray[Any, Any]) -> tuple[LabelledBatch, LabelledBatch]:
    """The texts padded, one per row, and packed into one row."""
    encoded = encode_texts(TEXTS, targets, TOKENIZER, ENCODER.context)
    rows = np.arange(len(TEXTS))
    return encoded.batch(rows), encoded.pack(rows, 128, 7)


@pytest.mark.parametrize("config", CONFIGS)
def test_packed_and_padded_outputs_equal_single_texts(config: Any) -> None:
    model = build(config).eval()
    padded, packed = batches(np.arange(4))
    alone = torch.cat([outputs(model, part) for part in map(one, range(4))])
    assert outputs(model, padded).shape == ((4, 3) if config is CLASSIFIER else (4,))
    close(outputs(model, padded), alone)
    close(outputs(model, packed)[:4], alone)


def one(row: int) -> LabelledBatch:
    return encode_texts(TEXTS, np.arange(4), TOKENIZER, ENCODER.context).batch(np.array([row]))


def test_packed_and_padded_losses_and_gradients_are_equal() -> None:
    numbers = np.array([0.5, 2.25, -1.0, 4.75])
    for config, loss, targets in (
        (CLASSIFIER, class_loss, np.array([0, 2, 1, 2])),
        (REGRESSOR, number_loss, numbers.view(np.int64)),
    ):
        model = build(config).eval()
        found = []
        for batch in batches(targets):
            model.zero_grad()
            computed = loss(model, batch)
            computed.total.backward()
            assert computed.count == 4 and computed.plain == computed.total
            found.append(
                (
                    computed.total.detach(),
                    [weight.grad.clone() for weight in model.parameters() if weight.grad is not None],
                )
            )
        close(found[0], found[1], slack=1024)
        said = outputs(model, batches(targets)[0])
        if config is REGRESSOR:
            by_hand = (said - torch.from_numpy(numbers).float()).square().sum()
        else:
            by_hand = torch.nn.functional.cross_entropy(said, torch.from_numpy(targets), reduction="sum")
        close(found[0][0], by_hand.detach())


def test_regression_targets_survive_the_batch_exactly() -> None:
    numbers = np.array([3.8, -0.1, 1e-7, 5.0])
    for batch in batches(numbers.view(np.int64)):
        assert batch.numbers[:4].tolist() == torch.from_numpy(numbers).float().tolist()
        assert batch.numbers[4:].tolist() == [0.0] * (len(batch.indices) - 4)


def test_empty_batch_has_zero_loss_and_gradient() -> None:
    encoded = encode_texts(TEXTS, np.zeros(4, dtype=np.int64), TOKENIZER, ENCODER.context)
    none = np.zeros(0, dtype=np.int64)
    for config, loss in ((CLASSIFIER, class_loss), (REGRESSOR, number_loss)):
        model = build(config).eval()
        for batch in (encoded.batch(none), encoded.pack(none, 64, 4)):
            computed = loss(model, batch)
            computed.total.backward()
            assert (computed.total, computed.count, batch.tokens) == (0, 0, 0)
            assert all(not weight.grad.any() for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_parameter_learns_unless_frozen(config: Any) -> None:
    padded, _ = batches(np.array([0, 2, 1, 2]))
    loss = class_loss if config is CLASSIFIER else number_loss
    for freeze in (False, True):
        model = build(config.model_copy(update={"freeze": freeze}))
        loss(model.train(), padded).total.backward()
        learns = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
        whole = {name for name, _ in model.named_parameters()}
        assert learns == ({"head.weight", "head.bias"} if freeze else whole)
        groups = make_optimizer(AdamW(), model, torch.device("cpu")).param_groups
        assert sum(len(group["params"]) for group in groups) == len(learns)


def test_frozen_encoder_has_no_dropout() -> None:
    model: Any = build(CLASSIFIER.model_copy(update={"freeze": True})).train()
    assert model.dropout.training and not model.encoder.training and not model.encoder.dropout.training
    assert build(CLASSIFIER).train().encoder.dropout.training  # type: ignore[union-attr]


def test_parameter_count_without_building_the_model() -> None:
    for config in (CLASSIFIER, REGRESSOR):
        assert config.parameters(TOKENIZER.vocab) == sum(weight.numel() for weight in build(config).parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": {"masked_words": True}}, "write masked_words: false"),
        ({"encoder": {"pooler": False, "next_sentence": False}}, "write pooler: true"),
        ({"labels": ["a", "b", "a"]}, "'a' stands here more than once"),
        ({"labels": ["a"]}, "at least 2 items"),
    ],
)
def test_conflicting_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(ClassifierConfig, settings)
