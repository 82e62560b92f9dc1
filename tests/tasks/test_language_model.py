"""Language models as a task: losses against explicit sums, whole texts in any windows, and generation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from heedful.data.text.files import Text
from heedful.data.text.windows import TextBatches, encode_text
from heedful.data.tokenizers.tokenizer import Bpe, Characters, TrainedTokenizer, WholeWords, WordPiece
from heedful.decode.settings import TextSettings
from heedful.models import build
from heedful.models.elmo.config import ElmoConfig
from heedful.models.gpt.config import GptConfig
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.tasks.language_model import predictor as language_model
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.perplexity import (
    bidirectional_loss,
    bits_per_character,
    causal_loss,
    document_loss,
    text_loss,
    windows_loss,
)
from heedful.tasks.language_model.predictor import TextGenerator
from tolerance import close, near

CPU = torch.device("cpu")
LINES = ["a rose is a rose", "", "is a rose, is a rose", "  as a nose is a nose"] * 5
LETTERS = TrainedTokenizer.train(Characters(vocab=40), LINES)
TEXT = encode_text(Text(LINES), LETTERS, 8)


def ahead(cell: str = "lstm", vocab: int = LETTERS.vocab) -> Any:
    torch.manual_seed(0)
    return build(RnnLMConfig(vocab=vocab, width=12, hidden=20, layers=2, cell=cell, context=8, dropout=0.0)).eval()  # type: ignore[arg-type]


def both() -> Any:
    torch.manual_seed(0)
    return build(ElmoConfig(vocab=LETTERS.vocab, width=12, hidden=20, layers=2, context=8, dropout=0.0)).eval()


@pytest.fixture(scope="module")
def text_generator() -> TextGenerator:
    """A generator with a model of a few letters."""
    model, batches = ahead(), TextBatches(TEXT, 0, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for position in range(150):
        loss = causal_loss(model, batches.at(position))
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return TextGenerator(model, LETTERS, CPU, TextSettings(length=12))


# ------------------------------------------------------------------ losses
def test_loss_is_the_cross_entropy_of_each_next_token() -> None:
    model, batch = ahead(), TextBatches(TEXT, 0, 64).at(0)
    total, count = 0.0, 0
    for row, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
        for place in range(1, length):
            logits, _ = model(row[None, :place], model.start(1, CPU))
            total -= float(logits[0, -1].detach().log_softmax(-1)[row[place]])
            count += 1
    loss = causal_loss(model, batch)
    assert float(loss.plain) == pytest.approx(total, rel=1e-5)
    assert int(loss.count) == count == batch.tokens


@pytest.mark.parametrize("loss_of", [causal_loss, bidirectional_loss, document_loss])
def test_gradients_match_the_cross_entropy_in_every_weight(loss_of: Any) -> None:
    sizes = {"vocab": LETTERS.vocab, "width": 12, "heads": 2, "layers": 2, "context": 8, "dropout": 0.0}
    gpt: Any = build(GptConfig.model_validate(sizes | {"attention_dropout": 0.0}))
    model = {causal_loss: ahead(), bidirectional_loss: both(), document_loss: gpt}[loss_of].double().train()
    batch = TextBatches(TEXT, 0, 64).at(0)
    found = torch.autograd.grad(loss_of(model, batch).total, list(model.parameters()))
    right: Any = 0.0
    for row, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
        text = row[None, :length]
        read = model.read(text) if loss_of is bidirectional_loss else (model.read(text[:, :-1]),)
        wanted = (text[0, 1:], text[0, :-1])
        for x, side in zip(read, (slice(0, length - 1), slice(1, length)), strict=False):
            logits = x[0, side if loss_of is bidirectional_loss else slice(None)] @ model.tokens.weight.T
            right = right + F.cross_entropy(logits, wanted[side.start], reduction="sum")
    expected = torch.autograd.grad(right, list(model.parameters()))
    for name, one, other in zip(dict(model.named_parameters()), found, expected, strict=True):
        close(one, other, msg=name)
        assert one.any(), name


def test_both_directions_are_trained_and_their_mean_is_reported() -> None:
    model, batches = both(), TextBatches(TEXT, 0, 16)
    short = next(batch for batch in map(batches.at, range(batches.count)) if not bool(batch.real.all()))
    total = back = 0.0
    for row, length in zip(short.ids, short.lengths.tolist(), strict=True):
        ids = row[None, :length]
        after, before = (logits[0].log_softmax(-1) for logits in model(ids))
        total -= sum(float(after[place, ids[0, place + 1]]) for place in range(length - 1))
        back -= sum(float(before[place, ids[0, place - 1]]) for place in range(1, length))
    loss = bidirectional_loss(model, short)
    assert float(loss.total) == pytest.approx(total + back, rel=1e-5)
    assert float(loss.plain) == pytest.approx((total + back) / 2, rel=1e-5)
    assert int(loss.count) == short.tokens
    loss.total.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


@pytest.mark.parametrize("loss_of", [causal_loss, bidirectional_loss])
def test_padding_has_zero_loss(loss_of: Any) -> None:
    model = ahead() if loss_of is causal_loss else both()
    empty = TextBatches(TEXT, 0, 8).at(0, 1, 2)
    loss = loss_of(model, empty)
    assert float(loss.total) == 0.0
    assert int(loss.count) == 0


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_loss_of_a_text_does_not_depend_on_the_stride(cell: str) -> None:
    model = ahead(cell)
    whole = text_loss(model, TEXT, CPU, model.start(1, CPU), 10_000)
    logits, _ = model(torch.from_numpy(TEXT.ids).long()[None, :-1], model.start(1, CPU))
    wanted = torch.from_numpy(TEXT.ids).long()[1:]
    assert whole == pytest.approx(float(torch.nn.functional.cross_entropy(logits[0], wanted)), rel=1e-5)
    for stride in (1, 7, 64, len(TEXT) - 1, len(TEXT)):
        assert text_loss(model, TEXT, CPU, model.start(1, CPU), stride) == pytest.approx(whole, rel=1e-6)


def test_windows_do_not_see_earlier_text() -> None:
    model = ahead()
    apart = sum(float(causal_loss(model, batch).plain) for batch in TEXT.in_order(8))
    found = windows_loss(causal_loss, model, TEXT, CPU, 64)
    assert found == pytest.approx(apart / len(TEXT), rel=1e-5)
    assert found != pytest.approx(text_loss(model, TEXT, CPU, model.start(1, CPU)), rel=1e-5)
    wide = encode_text(Text(LINES), LETTERS, 10_000)  # one window is the whole text
    assert windows_loss(causal_loss, model, wide, CPU, 64) == pytest.approx(
        text_loss(model, TEXT, CPU, model.start(1, CPU)), rel=1e-5
    )


def test_bits_per_character() -> None:
    assert bits_per_character(math.log(2), TEXT) == pytest.approx(1.0)  # one token per character
    words = encode_text(Text(LINES), TrainedTokenizer.train(WholeWords(vocab=50), LINES), 8)
    assert bits_per_character(3.0, words) == pytest.approx(3.0 * len(words) / math.log(2) / TEXT.amounts.characters)


# ------------------------------------------------------------------ generation
def test_perplexity_is_of_the_whole_text(text_generator: TextGenerator) -> None:
    text = "\n".join(LINES) + "\n"
    assert text_generator.perplexity(text) == pytest.approx(math.exp(text_generator.encoded_loss(TEXT)))
    assert text_generator.perplexity(text) == text_generator.perplexity(text.removesuffix("\n"))
    assert text_generator.bits_per_character(text) == pytest.approx(text_generator.loss(text) / math.log(2))
    assert text_generator.perplexity(text) < 3 < text_generator.perplexity(text[::-1])
    with pytest.raises(ValueError, match="empty text"):
        text_generator.perplexity("")


def test_greedy_generation_takes_the_most_likely_tokens(text_generator: TextGenerator) -> None:
    prompt = "a rose\nis"
    (found,) = text_generator.generate([prompt], length=10, temperature=0)
    ids = [TrainedTokenizer.eos, *(number for line in LETTERS.ids(["a rose"]) for number in line), TrainedTokenizer.eos]
    ids += LETTERS.ids(["is"])[0]
    log = 0.0
    for token in found.ids:
        logits, _ = text_generator.model(torch.tensor([ids]), text_generator.model.start(1, CPU))
        logs = logits[0, -1].log_softmax(-1)
        allowed = logs.clone()
        allowed[[TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos]] = -math.inf
        assert int(allowed.argmax()) == token
        log += float(logs[token])
        ids.append(token)
    assert found.log_probability == near(log, 1024)
    assert len(found.ids) == 10
    assert found.text == prompt + found.completion


def test_generation_continues_over_line_ends(text_generator: TextGenerator) -> None:
    found = text_generator.generate([""], length=200, seed=1)[0]
    assert len(found.ids) == 200
    assert found.completion.count("\n") == found.ids.count(TrainedTokenizer.eos) > 3
    assert set(found.completion) <= set("".join(LINES) + "\n")


def test_samples_depend_on_seed_and_number_not_on_the_batch(
    text_generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["", "a", "a rose is", "is a rose, is", "\n", "as"] * 3
    whole = [found.completion for found in text_generator.generate(prompts, seed=4)]
    assert [found.completion for found in text_generator.generate(prompts, seed=4)] == whole
    assert [
        text_generator.generate([prompt], seed=4, first=row)[0].completion for row, prompt in enumerate(prompts)
    ] == whole
    monkeypatch.setattr(language_model, "BATCH_SIZE", 4)
    assert [found.completion for found in text_generator.generate(prompts, seed=4)] == whole
    assert [found.completion for found in text_generator.generate(prompts, seed=5)] != whole
    assert len({found.completion for found in text_generator.generate(["a"] * 20)}) > 3


def test_low_temperature_is_greedy_and_beams_find_more_likely_texts(text_generator: TextGenerator) -> None:
    best = [found.completion for found in text_generator.generate(["a", "is a"], temperature=0)]
    for rules in ({"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-9}):
        assert [found.completion for found in text_generator.generate(["a", "is a"], **rules)] == best  # type: ignore[arg-type]
    wide = text_generator.generate(["a"], beams=8, samples=3)
    assert [one.log_probability for one in wide] == sorted((one.log_probability for one in wide), reverse=True)
    assert wide[0].log_probability >= text_generator.generate(["a"], temperature=0)[0].log_probability - 1e-5
    with pytest.raises(ValueError, match="2 beams cannot give 3 texts"):
        text_generator.generate(["a"], beams=2, samples=3)
    with pytest.raises(ValueError, match="length should be greater"):
        text_generator.generate(["a"], length=0)
    with pytest.raises(ValueError, match="top_k should be"):
        text_generator.generate(["a"], top_k=0)
    assert text_generator.generate([]) == []


def test_settings_are_the_defaults(text_generator: TextGenerator) -> None:
    bold = TextGenerator(
        text_generator.model, LETTERS, CPU, TextSettings(length=5, temperature=3.0, top_k=4, top_p=0.9)
    )
    assert bold.generate(["a"]) == text_generator.generate(["a"], length=5, temperature=3.0, top_k=4, top_p=0.9)
    assert len(bold.generate(["a"])[0].ids) == 5


@pytest.mark.parametrize("config", [WordPiece(vocab=60), WholeWords(vocab=20), Bpe(vocab=270), Characters(vocab=9)])
def test_every_tokenizer_keeps_the_prompt(config: Any) -> None:
    tokenizer = TrainedTokenizer.train(config, LINES)
    model = TextGenerator(ahead(vocab=tokenizer.vocab), tokenizer, CPU, TextSettings(length=6))
    for prompt in ("", "a ro", "\n\n", "Ω é <eos> \ud800", "  a  rose "):
        (found,) = model.generate([prompt])
        assert found.text == prompt + found.completion
        assert len(found.ids) == 6


@pytest.mark.parametrize(
    ("config", "between"), [(WholeWords(vocab=20), " "), (WordPiece(vocab=60), " "), (Characters(vocab=40), "")]
)
def test_text_after_an_unknown_word_is_joined_correctly(config: Any, between: str) -> None:
    tokenizer = TrainedTokenizer.train(config, LINES)
    text_generator = TextGenerator(ahead(vocab=tokenizer.vocab), tokenizer, CPU)
    (word,) = tokenizer.ids(["a"])[0]
    for prompt in ("ΩΩ", "a ΩΩ", "a rose\nΩΩ", "ΩΩ ΩΩ"):
        before = text_generator.codec.encode(prompt)
        assert before[-1] == TrainedTokenizer.unk
        assert text_generator.text_after(before, [word]) == f"{between}a"
    assert text_generator.text_after(text_generator.codec.encode("ΩΩ\n"), [word]) == "a"


# ------------------------------------------------------------------ layers
def test_layers_do_not_depend_on_the_batch() -> None:
    reader = BidirectionalLanguageModel(both(), LETTERS, CPU, 8)
    texts = ["a rose", "is", "as a nose is a nose"]
    together = reader.layers(texts)
    for text, found in zip(texts, together, strict=True):
        assert found.shape == (3, len(text), 24)
        close(found, reader.layers([text])[0], slack=16)
    ids = torch.tensor([[TrainedTokenizer.eos, *LETTERS.ids(["is"])[0], TrainedTokenizer.eos]])
    close(together[1], reader.model.layers(ids)[0, :, 1:-1], slack=16)
    assert reader.layers([]) == []
    assert reader.layers([""])[0].shape == (3, 0, 24)


def test_perplexity_of_both_directions_is_by_windows() -> None:
    reader = BidirectionalLanguageModel(both(), LETTERS, CPU, 8)
    found = reader.perplexity("\n".join(LINES))
    assert found == pytest.approx(math.exp(windows_loss(bidirectional_loss, reader.model, TEXT, CPU, 64)), rel=1e-5)
