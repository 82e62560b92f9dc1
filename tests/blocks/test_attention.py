"""Attention: the fused path, the readable path and a four-loop float64 reference agree."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from combinations import pairs_first
from heedful.blocks import attention
from heedful.blocks.attention import KV, MultiHead, SelfAttention, attend, softmax
from heedful.blocks.masks import Bias, Mask, alibi, causal, dense, order, padding, prefix, real, same, window
from heedful.blocks.positions import Rotary
from heedful.blocks.scores import Additive, General, Location, Score, cosine, dot, scaled_dot
from heedful.blocks.taps import Tap, watch
from tolerance import close

B, H, S, K = 2, 2, 5, 4
LENGTHS = torch.tensor([3, 5])
NOWHERE = Mask(lambda b, h, q, k: (k < LENGTHS[b]) & (q != 0) & (b + q + k >= 0))

SCORES: dict[str, Callable[[], Score]] = {
    "scaled_dot": lambda: scaled_dot,
    "dot": lambda: dot,
    "cosine": lambda: cosine,
    "general": lambda: General(K, K).double(),
    "additive": lambda: Additive(K, K, 3).double(),
    "location": lambda: Location(K, 7).double(),
}
MASKS: dict[str, Callable[[int], Mask | Tensor | None]] = {
    "none": lambda offset: None,
    "causal": lambda offset: causal(offset),
    "causal tensor": lambda offset: causal(torch.tensor(offset)),
    "window": lambda offset: window(1, offset),
    "padding": lambda offset: padding(LENGTHS),
    "padding and causal": lambda offset: padding(LENGTHS) & causal(offset),
    "prefix or causal": lambda offset: prefix(torch.tensor([2, 1])) | causal(offset),
    "left padding": lambda offset: real(torch.tensor([[False, True, True, True, True], [True] * 5])),
    "segments": lambda offset: same(torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]])),
    "order": lambda offset: order(torch.tensor([[2, 0, 1, 4, 3], [4, 3, 2, 1, 0]])),
    "nowhere": lambda offset: NOWHERE,
    "dense": lambda offset: torch.tensor([[True, False, True, True, False]]),
}
BIASES: dict[str, Callable[[int], Bias | Tensor | None]] = {
    "none": lambda offset: None,
    "alibi": lambda offset: alibi(H, offset),
    "sum": lambda offset: alibi(H, offset) + Bias(lambda b, h, q, k: 0.5 * (b + k) - 0.25 * h),
    "dense": lambda offset: torch.linspace(-1, 1, S, dtype=torch.float64)[None],
}


def pair_score(score: Score, q: Tensor, k: Tensor, s: int) -> Tensor:
    """One score of one query and one key, from its formula."""
    if isinstance(score, General):
        return q @ (score.matrix.weight @ k)
    if isinstance(score, Additive):
        return score.v.weight[0] @ torch.tanh(score.q.weight @ q + score.k.weight @ k)
    if isinstance(score, Location):
        return (score.matrix.weight @ q)[s]
    if score is cosine:
        return (q @ k) / (q.norm() * k.norm())
    return (q @ k) / (math.sqrt(K) if score is scaled_dot else 1.0)


def rule_value(
    rule: Mask | Bias | Tensor | None, b: int, h: int, t: int, s: int, shape: Sequence[int]
) -> Tensor | None:
    if isinstance(rule, Tensor):
        return rule.expand(*shape)[b, h, t, s]
    return None if rule is None else rule(*(torch.tensor(i) for i in (b, h, t, s)))


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | Tensor | None, bias: Bias | Tensor | None, score: Score
) -> Tensor:
    """Attention in four nested loops, in float64."""
    shape = (*q.shape[:3], k.shape[2])
    rows = []
    for b in range(shape[0]):
        for h in range(shape[1]):
            for t in range(shape[2]):
                weighted, total = 0 * v[b, h, 0], torch.zeros((), dtype=v.dtype)
                for s in range(shape[3]):
                    if (seen := rule_value(mask, b, h, t, s, shape)) is None or bool(seen):
                        shift = rule_value(bias, b, h, t, s, shape)
                        a = pair_score(score, q[b, h, t], k[b, h, s], s) + (0.0 if shift is None else shift)
                        weighted, total = weighted + a.exp() * v[b, h, s], total + a.exp()
                rows.append(weighted / total if bool(total > 0) else weighted)
    return torch.stack(rows).view(*shape[:3], -1)


def hooked_tap() -> Tap:
    """A tap with a hook, so that the readable path runs."""
    tap = Tap()
    tap.hook = lambda x: None
    return tap


def with_gradients(o: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    probe = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o)
    grads = torch.autograd.grad((o * probe).sum(), inputs, allow_unused=True)
    return [o.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, inputs, strict=True))]


@pytest.mark.parametrize(("score", "mask", "bias", "queries"), pairs_first(SCORES, MASKS, BIASES, [S, 3, 1]))
def test_every_path_matches_the_four_loops(score: str, mask: str, bias: str, queries: int) -> None:
    offset, compared = S - queries, SCORES[score]()
    rule, shift = MASKS[mask](offset), BIASES[bias](offset)
    q, k, v = (torch.randn(B, H, n, w, dtype=torch.float64) for n, w in ((queries, K), (S, K), (S, 3)))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    if isinstance(compared, torch.nn.Module):
        inputs += list(compared.parameters())
    expected = with_gradients(reference(q, k, v, rule, shift, compared), inputs)
    for watched in (None, hooked_tap()):
        got = with_gradients(attend(q, k, v, rule, shift, compared, weights=watched), inputs)
        for mine, truth in zip(got, expected, strict=True):
            close(mine, truth, slack=65536)


def test_fused_kernel_runs_without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(q: Tensor, *rest: object) -> Tensor:
        calls.append(1)
        return q

    monkeypatch.setattr(attention, "fused_attention", counted)
    x = torch.randn(B, H, S, K)
    attend(x, x, x)
    assert len(calls) == 1
    attend(x, x, x, score=dot)
    attend(x, x, x, weights=hooked_tap())
    assert len(calls) == 1


# ------------------------------------------------------------------ ten thousand masks
def random_mask(kind: str, rows: int, queries: int, keys: int) -> Mask | Tensor:
    lengths = torch.randint(0, keys + 1, (rows,))
    if kind == "causal":
        return causal(keys - queries)
    if kind == "padding":
        return padding(lengths)
    if kind == "both":
        return padding(lengths) & causal(keys - queries)
    if kind == "left":
        return real(torch.arange(keys) >= lengths[:, None])
    if kind == "one key":
        return torch.nn.functional.one_hot(torch.randint(0, keys, (rows, 1, queries)), keys).bool()
    density = torch.rand(rows, 1, 1, 1)
    seen = torch.rand(rows, 1, queries, keys) < density
    return seen & (torch.rand(rows, 1, queries, 1) < 0.7) if kind == "empty rows" else seen


KINDS = ("causal", "padding", "both", "left", "one key", "random", "empty rows")
DTYPES = {torch.float32: 120, torch.bfloat16: 40, torch.float16: 40}  # batches of 50 masks each: 10,000 in all
ERROR = {torch.float32: 1e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ten_thousand_masks_match_float64(dtype: torch.dtype) -> None:
    worst = 0.0
    for batch in range(DTYPES[dtype]):
        kind, huge = KINDS[batch % len(KINDS)], batch % 3 == 0
        keys = int(torch.randint(1, 13, ()))
        queries = keys if kind in ("causal", "both") and batch % 2 else int(torch.randint(1, keys + 1, ()))
        mask = random_mask(kind, 50, queries, keys)
        q, k = (torch.randn(50, 2, n, 16) for n in (queries, keys))
        if huge:  # scores up to 1e4, of whole numbers, so that they are the same in every precision but the narrowest
            q, k = ((0.5 * x).round().clamp(-2, 2) * 96 for x in (q, k))
            k[..., 1:] = k[..., 1:].sign()
        v = torch.rand(50, 2, keys, 5) * 2 - 1
        q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
        seen = dense(mask, q, k) if isinstance(mask, Mask) else mask
        nowhere = ~seen.expand(50, 2, queries, keys).any(-1)
        q_, k_, v_ = (x.detach().double() for x in (q, k, v))
        truth = attend(q_, k_, v_, mask, weights=hooked_tap())
        for watched in (None, hooked_tap()):
            o = attend(q, k, v, mask=mask, weights=watched)
            grads = torch.autograd.grad(o.float().square().sum(), (q, k, v))
            assert all(bool(x.isfinite().all()) for x in (o, *grads)), (kind, watched)
            assert bool((o[nowhere] == 0).all())
            if not (huge and dtype != torch.float32):
                worst = max(worst, float((o.detach().double() - truth).abs().max()))
    assert 0 < worst <= ERROR[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_huge_scores_do_not_overflow(dtype: torch.dtype) -> None:
    q = torch.full((1, 1, 3, 16), 100.0, dtype=dtype)
    k = torch.cat([q[:, :, :1], -q[:, :, :1]], 2)
    for watched in (None, hooked_tap()):
        o = attend(q, k, torch.tensor([[[[1.0], [2.0]]]], dtype=dtype), weights=watched)
        assert bool((o == 1).all())


# ------------------------------------------------------------------ masks and memories
def test_masked_softmax_sums_to_one_or_is_zero() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights = softmax(torch.randn(2, 3), mask)
    assert weights[1].tolist() == [0, 0, 0]
    assert weights[0, 2] == 0
    assert weights[0].sum().item() == pytest.approx(1)


@pytest.mark.parametrize("offset", [0, 2])
def test_mask_rules_match_their_definitions(offset: int) -> None:
    """Query q is at position q + offset among the keys, as after `offset` cached tokens."""
    lengths, firsts, ranks = [5, 2], [3, 1], [[2, 0, 1, 4, 3], [4, 3, 2, 1, 0]]
    parts = [[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]]
    rules: list[tuple[Mask, Callable[[int, int, int], bool]]] = [
        (causal(offset), lambda b, q, k: k <= q + offset),
        (window(1, offset), lambda b, q, k: q + offset - 1 <= k <= q + offset + 1),
        (padding(torch.tensor(lengths)), lambda b, q, k: k < lengths[b]),
        (prefix(torch.tensor(firsts)), lambda b, q, k: k < firsts[b]),
        (same(torch.tensor(parts)), lambda b, q, k: parts[b][q] == parts[b][k]),
        (order(torch.tensor(ranks)), lambda b, q, k: ranks[b][k] < ranks[b][q]),
    ]
    empty = torch.zeros(2, 1, 5, 1)
    for mask, rule in rules:
        found = dense(mask, empty, empty).expand(2, 1, 5, 5)[:, 0].tolist()
        assert found == [[[rule(b, q, k) for k in range(5)] for q in range(5)] for b in range(2)]
    slopes = [2.0 ** -(8 * (head + 1) / H) for head in range(H)]
    bias = dense(alibi(H, offset), *(torch.zeros(1, H, 5, 1),) * 2).expand(1, H, 5, 5)[0].tolist()
    assert bias == [[[-slope * abs(q + offset - k) for k in range(5)] for q in range(5)] for slope in slopes]


def test_combined_mask_rules_match_their_definitions() -> None:
    q = torch.zeros(1, 1, 4, 1)
    k = torch.zeros(1, 1, 6, 1)
    one, two = dense(causal(), q, k), dense(window(1, offset=1), q, k)
    assert (dense(causal() & window(1, offset=1), q, k) == (one & two)).all()
    assert (dense(causal() | window(1, offset=1), q, k) == (one | two)).all()
    assert (one & two).any()
    assert ((one | two) != one).any()
    shift = Bias(lambda b, h, q, k: q - k)
    assert (dense(shift + shift, q, k) == 2 * dense(shift, q, k)).all()


@pytest.mark.parametrize("queries", [1, 2, 5])
def test_causal_mask_is_aligned_to_the_last_key(queries: int) -> None:
    q, k = torch.randn(1, 1, queries, K), torch.randn(1, 1, 5, K)
    v = torch.eye(5)[None, None]
    weights = attend(q, k, v, causal(5 - queries))
    assert (weights[0, 0] > 0).equal(torch.ones(queries, 5).tril(5 - queries).bool())


def test_repeated_hypotheses_share_one_memory() -> None:
    rows = 3
    q, k, v = torch.randn(B * rows, H, 2, K), torch.randn(B, H, S, K), torch.randn(B, H, S, K)
    mask = padding(LENGTHS)
    k_, v_, lengths = (x.repeat_interleave(rows, 0) for x in (k, v, LENGTHS))
    alone = attend(q, k_, v_, padding(lengths))
    for watched in (None, hooked_tap()):
        close(attend(q, k, v, mask, weights=watched), alone, slack=16)


def test_location_score_rejects_too_many_keys() -> None:
    with pytest.raises(ValueError, match="built for 4 keys, got 5"):
        attend(torch.randn(1, 1, 2, K), torch.randn(1, 1, 5, K), torch.randn(1, 1, 5, K), score=Location(K, 4))


# ------------------------------------------------------------------ multi-head attention
def heads(**settings: object) -> MultiHead:
    return MultiHead(8, 2, **settings)  # type: ignore[arg-type]


def test_heads_are_slices_of_one_projection() -> None:
    block, x, m = heads(), torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    w_k, w_v = block.kv.weight.chunk(2)
    b_k, b_v = block.kv.bias.chunk(2)
    parts = []
    for i in range(2):
        own = slice(4 * i, 4 * i + 4)
        q = F.linear(x, block.q.weight[own], block.q.bias[own])
        k, v = F.linear(m, w_k[own], b_k[own]), F.linear(m, w_v[own], b_v[own])
        parts.append((q @ k.mT / 2).softmax(-1) @ v)
    expected = block.out(torch.cat(parts, -1))
    close(block(x, block.keys_values(m)), expected, slack=16)


def test_memory_of_another_width_without_output_projection() -> None:
    block = heads(memory_width=6, output=False, bias=False)
    assert block(torch.randn(2, 3, 8), block.keys_values(torch.randn(2, 5, 6))).shape == (2, 3, 8)
    assert sum(p.numel() for p in block.parameters()) == 8 * 8 + 6 * 16


def test_width_must_be_divisible_by_heads() -> None:
    with pytest.raises(ValueError, match="width 8 does not split into 3 heads"):
        MultiHead(8, 3)


def test_watched_weights_equal_the_fused_path() -> None:
    block, x = heads(), torch.randn(2, 3, 8)
    memory = block.keys_values(x)
    fast = block(x, memory, causal())
    with watch(block, "weights") as seen:
        slow = block(x, memory, causal())
    close(fast, slow, slack=16)
    joined = (seen["weights"] @ memory.v).transpose(1, 2).flatten(2)
    close(block.out(joined), fast, slack=16)


def test_cached_keys_are_gathered_by_row() -> None:
    k, v = torch.randn(3, 2, 4, 5), torch.randn(3, 2, 4, 5)
    rows = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 1], [0, 0, 0, 2]])
    got = KV(k, v, rows, torch.tensor(4)).gather()
    for r in range(3):
        for s in range(4):
            assert got.k[r, :, s].equal(k[rows[r, s], :, s])
            assert got.v[r, :, s].equal(v[rows[r, s], :, s])


def test_self_attention_equals_multi_head_attention() -> None:
    one, many = SelfAttention(12, 3, dropout=0.0), MultiHead(12, 3)
    q, kv = one.qkv.weight.split([12, 24])
    with torch.no_grad():
        many.q.weight.copy_(q)
        many.kv.weight.copy_(kv)
        many.out.weight.copy_(one.out.weight)
    x, mask = torch.randn(2, 5, 12), torch.rand(2, 1, 5, 5) < 0.7
    torch.testing.assert_close(one(x, mask), many.self_attend(x, mask))


def test_attention_dropout_keeps_the_mean() -> None:
    block = SelfAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 40, 8)
    with watch(block, "weights") as seen:
        block(x)
    assert bool((seen["weights"] > 0).all())  # a tap sees the weights before dropout
    still = block.eval()(x).detach()
    block.train()
    torch.manual_seed(0)
    with torch.no_grad():
        drawn = torch.stack([block(x) for _ in range(400)])
    assert not drawn[0].equal(drawn[1])
    assert float((drawn.mean(0) - still).abs().max()) < 0.15


# ------------------------------------------------------------------ dimensions, memories, edits
def test_heads_and_batch_dimensions_are_optional() -> None:
    q, k, v = torch.randn(3, 1, 4, 6), torch.randn(3, 1, 5, 6), torch.randn(3, 1, 5, 2)
    mask, bias = torch.rand(3, 1, 4, 5) < 0.7, torch.randn(4, 5)
    whole = attend(q, k, v, mask, bias)
    close(attend(q[:, 0], k[:, 0], v[:, 0], mask[:, 0], bias), whole[:, 0])
    close(attend(q[1, 0], k[1, 0], v[1, 0], mask[1, 0], bias), whole[1, 0])
    tap = Tap()
    tap.hook = lambda weights: None
    close(attend(q[1, 0], k[1, 0], v[1, 0], mask[1, 0], bias, weights=tap), whole[1, 0])
    close(attend(q[:, 0], q[:, 0], q[:, 0], causal()), attend(q, q, q, causal())[:, 0])


@pytest.mark.parametrize("shapes", [((4,), (4,), (4,)), ((2, 4), (1, 2, 4), (2, 4)), ((2, 4), (3, 4), (5, 4))])
def test_other_dimensions_are_rejected(shapes: Sequence[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"but attention takes q \(T, K\), k \(S, K\) and v \(S, E\)"):
        attend(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("rotary", [None, Rotary(9, 4)])
def test_multi_head_takes_a_memory(rotary: Rotary | None) -> None:
    heads, x, memory, at = MultiHead(8, 2, rotary=rotary), torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.arange(3)
    close(heads(x, memory, at=at), heads(x, heads.keys_values(memory), at=at))
    close(heads(x, at=at), heads(x, heads.keys_values(x, at), at=at))
    close(heads(x, x, causal(), at=at), heads(x, heads.keys_values(x, at), causal(), at=at))


def sparsemax(scores: Tensor) -> Tensor:
    """The point of the simplex that is nearest to the scores (Martins and Astudillo, 2016)."""
    largest = scores.sort(-1, descending=True).values
    beyond = largest.cumsum(-1) - 1
    size = (largest * torch.arange(1, scores.shape[-1] + 1) > beyond).sum(-1, keepdim=True).clamp(min=1)
    return (scores - beyond.gather(-1, size - 1) / size).clamp(min=0)


@pytest.mark.parametrize("nowhere", [False, True])
def test_edited_weights_have_no_nan_gradients(nowhere: bool) -> None:
    heads, x = MultiHead(8, 2), torch.randn(2, 4, 8, requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] &= not nowhere
    with watch(heads, "weights", lambda name, weights: sparsemax(weights.log())):
        y = heads(x, None, mask)
    assert bool(y.isfinite().all())
    y.square().sum().backward()
    grads = [x.grad, *(weight.grad for weight in heads.parameters())]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)
    assert bool(grads[0].any())
