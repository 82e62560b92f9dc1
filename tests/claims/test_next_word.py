"""Claim G8: predicting the next word uses the left context only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.tokenizer import Characters, TrainedTokenizer, WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.gpt.config import GptConfig
from heedful.plots.figures import bars
from heedful.tasks.language_model.next_word import first_word, masked_words, next_words, split_at_blank
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.pretraining.predictor import TextEncoder

CPU = torch.device("cpu")
PLACES = {"school": "with a book", "work": "with a bag", "the lake": "with a fish", "church": "with a song"}
TEXTS = [f"The {who} came home from {place} {what}." for who in ("child", "man") for place, what in PLACES.items()]
PROMPT = "The child came home from ___"


def train_model(model: Any, loss_of: Any, steps: int) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(loss.detach()) < 1.0
    return model.eval()


@pytest.fixture(scope="module")
def generator() -> TextGenerator:
    """A small GPT trained on the sentences."""
    torch.manual_seed(0)
    pairs = Gpt2Tokenizer.train(Gpt2Bpe(vocab=300), TEXTS)
    model = build(GptConfig(vocab=pairs.vocab, width=32, heads=2, layers=2, context=48, dropout=0, attention_dropout=0))
    rows = [[pairs.end, *ids, pairs.end] for ids in pairs.ids(TEXTS)]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows])

    def loss(step: int) -> torch.Tensor:
        logits = model.tokens.logits(model.read(ids[:, :-1].clamp(min=0)))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1)

    return TextGenerator(train_model(model, loss, 120), pairs, CPU)


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    """A small BERT trained on the same sentences, with masked words."""
    torch.manual_seed(0)
    pieces = BertTokenizer.train(WordPiece(vocab=120), TEXTS * 3)
    config = BertConfig(
        vocab=pieces.vocab, width=32, heads=2, layers=2, hidden=64, context=32, dropout=0.0, attention_dropout=0.0
    )
    model: Any = build(config)
    masked = [(text.replace(place, "[MASK]", 1), place) for text in TEXTS for place in PLACES if f" {place} " in text]
    cases = [(text, pieces.ids([place])[0]) for text, place in masked]
    encoder = TextEncoder(model, pieces, CPU)
    cases = [(encoder._masked_ids(text), place[0]) for text, place in cases if len(place) == 1]
    assert len(cases) >= 6

    def loss(step: int) -> torch.Tensor:
        row, place = cases[step % len(cases)]
        x = model(torch.tensor([row]))[0, row.index(pieces.mask)][None]
        return F.cross_entropy(model.words(x), torch.tensor([place]))

    train_model(model.train(), loss, 240)
    return encoder


@pytest.mark.claim("G8")
def test_only_the_masked_model_uses_the_right_context(generator: TextGenerator, encoder: TextEncoder) -> None:
    plain = next_words(generator, PROMPT, 4)
    likely = {prediction.word for prediction in plain.predictions if prediction.probability > 0.1}
    assert likely <= {"school", "work", "the", "church"} and len(likely) >= 3
    assert sum(prediction.probability for prediction in plain.predictions) == pytest.approx(1, abs=0.1)
    for place, what in PLACES.items():
        text = f"{PROMPT} {what}."
        assert next_words(generator, text, 4) == plain  # exactly equal
        if place != "the lake":
            best = masked_words(encoder, text, 3).predictions[0]
            assert best.word == place
            assert best.probability > 0.8
            assert best.probability > 2 * next(g.probability for g in plain.predictions if g.word == place)


@pytest.mark.claim("G8")
def test_predictions_report_the_context_used(generator: TextGenerator, encoder: TextEncoder) -> None:
    text = "The child came home from ___ with a book."
    assert next_words(generator, text).seen == "The child came home from ___"
    assert masked_words(encoder, text).seen == text
    assert next_words(generator, "___ child").seen == "___"
    for wrong in ("no blank", "___ and ___"):
        with pytest.raises(UserError, match="one blank"):
            split_at_blank(wrong)


@pytest.mark.claim("G8")
def test_word_probability_is_that_of_its_first_token(generator: TextGenerator) -> None:
    ids = torch.tensor([[generator.codec.start_id, *generator.codec.encode("The child came home from")]])
    with torch.no_grad():
        p = generator.model(ids, generator.model.start(1, CPU))[0][0, -1].softmax(-1)
    for prediction in next_words(generator, PROMPT, 3).predictions:
        first = generator.codec.encode("The child came home from " + prediction.word)[ids.shape[1] - 1]
        assert prediction.probability == pytest.approx(float(p[first]), rel=1e-4)
    letters = TrainedTokenizer.train(Characters(vocab=60), TEXTS)
    model = build(GptConfig(vocab=letters.vocab, width=16, heads=2, layers=1, context=64)).eval()
    assert len(next_words(TextGenerator(model, letters, CPU), PROMPT, 5).predictions) == 5
    assert [first_word(text) for text in (" school.", "don't go", "...", "\nThe", "", "日本 x")] == [
        "school", "don't", "...", "", "", "日本",
    ]  # fmt: skip


@pytest.mark.claim("G8")
def test_both_predictions_are_plotted_side_by_side(generator: TextGenerator, encoder: TextEncoder) -> None:
    charts = {
        one.kind: (one.seen, [(prediction.word, prediction.probability) for prediction in one.predictions])
        for one in (next_words(generator, PROMPT), masked_words(encoder, PROMPT + " with a book."))
    }
    for axes, (kind, (seen, predictions)) in zip(bars(charts, PROMPT).axes, charts.items(), strict=True):
        assert axes.get_title("left").split("\n")[0] == kind and seen[:20] in axes.get_title("left")
        assert [patch.get_width() for patch in axes.patches] == [probability for _, probability in predictions]
        assert [text.get_text() for text in axes.get_yticklabels()] == [word for word, _ in predictions]
