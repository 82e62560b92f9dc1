"""Softmax, sparsemax and 1.5-entmax against the definitions of their papers, in float64 loops."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from heedful.blocks import attention
from heedful.blocks.attention import MultiHead, SelfAttention, attend
from heedful.blocks.masks import BlockDiagonal, Mask, Ranges, causal, dense
from heedful.blocks.normalizers import NORMALIZERS, Normalize, attention_weights, entmax15, softmax, sparsemax
from heedful.blocks.scores import SCORES, head_score
from heedful.blocks.taps import Tap, watch
from tolerance import close

ROWS, S = 2000, 9
every_normalizer = pytest.mark.parametrize("normalize", NORMALIZERS.values(), ids=list(NORMALIZERS))


# ------------------------------------------------------------------ the papers' definitions
def softmax_loop(z: Sequence[float]) -> list[float]:
    largest = max(z)
    total = sum(math.exp(one - largest) for one in z)
    return [math.exp(one - largest) / total for one in z]


def sparsemax_loop(z: Sequence[float]) -> list[float]:
    """Martins and Astudillo (2016), algorithm 1: sort, find the support, subtract the threshold."""
    ranked, total, tau = sorted(z, reverse=True), 0.0, 0.0
    for count, one in enumerate(ranked, 1):
        total += one
        if 1 + count * one > total:
            tau = (total - 1) / count
    return [max(one - tau, 0.0) for one in z]


def entmax15_loop(z: Sequence[float]) -> list[float]:
    """Peters et al. (2019), equation 9, by bisection: p = max(z / 2 - tau, 0)^2 sums to one."""
    low, high = max(z) / 2 - 1, max(z) / 2
    for _ in range(80):
        tau = (low + high) / 2
        low, high = (tau, high) if sum(max(one / 2 - tau, 0.0) ** 2 for one in z) >= 1 else (low, tau)
    return [max(one / 2 - low, 0.0) ** 2 for one in z]


LOOPS = {softmax: softmax_loop, sparsemax: sparsemax_loop, entmax15: entmax15_loop}


def random_rows() -> tuple[Tensor, Tensor]:
    """Scores (R, S) of every size, equal ones among them, and masks, of which some allow nothing and some one key."""
    scores = torch.randn(ROWS, S, dtype=torch.float64) * 10 ** torch.empty(ROWS, 1).uniform_(-2, 2)
    scores[::5] = scores[::5].round()
    mask = torch.rand(ROWS, S) < torch.rand(ROWS, 1)
    mask[0], mask[1] = False, torch.arange(S) == 3
    return scores, mask


@every_normalizer
def test_two_thousand_random_masks_match_the_papers(normalize: Normalize) -> None:
    scores, mask = random_rows()
    expected = torch.zeros_like(scores)
    for row, (z, seen) in enumerate(zip(scores.tolist(), mask.tolist(), strict=True)):
        allowed = [number for number, one in enumerate(seen) if one]
        if allowed:
            expected[row, allowed] = torch.tensor(LOOPS[normalize]([z[n] for n in allowed]), dtype=torch.float64)
    found = normalize(scores, mask)
    close(found, expected, slack=1024, of=scores)
    assert not found[~mask].any()
    close(found.sum(-1), mask.any(-1).double())
    close(normalize(scores.float(), mask), expected, slack=1024, of=scores)


@every_normalizer
def test_gradients_are_the_jacobian_and_zero_at_masked_keys(normalize: Normalize) -> None:
    scores, mask = 1.5 * torch.randn(8, S, dtype=torch.float64), random_rows()[1][:8]  # without ties, which are kinks
    scores.requires_grad_()
    assert gradcheck(lambda z: normalize(z, mask), scores)
    assert gradcheck(lambda z: normalize(z, None), scores)
    assert gradgradcheck(lambda z: normalize(z, mask), scores)
    (grad,) = torch.autograd.grad((normalize(scores, mask) * torch.randn_like(scores)).sum(), scores)
    assert grad[mask].any() and not grad[~mask].any()


def test_jacobians_match_the_papers() -> None:
    z = torch.tensor([1.2, 0.9, -0.4, 0.1, -2.0], dtype=torch.float64)
    for normalize, power in ((sparsemax, 0.0), (entmax15, 0.5)):
        p = normalize(z, None)
        s = torch.where(p > 0, p**power, 0.0)
        assert 1 < int((p > 0).sum()) < 5
        found = torch.autograd.functional.jacobian(lambda z, normalize=normalize: normalize(z, None), z)
        close(found, s.diag() - s.outer(s) / s.sum())


def test_weights_are_sparser_from_softmax_to_sparsemax() -> None:
    z = torch.linspace(-2, 2, 9)
    counts = [int((normalize(z, None) > 0).sum()) for normalize in (softmax, entmax15, sparsemax)]
    assert counts == sorted(set(counts), reverse=True) and counts[0] == 9
    for shift in (0.0, 7.0):  # invariant to a constant, and huge scores do not overflow
        close(sparsemax(z + shift, None), sparsemax(z, None), of=shift + 2)
    for normalize in NORMALIZERS.values():
        assert normalize(1e30 * z, None).tolist() == [0.0] * 8 + [1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_normalizer
def test_half_precision_is_normalized_in_float32(normalize: Normalize, dtype: torch.dtype) -> None:
    scores, mask = random_rows()
    scores = scores[:200].clamp(-60, 60).to(dtype)
    found = normalize(scores, mask[:200])
    assert found.dtype == dtype
    close(found, normalize(scores.double(), mask[:200]), slack=2)


# ------------------------------------------------------------------ in attention
def hooked(edit: Callable[[Tensor], Tensor | None] = lambda x: None) -> Tap:
    tap = Tap()
    tap.hook = edit
    return tap


@every_normalizer
def test_attention_is_the_weighted_sum_in_all_dimensions(normalize: Normalize) -> None:
    q, k, v = (torch.randn(2, 3, 5, width, dtype=torch.float64) for width in (4, 4, 6))
    mask, bias = torch.rand(2, 3, 5, 5) < 0.6, torch.randn(5, 5, dtype=torch.float64)
    bias[0, 1] = -math.inf  # -inf masks a key, too
    allowed = mask & (bias > -math.inf)
    expected = normalize(q @ k.mT / 2 + bias, allowed) @ v
    for weights in (None, hooked()):
        whole = attend(q, k, v, mask, bias, normalize=normalize, weights=weights)
        close(whole, expected)
        three = attend(q[:, 0], k[:, 0], v[:, 0], mask[:, 0], bias, normalize=normalize, weights=weights)
        close(three, expected[:, 0])
        two = attend(q[1, 2], k[1, 2], v[1, 2], mask[1, 2], bias, normalize=normalize, weights=weights)
        close(two, expected[1, 2])
    four = [q[:1].repeat(4, 1, 1, 1) * torch.arange(1, 5).view(4, 1, 1, 1), k[:1], v[:1]]  # four hypotheses, one memory
    for row, o in enumerate(attend(*four, normalize=normalize)):
        close(o, attend(four[0][row : row + 1], *four[1:], normalize=normalize)[0])


@every_normalizer
def test_packed_sequences_are_normalized_separately(normalize: Normalize) -> None:
    x = torch.randn(1, 2, 6, 4)
    number = torch.tensor([0, 0, 0, 1, 1, 2])  # two sequences and one unused position
    begin, end = torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([3, 5, 5], dtype=torch.int32)
    together = attend(x, x, x, BlockDiagonal(begin, end, 3, number), normalize=normalize)
    lo, hi = torch.tensor([0, 0, 0, 3, 3, 5]), torch.tensor([3, 3, 3, 5, 5, 5])
    ranges = attend(x, x, x, Ranges(lo, hi, lo, hi), normalize=normalize)
    for start, stop in ((0, 3), (3, 5)):
        one = x[:, :, start:stop]
        for found in (together, ranges):
            close(found[:, :, start:stop], attend(one, one, one, normalize=normalize))
            assert not found[:, :, 5].any()


def test_kernels_are_only_for_scaled_dot_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(attention, "fused_attention", lambda q, *rest: calls.append(1) or q)
    x = torch.randn(1, 1, 3, 4)
    for normalize in (sparsemax, entmax15, lambda scores, mask: scores.relu()):
        attend(x, x, x, normalize=normalize)
        SelfAttention(4, 1, 0.0, normalize=normalize)(x[0])
    assert not calls
    attend(x, x, x)
    assert calls


def test_users_function_needs_no_special_case_without_keys() -> None:
    def plain(scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)

    scores, mask = random_rows()
    scores.requires_grad_()
    found, expected = attention_weights(scores, mask, plain), softmax(scores, mask)
    close(found, expected)
    probe = torch.randn_like(scores)
    mine, its = (torch.autograd.grad((one * probe).sum(), scores)[0] for one in (found, expected))
    close(mine, its)
    q = torch.randn(1, 1, 4, 3)
    blind = attend(q, q, q, causal(), normalize=lambda scores, mask: torch.ones_like(scores))  # ignores the mask
    close(blind, q.cumsum(2))


# ------------------------------------------------------------------ never NaN
EDITS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "seen": lambda weights: None,
    "log and back": lambda weights: weights.log().exp(),
    "entropy added": lambda weights: weights + torch.special.entr(weights),
    "divided by themselves": lambda weights: weights / weights.detach().sum(-1, keepdim=True),
    "root": lambda weights: weights.sqrt(),
    "constant": lambda weights: torch.full_like(weights, 0.25),
    "one key off": lambda weights: weights * (torch.arange(weights.shape[-1]) != 1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
@every_normalizer
def test_edited_weights_never_give_nan(normalize: Normalize, edit: Callable[[Tensor], Tensor | None]) -> None:
    for scale in (1.0, 60.0):  # with large scores, softmax gives zeros, too
        for mask in (None, torch.rand(2, 1, 5, 5) < 0.5, torch.zeros(5, 5, dtype=torch.bool), causal()):
            q, k, v = (scale**0.5 * torch.randn(2, 2, 5, 4) for _ in range(3))
            inputs = [one.requires_grad_() for one in (q, k, v)]
            o = attend(q, k, v, mask, normalize=normalize, weights=hooked(edit), scores=hooked())
            grads = torch.autograd.grad(o.square().sum(), inputs, allow_unused=True, materialize_grads=True)
            assert all(bool(one.isfinite().all()) for one in (o, *grads))
            if isinstance(mask, Tensor):
                assert not o.detach()[~mask.expand(2, 2, 5, 5).any(-1)].any()


@pytest.mark.parametrize("fused", [True, False])
@every_normalizer
def test_scores_and_biases_of_minus_infinity_mask(normalize: Normalize, fused: bool) -> None:
    x = torch.randn(1, 2, 4, 3, requires_grad=True)
    off = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [1, 1, 1, 0]]).bool()
    bias = torch.zeros(4, 4).masked_fill(off, -math.inf)
    for mask in (None, torch.rand(4, 4) < 0.5):
        expected = attend(x, x, x, ~off if mask is None else mask & ~off, normalize=normalize)
        o = attend(x, x, x, mask, bias, normalize=normalize, weights=None if fused else hooked())
        edited = attend(
            x, x, x, mask, normalize=normalize, scores=hooked(lambda scores: scores.masked_fill(off, -math.inf))
        )
        truth = torch.autograd.grad(expected.square().sum(), x, retain_graph=True)[0]
        for one in (o, edited):
            close(one, expected)
            close(torch.autograd.grad(one.square().sum(), x)[0], truth)


# ------------------------------------------------------------------ modules, and their caches
@pytest.mark.parametrize("score", [name for name in SCORES if name != "location"])
@every_normalizer
def test_cached_decoding_equals_full_forward(normalize: Normalize, score: str) -> None:
    heads = MultiHead(8, 2, score=head_score(score, 4), normalize=normalize)
    x, memory = torch.randn(2, 6, 8), torch.randn(2, 3, 8)
    whole = heads(x, mask=causal())
    cache = heads.keys_values(x[:, :1])
    outputs = [heads(x[:, :1], cache)]
    for t in range(1, 6):
        cache = cache.append(heads.keys_values(x[:, t : t + 1]))
        outputs.append(heads(x[:, t : t + 1], cache))
    close(torch.cat(outputs, 1), whole)
    close(heads(x, memory), heads(x, heads.keys_values(memory)))
    with watch(heads, "weights") as seen:
        close(heads(x, mask=causal()), whole)
    mask = dense(causal(), *(torch.zeros(1, 1, 6, 1),) * 2)
    assert not seen["weights"].masked_select(~mask).any()
    close(seen["weights"].sum(-1), torch.ones(2, 2, 6))


def test_self_attention_uses_its_score_and_normalizer() -> None:
    settings = {"score": head_score("additive", 4), "normalize": entmax15}
    one, two = SelfAttention(8, 2, 0.0, **settings), MultiHead(8, 2, **settings)  # type: ignore[arg-type]
    two.load_state_dict(
        {"q.weight": one.qkv.weight[:8], "q.bias": one.qkv.bias[:8]}
        | {"kv.weight": one.qkv.weight[8:], "kv.bias": one.qkv.bias[8:]}
        | {name: value for name, value in one.state_dict().items() if not name.startswith("qkv")}
    )
    x = torch.randn(2, 5, 8)
    close(one(x, causal()), two(x, mask=causal()))
    assert set(one.state_dict()) - set(SelfAttention(8, 2, 0.0).state_dict()) == {
        "score.q.weight",
        "score.k.weight",
        "score.v.weight",
    }


def test_query_without_keys_attends_to_nothing() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    nothing = Mask(lambda b, h, q, k: (q > 1) & (k >= 0) & (b >= 0) & (h >= 0))
    for normalize in NORMALIZERS.values():
        o = attend(x, x, x, nothing, normalize=normalize)
        assert not o[:, :2].any() and o[:, 2].any()
        (grad,) = torch.autograd.grad(o[:, :2].sum(), x)
        assert not grad.any()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizer_by_name(name: str) -> None:
    q, k, v = torch.randn(3, 2, 3, 5, 8)
    assert attend(q, k, v, normalize=name).equal(attend(q, k, v, normalize=NORMALIZERS[name]))
    assert MultiHead(8, 2, normalize=name).normalize is NORMALIZERS[name]


def test_error_for_an_unknown_normalizer_lists_the_names() -> None:
    with pytest.raises(ValueError, match="'sparse'; it may be softmax, sparsemax, entmax15 or a function"):
        attend(*torch.randn(3, 2, 3, 5, 8), normalize="sparse")
