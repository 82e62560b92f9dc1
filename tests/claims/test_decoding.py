"""Rows E of the claim sheet: from a source sentence to a translation, token by token."""

import math
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from generators import drain_generator
from heedful.blocks.losses import cross_entropy
from heedful.blocks.taps import watch
from heedful.decode.search import Decoder, beam, drain, greedy
from heedful.models import build
from heedful.models.gpt.config import GptConfig
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer
from tolerance import close, near

EOS, BOS, VOCAB = 0, 1, 13


def tiny(**changes: object) -> TransformerConfig:
    sizes = {
        "vocab": VOCAB,
        "width": 16,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "hidden": 24,
        "context": 30,
    }
    return TransformerConfig.model_validate(sizes | changes)


@pytest.mark.claim("E1")
def test_translation_from_source_to_target() -> None:
    m = 5
    model = Transformer(TransformerConfig(vocab=VOCAB, hidden=32)).eval()  # 6 + 6 blocks of width 512
    source = torch.randint(2, VOCAB, (1, m))
    with torch.inference_mode(), watch(model, "*.output") as seen:
        state = model.start(source)
        assert [tuple(u.shape) for u in seen.values()] == [(1, m, 512)] * 6
        token, words = torch.tensor([[BOS]]), []
        for t in range(1, 4):
            logits, state = model(token, state)
            assert logits.shape == (1, 1, VOCAB)
            assert state.past.length == t
            assert tuple(seen["decoder.5.output"].shape) == (1, 1, 512)
            token = logits.argmax(-1)
            words.append(int(token))
    assert len(seen.all["encoder.0.output"]) == 1  # the source is read once
    assert len(seen.all["decoder.0.output"]) == 3
    path = drain(greedy(model, model.start(source), torch.tensor([[BOS]]), torch.tensor([3]), EOS))
    assert path.tokens[0, 0, : int(path.lengths[0, 0])].tolist() == words[: int(path.lengths[0, 0])]


@pytest.mark.claim("E2")
def test_sentence_probability_is_the_product_of_steps() -> None:
    model = Transformer(tiny()).eval()
    source, target = torch.randint(2, VOCAB, (3, 5)), torch.randint(0, VOCAB, (3, 6))
    state, token, steps = model.start(source), torch.full((3, 1), BOS), torch.zeros(3)
    for t in range(6):
        logits, state = model(token, state)
        token = target[:, t : t + 1]
        steps = steps + logits[:, 0].log_softmax(-1).gather(1, token)[:, 0]
    forced, _ = model(torch.cat([torch.full((3, 1), BOS), target[:, :-1]], 1), model.start(source))
    for row in range(3):
        loss = cross_entropy(forced[row], target[row])
        assert float(loss.total.detach()) == near(-float(steps[row].detach()), 1024)
    paths = drain(beam(model, model.start(source), torch.full((3, 1), BOS), torch.tensor([6] * 3), EOS, beams=3, top=3))
    for row, rank in product(range(3), range(3)):
        path = paths.tokens[row, rank, : int(paths.lengths[row, rank])]
        forced, _ = model(torch.cat([torch.tensor([BOS]), path[:-1]])[None], model.start(source[row : row + 1]))
        log = float(forced[0].detach().log_softmax(-1).gather(1, path[:, None]).sum())
        assert float(paths.logs[row, rank]) == near(log, 1024)


@pytest.mark.claim("E3")
def test_cached_decoding_equals_full_decoding() -> None:
    model = Transformer(tiny()).eval()
    source, target = torch.randint(2, VOCAB, (2, 5)), torch.randint(0, VOCAB, (2, 6))
    state = model.start(source)
    for t in range(6):
        with watch(model, "decoder.*.attention.weights") as seen:
            logits, state = model(target[:, t : t + 1], state)
        assert all(w.shape == (2, 2, 1, t + 1) for w in seen.values())  # one query; keys of all inputs up to its own
        full, _ = model(target[:, : t + 1], model.start(source))
        close(logits[:, 0], full[:, -1])
        assert logits[:, 0].argmax(-1).equal(full[:, -1].argmax(-1))
    assert state.past.length == 6


POSITIONS = ("learned", "none", "sinusoid", "rotary", "alibi")


def language_model(kind: str) -> Any:
    """A language model with positions of some kind, or a recurrent one, randomly initialized."""
    if kind == "recurrent":
        model = build(RnnLMConfig(vocab=VOCAB, width=16, hidden=20, context=20))
    else:
        settings = {"vocab": VOCAB, "width": 16, "heads": 2, "layers": 2, "context": 20, "positions": kind}
        model = build(GptConfig.model_validate(settings))
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    return model.eval()


@pytest.mark.claim("E2")
@pytest.mark.parametrize("kind", [*POSITIONS, "recurrent"])
@torch.no_grad()
def test_text_probability_is_the_product_of_steps(kind: str) -> None:
    model, text = language_model(kind), torch.randint(0, VOCAB, (3, 12))
    state, steps = model.start(3, text.device), torch.zeros(3)
    for t in range(11):
        logits, state = model(text[:, t : t + 1], state)
        steps += logits[:, 0].log_softmax(-1).gather(1, text[:, t + 1 : t + 2])[:, 0]
    x = model.read(text[:, :-1])
    forced = model.tokens.logits(x).log_softmax(-1).gather(2, text[:, 1:, None]).sum((1, 2))
    close(steps, forced, slack=1024)
    for search in (greedy, beam):
        start = text[:, :1], torch.full((3,), 9), EOS
        paths = drain(search(model, model.start(3, text.device), *start))  # type: ignore[operator]
        for row in range(3):
            path = paths.tokens[row, 0, : int(paths.lengths[row, 0])]
            logs = model.tokens.logits(model.read(torch.cat([text[row, :1], path[:-1]])[None]))[0].log_softmax(-1)
            assert float(paths.logs[row, 0]) == near(float(logs.gather(1, path[:, None]).sum()), 1024)


@pytest.mark.claim("E3")
@pytest.mark.parametrize("kind", [*POSITIONS, "recurrent"])
@torch.no_grad()
def test_chunked_reading_equals_reading_at_once(kind: str) -> None:
    model, text = language_model(kind), torch.randint(0, VOCAB, (2, 7))
    full = model.tokens.logits(model.read(text))
    for cuts in product((False, True), repeat=6):  # every way to split 7 tokens into chunks
        begins = [0, *(position for position, cut in enumerate(cuts, 1) if cut), 7]
        state, parts = model.start(2, text.device), []
        for begin, end in pairwise(begins):
            logits, state = model(text[:, begin:end], state)
            parts.append(logits)
        close(torch.cat(parts, 1), full)
    other = text.clone()
    other[:, 4:] = (other[:, 4:] + 1) % VOCAB
    assert model.tokens.logits(model.read(other))[:, :4].equal(full[:, :4])  # later tokens change nothing


@pytest.mark.claim("E4")
def test_argmax_logit_maps_to_the_vocabulary() -> None:
    words = ["<end>", "<start>", "a", "thanks", "I", "am", "student"]
    model = Transformer(tiny(vocab=len(words))).eval()
    logits, _ = model(torch.tensor([[BOS]]), model.start(torch.tensor([[3]])))
    assert logits.shape[-1] == len(words)
    p = logits[0, 0].detach().softmax(-1)
    assert float(p.sum()) == near(1, 16)
    assert int(p.argmax()) == int(logits[0, 0].argmax())
    peak = torch.tensor([0.1, -1.0, 0.3, 0.2, 2.0, 4.5, 1.0])
    path = drain(greedy(constant_model(peak), None, torch.tensor([[BOS]]), torch.tensor([1]), EOS))
    assert int(path.tokens[0, 0, 0]) == 5
    assert words[int(path.tokens[0, 0, 0])] == "am"


@pytest.mark.claim("E5")
def test_loss_is_cross_entropy() -> None:
    logits, targets = torch.randn(7, VOCAB), torch.randint(0, VOCAB, (7,))
    loss = cross_entropy(logits, targets)
    by_hand = sum(
        math.log(sum(math.exp(x) for x in row)) - row[t]
        for row, t in zip(logits.tolist(), targets.tolist(), strict=True)
    )
    assert float(loss.total) == pytest.approx(by_hand, rel=1e-5)
    assert float(loss.total / loss.count) == pytest.approx(float(F.cross_entropy(logits, targets)), rel=1e-6)


@pytest.mark.claim("E6")
def test_greedy_is_argmax_and_beam_search_of_one() -> None:
    model = Transformer(tiny()).eval()
    source = torch.randint(2, VOCAB, (4, 5))
    start = torch.full((4, 1), BOS), torch.full((4,), 8), EOS
    one = drain(greedy(model, model.start(source), *start))
    two = drain(beam(model, model.start(source), *start, beams=1, top=1))
    for row in range(4):
        path = one.tokens[row, 0, : int(one.lengths[row, 0])]
        assert path.tolist() == two.tokens[row, 0, : int(two.lengths[row, 0])].tolist()
        forced, _ = model(torch.cat([torch.tensor([BOS]), path[:-1]])[None], model.start(source[row : row + 1]))
        assert forced[0].argmax(-1).equal(path)


WORDS = ["<end>", "<start>", "the", "poor", "people", "don't", "have", "any", "money", "are"]
BIGRAMS = {  # bigram probabilities; the most probable first step is a mistake
    "<start>": {"the": 0.9, "people": 0.1},
    "the": {"people": 0.5, "poor": 0.45, "money": 0.05},
    "people": {"are": 0.4, "have": 0.35, "<end>": 0.25},
    "are": {"poor": 0.6, "<end>": 0.4},
    "poor": {"don't": 0.9, "<end>": 0.1},
    "don't": {"have": 1.0},
    "have": {"any": 0.9, "money": 0.1},
    "any": {"money": 1.0},
    "money": {"<end>": 1.0},
}


def constant_model(logits: Tensor) -> Decoder:
    return lambda tokens, state: (logits.expand(*tokens.shape, -1), state)


def bigram_model(tokens: Tensor, state: None) -> tuple[Tensor, None]:
    """Logits of the next word given the last one."""
    table = torch.full((len(WORDS), len(WORDS)), 1e-9)
    for word, after in BIGRAMS.items():
        for other, p in after.items():
            table[WORDS.index(word), WORDS.index(other)] = p
    return table.log()[tokens], state


@pytest.mark.claim("E7")
def test_two_beams_find_what_greedy_misses() -> None:
    start = torch.tensor([[BOS]]), torch.tensor([10]), EOS
    steps, paths = drain_generator(beam(bigram_model, None, *start, beams=2, top=2, penalty=0.0, exact=True))
    texts = [" ".join(WORDS[t] for t in paths.tokens[0, i, : int(paths.lengths[0, i]) - 1].tolist()) for i in range(2)]
    assert texts[0] == "the poor don't have any money"
    assert paths.tokens.shape[1] == 2  # k = t = 2
    assert float(paths.logs[0, 0]) == near(math.log(0.9 * 0.45 * 0.9 * 0.9), 1024)
    alone = drain(greedy(bigram_model, None, *start))
    assert WORDS[int(alone.tokens[0, 0, 1])] == "people"
    assert float(alone.logs[0, 0]) < float(paths.logs[0, 0])
    for step in steps:  # the tree: at most two of four candidates are kept
        assert step.tokens.shape == step.parents.shape == step.logs.shape == (1, 4)
        assert int(step.kept.sum()) <= 2


@pytest.mark.claim("E7")
def test_exhaustive_beams_find_the_global_optimum() -> None:
    model, limit, vocab = Transformer(tiny(vocab=4)).eval(), 4, 4
    source = torch.tensor([[2, 3, 2]])
    strings = [(*head, EOS) for n in range(limit) for head in product((1, 2, 3), repeat=n)]
    strings += list(product((1, 2, 3), repeat=limit))

    def log(path: tuple[int, ...]) -> float:
        logits, _ = model(torch.tensor([[BOS, *path[:-1]]]), model.start(source))
        return float(logits[0].detach().log_softmax(-1).gather(1, torch.tensor(path)[:, None]).sum())

    best = max(strings, key=log)
    start = torch.tensor([[BOS]]), torch.tensor([limit]), EOS
    found = drain(beam(model, model.start(source), *start, beams=vocab**limit, penalty=0.0, exact=True))
    assert tuple(found.tokens[0, 0, : int(found.lengths[0, 0])].tolist()) == best
    for k, t in ((3, 1), (3, 2), (3, 3)):
        assert drain(beam(model, model.start(source), *start, beams=k, top=t)).tokens.shape[1] == t
