"""Generation: batches, beyond the context, streaming, and against transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.tokenizer import Bpe, Characters, TrainedTokenizer, WholeWords, WordPiece
from heedful.decode.rules import Generated, sampling_rules
from heedful.decode.search import drain
from heedful.decode.settings import TextSettings
from heedful.errors import UserError
from heedful.models import build
from heedful.models.gpt.config import GptConfig
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.tasks.language_model import predictor as language_model
from heedful.tasks.language_model.predictor import PartialText, TextGenerator, seed_of
from heedful.tasks.language_model.streaming import StreamDecoder
from tolerance import close, near

CPU = torch.device("cpu")
LINES = ["a rose is a rose", "", "is a rose, is a rose", "  naïve 日本 🙂 café don't", "I do not know"] * 4
PAIRS = Gpt2Tokenizer.train(Gpt2Bpe(vocab=290), ["\n".join(LINES)])
LETTERS = TrainedTokenizer.train(Characters(vocab=60), LINES)
POSITIONS = ("learned", "none", "sinusoid", "sinusoid_halves", "rotary", "alibi")
PROMPTS = ["", "a rose", "is a rose, is a rose is a rose, a rose is\na rose", "naïve 日", "x", "a rose is a rose is a"]
MANNERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {},
    "ruled": {
        "top_k": 20,
        "top_p": 0.9,
        "repetition_penalty": 1.3,
        "no_repeat_ngram": 2,
        "min_length": 9,
        "temperature": 0.7,
    },
    "beams": {"beams": 3, "samples": 2, "length": 7},
    "ruled beams": {"beams": 3, "length": 7, "repetition_penalty": 1.3, "no_repeat_ngram": 2},
}


def spread(model: Any, by: float = 0.15) -> Any:
    """A model whose weights make some tokens much more likely than others."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(by * torch.randn_like(weight))
    return model.eval()


def gpt(positions: str = "learned", context: int = 20, vocab: int = PAIRS.vocab, **more: int) -> Any:
    torch.manual_seed(3)
    settings = {"width": 16, "heads": 2, "layers": 2, "context": context, "positions": positions, **more}
    return spread(build(GptConfig.model_validate({"vocab": vocab, **settings})))


def rnn(vocab: int = PAIRS.vocab) -> Any:
    torch.manual_seed(3)
    return spread(build(RnnLMConfig(vocab=vocab, width=12, hidden=16, layers=2, context=8)))


WRITERS = {
    name: (lambda name=name: TextGenerator(gpt(name), PAIRS, CPU, TextSettings(length=30))) for name in POSITIONS
} | {
    "rnn": lambda: TextGenerator(rnn(), PAIRS, CPU, TextSettings(length=30)),
    "window": lambda: TextGenerator(gpt("alibi", window=6, sink=2), PAIRS, CPU, TextSettings(length=30)),
    "lines": lambda: TextGenerator(gpt(vocab=LETTERS.vocab), LETTERS, CPU, TextSettings(length=30)),
}


# ------------------------------------------------------------------ batches
@pytest.mark.parametrize("kind", WRITERS)
def test_batch_equals_single_prompts(kind: str) -> None:
    writer = WRITERS[kind]()
    for name, manner in MANNERS.items():
        prompts = [prompt[:9] for prompt in PROMPTS] if "beams" in name else PROMPTS
        together = writer.generate(prompts, seed=5, **manner)
        alone = [found for n, p in enumerate(prompts) for found in writer.generate([p], seed=5, first=n, **manner)]
        assert [found.ids for found in together] == [found.ids for found in alone], name
        for one, other in zip(together, alone, strict=True):
            assert one.log_probability == near(other.log_probability, 1024)
            assert (one.text, one.ended) == (other.text, other.ended)
            assert one.text == one.prompt + one.completion


@pytest.mark.parametrize("kind", WRITERS)
@torch.no_grad()
def test_batch_does_not_change_logits(kind: str) -> None:
    writer = WRITERS[kind]()
    ids = [[PAIRS.end % writer.tokenizer.vocab, *torch.randint(4, 20, (n,)).tolist()] for n in (3, 11, 0, 7, 11, 1)]
    decoder, state, prefix = writer._prefill(ids, 5, writer.settings)
    tokens = torch.cat([prefix, torch.randint(4, 20, (len(ids), 3))], 1)
    together = []
    for token in tokens.split(1, 1):
        logits, state = decoder(token, state)
        together.append(logits)
    for row, given in enumerate(ids):
        whole = torch.tensor([[*given, *tokens[row, 1:].tolist()]])
        alone = writer.model(whole, writer.model.start(1, CPU))[0][0, -4:]
        close(torch.cat(together, 1)[row], alone)


def test_batch_size_and_number_of_samples_do_not_change_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WRITERS["learned"]()
    many = writer.generate(PROMPTS, samples=3, seed=1, length=8)
    assert [found.prompt for found in many] == [prompt for prompt in PROMPTS for _ in range(3)]
    assert [found.ids for found in many[::3]] == [found.ids for found in writer.generate(PROMPTS, seed=1, length=8)]
    assert len({tuple(found.ids) for found in many}) == len(many)
    monkeypatch.setattr(language_model, "BATCH_SIZE", 4)
    assert [found.ids for found in writer.generate(PROMPTS, samples=3, seed=1, length=8)] == [f.ids for f in many]
    assert len({seed_of(s, n, k) & 0xFFFFFFFF for s in range(4) for n in range(40) for k in range(20)}) == 3200


# ------------------------------------------------------------------ beyond the context
@pytest.mark.parametrize("context", [1, 2, 5, 8])
def test_full_context_drops_its_older_half(context: int) -> None:
    writer = TextGenerator(gpt(context=context), PAIRS, CPU)
    assert [writer.context_start(count) for count in range(context + 1)] == [0] * (context + 1)
    for count in range(context + 1, 40):
        seen = count - writer.context_start(count)
        assert max(1, context // 2) <= seen <= context
        assert writer.context_start(count) >= writer.context_start(count - 1)
    assert context + 1 - writer.context_start(context + 1) == max(1, context // 2)


@pytest.mark.parametrize("prompt", ["", "a rose is", "is a rose, is a rose is a rose, a rose is a rose, naïve"])
def test_tokens_beyond_the_context_are_predicted_from_what_is_kept(prompt: str) -> None:
    writer = TextGenerator(gpt(context=9), PAIRS, CPU)
    (found,) = writer.generate([prompt], length=40, temperature=0)
    ids, log = [PAIRS.end, *PAIRS.ids([prompt])[0]], 0.0
    for token in found.ids:
        seen = ids[writer.context_start(len(ids)) :]
        logs = writer.model(torch.tensor([seen]), writer.model.start(1, CPU))[0][0, -1].detach().log_softmax(-1)
        assert int(logs.argmax()) == token
        log += float(logs[token])
        ids.append(token)
    assert found.log_probability == near(log, 1024)
    assert len(found.ids) == 40 or found.ended


def test_random_numbers_and_rules_continue_beyond_the_context() -> None:
    short, wide = TextGenerator(gpt("none", context=7), PAIRS, CPU), TextGenerator(gpt("none", context=300), PAIRS, CPU)
    for weight in (*short.model.parameters(), *wide.model.parameters()):
        weight.data.zero_()  # uniform logits: only random numbers and rules decide
    for manner in ({}, {"no_repeat_ngram": 1}, {"min_length": 40, "top_k": 5}, {"repetition_penalty": 3.0}):
        one, other = (writer.generate(["a rose", ""], length=60, seed=2, **manner) for writer in (short, wide))
        assert [found.ids for found in one] == [found.ids for found in other]
    assert len(set(one[0].ids)) > 20


def test_beams_beyond_the_context_are_rejected_with_advice() -> None:
    writer = TextGenerator(gpt(context=20), PAIRS, CPU)
    assert len(writer.generate(["a"], beams=2, length=19)[0].ids) <= 19
    with pytest.raises(UserError, match="within the model's context"):
        writer.generate(["a"], beams=2, length=20)
    assert len(TextGenerator(rnn(), PAIRS, CPU).generate(["a"], beams=2, length=50)) == 1  # has no limit


# ------------------------------------------------------------------ streaming
@pytest.mark.parametrize(
    "tokenizer",
    [
        PAIRS,
        LETTERS,
        *(TrainedTokenizer.train(c, LINES) for c in (WordPiece(vocab=90), WholeWords(vocab=30), Bpe(vocab=275))),
    ],
    ids=["pairs", "characters", "word pieces", "words", "bpe"],
)
def test_streamed_text_equals_generated_text(tokenizer: Any) -> None:
    writer = TextGenerator(rnn(tokenizer.vocab), tokenizer, CPU, TextSettings(length=60))
    for seed, prompt in enumerate(("", "a rose", "naïve 日本")):
        (found,) = writer.generate([prompt], seed=seed)
        pieces = list(writer.stream(prompt, seed=seed))
        assert "".join(pieces) == found.completion
        assert len(pieces) in (len(found.ids) - found.ended, len(found.ids) - found.ended + 1)
    assert "".join(writer.stream("a", beams=2, length=5)) == writer.generate(["a"], beams=2, length=5)[0].completion


def test_character_of_several_tokens_is_streamed_whole() -> None:
    writer = TextGenerator(rnn(), PAIRS, CPU)
    whole = "🙂日é"
    spelling = StreamDecoder(PAIRS, writer.text_after, [])
    pieces = [spelling.add(number) for number in bytes_of(whole)]
    assert "".join(pieces) == whole
    assert [piece for piece in pieces if piece] == list(whole)
    assert spelling.rest() == ""
    assert [spelling.add(number) for number in bytes_of("🙂")[:2]] == ["", ""]
    assert spelling.rest() == "\ufffd"


def bytes_of(text: str) -> list[int]:
    """The ids of single bytes."""
    single = {PAIRS.bytes([number]): number for number in range(PAIRS.vocab)}
    return [single[bytes([byte])] for byte in text.encode()]


# ------------------------------------------------------------------ settings
def test_settings_out_of_range_are_rejected() -> None:
    writer = WRITERS["learned"]()
    for manner, message in (
        ({"length": 0}, "length should be greater than or equal to 1, got 0"), ({"top_k": 0}, "top_k should be"),
        ({"top_p": 2.0}, "top_p should be less"), ({"temperature": -1.0}, "temperature should be greater"),
        ({"repetition_penalty": 0.0}, "repetition_penalty should be greater than 0"), ({"no_repeat_ngram": 0}, "no_re"),
        ({"beams": 0}, "beams should be"), ({"beams": 2, "samples": 3}, "2 beams cannot give 3"),
        ({"samples": 0}, "samples should be greater than or equal to 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            writer.generate(["a"], **manner)
    with pytest.raises(TypeError, match="hotness"):
        writer.generate(["a"], hotness=3)
    with pytest.raises(TypeError):
        writer.generate("a single string")
    assert writer.generate([]) == []


@torch.no_grad()
def test_generation_stops_when_rules_forbid_every_token() -> None:
    writer = TextGenerator(rnn(LETTERS.vocab), LETTERS, CPU)
    for manner in ({}, {"temperature": 0}):
        (found,) = writer.generate(["a"], length=500, no_repeat_ngram=1, **manner)
        assert sorted(found.ids) == sorted({*range(3, LETTERS.vocab)} - set(LETTERS.ids(["a"])[0]))
        assert found.log_probability == pytest.approx(
            writer._log_prob([3, *LETTERS.ids(["a"])[0]], found.ids), abs=1e-3
        )
    assert writer.generate(["a"], length=500, no_repeat_ngram=1, beams=2, samples=2) == []


def test_special_tokens_are_text_unless_allowed() -> None:
    writer = WRITERS["learned"]()
    text = "a<|endoftext|>b"
    assert writer.tokens_of(text, special=True) == 4 < writer.tokens_of(text)
    plain, special = (writer.generate([text], length=6, temperature=0, special=s)[0] for s in (False, True))
    assert plain.log_probability != special.log_probability
    assert special.text == text + special.completion
    with pytest.raises(UserError, match="cannot encode special tokens"):
        WRITERS["lines"]().generate([text], special=True)


def test_ids_outside_the_vocabulary_are_never_generated() -> None:
    model = gpt(vocab=PAIRS.vocab + 30)
    with torch.no_grad():
        model.tokens.weight[PAIRS.vocab :] *= 5
    for found in TextGenerator(model, PAIRS, CPU).generate(["a", ""], length=30, samples=4):
        assert max(found.ids) < PAIRS.vocab
    for found in TextGenerator(model, PAIRS, CPU).generate(["a"], length=9, beams=3, samples=3):
        assert max(found.ids) < PAIRS.vocab


@torch.no_grad()
def test_loss_is_the_mean_log_probability_of_tokens() -> None:
    writer = TextGenerator(gpt(context=200), PAIRS, CPU)
    logs = writer._log_prob([PAIRS.end], [*PAIRS.ids(["a rose"])[0], PAIRS.end])
    assert writer.loss("a rose") == near(-logs / (len(PAIRS.ids(["a rose"])[0]) + 1))


# ------------------------------------------------------------------ against transformers
def twins(seed: int, ending: float = 1.0) -> tuple[Any, TextGenerator]:
    """GPT-2 of `transformers` and ours with the same weights; the end token may be made more likely."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=PAIRS.vocab, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=PAIRS.end,
        eos_token_id=PAIRS.end, pad_token_id=PAIRS.end,
    )  # fmt: skip
    theirs, ours = spread(transformers.GPT2LMHeadModel(config), 0.25), gpt(context=64)
    body = theirs.transformer
    with torch.no_grad():
        body.wte.weight[PAIRS.end] += ending * 12 * body.ln_f.bias
        ours.tokens.weight.copy_(body.wte.weight)
        ours.positions.table.copy_(body.wpe.weight)
        pairs = [(ours.norm, body.ln_f)]
        for mine, its in zip(ours.blocks, body.h, strict=True):
            pairs += [(mine.add1.norm, its.ln_1), (mine.add2.norm, its.ln_2), (mine.attention.qkv, its.attn.c_attn)]
            pairs += [
                (mine.attention.out, its.attn.c_proj),
                (mine.mlp.up, its.mlp.c_fc),
                (mine.mlp.down, its.mlp.c_proj),
            ]
        for mine, its in pairs:
            mine.weight.copy_(its.weight.T if its.weight.dim() == 2 else its.weight)
            mine.bias.copy_(its.bias)
    return theirs, TextGenerator(ours, PAIRS, CPU)


def their_texts(theirs: Any, prompt: str, **settings: Any) -> list[list[int]]:
    """What `transformers` generates after a prompt, up to the end token."""
    given = torch.tensor([[PAIRS.end, *PAIRS.ids([prompt])[0]]])
    settings = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": PAIRS.end} | settings
    rows = theirs.generate(given, attention_mask=torch.ones_like(given), **settings)[:, given.shape[1] :].tolist()
    return [row[: row.index(PAIRS.end) + 1] if PAIRS.end in row else row for row in rows]


@pytest.mark.parametrize("seed", range(3))
def test_searches_match_transformers(seed: int) -> None:
    theirs, writer = twins(seed, ending=seed / 2)
    penalty = pytest.importorskip("transformers").RepetitionPenaltyLogitsProcessor
    less = {"logits_processor": [penalty(1.4, prompt_ignore_length=1)]}  # without the start token
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"temperature": 0}, {}),
        ({"temperature": 0, "repetition_penalty": 1.4}, less),
        ({"temperature": 0, "no_repeat_ngram": 2, "min_length": 12}, {"no_repeat_ngram_size": 2, "min_new_tokens": 12}),
        ({"beams": 2, "samples": 2}, {"num_beams": 2, "num_return_sequences": 2}),
        ({"beams": 4, "length_penalty": 0.0}, {"num_beams": 4, "length_penalty": 0.0}),
        ({"beams": 4, "length_penalty": 1.7}, {"num_beams": 4, "length_penalty": 1.7}),
        ({"beams": 3, "repetition_penalty": 1.4}, {"num_beams": 3, **less}),
        ({"beams": 3, "no_repeat_ngram": 2}, {"num_beams": 3, "no_repeat_ngram_size": 2}),
    ]  # fmt: skip
    for prompt in ("a rose is a rose", "", "rose rose rose"):
        for ours, its in cases:
            found = [one.ids for one in writer.generate([prompt], length=16, **ours)]
            assert found == their_texts(theirs, prompt, **its), (prompt, ours)


def test_compared_texts_end_sometimes() -> None:
    ended = [
        one.ended
        for seed in range(3)
        for one in twins(seed, seed / 2)[1].generate(["a", "b"], length=16, beams=4, samples=4)
    ]
    assert 0 < sum(ended) < len(ended)


@pytest.mark.parametrize(
    "manner",
    [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"temperature": 1.5, "top_k": 30, "top_p": 0.6}],
    ids=str,
)
def test_sampling_probabilities_match_transformers(manner: dict[str, float]) -> None:
    logits = pytest.importorskip("transformers.generation.logits_process")
    scores, none = 3 * torch.randn(50, 100), torch.zeros(50, 1, dtype=torch.long)
    kinds = {
        "temperature": logits.TemperatureLogitsWarper,
        "top_k": logits.TopKLogitsWarper,
        "top_p": logits.TopPLogitsWarper,
    }
    theirs = ours = scores
    for name, value in manner.items():
        theirs = kinds[name](value)(none, theirs)
    for rule in sampling_rules(TextSettings(**manner)):  # type: ignore[arg-type]
        ours = rule(ours.clone(), Generated(none, none, torch.tensor(0), none))
    close(ours.softmax(-1), theirs.softmax(-1), slack=16)


@torch.no_grad()
def test_log_probability_is_without_the_penalty() -> None:
    writer = WRITERS["learned"]()
    for manner in ({"beams": 3, "samples": 3}, {"temperature": 0}, {}):
        for found in writer.generate(["a rose"], length=6, repetition_penalty=1.8, **manner):
            log = writer._log_prob([PAIRS.end, *PAIRS.ids(["a rose"])[0]], found.ids)
            assert found.log_probability == near(log, 1024)
    assert math.isfinite(log)
    assert PartialText([1, 2], generated=[3]).ids == [1, 2, 3]


@pytest.mark.parametrize("name", WRITERS)
def test_half_precision_is_close(name: str) -> None:
    whole, half = WRITERS[name](), WRITERS[name]().bfloat16()
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    found = half.generate(["a rose"], temperature=0, length=12)[0]
    given = [whole.codec.start_id, *whole.codec.encode("a rose")]
    with torch.inference_mode():
        assert found.log_probability == pytest.approx(whole._log_prob(given, found.ids), rel=0.1)


@pytest.mark.parametrize("name", ["learned", "rnn", "lines"])
def test_search_steps_end_in_the_texts_of_beam_search(name: str) -> None:
    writer = WRITERS[name]()
    for prompt in ("", "a rose"):
        paths = drain(writer.steps(prompt, 3, 2, 0.7, 7))
        found = writer.generate([prompt], samples=2, beams=3, length=7, length_penalty=0.7)
        assert language_model._path_ids(paths)[0] == [one.ids for one in found]
        assert paths.logs[0].tolist() == [one.log_probability for one in found]


def test_search_steps_beyond_the_context_see_what_is_kept() -> None:
    writer = WRITERS["learned"]()
    prompt = "is a rose, " * 12
    ids = [writer.codec.start_id, *writer.codec.encode(prompt)]
    seen = ids[writer.context_start(len(ids)) :]
    assert len(seen) < len(ids) and writer.room(prompt) == 20 + 1 - len(seen)
    begins = [5, 40]
    paths = drain(writer.steps(prompt, 3, prefix=begins))
    (found,) = language_model._path_ids(paths)[0]
    assert found[:2] == begins and len(found) <= writer.room(prompt)
    with torch.inference_mode():
        assert float(paths.logs[0, 0]) == near(writer._log_prob(seen, found), 1024)
