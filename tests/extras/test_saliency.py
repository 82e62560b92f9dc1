"""What in a text decides its class, for every model that classifies texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.data.labelled.sequences import Sequences, pad_sequences
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError
from heedful.extras.saliency import (
    attention_rollout,
    class_logit,
    explain,
    gradient_times_input,
    has_rollout,
    integrated_gradients,
    methods_of,
    token_vectors,
)
from heedful.models import build, config_class, kinds_of
from heedful.models.heads.config import ClassifierConfig, MultiLabelConfig
from heedful.tasks.classification.predictor import TextClassifier
from heedful.tasks.reading import layout_of
from tolerance import close


def configs() -> dict[str, Any]:
    """A tiny classifier on every encoder, one of several labels, and every classifier of words."""
    found = {}
    for kind in kinds_of("encoder"):
        encoder = config_class(kind).tiny().under_head(True, "classifier")
        found[kind] = ClassifierConfig(encoder=encoder, labels=("a", "b", "c"))
    found["multi_label"] = MultiLabelConfig.tiny()
    return found | {kind: config_class(kind).tiny() for kind in kinds_of("word_classifier")}


CONFIGS = configs()
NO_ROLLOUT = {"linformer", "rnn_encoder", "conv_encoder", "conv_classifier", "rnn_classifier"}
WITH_RELU = {"distilbert", "conv_encoder", "conv_classifier", "transformer_classifier"}  # gradients that jump
every_classifier = pytest.mark.parametrize("kind", CONFIGS)
every_attentive = pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind not in NO_ROLLOUT])


def model_of(kind: str) -> Any:
    """A classifier in float64, with noise on its weights, so that no bias is zero and no norm is the identity."""
    torch.manual_seed(0)
    model = build(CONFIGS[kind]).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@pytest.fixture(scope="module")
def trained() -> TextClassifier:
    """A classifier of words with a vocabulary."""
    torch.manual_seed(0)
    vocabulary = TextVocab.learn(["a good film", "a bad film"], ("neg", "pos"), "words", True, 1)
    config = config_class("transformer_classifier").tiny()
    model = build(config.model_copy(update={"vocab": vocabulary.vocab, "labels": vocabulary.labels})).eval()
    return TextClassifier(model, vocabulary, torch.device("cpu"), vocabulary.labels, config.context)


def texts(*lengths: int, width: int | None = None) -> Sequences:
    made = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 23, (length,), generator=made).tolist() for length in lengths]
    return pad_sequences([(row, [int(2 * at >= len(row)) for at in range(len(row))]) for row in rows], 0, width)


@every_classifier
def test_integrated_gradients_add_up_to_the_difference_of_logits(kind: str) -> None:
    model, some = model_of(kind), texts(9, 4)
    classes = torch.tensor([1, 0])
    blank = replace(some, ids=torch.full_like(some.ids, 2))
    logits = [model(one.ids, one.segments, layout_of(one))[[0, 1], classes] for one in (some, blank)]
    expected = (logits[0] - logits[1]).detach()
    found = integrated_gradients(model, some, classes, blank.ids, steps=64).sum(1)
    assert (found - expected).abs().max() < (0.02 if kind in WITH_RELU else 1e-4) * expected.abs().max()
    plain = gradient_times_input(model, some, classes).sum(1)
    assert (plain - expected).abs().max() > 0.01 * expected.abs().max(), "gradient x input does not add up"


@every_classifier
def test_gradient_times_input_is_the_change_of_the_logit(kind: str) -> None:
    model, some = model_of(kind), texts(7)
    score, vectors = class_logit(model, some, 1), token_vectors(model, some)
    found = gradient_times_input(model, some, 1)[0]
    for place in (0, 3, 6):
        step = torch.zeros_like(vectors)
        step[0, place] = 1e-6 * vectors[0, place]
        slope = float((score(vectors + step) - score(vectors - step)).detach()) / 2e-6
        assert float(found[place]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@every_classifier
def test_a_batch_and_padding_change_no_value(kind: str) -> None:
    model, some = model_of(kind), texts(9, 2, 6, width=12)
    methods: list[Callable[[Sequences], Tensor]] = [
        lambda one: gradient_times_input(model, one, 1),
        lambda one: integrated_gradients(model, one, 1, torch.full_like(one.ids, 2), 4),
    ]
    if has_rollout(model):
        methods.append(lambda one: attention_rollout(model, one))
    for method in methods:
        found = method(some)
        for row, length in enumerate((9, 2, 6)):
            ids, segments = (part[row, :length].tolist() for part in (some.ids, some.segments))
            close(found[row, :length], method(pad_sequences([(ids, segments)], 0))[0], slack=1024)
            assert not found[row, length:].any(), "padding has no value"
    assert not any(weight.grad is not None for weight in model.parameters())


@every_attentive
def test_rollout_follows_the_weights_to_the_tokens(kind: str) -> None:
    """Layer by layer from what the head reads, half of it by the residual path."""
    model, some = model_of(kind), texts(8)
    found = attention_rollout(model, some)[0]
    with watch(model, "*.weights") as seen:
        model(some.ids, some.segments)
    size = next(iter(seen.values())).shape[-1]
    front = size - 8  # extra tokens of the encoder, before the text
    reads = torch.full((size,), 1 / size) if kind == "transformer_classifier" else torch.eye(size)[front]
    reads = torch.eye(size)[-1] if kind == "xlnet" else reads
    reads = reads.double()
    for weights in reversed(seen.values()):
        reads = 0.5 * reads + 0.5 * reads @ weights[0].mean(0)
    close(found, reads[front:])
    assert float(found.sum()) == pytest.approx(1.0) or front


@pytest.mark.parametrize("kind", sorted(NO_ROLLOUT))
def test_without_attention_of_tokens_there_is_no_rollout(kind: str) -> None:
    with pytest.raises(UserError, match="no attention from token to token"):
        attention_rollout(model_of(kind), texts(6))


def test_predictors_are_explained_with_their_tokens(trained: TextClassifier) -> None:
    texts = ["a good film", ("bad", "good")]
    for method in methods_of(trained.model):
        first, second = explain(trained, texts, method)
        assert first.tokens == ["<s>", "a", "good", "film", "</s>"] and len(first.values) == 5
        assert first == explain(trained, texts[:1], method)[0] and len(second.tokens) == 5
    assert explain(trained, texts, label="pos")[0].label == "pos"
    whole = explain(trained, texts[:1], "integrated gradients", "pos")[0]
    assert whole.values[0] == whole.values[-1] == 0, "special tokens are those of the baseline"


@pytest.mark.parametrize(("wrong", "says"), [({"method": "lime"}, "no such method"), ({"label": "x"}, "no such label")])
def test_what_cannot_be_explained_is_refused(trained: TextClassifier, wrong: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        explain(trained, ["a good film"], **wrong)
