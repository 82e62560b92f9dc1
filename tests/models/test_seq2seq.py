"""Recurrent sequence-to-sequence models against the equations of the papers, computed in float64, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.blocks.layouts import Padded
from heedful.blocks.memory import one_hot_sample
from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.models import build
from heedful.models.seq2seq.config import Seq2SeqConfig
from heedful.runs.recipe import load_recipe
from tolerance import close

VOCAB, WIDTH, HIDDEN, MEMORY = 19, 6, 10, 8
Weights = dict[str, Tensor]
State = tuple[Tensor, Tensor]


def small_model(attention: dict[str, Any] | None, memory: int = MEMORY, **more: Any) -> Any:
    """A small model in float64 with two encoder and two decoder layers, whose biases are not zero."""
    encoder = {"kind": "recurrent", "layers": 2, "hidden": memory}
    settings = {"vocab": VOCAB, "width": WIDTH, "encoder": encoder, "hidden": HIDDEN, "context": 12, "dropout": 0.0}
    model: Any = build(Seq2SeqConfig.model_validate(settings | {"attention": attention} | more)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


# ------------------------------------------------------------------ reference: the equations for one sentence
def lstm(w: Weights, x: Tensor, state: State) -> State:
    h, c = state
    i, f, g, o = (w["x.weight"] @ x + w["h.weight"] @ h + w["x.bias"]).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def weights_of(w: Weights, name: str) -> Weights:
    """The weights whose names begin with a prefix, without it."""
    return {key.removeprefix(name): value for key, value in w.items() if key.startswith(name)}


def encode(w: Weights, xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The outputs (S, M) and the final states (M,) of a bidirectional LSTM with two layers."""
    summary = torch.empty(0)
    for layer in range(2):
        sides = []
        for side, order in (("ahead", xs), ("back", xs[::-1])):
            cell = weights_of(w, f"encoder.stack.layers.{layer}.{side}.cell.")
            size = cell["h.weight"].shape[1]
            state: State = (torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64))
            outputs = []
            for x in order:
                state = lstm(cell, x, state)
                outputs.append(state[0])
            sides.append((outputs, state[0]))
        (ahead, last), (back, first) = sides
        xs = [torch.cat(pair) for pair in zip(ahead, back[::-1], strict=True)]
        summary = torch.cat([last, first])
    return torch.stack(xs), summary


def score(w: Weights, name: str, q: Tensor, k: Tensor, s: int) -> Tensor:
    if name == "additive":
        return w["v.weight"][0] @ torch.tanh(w["q.weight"] @ q + w["k.weight"] @ k)
    if name == "general":
        return q @ (w["matrix.weight"] @ k)
    if name == "location":
        return (w["matrix.weight"] @ q)[s]
    if name == "cosine":
        return q @ k / (q.norm() * k.norm())
    return q @ k / (math.sqrt(len(q)) if name == "scaled_dot" else 1.0)


def context(w: Weights, a: Any, q: Tensor, memory: Tensor, t: int) -> Tensor:
    """The context vector at step t: the weighted sum of the encoder's outputs."""
    length, span = len(memory), a.span
    parts, total = [], torch.zeros((), dtype=torch.float64)
    if span.kind == "predictive":
        p = length * torch.sigmoid(w["span.v.weight"][0] @ torch.tanh(w["span.hidden.weight"] @ q))
    for s in range(length):
        weight = score(weights_of(w, "score."), a.score, q, memory[s], s).exp()
        if span.kind == "monotonic" and abs(s - min(t, length - 1)) > span.window:
            continue
        if span.kind == "predictive":
            if abs(s - float(p.detach())) > span.window:
                continue
            weight = weight * torch.exp(-((s - p) ** 2) / (2 * (span.window / 2) ** 2))
        parts.append((weight, memory[s]))
        total = total + weight
    if a.choice == "hard":
        return max(parts, key=lambda part: part[0].item())[1]
    return torch.stack([weight / total * value for weight, value in parts]).sum(0)


def reference_logits(m: Any, source: Tensor, target: Tensor) -> Tensor:
    """The logits (T, V) of one sentence, from the equations."""
    w, c = dict(m.named_parameters()), m.config
    table = w["tokens.weight"]
    memory, summary = encode(w, [math.sqrt(WIDTH) * table[token] for token in source.tolist()])
    begin = torch.tanh(w["begin.weight"] @ summary + w["begin.bias"]).view(2, 2, HIDDEN)
    states: list[State] = [(begin[layer, 0], begin[layer, 1]) for layer in range(2)]
    attention, rows = weights_of(w, "decoder.attention."), []
    for t, token in enumerate(target.tolist()):
        x = math.sqrt(WIDTH) * table[token]
        if c.attention and c.attention.feed == "input":
            x = torch.cat([context(attention, c.attention, states[-1][0], memory, t), x])
        for layer in range(2):
            states[layer] = lstm(weights_of(w, f"decoder.stack.layers.{layer}.cell."), x, states[layer])
            x = states[layer][0]
        if c.attention and c.attention.feed == "output":
            x = torch.cat([x, context(attention, c.attention, x, memory, t)])
        y = w["decoder.out.weight"] @ x + w["decoder.out.bias"]
        rows.append(table @ (torch.tanh(y) if c.attention and c.attention.feed == "output" else y))
    return torch.stack(rows)


MONOTONIC, PREDICTIVE = {"kind": "monotonic", "window": 1}, {"kind": "predictive", "window": 2}
ATTENTIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "bahdanau": {"score": "additive", "feed": "input"},
    "luong": {"score": "general", "feed": "output"},
    "input dot": {"score": "dot", "feed": "input"},
    "output additive": {"score": "additive", "feed": "output"},
    "output scaled dot": {"score": "scaled_dot", "feed": "output"},
    "output cosine": {"score": "cosine", "feed": "output"},
    "input location": {"score": "location", "feed": "input"},
    "input monotonic": {"score": "general", "feed": "input", "span": MONOTONIC},
    "output monotonic": {"score": "location", "feed": "output", "span": MONOTONIC},
    "input predictive": {"score": "additive", "feed": "input", "span": PREDICTIVE},
    "output predictive": {"score": "scaled_dot", "feed": "output", "span": PREDICTIVE},
    "input hard": {"score": "additive", "feed": "input", "choice": "hard"},
    "output hard": {"score": "dot", "feed": "output", "choice": "hard"},
}


def padded(sources: list[Tensor], side: str) -> tuple[Tensor, Padded]:
    ones = [torch.ones_like(source, dtype=torch.bool) for source in sources]
    both = [pad_sequence(rows, batch_first=True, padding_side=side) for rows in (sources, ones)]
    return both[0], Padded(both[1])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_padded_batch_matches_the_equations(name: str, side: str) -> None:
    attention = ATTENTIONS[name]
    same_width = attention is not None and attention["score"] in ("dot", "scaled_dot", "cosine")
    m = small_model(attention, memory=HIDDEN if same_width else MEMORY)
    sources = [torch.randint(1, VOCAB, (length,)) for length in (5, 1, 3)]
    target = torch.randint(1, VOCAB, (3, 4))
    weights = [weight for label, weight in m.named_parameters() if "hard" not in name or "score" not in label]

    def logits_and_gradients(logits: Tensor) -> list[Tensor]:
        probe = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
        return [logits.detach(), *torch.autograd.grad((logits * probe).sum(), weights)]

    ours = logits_and_gradients(m(target, m.start(*padded(sources, side)))[0])
    expected = logits_and_gradients(
        torch.stack([reference_logits(m, *pair) for pair in zip(sources, target, strict=True)])
    )
    for result, reference in zip(ours, expected, strict=True):
        close(result, reference, slack=524288)


# ------------------------------------------------------------------ local attention
SOURCES = [torch.arange(1, 7), torch.tensor([8, 3]), torch.arange(11, 15)]


@pytest.mark.parametrize("feed", ["input", "output"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_local_m_window_follows_the_target_position(feed: str, side: str) -> None:
    m = small_model({"score": "general", "feed": feed, "span": MONOTONIC})
    source, layout = padded(SOURCES, side)
    target = torch.randint(1, VOCAB, (3, 8))
    with watch(m, "decoder.attention.weights") as seen:
        _, state = m(target[:, :3], m.start(source, layout))
        m(target[:, 3:], state)  # the state holds the position of the window
    weights = torch.cat(seen.all["decoder.attention.weights"], 2)[:, 0]
    for row, words in enumerate(SOURCES):
        shift = source.shape[1] - len(words) if side == "left" else 0
        for t in range(8):
            middle = min(t, len(words) - 1)
            near = [s + shift for s in range(len(words)) if middle - 1 <= s <= middle + 1]
            assert weights[row, t].nonzero().flatten().tolist() == near


@pytest.mark.parametrize("feed", ["input", "output"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_local_p_is_a_gaussian_within_the_sentence(feed: str, side: str) -> None:
    m = small_model({"score": "location", "feed": feed, "span": PREDICTIVE})
    m.decoder.attention.score.matrix.weight.data.zero_()  # so that only the Gaussian decides
    m.decoder.attention.span.v.weight.data.mul_(3)
    source, layout = padded(SOURCES, side)
    with watch(m, "decoder.attention.*") as seen:
        m(torch.randint(1, VOCAB, (3, 8)), m.start(source, layout))
    weights = torch.cat(seen.all["decoder.attention.weights"], 2)[:, 0]  # (B, T, S)
    middle = torch.cat(seen.all["decoder.attention.span.middle"], 1)  # (B, T, 1)
    lengths = torch.tensor([len(words) for words in SOURCES])[:, None, None]
    assert bool(((middle > 0) & (middle < lengths)).all())
    assert float(middle.std(1).min()) > 0.01  # it depends on the target position
    distance = layout.at[:, None] - middle
    gaussian = torch.exp(-distance.square() / (2 * 1.0**2)) * layout.real[:, None] * (distance.abs() <= 2)
    close(weights, gaussian / gaussian.sum(-1, keepdim=True), slack=8192)
    assert float(weights.sum(-1).sub(1).abs().max()) < 1e-12


@pytest.mark.parametrize("name", [name for name, attention in ATTENTIONS.items() if attention])
def test_empty_source_has_zero_context_and_finite_gradients(name: str) -> None:
    attention = ATTENTIONS[name]
    m = small_model(attention, memory=HIDDEN)
    real = torch.tensor([[True, True, False], [False, False, False]])
    with watch(m, "decoder.attention.context") as seen:
        logits, _ = m(torch.randint(1, VOCAB, (2, 4)), m.start(torch.randint(1, VOCAB, (2, 3)), Padded(real)))
    for context in seen.all["decoder.attention.context"]:
        assert bool(context[0].any()) and not bool(context[1].any())
    assert bool(logits.isfinite().all())
    logits.sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in m.parameters() if weight.grad is not None)


# ------------------------------------------------------------------ hard attention
def test_hard_attention_samples_in_training_and_takes_the_argmax_otherwise() -> None:
    m = small_model({"score": "additive", "feed": "output", "choice": "hard"})
    source, target = torch.randint(1, VOCAB, (1, 6)).expand(50, -1), torch.randint(1, VOCAB, (1, 4)).expand(50, -1)
    with watch(m, "decoder.attention.*") as seen:
        m.read(source, target)
    weights, choice = seen["decoder.attention.weights"], seen["decoder.attention.choice"]
    assert choice.argmax(-1).equal(weights.argmax(-1))
    assert bool((choice.sum(-1) == 1).all())
    m.train()
    with watch(m, "decoder.attention.choice") as seen:
        _, log_probabilities = m.read_sampled(source, target)
    samples = seen["decoder.attention.choice"]
    assert bool((samples.sum(-1) == 1).all())
    assert len(samples.argmax(-1).unique()) > 1
    close(log_probabilities, (weights * samples).sum(-1)[:, 0].log(), slack=8192)


# ------------------------------------------------------------------ invalid settings
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": {"score": "dot"}, "hidden": 100}, "have 100 numbers .* outputs 512; write encoder.hidden: 100"),
        ({"attention": {"score": "cosine"}, "encoder": {"kind": "transformer"}, "width": 64}, "write width: 512"),
        ({"attention": {"score": "softmax"}}, "'dot', 'scaled_dot', 'cosine', 'general', 'additive' or 'location'"),
        ({"encoder": {"kind": "recurrent", "hidden": 33}}, "two directions cannot share .* 33; write hidden: 34"),
        ({"encoder": {"kind": "transformer", "heads": 3}}, "be shared by the encoder's 3 heads; write width: 513"),
        ({"encoder": {"kind": "transformer", "heads": 1}, "width": 9}, "sinusoids need an even width; write width: 10"),
        ({"encoder": {"kind": "transformer", "cell": "gru"}}, "not permitted"),
        ({"attention": {"span": {"kind": "monotonic", "window": 0}}}, "greater than or equal to 1"),
        ({"attention": {"span": {"kind": "local"}}}, "'global', 'monotonic', 'predictive'"),
        ({"hidden": 65_536, "layers": 100}, "more than 200 billion"),
    ],
    ids=str,
)  # fmt: skip
def test_error_for_an_invalid_model_says_what_to_write(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Seq2SeqConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.attention.score=dot", "model.hidden=96"], "model.attention.score: the score dot compares"),
        (["model.encoder.hidden=127"], "model.encoder.directions: two directions cannot share"),
        (["model.encoder={kind: transformer, heads: 5}"], "model.encoder.heads: a width of 96 cannot be shared"),
        (["model.encoder={kind: transformer, heads: 3}", "model.width=99"], "model.width: sinusoids need an even"),
    ],
    ids=str,
)
def test_error_for_an_invalid_recipe_names_the_setting(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as problem:
        load_recipe("numbers-rnn", overrides)
    assert str(problem.value.message).startswith(message)
    assert "; write " in problem.value.message


def test_packed_batching_is_rejected() -> None:
    with pytest.raises(UserError, match="write batching: padded"):
        load_recipe("numbers-rnn", ["train.batching=packed"])


@pytest.mark.parametrize("feed", ["input", "output"])
def test_empty_source_or_target_is_rejected(feed: str) -> None:
    model: Any = build(Seq2SeqConfig.model_validate({"vocab": 9, "width": 4, "attention": {"feed": feed}}))
    with pytest.raises(ValueError, match="the source is empty"):
        model.start(torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="the target is empty"):
        model(torch.zeros(2, 0, dtype=torch.long), model.start(torch.ones(2, 3, dtype=torch.long)))


def test_compiling_input_feeding_is_rejected() -> None:
    with pytest.raises(UserError, match=r"compile: false, or model.attention.feed: output"):
        load_recipe("numbers-rnn", ["train.compile=true"])
    load_recipe("numbers-rnn", ["train.compile=true", "model.attention.feed=output"])


def test_sampling_in_half_precision_is_unbiased() -> None:
    weights = torch.full((100_000, 100), 0.01, dtype=torch.bfloat16)
    share = one_hot_sample(weights).float().mean(0)
    assert float((share - 0.01).abs().max()) < 6 * (0.01 * 0.99 / 100_000) ** 0.5
    first, last = share[:10].mean(), share[-10:].mean()
    assert abs(float(first - last)) < 5 * (2 * 0.01 / 1_000_000) ** 0.5
