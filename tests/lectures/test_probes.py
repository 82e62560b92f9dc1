"""Position probes, vectors of a word, and the signs of their PCA map."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.lectures import nopos
from heedful.lectures.contexts import word_vectors
from heedful.lectures.learning import seeded
from heedful.lectures.nopos import Settings, Windows, config_of, layers_of, probe, probe_error
from heedful.lectures.occurrences import principal_components
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.gpt.model import Gpt
from heedful.tasks.pretraining.predictor import TextEncoder
from tolerance import close

SMALL = Settings(width=16, layers=2, context=12)


# ------------------------------------------------------------------ position probes
def test_probe_is_ridge_regression_scored_on_held_out_vectors() -> None:
    B, T, D = 6, 9, 5
    one, other = torch.randn(B, T, D), torch.randn(B, T, D)
    positions = np.tile(np.arange(T), B)
    known, tried = (pad(x.double(), (0, 1), value=1.0).flatten(0, 1).numpy() for x in (one, other))
    # Ridge regression is least squares with one more row per weight, whose target is zero.
    stacked = np.concatenate([known, nopos.RIDGE**0.5 * np.eye(D + 1)])
    probe = np.linalg.lstsq(stacked, np.concatenate([positions, np.zeros(D + 1)]), rcond=None)[0]
    assert probe_error(one, other) == pytest.approx(np.abs(tried @ probe - positions).mean(), rel=1e-9)
    assert probe_error(one, other) > probe_error(one, one)  # the training error is lower


def test_probe_decodes_positions_only_where_encoded() -> None:
    B, T, D = 40, 8, 6
    ramp = torch.arange(T)[None, :, None] * torch.randn(D) + 3.0
    assert probe_error(ramp.expand(B, -1, -1), ramp.expand(B, -1, -1)) < 0.01
    without_signal = probe_error(torch.randn(B, T, D), torch.randn(B, T, D))
    assert without_signal == pytest.approx(T / 4, rel=0.1)  # the error of always predicting the middle


def test_windows_and_next_characters() -> None:
    text = torch.randperm(500)
    where = text.argsort()
    found = Windows(text, 7, seed=0).next(300)
    assert found.shape == (300, 8)
    assert where[found].diff(dim=1).eq(1).all()
    begins = where[found[:, 0]]
    assert begins.min() < 25 and begins.max() > 465  # from the whole text
    assert not Windows(text, 7, seed=1).next(300).equal(found)


def test_layers_are_the_embedding_and_block_outputs() -> None:
    model = Gpt(config_of("sinusoid", 11, SMALL)).eval()
    tokens = torch.randint(0, 11, (3, 12))
    embedded, *blocks = layers_of(model, tokens)
    close(embedded, model.positions(model.tokens(tokens), torch.arange(12)))
    assert len(blocks) == SMALL.layers
    expected = model.read(tokens)
    close(torch.nn.functional.layer_norm(blocks[-1], (16,)), torch.nn.functional.layer_norm(expected, (16,)), slack=512)


def test_probes_train_and_test_on_different_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(partial(Gpt, config_of("none", 11, SMALL)), 0).eval()
    ids = {"train": torch.randint(0, 5, (4000,)), "valid": torch.randint(6, 11, (4000,))}
    asked: list[tuple[Tensor, Tensor]] = []

    def record_call(learned: Tensor, tried: Tensor) -> float:
        asked.append((learned, tried))
        return 1.0

    monkeypatch.setattr(nopos, "probe_error", record_call)
    result = probe(model, ids, SMALL)
    train, valid = (layers_of(model, Windows(ids[split], SMALL.context, 2).next(nopos.PROBED)[:, :-1]) for split in ids)
    assert len(asked) == len(result.wrong) == SMALL.layers + 1
    for (learned, tried), one, other in zip(asked, train, valid, strict=True):
        close(learned, one)
        close(tried, other)
    windows = Windows(ids["valid"], SMALL.context, 1).next(nopos.TESTED)
    logits = model.tokens.logits(model.read(windows[:, :-1])).detach()
    right = -logits.log_softmax(-1).gather(2, windows[:, 1:, None]).mean()
    assert result.loss == pytest.approx(float(right), rel=1e-5)


# ------------------------------------------------------------------ the vectors of a word
@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    torch.manual_seed(0)
    tokenizer = BertTokenizer.train(WordPiece(vocab=45, lowercase=True), ["the cat sat on a mat", "a mouse sat there"])
    model = build(BertConfig(vocab=tokenizer.vocab, width=16, heads=2, layers=2, hidden=24, context=40))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return TextEncoder(model, tokenizer, torch.device("cpu"))


def test_word_vector_is_the_mean_of_its_pieces(encoder: TextEncoder) -> None:
    word, sentence = "mate", "The cat sat on a mate there"
    pieces = encoder.tokenizer.encode(word)
    assert len(pieces.ids) > 1
    (found,) = word_vectors(encoder, word, (sentence,))
    (tokens,) = encoder.layers([sentence])
    begin = next(at for at in range(len(tokens.pieces)) if tokens.pieces[at : at + len(pieces.ids)] == pieces.pieces)
    close(found[0], encoder.model.tokens.weight[pieces.ids].mean(0))
    close(found[1:], tokens.values[:, begin : begin + len(pieces.ids)].mean(1))
    assert not torch.allclose(found[1:], tokens.values[:, begin])


# ------------------------------------------------------------------ maps of words
@pytest.mark.parametrize("seed", range(8))  # the signs of a decomposition are arbitrary
def test_occurrence_map_is_pca_with_fixed_signs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(9, 5, generator=generator) @ torch.diag(torch.tensor([5.0, 3.0, 1.0, 0.5, 0.2]))
    points, held = principal_components(vectors)
    centred = vectors.double() - vectors.double().mean(0)
    values, directions = torch.linalg.eigh(centred.mT @ centred)
    for axis in range(2):
        direction = directions[:, -1 - axis]
        direction = direction * direction[direction.abs().argmax()].sign()  # its largest component is positive
        close(points[:, axis], centred @ direction, dtype=torch.float32)
    assert held == pytest.approx(float(values[-2:].sum() / values.sum()), rel=1e-6)
