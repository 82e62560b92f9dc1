"""Relative attention against four loops, in the readable and the fused path, with gradients."""

import math

import pytest
import torch
from torch import Tensor

from heedful.blocks.attention import attend
from heedful.blocks.masks import Bias, alibi, causal, dense
from heedful.blocks.positions import sinusoid_halves
from heedful.blocks.relative import distance_sinusoids, distances, relative_bias
from heedful.blocks.taps import Tap
from tolerance import close

SHAPES = [(1, 1, 0), (1, 6, 5), (4, 4, 0), (3, 8, 5), (5, 7, 2), (3, 5, 0)]  # queries, keys, offset


def draw(queries: int, keys: int) -> tuple[Tensor, ...]:
    """Queries, keys, values, distance keys, u and v for two rows and three heads of width 4."""
    torch.manual_seed(0)
    b, h, k = 2, 3, 4
    shapes = [(b, h, queries, k), (b, h, keys, k), (b, h, keys, k), (h, keys + queries - 1, k), (h, 1, k), (h, 1, k)]
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


def loops(q: Tensor, k: Tensor, r: dict[int, Tensor], u: Tensor, v: Tensor, offset: int) -> Tensor:
    """((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(K), one number at a time."""
    batch, heads, queries, width = q.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(k.shape[2]):
                    content = ((q[b, h, i] + u[h, 0]) * k[b, h, j]).sum()
                    distance = ((q[b, h, i] + v[h, 0]) * r[i + offset - j][h]).sum()
                    rows.append((content + distance) / math.sqrt(width))
    return torch.stack(rows).view(batch, heads, queries, -1)


def by_distance(r: Tensor, queries: int, keys: int, offset: int) -> dict[int, Tensor]:
    return {int(d): r[:, p] for p, d in enumerate(distances(queries, keys, offset))}


@pytest.mark.parametrize(("queries", "keys", "offset"), SHAPES)
@pytest.mark.parametrize("path", ["readable", "fused"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_gradients_match_four_loops(
    queries: int, keys: int, offset: int, path: str, masked: bool
) -> None:
    q, k, values, r, u, v = leaves = draw(queries, keys)
    mask, tap = (causal(offset) if masked else None), Tap()
    if path == "readable":
        tap.register_forward_hook(lambda *_: None)
    found = attend(q + u, k, values, mask, relative_bias(q + v, r), scores=tap)
    scores = loops(q, k, by_distance(r, queries, keys, offset), u, v, offset)
    if masked:
        seen = torch.arange(keys) <= torch.arange(queries)[:, None] + offset
        scores = scores.masked_fill(~seen, -math.inf)
    expected = scores.softmax(-1) @ values
    close(found, expected)
    weigh = torch.randn_like(expected)
    close(torch.autograd.grad((found * weigh).sum(), leaves), torch.autograd.grad((expected * weigh).sum(), leaves))


@pytest.mark.parametrize(("queries", "keys", "offset"), SHAPES)
def test_rule_and_its_dense_form_agree_also_in_a_sum(queries: int, keys: int, offset: int) -> None:
    q, k, _, r, *_ = draw(queries, keys)
    bias, slope = relative_bias(q, r), alibi(3, offset)
    close(dense(bias, q, k), dense(Bias(bias.rule), q, k))
    close(dense(bias + slope, q, k), dense(bias, q, k) + dense(slope, q, k))
    close(dense(slope + bias, q, k), dense(Bias((slope + bias).rule), q, k))


def test_distances_run_from_the_first_key_to_the_last_and_may_be_clamped() -> None:
    assert distances(2, 5, 3).tolist() == [4, 3, 2, 1, 0, -1]
    assert distances(2, 5, 3, clamp=2).tolist() == [2, 2, 2, 1, 0, -1]
    assert distances(3, 3, 0, clamp=1).tolist() == [1, 1, 0, -1, -1]


def test_sinusoids_of_distances_equal_those_of_positions() -> None:
    table = distance_sinusoids(torch.arange(-6, 7), 8)
    close(table[6:], sinusoid_halves(7, 8))
    close(table[:6].flip(0)[:, :4], -table[7:, :4])
    close(table[:6].flip(0)[:, 4:], table[7:, 4:])
    with pytest.raises(ValueError, match="width must be even, got 5"):
        distance_sinusoids(torch.arange(3), 5)


def test_compiled_bias_is_the_same() -> None:
    q, k, values, r, *_ = draw(3, 8)

    def run(q: Tensor) -> Tensor:
        return attend(q, k, values, causal(5), relative_bias(q, r))

    close(torch.compile(run, fullgraph=True, backend="aot_eager")(q), run(q))
