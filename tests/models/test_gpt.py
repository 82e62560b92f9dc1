"""GPT: published sizes, a reference in float64 loops, documents in one window, decoding with a cache."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.masks import alibi
from heedful.blocks.state import Cache
from heedful.models.gpt.config import SIZES, GptConfig, Positions
from heedful.models.gpt.model import Gpt
from tolerance import close

VOCAB, CONTEXT = 19, 12
each_scheme = pytest.mark.parametrize("positions", get_args(Positions))
each_norm = pytest.mark.parametrize("norm", ["pre", "post"])


def tiny_model(**settings: Any) -> Gpt:
    """A tiny model in float64 without a weight of zero or one."""
    torch.manual_seed(1)
    config = GptConfig(**{"vocab": VOCAB, "width": 8, "heads": 2, "layers": 3, "context": CONTEXT, **settings})
    model = Gpt(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


# ------------------------------------------------------------------ the whole model as loops over plain numbers
Vector = list[float]


def as_list(tensor: Tensor) -> Any:
    return tensor.detach().double().tolist()


def line(x: Vector, weight: list[Vector], bias: Vector) -> Vector:
    return [sum(a * b for a, b in zip(x, row, strict=True)) + c for row, c in zip(weight, bias, strict=True)]


def layer_norm(x: Vector, gain: Vector, shift: Vector, eps: float) -> Vector:
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((a - mean) ** 2 for a in x) / len(x) + eps)
    return [(a - mean) / spread * g + s for a, g, s in zip(x, gain, shift, strict=True)]


def gelu(a: float) -> float:
    return 0.5 * a * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


def to_float32(a: float) -> float:
    """Rounded to single precision."""
    return float(np.float32(a))


def with_position(x: Vector, at: int, config: GptConfig, table: list[Vector]) -> Vector:
    """x plus its position embedding."""
    width = len(x)
    if config.positions == "learned":
        return [a + b for a, b in zip(x, table[at], strict=True)]
    angles = [at / 10000 ** (2 * pair / width) for pair in range(width // 2)]
    if config.positions == "sinusoid":
        waves = [to_float32(wave(angle)) for angle in angles for wave in (math.sin, math.cos)]
    elif config.positions == "sinusoid_halves":
        waves = [to_float32(wave(angle)) for wave in (math.sin, math.cos) for angle in angles]
    else:
        return x
    return [math.sqrt(width) * a + b for a, b in zip(x, waves, strict=True)]


def rotate(x: Vector, at: int) -> Vector:
    """A head's vector, rotated by its position."""
    half = len(x) // 2
    angles = [at / 10000 ** (2 * pair / len(x)) for pair in range(half)]
    sines, cosines = [to_float32(math.sin(a)) for a in angles], [to_float32(math.cos(a)) for a in angles]
    left = [x[j] * cosines[j] - x[half + j] * sines[j] for j in range(half)]
    right = [x[half + j] * cosines[j] + x[j] * sines[j] for j in range(half)]
    return left + right


def reference_logits(model: Gpt, tokens: list[int]) -> list[Vector]:
    """The logits after each token, computed in loops."""
    c, w = model.config, {name: as_list(value) for name, value in model.state_dict().items()}
    size = c.width // c.heads
    xs = [
        with_position(w["tokens.weight"][token], at, c, w.get("positions.table", [])) for at, token in enumerate(tokens)
    ]
    for layer in range(c.layers):
        p = {name.removeprefix(f"blocks.{layer}."): v for name, v in w.items() if name.startswith(f"blocks.{layer}.")}

        def norm(x: Vector, which: str, p: dict[str, Any] = p) -> Vector:
            return layer_norm(x, p[f"{which}.norm.weight"], p[f"{which}.norm.bias"], c.norm_eps)

        pre = c.norm == "pre"
        qkv = [line(norm(x, "add1") if pre else x, p["attention.qkv.weight"], p["attention.qkv.bias"]) for x in xs]
        for t in range(len(xs)):
            joined: Vector = []
            for head in range(c.heads):
                begin = head * size

                def part(
                    place: int, which: int, begin: int = begin, qkv: list[Vector] = qkv, turns: bool = True
                ) -> Vector:
                    found = qkv[place][which * c.width + begin : which * c.width + begin + size]
                    return rotate(found, place) if c.positions == "rotary" and turns else found

                slope = 2 ** (-8 * (head + 1) / c.heads) if c.positions == "alibi" else 0.0
                scores = [
                    sum(a * b for a, b in zip(part(t, 0), part(s, 1), strict=True)) / math.sqrt(size) - slope * (t - s)
                    for s in range(t + 1)
                ]
                most = max(scores)
                weights = [math.exp(score - most) for score in scores]
                joined += [
                    sum(weight * part(s, 2, turns=False)[k] for s, weight in enumerate(weights)) / sum(weights)
                    for k in range(size)
                ]
            added = line(joined, p["attention.out.weight"], p["attention.out.bias"])
            x = [a + b for a, b in zip(xs[t], added, strict=True)]
            x = x if pre else norm(x, "add1")
            inner = [gelu(a) for a in line(norm(x, "add2") if pre else x, p["mlp.up.weight"], p["mlp.up.bias"])]
            x = [a + b for a, b in zip(x, line(inner, p["mlp.down.weight"], p["mlp.down.bias"]), strict=True)]
            xs[t] = x if pre else norm(x, "add2")
    if c.norm == "pre":
        xs = [layer_norm(x, w["norm.weight"], w["norm.bias"], c.norm_eps) for x in xs]
    return [line(x, w["tokens.weight"], [0.0] * VOCAB) for x in xs]


@each_norm
@each_scheme
def test_model_matches_plain_loops(positions: str, norm: str) -> None:
    model = tiny_model(positions=positions, norm=norm)
    tokens = torch.randint(0, VOCAB, (2, 7))
    with torch.no_grad():
        logits = model.tokens.logits(model.read(tokens))
    expected = torch.tensor([reference_logits(model, row) for row in tokens.tolist()], dtype=torch.float64)
    assert float(expected.std()) > 0.3
    close(logits, expected, slack=524288)


@each_norm
@each_scheme
def test_cached_decoding_equals_full_forward(positions: str, norm: str) -> None:
    model, tokens = tiny_model(positions=positions, norm=norm), torch.randint(0, VOCAB, (3, CONTEXT))
    with torch.no_grad():
        whole = model.tokens.logits(model.read(tokens))
        for chunks in ([CONTEXT], [1] * CONTEXT, [5, 1, 6]):
            state, parts = model.start(3, tokens.device), []
            for part in tokens.split(chunks, 1):
                logits, state = model(part, state)
                parts.append(logits)
            close(torch.cat(parts, 1), whole, slack=8192)


@each_scheme
def test_documents_in_a_window_do_not_see_each_other(positions: str) -> None:
    """Each document gives what it gives alone, and another document does not change a bit of it."""
    model, tokens = tiny_model(positions=positions), torch.randint(1, VOCAB, (2, 10))
    documents = torch.tensor([[0] * 4 + [1] * 6, [3] * 1 + [4] * 7 + [5] * 2])
    with torch.no_grad():
        together = model.read(tokens, documents)
        for row in range(2):
            for number in documents[row].unique().tolist():
                mine = documents[row] == number
                alone = model.read(tokens[row, mine][None])[0]
                close(together[row, mine], alone, slack=8192)
        other = tokens.clone()
        other[1, 1:8] = other[1, 1:8].flip(0) % (VOCAB - 1) + 1
        changed = model.read(other, documents)
    kept = documents != 4
    assert torch.equal(together[kept], changed[kept])
    assert not torch.equal(together[~kept], changed[~kept])


def test_only_absolute_positions_distinguish_equal_tokens() -> None:
    """In a text of one repeated token, only absolute positions differ."""
    tokens = torch.full((1, CONTEXT), 5)
    for positions in get_args(Positions):
        with torch.no_grad():
            x = tiny_model(positions=positions).read(tokens)[0]
        alike = float((x - x[0]).abs().max()) < 1e-12
        # Rotary and ALiBi encode distances, which have no effect when all keys are equal.
        assert alike == (positions in ("none", "rotary", "alibi")), positions


def test_without_positions_two_layers_see_the_order() -> None:
    """The last token of "a b c" and "b a c": one causal layer cannot tell them apart, two can."""
    for layers, differs in ((1, False), (2, True)):
        model = tiny_model(positions="none", layers=layers)
        with torch.no_grad():
            one, other = model.read(torch.tensor([[3, 7, 2], [7, 3, 2]]))[:, -1]
        assert (float((one - other).abs().max()) > 1e-3) == differs


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("gpt", 116_534_784),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_parameter_counts_of_published_sizes(size: str, count: int) -> None:
    config = SIZES[size]
    with torch.device("meta"):
        assert sum(weight.numel() for weight in Gpt(config).parameters()) == count
    assert config.parameters(config.vocab or 0) == count


def test_alibi_is_bias_and_others_have_none() -> None:
    state = Cache((None, None))
    bias = tiny_model(positions="alibi").bias(state, 4)
    assert bias is not None
    q = k = torch.arange(4)
    zero = torch.zeros(1, dtype=torch.long)
    assert torch.equal(bias(zero, zero, q[:, None], k), alibi(2)(zero, zero, q[:, None], k))
    assert tiny_model(positions="rotary").bias(state, 4) is None


def test_text_longer_than_the_context_is_rejected() -> None:
    with pytest.raises(ValueError, match=f"{CONTEXT + 1} tokens, more than the model's context of {CONTEXT}"):
        tiny_model().read(torch.zeros(1, CONTEXT + 1, dtype=torch.long))


def test_residual_projections_are_initialized_smaller_in_deeper_models() -> None:
    torch.manual_seed(0)
    model = Gpt(GptConfig(vocab=50, width=64, heads=2, layers=8, context=16))
    spread = {name: float(weight.detach().std()) for name, weight in model.named_parameters() if weight.dim() == 2}
    for name, found in spread.items():
        expected = 0.02 / 4 if name.endswith(("out.weight", "down.weight")) else 0.02
        assert found == pytest.approx(expected, rel=0.1), name
