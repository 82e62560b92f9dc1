"""Weights in blocks: those of the definition, edited and differentiated too, without a tensor of T x S."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.blocks import sparse
from heedful.blocks.attention import SelfAttention, attend
from heedful.blocks.block_values import BlockValues
from heedful.blocks.masks import Bias, Mask, alibi, global_tokens, padding, random_blocks, window
from heedful.blocks.sparse import BlockSparse
from heedful.blocks.taps import Tap, watch
from heedful.models import build
from heedful.models.bigbird.config import BigBirdConfig
from tolerance import close


class Attention(nn.Module):
    """Attention with taps."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.weights = Tap(), Tap()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockSparse | Tensor, bias: Bias | None, normalize: str
    ) -> Tensor:
        return attend(q, k, v, mask, bias, normalize=normalize, scores=self.scores, weights=self.weights)


def rules(heads: int, queries: int, keys: int) -> list[Mask]:
    lengths = torch.tensor([keys, keys // 2])
    return [
        window(20) & padding(lengths),
        random_blocks(2, 32, heads, 1, queries, keys) & padding(lengths),
        window(9) | global_tokens(3),
        window(9) & padding(torch.tensor([keys, 0])),
    ]


@pytest.fixture
def always_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "DENSE", 0)


@pytest.mark.usefixtures("always_blocks")
@pytest.mark.parametrize("normalize", ["softmax", "sparsemax"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("size", [64, 128])
def test_values_in_blocks_are_those_of_the_definition(number: int, normalize: str, size: int) -> None:
    heads, queries, keys = 2, 150, 170
    mask = BlockSparse.of(rules(heads, queries, keys)[number], 2, heads, queries, keys, size)
    truth = mask.dense().expand(2, heads, queries, keys)
    shapes = ((2, heads, queries, 4), (2, heads, keys, 4), (2, heads, keys, 3))
    q, k, v = (torch.randn(shape).double().requires_grad_() for shape in shapes)
    model, bias = Attention(), alibi(heads) if number % 2 else None

    def less(name: str, x: Tensor) -> Tensor | None:
        return x * x if name == "weights" else x / 2

    def less_in_blocks(name: str, x: BlockValues) -> BlockValues:
        values = x.values * x.values if name == "weights" else x.values / 2
        return BlockValues(values, x.places, x.shape, x.fill)

    for edit, edit_blocks in ((None, None), (less, less_in_blocks)):
        with watch(model, edit=edit, edit_blocks=edit_blocks) as seen:
            o = model(q, k, v, mask, bias, normalize)
        with watch(model, edit=edit) as known:
            right = model(q, k, v, truth, bias, normalize)
        close(o, right)
        probe = torch.randn_like(o)
        for mine, theirs in zip(*(torch.autograd.grad(x, (q, k, v), probe) for x in (o, right)), strict=True):
            close(mine, theirs)
        weights, scores = seen.blocks["weights"], seen.blocks["scores"]
        assert not seen and weights.shape == (2, heads, queries, keys)
        close(weights.dense(), known["weights"])
        close(scores.dense()[truth], known["scores"][truth])
        sums = weights.sums()
        for b, h, row, column in weights.places[:: max(1, len(weights.places) // 5)].tolist():
            block = known["weights"][b, h, row * size : (row + 1) * size, column * 64 : (column + 1) * 64]
            close(weights.block(b, h, row, column), block)
            close(sums[b, h, row, column], block.sum())
        close(sums.sum((2, 3)), known["weights"].sum((2, 3)))
        if edit is None:
            close(weights.dense().sum(-1), truth.any(-1).double())


@pytest.mark.usefixtures("always_blocks")
def test_edits_of_tensors_and_plain_hooks_get_whole_tensors() -> None:
    q, k, v = (torch.randn(1, 2, 70, 4) for _ in range(3))
    mask, model, shapes = BlockSparse.of(window(10), 1, 2, 70), Attention(), []
    with watch(model, "weights", edit=lambda name, x: x.index_fill(1, torch.tensor([1]), 0.0)) as seen:
        edited = model(q, k, v, mask, None, "softmax")
    assert seen["weights"].shape == (1, 2, 70, 70) and not seen.blocks and not edited[:, 1].any()
    with watch(model, "weights", edit_blocks=lambda name, x: x.without_heads([1])) as seen:
        close(model(q, k, v, mask, None, "softmax"), edited)
    close(seen.blocks["weights"].dense()[:, 0].sum(-1), torch.ones(1, 70))
    with pytest.raises(KeyError, match=r"seen\.blocks\['weights'\]"):
        seen["weights"]
    model.weights.hook = lambda x: shapes.append(x.shape)
    model(q, k, v, mask, None, "softmax")
    assert shapes == [(1, 2, 70, 70)]
    model.weights.hook = None
    assert model.weights.block_hook is None, "nothing is left of `watch`"


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation returns."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, tuple | list) else [found]:
            self.most = max(self.most, x.numel() if isinstance(x, Tensor) else 0)
        return found


def test_a_long_text_is_watched_without_a_square() -> None:
    length = 4096
    block, x = SelfAttention(4, 1, 0.0), torch.randn(1, length, 4)
    mask = BlockSparse.of(window(64), 1, 1, length)
    with torch.no_grad(), Largest() as largest, watch(block, "weights") as seen:
        o = block(x, mask)
    assert largest.most < length * length / 16
    close(o, block(x, mask))
    weights = seen.blocks["weights"]
    close(weights.sums().sum(-1), torch.full((1, 1, 64), 64.0))
    assert weights.places.shape == (len(weights.values), 4) and weights.nbytes < 4 * length * length / 16
    assert weights.of_row(0).places.equal(weights.places)


@pytest.mark.parametrize("settings", [{"random_from": "first"}, {"random_from": "seed"}, {"global_tokens": 8}], ids=str)
def test_bigbird_shows_the_same_weights_in_blocks(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = BigBirdConfig.tiny().model_copy(
        update={"context": 160, "block": 8, "random_from": "seed", "dropout": 0.0, "attention_dropout": 0.0} | settings
    )
    model = build(config).eval()
    tokens, name = torch.randint(1, 23, (2, 160)), "blocks.1.attention.weights"
    with torch.no_grad():
        with watch(model) as known:
            right = model(tokens)
        monkeypatch.setattr(sparse, "DENSE", 0)
        monkeypatch.setattr("heedful.models.bigbird.model.DENSE", 0)
        with watch(model) as seen:
            close(model(tokens), right)
    assert name in known and name in seen.blocks and name not in seen
    close(seen.blocks[name].dense(), known[name])
    one = seen.blocks[name].of_row(1)
    assert one.shape[0] == 1
    close(one.dense(), known[name][1:])
