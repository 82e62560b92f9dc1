"""Embedding, feed-forward, norms and initialisation."""

import math

import pytest
import torch
import torch.nn.functional as F

from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.linear import Linear
from heedful.blocks.norms import PostNorm, PreNorm


def test_tied_embeddings_use_one_matrix_both_ways() -> None:
    tied = TiedEmbedding(11, 4)
    assert len(list(tied.parameters())) == 1
    tokens, x = torch.tensor([[3, 7]]), torch.randn(1, 2, 4)
    assert tied(tokens)[0, 1].equal(tied.weight[7] * 2)
    torch.testing.assert_close(tied.logits(x)[0, 1], tied.weight @ x[0, 1])


def test_embeddings_have_unit_variance() -> None:
    assert TiedEmbedding(500, 64)(torch.arange(500)).std().item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_feed_forward_is_the_same_at_every_position(name: str) -> None:
    layer, x = FeedForward(4, 7, ACTIVATIONS[name]), torch.randn(2, 3, 4)
    expected = layer.down(ACTIVATIONS[name](layer.up(x[1, 2])))
    torch.testing.assert_close(layer(x)[1, 2], expected)


def test_activations_match_their_formulas() -> None:
    x = torch.randn(50, dtype=torch.float64)
    bell = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    wave = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    right = {"relu": x.clamp(min=0), "gelu": bell, "gelu_tanh": wave, "swish": x * x.sigmoid(), "tanh": x.tanh()}
    right |= {"quick_gelu": x / (1 + (-1.702 * x).exp()), "mish": x * (1 + x.exp()).log().tanh()}
    assert right.keys() == ACTIVATIONS.keys()
    for name, values in right.items():
        torch.testing.assert_close(ACTIVATIONS[name](x), values)


def test_dropout_acts_on_sublayer_only() -> None:
    x = torch.randn(50, 4)
    for kind, alone in ((PostNorm, lambda block: block.norm(x)), (PreNorm, lambda block: x)):
        block = kind(4, 0.5).train()
        dropped = (block(x, torch.ones_like) - alone(block)).abs().amax(-1) < 1e-5  # all four of a place: 1 in 16
        assert 0 < int(dropped.sum()) < 15
        assert block.eval()(x, torch.ones_like).equal(block.eval()(x, torch.ones_like))


def test_pre_norm_leaves_the_residual_stream_unchanged() -> None:
    x = 100 * torch.randn(2, 3, 4)
    assert PreNorm(4, 0.0)(x, torch.zeros_like).equal(x)
    assert not PostNorm(4, 0.0)(x, torch.zeros_like).equal(x)


def test_linear_layers_are_initialized_within_their_bound() -> None:
    for layer in (Linear(30, 50), Linear(50, 10, bias=False)):
        bound = math.sqrt(6 / sum(layer.weight.shape))
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (3, 7), (2, 3, 5), (600, 1)])
def test_logits_of_decoding_equal_training(shape: tuple[int, ...]) -> None:
    tied, x = TiedEmbedding(50, 6), torch.randn(*shape, 6)
    with torch.inference_mode():
        torch.testing.assert_close(tied.logits(x), F.linear(x, tied.weight))


def test_logits_follow_changed_weights() -> None:
    tied, x = TiedEmbedding(50, 6), torch.randn(2, 1, 6)
    for change in (
        lambda: tied.weight.mul_(2),
        lambda: tied.load_state_dict(TiedEmbedding(50, 6).state_dict()),
        lambda: setattr(tied.weight, "data", torch.randn(50, 6)),
    ):
        with torch.no_grad():
            tied.logits(x)
            change()
            torch.testing.assert_close(tied.logits(x), F.linear(x, tied.weight))
