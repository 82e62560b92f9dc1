"""Each rule against a loop over rows and tokens."""

import math

import pytest
import torch
from torch import Tensor

from heedful.decode.rules import (
    ForcedPrefix,
    Generated,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Rule,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
    VocabLimit,
)

R, V, L = 40, 5, 9


def so_far(tokens: Tensor, chosen: int) -> Generated:
    """Rows without a prompt."""
    none = torch.zeros(len(tokens), 1, dtype=torch.long)
    return Generated(tokens, none, torch.tensor(chosen), none + chosen)


def allowed(rule: Rule, logits: Tensor, tokens: Tensor, chosen: int) -> list[list[bool]]:
    out = rule(logits.clone(), so_far(tokens, chosen))
    assert out[out > -math.inf].equal(logits[out > -math.inf])
    return (out > -math.inf).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("chosen", [0, 1, 2, 5, L])
def test_no_repeat(size: int, chosen: int) -> None:
    logits, tokens = torch.randn(R, V), torch.randint(0, 3, (R, L))
    got = allowed(NoRepeatNgram(size), logits, tokens, chosen)
    for row in range(R):
        past = tokens[row, :chosen].tolist()
        runs = {tuple(past[i : i + size]) for i in range(len(past) - size + 1)}
        for token in range(V):
            run = tuple([*past, token][-size:])
            assert got[row][token] == (len(run) < size or run not in runs)


def test_no_repeat_counts_generated_tokens_only() -> None:
    tokens = torch.tensor([[1, 2, 9, 9, 1, 2]])
    logits = torch.zeros(1, 10)
    assert NoRepeatNgram(2)(logits, so_far(tokens, 1)).isfinite().all()


@pytest.mark.parametrize("chosen", range(5))
def test_at_least(chosen: int) -> None:
    got = allowed(MinLength(3, eos=2), torch.randn(R, V), torch.zeros(R, L, dtype=torch.long), chosen)
    assert got == [[token != 2 or chosen >= 3 for token in range(V)]] * R


def test_never() -> None:
    got = allowed(SuppressTokens((0, 3)), torch.randn(R, V), torch.zeros(R, L, dtype=torch.long), 1)
    assert got == [[token not in (0, 3) for token in range(V)]] * R


@pytest.mark.parametrize("chosen", range(4))
def test_forced_first_tokens(chosen: int) -> None:
    got = allowed(ForcedPrefix((3, 0)), torch.randn(R, V), torch.zeros(R, L, dtype=torch.long), chosen)
    assert got == [[chosen >= 2 or token == (3, 0)[chosen] for token in range(V)]] * R


@pytest.mark.parametrize("count", [1, 2, 5, 99])
def test_top_k(count: int) -> None:
    logits = torch.randn(R, V)
    got = allowed(TopK(count), logits, torch.zeros(R, L, dtype=torch.long), 0)
    for row in range(R):
        best = sorted(range(V), key=lambda v: -float(logits[row, v]))[:count]
        assert got[row] == [v in best for v in range(V)]


@pytest.mark.parametrize("mass", [0.01, 0.3, 0.6, 0.9, 1.0])
def test_top_p(mass: float) -> None:
    logits = torch.randn(R, V)
    got = allowed(TopP(mass), logits, torch.zeros(R, L, dtype=torch.long), 0)
    for row in range(R):
        p = logits[row].softmax(-1)
        kept: list[int] = []
        held = 0.0
        for v in sorted(range(V), key=lambda v: -float(p[v])):
            if kept and held >= mass:
                break
            kept.append(v)
            held += float(p[v])
        assert got[row] == [v in kept for v in range(V)]


def test_temperature() -> None:
    logits = torch.randn(R, V)
    assert Temperature(2.0)(logits, so_far(torch.zeros(R, L), 0)).equal(logits / 2)
    with pytest.raises(ValueError, match="must be above 0, got 0"):
        Temperature(0)


def test_equal_rules_share_captured_steps() -> None:
    assert NoRepeatNgram(2) == NoRepeatNgram(2)
    assert hash(MinLength(1, 2)) == hash(MinLength(1, 2))
    assert TopK(2) != TopK(3)


def test_tokens_outside_the_vocabulary_are_never_chosen() -> None:
    got = allowed(VocabLimit(3), torch.randn(R, V), torch.zeros(R, L, dtype=torch.long), 1)
    assert got == [[token < 3 for token in range(V)]] * R


@pytest.mark.parametrize("penalty", [1.5, 0.5])
@pytest.mark.parametrize("end", [0, 3, L])
def test_repetition_penalty_applies_once_per_token(penalty: float, end: int) -> None:
    logits, tokens, begin = 3 * torch.randn(R, V), torch.randint(0, V, (R, L)), torch.randint(0, 5, (R, 1))
    got = RepetitionPenalty(penalty)(logits, Generated(tokens, begin, torch.tensor(end), begin))
    for row in range(R):
        past = tokens[row, int(begin[row, 0]) : end].tolist()
        for token in range(V):
            value = float(logits[row, token])
            wanted = value if token not in past else value / penalty if value > 0 else value * penalty
            assert float(got[row, token]) == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(ValueError, match="above 0"):
        RepetitionPenalty(0.0)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("end", [0, 2, 6, L])
def test_no_repeat_ngram_includes_the_prompt_but_not_padding(size: int, end: int) -> None:
    logits, tokens, begin = torch.randn(R, V), torch.randint(0, 3, (R, L)), torch.randint(0, 5, (R, 1))
    got = NoRepeatNgram(size)(logits, Generated(tokens, begin.clamp(max=end), torch.tensor(end), begin))
    for row in range(R):
        past = tokens[row, int(begin[row, 0]) : end].tolist()
        runs = {tuple(past[i : i + size]) for i in range(len(past) - size + 1)}
        for token in range(V):
            run = tuple([*past, token][-size:])
            assert bool(got[row, token] > -math.inf) == (len(run) < size or run not in runs)


def test_min_length_counts_each_rows_own_tokens() -> None:
    chosen = torch.tensor([[1], [3], [5]])
    so_far = Generated(torch.zeros(3, L, dtype=torch.long), 0 * chosen, torch.tensor(2), chosen)
    assert MinLength(3, eos=1)(torch.zeros(3, V), so_far)[:, 1].isfinite().tolist() == [False, True, True]
