"""The translator: batches, order, sampling, alignments, and unusual text."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heedful.blocks.losses import cross_entropy
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.decode.search import drain
from heedful.decode.settings import TranslationSettings
from heedful.errors import UserError
from heedful.models import build
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.tasks.translation import predictor as translation
from heedful.tasks.translation.predictor import (
    TooLongError,
    Translation,
    Translator,
    advantage,
    mean_loss,
    translation_loss,
)
from tolerance import close, near

CPU = torch.device("cpu")
CONTEXT = 48
DATA = NumberWords(train=400, valid=50, test=1)
PAIRS = DATA.pairs("train")[:400]
TEXTS = [pair.source for pair in DATA.pairs("valid")]
ODD = [
    "", " ", "\n", "\u0000", "\ud800 seven", "🙂🙂", "שלום", "e\u0301\u0327", "\u202eseven", "[MASK] <s> </s> [PAD]",
    "ＳＥＶＥＮ", "seven\u00adty", "\ufffd", "7", "\u200b", "👩‍👩‍👧", "ß" * 20, "\x1b[31mseven",
]  # fmt: skip


@pytest.fixture(scope="module")
def translator() -> Translator:
    """A model trained for a second: far from good, but with distinct scores for hypotheses."""
    torch.manual_seed(0)
    tokenizer = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
    config = TransformerConfig(
        vocab=tokenizer.vocab, width=24, heads=2, encoder_layers=1, decoder_layers=2, hidden=48, context=CONTEXT,
        dropout=0.0, norm="pre",
    )  # fmt: skip
    model: Any = build(config)
    batches = PairBatches(encode_pairs(PAIRS, tokenizer, CONTEXT), 0, 1024)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for position in range(60):
        loss = translation_loss(model, batches.at(position))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    return Translator(model, tokenizer, CONTEXT, CPU)


def same_translation(one: Translation, other: Translation) -> bool:
    same = (one.text, one.ids, one.complete) == (other.text, other.ids, other.complete)
    return same and one.log_probability == near(other.log_probability, 1024)


# ------------------------------------------------------------------ loss
@pytest.mark.claim("E5")
def test_loss_is_the_cross_entropy_of_each_next_token(translator: Translator) -> None:
    encoded = encode_pairs(PAIRS[:20], translator.tokenizer, CONTEXT)
    batch = next(encoded.in_order(100_000))
    found = translation_loss(translator.model, batch, 0.1)
    total = plain = 0.0
    for source, length, target, end in zip(
        batch.source, batch.source_lengths, batch.target, batch.target_lengths, strict=True
    ):
        state = translator.model.start(source[None, :length])
        logits, _ = translator.model(target[None, : end - 1], state)
        loss = cross_entropy(logits[0], target[1:end], 0.1)
        total, plain = total + float(loss.total.detach()), plain + float(loss.plain)
    assert float(found.total.detach()) == pytest.approx(total, rel=1e-5)
    assert float(found.plain) == pytest.approx(plain, rel=1e-5)
    assert int(found.count) == batch.tokens
    assert mean_loss(translator.model, encoded, CPU, 100_000) == pytest.approx(plain / batch.tokens, rel=1e-5)
    assert mean_loss(translator.model, encoded, CPU, 64) == pytest.approx(plain / batch.tokens, rel=1e-5)


@pytest.mark.claim("E5")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_gradients_match_the_cross_entropy_in_every_weight(translator: Translator, packed: bool) -> None:
    model = copy.deepcopy(translator.model).double()
    encoded = encode_pairs(PAIRS[:20], translator.tokenizer, CONTEXT)
    batch = next(encoded.in_order(100_000))
    total = translation_loss(model, encoded.pack(np.arange(20), (1024, 1024)) if packed else batch).total
    found = torch.autograd.grad(total, list(model.parameters()))
    right: Any = 0.0
    for source, length, target, end in zip(
        batch.source, batch.source_lengths, batch.target, batch.target_lengths, strict=True
    ):
        x = model.read(source[None, :length], target[None, : end - 1])[0]
        right = right + F.cross_entropy(x @ model.tokens.weight.T, target[1:end], reduction="sum")
    expected = torch.autograd.grad(right, list(model.parameters()))
    for name, one, other in zip(dict(model.named_parameters()), found, expected, strict=True):
        close(one, other, msg=name)
        assert one.any(), name


# ------------------------------------------------------------------ search
@pytest.mark.parametrize("beams", [1, 4])
def test_batch_equals_single_texts_in_order(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, beams: int
) -> None:
    alone = [translator.search([text], beams, top=beams)[0] for text in TEXTS]
    together = translator.search(TEXTS, beams, top=beams)
    monkeypatch.setattr(translation, "BATCH_TOKENS", 200)
    in_parts = translator.search(TEXTS, beams, top=beams)
    backwards = translator.search(TEXTS[::-1], beams, top=beams)[::-1]
    assert len({found[0].text for found in alone}) > 25
    for number, expected in enumerate(alone):
        assert len(expected) == beams
        for other in (together, in_parts, backwards):
            assert all(same_translation(one, two) for one, two in zip(other[number], expected, strict=True)), TEXTS[
                number
            ]
    assert translator.translate(TEXTS, beams) == [found[0].text for found in alone]


def test_scores_are_sorted_and_the_models_own(translator: Translator) -> None:
    best = translator.search(TEXTS[:8], 4, top=4)
    for text, found in zip(TEXTS[:8], best, strict=True):
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({tuple(one.ids) for one in found}) == 4
        source = torch.tensor([[*translator.tokenizer.ids([text])[0], TrainedTokenizer.eos]])
        for one in found:
            given = torch.tensor([[TrainedTokenizer.bos, *one.ids[:-1]]])
            with torch.inference_mode():
                logs = translator.model(given, translator.model.start(source))[0].log_softmax(-1)[0]
            assert one.log_probability == near(float(logs.gather(1, torch.tensor(one.ids)[:, None]).sum()), 1024)
            assert one.complete == (one.ids[-1] == TrainedTokenizer.eos)
            assert one.text == translator.tokenizer.decode(one.ids)
            assert not {TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos} & set(one.ids)


@pytest.mark.claim("E5")
def test_trained_model_translates_a_few_numbers(translator: Translator) -> None:
    before = mean_loss(translator.model, encode_pairs(PAIRS, translator.tokenizer, CONTEXT), CPU, 4096)
    assert before < 0.6 * math.log(translator.tokenizer.vocab)


def test_invalid_number_of_beams_is_rejected(translator: Translator) -> None:
    with pytest.raises(ValueError, match="4 beams cannot give 5 translations"):
        translator.search(["one"], 4, top=5)
    with pytest.raises(ValueError, match="0 beams cannot give 1 translations"):
        translator.search(["one"], 0)
    with pytest.raises(ValueError, match="cannot give 0"):
        translator.search(["one"], 1, top=0)
    assert len(translator.search(["one"], 500, top=500)[0]) == 500  # more than the vocabulary has tokens


def test_settings_are_the_defaults(translator: Translator) -> None:
    short = Translator(translator.model, translator.tokenizer, CONTEXT, CPU, TranslationSettings(beams=1, max_length=3))
    found = short.search(TEXTS[:10])
    assert all(len(one.ids) <= 3 for paths in found for one in paths)
    assert not all(one.complete for paths in found for one in paths)
    assert [one.ids for paths in found for one in paths] == [
        paths[0].ids[:3] for paths in translator.search(TEXTS[:10], 1)
    ]


def test_progress_counts_every_text(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "BATCH_TOKENS", 100)
    done: list[int] = []
    translator.search(TEXTS[:20], 1, progress=done.append)
    assert sum(done) == 20
    assert len(done) > 2


# ------------------------------------------------------------------ unusual text
def test_empty_list_gives_no_translations(translator: Translator) -> None:
    assert translator.translate([]) == []
    assert translator.sample([]) == []
    assert translator.lengths([]) == []


@pytest.mark.parametrize("beams", [1, 4])
def test_unusual_text_is_translated_and_does_not_affect_others(translator: Translator, beams: int) -> None:
    found = translator.translate([*ODD, *TEXTS[:5]], beams)
    assert len(found) == len(ODD) + 5
    assert found[-5:] == translator.translate(TEXTS[:5], beams)
    assert found[0] == translator.translate([""], beams)[0]
    for text in ODD:
        alignment = translator.align(text, translator.search([text], beams)[0][0])
        assert torch.isfinite(alignment.weights).all()


def test_too_long_text_is_named(translator: Translator) -> None:
    fits = "s " * (CONTEXT - 1)
    assert translator.lengths(["s", fits, fits + "s"]) == [2, CONTEXT, CONTEXT + 1]
    assert len(translator.translate([fits])) == 1
    for call in (translator.translate, translator.search, translator.sample):
        message = f"text 2 has {CONTEXT + 1} tokens, but the model reads at most {CONTEXT}"
        with pytest.raises(TooLongError, match=message) as no:
            call(["s", fits + "s", "two"])
        assert (no.value.number, no.value.tokens, no.value.context) == (1, CONTEXT + 1, CONTEXT)


def test_translation_stays_within_the_context(translator: Translator) -> None:
    fits = "s " * (CONTEXT - 1)
    assert translator.room(fits) == CONTEXT - 1  # the start token takes one position
    for found in translator.search([fits], 4, top=4)[0]:
        assert len(found.ids) <= CONTEXT - 1


# ------------------------------------------------------------------ sampling
def test_samples_repeat_and_do_not_depend_on_the_batch(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    def samples_of(texts: list[str], seed: int = 5, first: int = 0, **rules: Any) -> list[str]:
        return [found[0].text for found in translator.sample(texts, seed=seed, first=first, **rules)]

    whole = samples_of(TEXTS)
    assert samples_of(TEXTS) == whole
    assert [samples_of([text], first=number)[0] for number, text in enumerate(TEXTS)] == whole
    assert samples_of(TEXTS[:17]) + samples_of(TEXTS[17:], first=17) == whole
    monkeypatch.setattr(translation, "BATCH_TOKENS", 128)
    assert samples_of(TEXTS) == whole
    assert samples_of(TEXTS, seed=6) != whole
    same = samples_of([TEXTS[0]] * 20)
    assert len(set(same)) > 10  # the same text sampled again


def test_low_temperature_is_greedy(translator: Translator) -> None:
    best = translator.translate(TEXTS[:20], 1)
    for rules in ({"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-9}):
        assert [found[0].text for found in translator.sample(TEXTS[:20], **rules)] == best


@pytest.mark.parametrize("rules", [{"temperature": 0.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_invalid_sampling_settings_are_rejected(translator: Translator, rules: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        translator.sample(["one"], **rules)


# ------------------------------------------------------------------ alignment
def test_alignments_are_probabilities_over_the_source(translator: Translator) -> None:
    for text in TEXTS[:10]:
        best = translator.search([text])[0][0]
        found = translator.align(text, best)
        assert found.weights.shape == (len(found.target), len(found.source))
        assert found.target == translator.tokenizer.pieces(best.ids)
        assert found.source == translator.tokenizer.pieces([*translator.tokenizer.ids([text])[0], TrainedTokenizer.eos])
        close(found.weights.sum(1), torch.ones(len(found.target)))
        assert float(found.weights.min()) >= 0
        assert found.layer in (1, 2)


def test_alignment_is_of_the_sharpest_block(translator: Translator) -> None:
    best = translator.search([TEXTS[0]])[0][0]
    usual = translator.align(TEXTS[0], best).layer
    cross = translator.model.decoder[usual - 1].cross.q
    before = {name: value.clone() for name, value in cross.state_dict().items()}
    try:
        with torch.no_grad():
            cross.weight.zero_()  # a block with zero queries has uniform weights
            cross.bias.zero_()
        assert translator.align(TEXTS[0], best).layer == 3 - usual
    finally:
        cross.load_state_dict(before)


def test_alignment_does_not_change_the_translator(translator: Translator) -> None:
    before = translator.translate(TEXTS[:5])
    translator.align(TEXTS[0], translator.search([TEXTS[0]])[0][0])
    assert translator.translate(TEXTS[:5]) == before
    assert not translator.model.training


def recurrent(tokenizer: TrainedTokenizer, attention: AttentionConfig | None) -> Translator:
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab=tokenizer.vocab, width=8, encoder=RecurrentEncoder(hidden=8), hidden=8, attention=attention,
        context=CONTEXT,
    )  # fmt: skip
    return Translator(build(config), tokenizer, CONTEXT, CPU, TranslationSettings(max_length=6))


@pytest.mark.parametrize("feed", ["input", "output"])
def test_recurrent_decoder_has_a_row_for_each_step(translator: Translator, feed: Any) -> None:
    predictor = recurrent(translator.tokenizer, AttentionConfig(feed=feed))
    best = predictor.search([TEXTS[0]])[0][0]
    found = predictor.align(TEXTS[0], best)
    assert found.weights.shape == (len(best.ids), len(found.source))
    close(found.weights.sum(1), torch.ones(len(best.ids)))
    assert found.layer == 1


def test_model_without_attention_has_no_alignment(translator: Translator) -> None:
    predictor = recurrent(translator.tokenizer, None)
    best = predictor.search([TEXTS[0]])[0][0]
    with pytest.raises(UserError, match="does not attend to the source"):
        predictor.align(TEXTS[0], best)


# ------------------------------------------------------------------ rewards
def test_reward_baseline_is_the_mean_of_other_rows() -> None:
    rewards = torch.tensor([[-1.0, -2.0, -6.0], [-3.0, -4.0, 0.0], [-5.0, 0.0, 0.0]])
    real = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    # In the third column one row is alone: its baseline is the mean of all rewards of the others, (-3 - 4 - 5) / 3.
    assert advantage(rewards, real).tolist() == [[3.0, 2.0, -2.0], [0.0, -2.0, 0.0], [-3.0, 0.0, 0.0]]
    assert advantage(rewards[:1], real[:1]).tolist() == [[-1.0, -2.0, -6.0]]


@pytest.mark.parametrize(("beams", "top"), [(2, 1), (4, 4), (5, 2)])
def test_search_steps_end_in_the_same_translations(translator: Translator, beams: int, top: int) -> None:
    for text in (TEXTS[0], "", "🙂"):
        paths = drain(translator.steps(text, beams, top, translator.settings.length_penalty))
        assert list(translator._translations(paths)) == translator.search([text], beams=beams, top=top)


def test_search_continues_from_given_tokens(translator: Translator) -> None:
    (best,) = translator.search([TEXTS[0]], beams=3)[0]
    begins = [translator.tokenizer.vocab - 1, best.ids[0]]
    for limit in (2, 3, None):
        (found,) = translator._translations(drain(translator.steps(TEXTS[0], 3, 2, 0.5, limit, begins)))
        for one in found[: 1 if limit == 2 else 2]:
            assert one.ids[:2] == begins and len(one.ids) <= (limit or translator.room(TEXTS[0]))
            given = torch.tensor([[TrainedTokenizer.bos, *one.ids[:-1]]])
            source = torch.tensor(translator.source_ids([TEXTS[0]]))
            logits, _ = translator.model(given, translator.model.start(source))
            log = float(logits[0].detach().log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).sum())
            assert one.log_probability == near(log, 1024)
            assert one.score == near(log / len(one.ids) ** 0.5, 1024)
