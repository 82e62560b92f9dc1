"""Rows A of the claim sheet: the attention layer, its six scores and the worked examples of the lectures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.attention import MultiHead, attend, softmax
from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.masks import causal, window
from heedful.blocks.scores import Additive, General, Location, Score, cosine, dot, scaled_dot
from heedful.blocks.taps import Tap, watch
from tolerance import close, near


class Layer(nn.Module):
    """One attention layer with a score of choice, whose weights can be watched."""

    def __init__(self, score: Score = scaled_dot) -> None:
        super().__init__()
        self.score, self.scores, self.weights = score, Tap(), Tap()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        q, k, v = (x[None, None] for x in (q, k, v))
        return attend(q, k, v, score=self.score, scores=self.scores, weights=self.weights, **settings)[0, 0]


def seen(q: Tensor, k: Tensor, v: Tensor, score: Score = scaled_dot, **settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights and output of queries (T, d_q) at keys (S, d_k) with values (S, d_v)."""
    layer = Layer(score)
    with watch(layer) as values:
        output = layer(q, k, v, **settings)
    return values["scores"][0, 0], values["weights"][0, 0], output


T, S, D = 3, 5, 4
WIDTHS = (4, 6, 7)  # of queries, keys and values, where the score allows
SIX: dict[str, Callable[[], Score]] = {
    "dot": lambda: dot,
    "scaled dot": lambda: scaled_dot,
    "general": lambda: General(D, D),
    "additive": lambda: Additive(D, D, 8),
    "cosine": lambda: cosine,
    "location": lambda: Location(D, S),
}


def inputs(query: int = D, key: int = D, value: int = D) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(T, query), torch.randn(S, key), torch.randn(S, value)


@pytest.mark.claim("A1")
@pytest.mark.parametrize("score", [General(4, 6), Additive(4, 6, 8)], ids=["general", "additive"])
def test_output_is_the_softmax_weighted_sum_of_values(score: nn.Module) -> None:
    q, k, v = inputs(*WIDTHS)
    scores, weights, output = seen(q, k, v, score)
    assert output.shape == (T, WIDTHS[2])
    assert bool((weights >= 0).all())
    for t in range(T):
        total = sum(float(scores[t, s].exp()) for s in range(S))
        assert sum(weights[t].tolist()) == near(1, 16)
        expected = torch.zeros(WIDTHS[2])
        for s in range(S):
            assert float(weights[t, s]) == near(float(scores[t, s].exp()) / total, 16)
            expected += weights[t, s] * v[s]
        torch.testing.assert_close(output[t], expected)


@pytest.mark.claim("A2")
def test_dot_product_score() -> None:
    q, k, v = inputs()
    torch.testing.assert_close(seen(q, k, v, dot)[0], q @ k.T)
    with pytest.raises(RuntimeError):
        seen(*inputs(key=D + 1), dot)


@pytest.mark.claim("A3")
def test_scaled_dot_product_score() -> None:
    q, k, v = inputs()
    scores, _, output = seen(q, k, v)
    torch.testing.assert_close(scores, q @ k.T / D**0.5)
    torch.testing.assert_close(output, F.scaled_dot_product_attention(q, k, v))
    wide = torch.randn(300, 256), torch.randn(300, 256), torch.randn(300, 1)
    assert float(seen(*wide)[0].var()) == pytest.approx(1, abs=0.05)
    assert float(seen(*wide, dot)[0].var()) == pytest.approx(256, rel=0.05)


@pytest.mark.claim("X3")
def test_scale_is_the_key_dimension_not_its_norm() -> None:
    q, k, v = inputs()
    ours = seen(q, k, v)[0]
    torch.testing.assert_close(ours, seen(q, 1.0 * k, v)[0])
    torch.testing.assert_close(seen(q, 3 * k, v)[0], 3 * ours)  # by its length, the factor would be sqrt(3)

    def by_length(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / k.norm(dim=-1).sqrt()[..., None, :]

    torch.testing.assert_close(seen(q, 3 * k, v, by_length)[0], 3**0.5 * seen(q, k, v, by_length)[0])


@pytest.mark.claim("X10")
def test_query_and_key_widths_match_and_value_width_is_free() -> None:
    for score in (dot, scaled_dot):
        assert seen(*inputs(value=9), score)[2].shape == (T, 9)
        with pytest.raises(RuntimeError):
            seen(*inputs(query=9, value=9), score)


@pytest.mark.claim("A4")
def test_general_score() -> None:
    q, k, v = inputs(4, 6)
    score = General(4, 6)
    torch.testing.assert_close(seen(q, k, v, score)[0], torch.einsum("ti,ij,sj->ts", q, score.matrix.weight, k))
    q, k, v = inputs()
    score = General(D, D)
    with torch.no_grad():
        score.matrix.weight.copy_(torch.eye(D))
    torch.testing.assert_close(seen(q, k, v, score)[0], seen(q, k, v, dot)[0])


@pytest.mark.claim("A5")
def test_additive_score_is_one_hidden_layer_on_key_and_query() -> None:
    q, k, v = inputs(4, 6)
    score = Additive(4, 6, 8)
    hidden, out = nn.Linear(10, 8, bias=False), nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        hidden.weight.copy_(torch.cat([score.k.weight, score.q.weight], 1))
        out.weight.copy_(score.v.weight)
    pairs = torch.cat([k[None].expand(T, -1, -1), q[:, None].expand(-1, S, -1)], -1)
    close(seen(q, k, v, score)[0], out(hidden(pairs).tanh())[..., 0], slack=16)
    assert (score.k.weight.shape, score.q.weight.shape, score.v.weight.shape) == ((8, 6), (8, 4), (1, 8))


@pytest.mark.claim("A6")
def test_cosine_score_ignores_norms() -> None:
    q, k, v = inputs()
    scores = seen(q, k, v, cosine)[0]
    torch.testing.assert_close(scores, F.cosine_similarity(q[:, None], k[None], -1))
    torch.testing.assert_close(seen(5 * q, 0.1 * k, v, cosine)[0], scores)


@pytest.mark.claim("A7")
def test_location_weights_depend_on_the_query_only() -> None:
    q, k, v = inputs()
    score = Location(D, S)
    _, weights, _ = seen(q, k, v, score)
    assert seen(q, torch.randn(S, D), v, score)[1].equal(weights)
    torch.testing.assert_close(weights, (q @ score.matrix.weight.T).softmax(-1))
    assert not seen(torch.randn(T, D), k, v, score)[1].equal(weights)


@pytest.mark.claim("A8")
@pytest.mark.parametrize("name", SIX)
def test_six_scores_work_in_one_attention_layer(name: str) -> None:
    q, k, v = inputs(value=7)
    scores, weights, output = seen(q, k, v, SIX[name](), mask=causal(S - T))
    assert (scores.shape, weights.shape, output.shape) == ((T, S), (T, S), (T, 7))
    torch.testing.assert_close(weights.sum(-1), torch.ones(T))
    assert bool((weights.triu(S - T + 1) == 0).all())
    torch.testing.assert_close(output, weights @ v)
    block = MultiHead(2 * D, 2, score=SIX[name]())
    assert block(torch.randn(1, T, 2 * D), block.keys_values(torch.randn(1, S, 2 * D))).shape == (1, T, 2 * D)


@pytest.mark.claim("A9")
def test_weights_come_from_queries_and_keys_and_context_from_values() -> None:
    block = MultiHead(8, 2)
    decoder, encoder = torch.randn(1, T, 8), torch.randn(1, S, 8)
    memory = block.keys_values(encoder)
    results = {}
    for name, kv in {"as it is": memory, "other values": memory._replace(v=memory.v + 1)}.items():
        with watch(block, "weights") as values:
            results[name] = block(decoder, kv), values["weights"]
    (one, weights), (two, same) = results.values()
    assert same.equal(weights)
    assert not two.equal(one)
    with watch(block, "weights") as values:
        block(decoder, memory._replace(k=memory.k.flip(2)))
    assert not values["weights"].equal(weights)
    assert block.q.weight is not block.kv.weight


@pytest.mark.claim("A10")
def test_worked_translation_step() -> None:
    expected = [0.9647, 0.0177, 0.0177]
    weights = softmax(torch.tensor([13.0, 9.0, 9.0]), None)
    assert [round(w, 4) for w in weights.tolist()] == expected
    states = torch.randn(3, 5)
    _, weights, context = seen(torch.ones(1, 1), torch.tensor([[13.0], [9.0], [9.0]]), states, dot)
    assert [round(w, 4) for w in weights[0].tolist()] == expected
    assert [round(w, 2) for w in weights[0].tolist()] == [0.96, 0.02, 0.02]
    torch.testing.assert_close(
        context[0], weights[0, 0] * states[0] + weights[0, 1] * states[1] + weights[0, 2] * states[2]
    )


@pytest.mark.claim("A11")
def test_worked_self_attention_example() -> None:
    q, k = torch.zeros(1, 64), torch.zeros(2, 64)
    q[0, :2], k[0, :2], k[1, :2] = torch.tensor([8.0, 4.0]), torch.tensor([12.0, 4.0]), torch.tensor([10.0, 4.0])
    assert seen(q, k, torch.eye(2), dot)[0].tolist() == [[112, 96]]
    scores, weights, output = seen(q, k, torch.eye(2))
    assert scores.tolist() == [[14, 12]]
    assert [round(w, 4) for w in weights[0].tolist()] == [0.8808, 0.1192]
    assert [round(w, 2) for w in output[0].tolist()] == [0.88, 0.12]


@pytest.mark.claim("A12")
def test_three_token_example() -> None:
    x = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    w_q = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    w_k = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
    w_v = torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])
    scores, _, output = seen(x @ w_q, x @ w_k, x @ w_v, dot)
    assert scores.tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    expected = torch.tensor([[1.9366, 6.6831, 1.5951], [2.0, 7.9640, 0.0540], [1.9997, 7.7599, 0.3584]])
    close(output, expected, slack=512)


@pytest.mark.claim("A14")
def test_local_attention_equals_global_when_the_window_covers_all() -> None:
    x = torch.randn(6, D)
    whole = seen(x, x, x)
    _, weights, local = seen(x, x, x, mask=window(1))
    assert (weights > 0).equal((torch.arange(6)[:, None] - torch.arange(6)).abs() <= 1)
    assert not local.equal(whole[2])
    torch.testing.assert_close(seen(x, x, x, mask=window(5))[2], whole[2])


@pytest.mark.claim("A15")
def test_self_and_cross_attention_inputs() -> None:
    block = MultiHead(8, 2)
    x, m = torch.randn(1, T, 8, requires_grad=True), torch.randn(1, S, 8, requires_grad=True)
    with watch(block, "weights") as values:
        own = block(x, block.keys_values(x))
        assert values["weights"].shape == (1, 2, T, T)
        other = block(x, block.keys_values(m))
        assert values["weights"].shape == (1, 2, T, S)
    assert own.shape == other.shape == x.shape
    (none,) = torch.autograd.grad(own.sum(), m, allow_unused=True)
    assert none is None
    assert bool(torch.autograd.grad(other.sum(), m)[0].any())


@pytest.mark.claim("A16")
def test_one_block_attends_to_tokens_memory_slots_and_feature_maps() -> None:
    block, query = MultiHead(8, 2), torch.randn(2, 1, 8)
    tokens = TiedEmbedding(11, 8)(torch.randint(0, 11, (2, 5)))
    slots = nn.Parameter(torch.randn(4, 8)).expand(2, -1, -1)
    image = nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 6, 7))
    for memory, places in ((tokens, 5), (slots, 4), (image.flatten(2).mT, 20)):
        with watch(block, "weights") as values:
            first = block(query, block.keys_values(memory))
            second = block(first, block.keys_values(memory))  # the output becomes the next query
        assert values["weights"].shape == (2, 2, 1, places)
        assert first.shape == second.shape == query.shape
        assert not values.all["weights"][0].equal(values.all["weights"][1])


@pytest.mark.claim("A17")
def test_self_attention_is_permutation_equivariant() -> None:
    block, x, order = MultiHead(8, 2), torch.randn(1, 6, 8), torch.randperm(6)
    y = block(x, block.keys_values(x))
    assert y.shape == x.shape  # n in, n out
    torch.testing.assert_close(block(x[:, order], block.keys_values(x[:, order])), y[:, order])
    masked = block(x, block.keys_values(x), causal())
    assert not torch.allclose(block(x[:, order], block.keys_values(x[:, order]), causal()), masked[:, order])
