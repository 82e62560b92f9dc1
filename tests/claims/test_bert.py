"""Claims about BERT as an encoder: its vectors, the limits of masked prediction, and its cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import decomposition
from torch.utils.flop_counter import FlopCounterMode

from heedful.blocks.taps import watch
from heedful.data.labelled.batches import encode_texts
from heedful.data.text.pretraining_batches import PairExample, PretrainingBatch, example_batch
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.lectures.contexts import SENTENCES, WORD, word_vectors
from heedful.lectures.cost import CLAIMS, Claim, published_work, training_work
from heedful.lectures.occurrences import principal_components
from heedful.models import build
from heedful.models.bert.config import SIZES, BertConfig
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.tasks.pretraining.loss import pretraining_loss
from heedful.tasks.pretraining.predictor import TextEncoder
from tolerance import close, near

TOKENIZER = BertTokenizer.train(WordPiece(vocab=300, lowercase=True), SENTENCES * 3)


def random_encoder(layers: int = 3) -> TextEncoder:
    torch.manual_seed(0)
    config = BertConfig(vocab=TOKENIZER.vocab, width=24, heads=2, layers=layers, hidden=32, context=40)
    model = build(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return TextEncoder(model, TOKENIZER, torch.device("cpu"))


@pytest.mark.claim("F1")
def test_every_position_attends_to_both_sides() -> None:
    model, tokens = random_encoder().model, torch.randint(5, TOKENIZER.vocab, (1, 9))
    before = model(tokens)
    for position in (0, 4, 8):
        other = tokens.clone()
        other[0, position] = 5 + (other[0, position] - 4) % (TOKENIZER.vocab - 5)
        assert bool((model(other) != before).any(-1).all())  # also to the left of the change
    x = model.embed(tokens, None, torch.arange(9)).detach().requires_grad_()
    y = x
    for block in model.blocks:
        y = block(y)
    (gradient,) = torch.autograd.grad(y[0, 0].sum(), x)
    assert bool(gradient[0].any(-1).all())  # the first position depends on all others


@pytest.mark.claim("F18")
@pytest.mark.claim("L3")
def test_word_vectors_are_static_in_the_table_and_contextual_above() -> None:
    vectors = word_vectors(random_encoder(), WORD, SENTENCES)  # (N, L + 2, D)
    assert bool((vectors[:, 0] == vectors[0, 0]).all())
    for layer in range(2, vectors.shape[1]):
        distances = torch.cdist(vectors[:, layer], vectors[:, layer]) + torch.eye(len(SENTENCES))
        assert float(distances.min()) > 1e-3


@pytest.mark.claim("F18")
def test_every_layer_gives_features() -> None:
    one = random_encoder()
    (tokens,) = one.layers(["the cat caught a mouse"])
    assert tokens.values.shape == (one.model.config.layers + 1, len(tokens.pieces), one.model.config.width)
    assert torch.unique(tokens.values[:, 1], dim=0).shape[0] == one.model.config.layers + 1


@pytest.mark.claim("F22")
def test_two_masks_are_predicted_independently() -> None:
    """Two masks are predicted as a product of probabilities; filled one after the other, they give others."""
    one, text = random_encoder(), "the cat caught a [MASK] in the [MASK]"
    found = one.fill(text, top=3)
    first, second = (
        {prediction.word: prediction.probability for prediction in predicted} for predicted in found.predictions
    )
    for joint in found.joint:
        a, b = joint.words
        if a in first and b in second:
            assert joint.independent == near(math.log(first[a] * second[b]))
        one_mask = one.fill(f"the cat caught a {a} in the [MASK]", top=TOKENIZER.vocab).predictions[0]
        then = {prediction.word: prediction.probability for prediction in one_mask}
        alone = {
            prediction.word: prediction.probability for prediction in one.fill(text, top=TOKENIZER.vocab).predictions[0]
        }
        if not a.startswith(("##", "[")) and not b.startswith(("##", "[")):
            assert joint.forward == near(math.log(alone[a] * then[b]), 1024)
    assert any(abs(joint.forward - joint.independent) > 0.01 for joint in found.joint)
    assert any(abs(joint.forward - joint.backward) > 1e-4 for joint in found.joint)  # the two orders differ as well
    assert found.dependence is not None and found.dependence != 0.0
    assert one.fill("the cat caught a [MASK]").dependence is None


@pytest.mark.claim("F22")
def test_mask_token_is_absent_in_fine_tuning() -> None:
    pairs = example_batch([PairExample(SENTENCES[0], SENTENCES[1], True, [WORD])], TOKENIZER)
    assert bool((pairs.ids == TOKENIZER.mask).any())
    texts = [*SENTENCES, "a text that contains [MASK] literally"]
    encoded = encode_texts([(text, None) for text in texts], np.zeros(len(texts), np.int64), TOKENIZER, 40)
    ids = encoded.batch(np.arange(len(texts))).ids
    assert len(ids) == len(texts) and not bool((ids == TOKENIZER.mask).any())


def flops(model: Any, run: Callable[[], Any]) -> dict[str, int]:
    """Floating-point operations by kind of product, without fused kernels."""
    with FlopCounterMode(display=False) as counter, watch(model, "*"):
        run()
    return {str(name).removeprefix("aten."): count for name, count in counter.get_flop_counts()["Global"].items()}


@pytest.mark.claim("F22")
def test_self_attention_is_quadratic_and_rnn_linear_in_length() -> None:
    encoder, recurrent = random_encoder().model, build(RnnLMConfig(vocab=50, width=8, hidden=8, layers=1, dropout=0.0))
    pairs, steps = [], []
    for length in (8, 16, 32):
        tokens = torch.randint(5, 50, (1, length))
        pairs.append(flops(encoder, lambda tokens=tokens: encoder(tokens))["bmm"])
        steps.append(sum(flops(recurrent, lambda tokens=tokens: recurrent.read(tokens)).values()))
    assert [four / one for one, four in pairwise(pairs)] == [4, 4]
    assert [two / one for one, two in pairwise(steps)] == [2, 2]


@pytest.mark.claim("F23")
def test_each_layer_has_a_pca_map_of_word_occurrences() -> None:
    """The points are the two principal components of the layer's vectors."""
    vectors = word_vectors(random_encoder(), WORD, SENTENCES)[:, 1:]
    maps = []
    for layer in vectors.transpose(0, 1):
        points, held = principal_components(layer)
        theirs = decomposition.PCA(2, svd_solver="full").fit(layer.double().numpy())
        expected = theirs.transform(layer.double().numpy())
        signs = np.sign((points.numpy() * expected).sum(0))
        close(points, expected * signs, dtype=torch.float32)
        assert held == pytest.approx(float(theirs.explained_variance_ratio_.sum()), rel=1e-9)
        largest = theirs.components_[[0, 1], np.abs(theirs.components_).argmax(1)]
        assert (signs == np.sign(largest)).all()  # the largest component of a direction is positive
        maps.append(points)
    assert torch.stack(maps).shape == (random_encoder().model.config.layers + 1, len(SENTENCES), 2)
    assert all(not torch.allclose(one, other) for one, other in pairwise(maps))


@pytest.mark.claim("F12")
@pytest.mark.parametrize("length", [20, 40])
def test_counted_flops_match_a_training_step(length: int) -> None:
    rows, masked = 4, length * 3 // 20  # 15 % of the tokens
    config = BertConfig(vocab=500, width=48, heads=4, layers=3, hidden=160, context=length, dropout=0.0,
                        attention_dropout=0.0, next_sentence=False, pooler=False)  # fmt: skip
    model, ids = build(config), torch.randint(5, 500, (rows, length))
    positions = torch.cat([row * length + torch.randperm(length)[:masked] for row in range(rows)])
    batch = PretrainingBatch(
        ids, torch.zeros_like(ids), torch.full((rows,), length), positions, ids.flatten()[positions],
        torch.zeros(rows, dtype=torch.long), torch.tensor([rows * length, rows * masked, rows]), torch.arange(rows),
        length,
    )  # fmt: skip
    done = flops(model, lambda: pretraining_loss(model, batch).total.backward())
    # Products of positions with each other are exact; among the others are sums over rows for the biases' gradients.
    assert done["bmm"] == 3 * 2 * rows * length * 2 * config.layers * config.width * length
    assert sum(done.values()) == pytest.approx(training_work(config, 500, rows * length, length), rel=2e-3)


@pytest.mark.claim("F12")
@pytest.mark.claim("X5")
def test_published_training_costs_agree_with_counted_flops() -> None:
    base, large = published_work("bert-base"), published_work("bert-large")
    config, tokens = SIZES["bert-base"], 1e9
    assert isinstance(config, BertConfig)
    # About 6 FLOPs per weight and token, for the weights that are multiplied at every position.
    multiplied = config.layers * (4 * config.width**2 + 2 * config.width * config.hidden)
    assert training_work(config, 30_522, tokens, 128) == pytest.approx(6 * multiplied * tokens, rel=0.1)
    assert large / base == pytest.approx(3.4, abs=0.2)
    work = {"bert-base": base, "bert-large": large}
    for claim in CLAIMS:
        assert 0.01 < work[claim.model] / claim.work < 0.5
    # 16 and 64 are chips: both sizes then had the same utilization. The other three rows are one estimate.
    paper, other = CLAIMS[:2], CLAIMS[2:]
    assert base / paper[0].work == pytest.approx(large / paper[1].work, rel=0.2)
    assert max(claim.work for claim in other) / min(claim.work for claim in other) < 1.1
    assert other[0].work / paper[1].work == 4
    assert Claim("bert-large", 64, "TPU v2", 4) in paper
