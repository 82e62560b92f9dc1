"""Gradients of every block and loss against finite differences, in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck

from heedful.blocks.attention import MultiHead, attend, softmax
from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.losses import cross_entropy, projected_cross_entropy
from heedful.blocks.masks import alibi, causal, padding, window
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.positions import FixedPositions, LearnedPositions, NoPositions, Rotary, sinusoid_halves, sinusoids
from heedful.blocks.scores import Additive, General, Location, Score, cosine, dot, scaled_dot

AT = torch.tensor([0, 2, 1])
LENGTHS = torch.tensor([0, 2])
TOKENS = torch.tensor([[0, 3, 1], [4, 4, 2]])


def heads(block: MultiHead) -> Callable[[Tensor], Tensor]:
    return lambda x: block(x, block.keys_values(x, AT), causal(), at=AT)


def cross(block: MultiHead) -> Callable[[Tensor], Tensor]:
    return lambda x: block(x, block.keys_values(x.flip(1)), padding(LENGTHS))


def biased(block: MultiHead) -> Callable[[Tensor], Tensor]:
    return lambda x: block(x, block.keys_values(x), window(1), alibi(2))


X = (2, 3, 4)
BLOCKS: dict[str, Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]]] = {
    "self-attention": lambda: (b := MultiHead(4, 2), heads(b)),
    "self-attention without W_o": lambda: (b := MultiHead(4, 2, output=False, bias=False), heads(b)),
    "cross-attention, an empty row": lambda: (b := MultiHead(4, 2), cross(b)),
    "local attention with a bias": lambda: (b := MultiHead(4, 2), biased(b)),
    "rotary attention": lambda: (b := MultiHead(4, 2, rotary=Rotary(5, 2)), heads(b)),
    "cosine heads": lambda: (b := MultiHead(4, 2, score=cosine), heads(b)),
    "additive heads": lambda: (b := MultiHead(4, 2, score=Additive(2, 2, 3)), heads(b)),
    "general heads": lambda: (b := MultiHead(4, 2, score=General(2, 2)), heads(b)),
    "location heads": lambda: (b := MultiHead(4, 2, score=Location(2, 3)), heads(b)),
    "feed-forward, relu": lambda: (b := FeedForward(4, 5), b),
    "feed-forward, gelu": lambda: (b := FeedForward(4, 5, ACTIVATIONS["gelu"]), b),
    "feed-forward, swish": lambda: (b := FeedForward(4, 5, ACTIVATIONS["swish"]), b),
    "post-norm": lambda: (b := PostNorm(4, 0.0), lambda x: b(x, torch.tanh)),
    "pre-norm": lambda: (b := PreNorm(4, 0.0), lambda x: b(x, torch.tanh)),
    "fixed positions": lambda: (b := FixedPositions(sinusoids(5, 4)), lambda x: b(x, AT)),
    "fixed positions, halves": lambda: (b := FixedPositions(sinusoid_halves(5, 4)), lambda x: b(x, AT)),
    "learned positions": lambda: (b := LearnedPositions(5, 4), lambda x: b(x, AT)),
    "no positions": lambda: (b := NoPositions(), lambda x: b(x, AT)),
    "rotary positions": lambda: (b := Rotary(5, 4), lambda x: b(x, AT)),
    "tied logits": lambda: (b := TiedEmbedding(5, 4), b.logits),
    "tied tokens": lambda: (b := TiedEmbedding(5, 4), lambda x: x + b(TOKENS)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block(name: str) -> None:
    block, run = BLOCKS[name]()
    block.double()
    x = torch.randn(X, dtype=torch.float64, requires_grad=True)
    weights = list(block.parameters())
    assert gradcheck(lambda x, *_: run(x), (x, *weights))


SCORES: dict[str, Callable[[], Score]] = {
    "scaled dot": lambda: scaled_dot,
    "dot": lambda: dot,
    "cosine": lambda: cosine,
    "general": lambda: General(2, 2).double(),
    "additive": lambda: Additive(2, 2, 3).double(),
    "location": lambda: Location(2, 4).double(),
}


@pytest.mark.parametrize("name", SCORES)
def test_score(name: str) -> None:
    score = SCORES[name]()
    q, k, v = (torch.randn(2, 1, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    assert gradcheck(lambda q, k, v: attend(q, k, v, padding(LENGTHS) | causal(), score=score), (q, k, v))


def test_masked_softmax() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert gradcheck(lambda x: softmax(x, mask), torch.randn(2, 3, dtype=torch.float64, requires_grad=True))


TARGETS = torch.tensor([1, -100, 0, 4])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: cross_entropy(x, TARGETS, smoothing).total, logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_projected_cross_entropy(smoothing: float) -> None:
    x, weight = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    assert gradcheck(lambda x, w: projected_cross_entropy(x, w, TARGETS, smoothing).total, (x, weight))
    assert gradcheck(lambda x, w: 0.5 * projected_cross_entropy(x, w, TARGETS, smoothing).total.square(), (x, weight))


def test_number_of_checked_modules() -> None:
    assert len(BLOCKS) + len(SCORES) + 3 >= 25


def test_gradcheck_finds_a_wrong_gradient() -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert not gradcheck(lambda x: F.relu(x) + (x - x.detach()), x, raise_exception=False)
