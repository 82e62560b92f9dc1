"""BigBird against patterns made by loops: window, global and random blocks, wherever padding is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from heedful.blocks.attention import attend
from heedful.blocks.layouts import Padded
from heedful.blocks.masks import dense, global_tokens, padding, window
from heedful.blocks.sparse import BlockSparse
from heedful.blocks.taps import watch
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.bigbird import model as bigbird
from heedful.models.bigbird.config import BigBirdConfig
from tolerance import close

VARIANTS: dict[str, dict[str, Any]] = {
    "itc": {},
    "etc": {"global_tokens": 4},
    "wide": {"window_blocks": 5, "random_blocks": 0},
    "first": {"random_from": "first"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture(autouse=True, params=[0, 512], ids=["blocks", "dense"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows computed as long ones are, and as they are."""
    monkeypatch.setattr(bigbird, "SMALL", request.param)


def config(**settings: Any) -> BigBirdConfig:
    sizes = {"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 60, "block": 2}
    return BigBirdConfig.model_validate(sizes | {"random_blocks": 2, "seed": 3} | settings)


def model_of(**settings: Any) -> Any:
    torch.manual_seed(1)
    model: Any = build(config(**settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def seen_pairs(model: Any, length: int) -> Tensor:
    """The pairs (H, T, T) with a weight, of a text of this length, extra tokens included."""
    with watch(model, "blocks.0.attention.weights") as seen:
        model(torch.randint(1, 23, (1, length)))
    return seen["blocks.0.attention.weights"][0] > 0


@pytest.mark.claim("H3")
@pytest.mark.parametrize("length", [19, 20, 23, 37, 60])
def test_pattern_is_the_union_of_window_global_and_random_blocks(length: int) -> None:
    c = config()
    pairs = seen_pairs(model_of(), length)
    last = (length - 1) // c.block
    found = torch.zeros(2, last + 1, last + 1, dtype=torch.bool)
    for head in range(2):
        for row in range(last + 1):
            for column in range(last + 1):
                near = abs(row - column) <= 1
                ends = row in (0, last) or column in (0, last)
                block = pairs[head, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
                assert bool(block.all()) == bool(block.any())
                found[head, row, column] = block.all() and not (near or ends)
                assert bool(block.all()) or not (near or ends)
    counts = found[:, 1:last].sum(-1)
    assert length > c.dense_length and counts.unique().tolist() == [c.random_blocks]
    assert not found[0].equal(found[1]), "another choice in each head"


def test_short_texts_attend_to_everything() -> None:
    c = config()
    assert c.dense_length == (5 + 2 * 2) * 2 == 18
    assert bool(seen_pairs(model_of(), 18).all()) and not bool(seen_pairs(model_of(), 19).all())


def test_extra_global_tokens_see_all_and_are_seen_by_all() -> None:
    pairs = seen_pairs(model_of(global_tokens=4, random_blocks=0), 30)
    place = torch.arange(34)
    expected = (place < 4) | (place[:, None] < 4) | ((place // 2 - place[:, None] // 2).abs() <= 1)
    assert pairs.equal(expected.expand(2, -1, -1)), "no other blocks are global"


def test_random_blocks_depend_on_the_seed_alone() -> None:
    """Not on the weights, the generator, training or the other texts of a batch."""
    one = seen_pairs(model_of(), 40)
    other = build(config())
    torch.manual_seed(99)
    assert seen_pairs(other.train(), 40).equal(one) and seen_pairs(other.eval(), 40).equal(one)
    assert not seen_pairs(model_of(seed=4), 40).equal(one)
    with watch(other, "blocks.0.attention.weights") as seen:
        other(torch.randint(1, 23, (2, 50)), None, Padded(torch.arange(50) < torch.tensor([[50], [40]])))
    assert (seen["blocks.0.attention.weights"][1, :, :40, :40] > 0).equal(one)


@every_variant
def test_padding_anywhere_changes_nothing(variant: str) -> None:
    model = model_of(**VARIANTS[variant])
    lengths = (60, 41, 18, 19, 1, 33)
    real = torch.zeros(len(lengths), 66, dtype=torch.bool)
    for row, length in enumerate(lengths):
        places = {0: torch.arange(length), 1: torch.arange(66 - length, 66)}.get(row % 3, torch.randperm(66)[:length])
        real[row, places] = True
    ids = torch.randint(1, 23, real.shape)
    found = model(ids, None, Padded(real))
    for row in range(len(lengths)):
        close(found[row][real[row]], model(ids[row][real[row]][None])[0])


@every_variant
def test_watched_and_fast_attention_agree_in_values_and_gradients(variant: str) -> None:
    """The fast one computes blocks alone, the watched one is the definition."""
    model = model_of(**VARIANTS[variant]).double()
    ids = torch.randint(1, 23, (2, 45))
    real = torch.arange(45) < torch.tensor([[45], [32]])
    results = []
    for names in ([], ["*"]):
        model.zero_grad()
        with watch(model, *names):
            x = model(ids, None, Padded(real))[real]
        x.square().sum().backward()
        results.append([x, *(p.grad for p in model.parameters() if p.grad is not None)])
    close(results[0], results[1])


@pytest.mark.claim("H3")
@pytest.mark.parametrize("settings", [{"attention": "original_full"}, {"window_blocks": 61}, {"block": 60}])
def test_window_over_everything_is_full_attention(settings: dict[str, Any]) -> None:
    ours = model_of(**settings, random_blocks=0)
    bert: Any = build(BertConfig.model_validate(
        {"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 60, "activation": "gelu_tanh"}
    )).eval()  # fmt: skip
    bert.load_state_dict(ours.state_dict())
    ids, real = torch.randint(1, 23, (2, 55)), torch.arange(55) < torch.tensor([[55], [30]])
    close(ours(ids, None, Padded(real))[real], bert(ids, None, Padded(real))[real])


def test_pattern_of_longformer_is_another_rule() -> None:
    """Beltagy et al. (2020): a window, and a few global tokens, here the first and those of a question."""
    q, k, v = (torch.randn(2, 3, 200, 8, requires_grad=True) for _ in range(3))
    rule = (window(16) | global_tokens(5)) & padding(torch.tensor([200, 150]))
    lists = BlockSparse.of(rule, 2, 3, 200)
    close(attend(q, k, v, lists), attend(q, k, v, dense(rule, q, k)))
    assert lists.lists.touched[0, 0].tolist() == [4, 3, 4, 3], "the first row of blocks, and three or four in others"


@pytest.mark.parametrize(("settings", "message"), [
    ({"window_blocks": 4}, "a window of 4 blocks has no middle; write window_blocks: 5"),
    ({"block": 64}, "a block of 64 tokens does not fit into a context of 60; write block: 60 or less"),
    ({"global_tokens": 3}, "3 global tokens are not whole blocks of 2; write global_tokens: 4"),
    ({"global_tokens": 4, "random_from": "first"}, "extra global tokens are not in Hugging Face's folders"),
])  # fmt: skip
def test_blocks_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**settings)
