"""Rows H of the claim sheet: what attention costs over the length of a text, counted, and attention that costs less."""

from __future__ import annotations

import pytest
import torch

from heedful.blocks.attention import KV, attend
from heedful.blocks.masks import global_tokens, random_blocks, window
from heedful.blocks.sparse import BlockSparse
from heedful.lectures.long import LAYERS, Fit, Settings, count, passes
from heedful.models.linformer.model import Projection
from tolerance import close

LENGTHS = (1024, 1536, 2048)
Exponents = dict[str, tuple[float, float]]


@pytest.fixture(scope="module")
def exponents() -> Exponents:
    """The exponents of operations and of memory over length, by layer: forwards and backwards."""
    settings = Settings(width=8, slots=16, window=32)
    found = {}
    for name in LAYERS:
        held, work = zip(*(count(passes(name, settings, length, "cpu"), "cpu") for length in LENGTHS), strict=True)
        found[name] = (Fit.of(LENGTHS, work).exponent, Fit.of(LENGTHS, held).exponent)
    return found


@pytest.mark.claim("H1")
def test_attention_is_quadratic_in_length_and_an_rnn_linear(exponents: Exponents) -> None:
    assert exponents["full attention"] == pytest.approx((2, 2), abs=0.06)
    assert exponents["LSTM"] == pytest.approx((1, 1), abs=0.06)
    assert exponents["full attention, fused"] == pytest.approx((2, 1), abs=0.06), "all pairs, but not all at a time"


@pytest.mark.claim("H2")
def test_linformer_is_linear_and_full_attention_if_nothing_is_projected_away(exponents: Exponents) -> None:
    assert exponents["Linformer"] == pytest.approx((1, 1), abs=0.06)
    q, k, v = (torch.randn(2, 3, 10, 4) for _ in range(3))
    projection = Projection(1, 1, 10, 10)
    with torch.no_grad():
        few = projection(KV(k, v), None)
        assert not torch.allclose(attend(q, few.k, few.v), attend(q, k, v))
        projection.weight.copy_(torch.eye(10))
        few = projection(KV(k, v), None)
        close(attend(q, few.k, few.v), attend(q, k, v))


@pytest.mark.claim("H3")
def test_bigbird_is_the_union_of_three_masks_and_linear(exponents: Exponents) -> None:
    # The first and last queries of a window have fewer keys, and lists of blocks a small part of a square.
    assert exponents["window"] == pytest.approx((1, 1), abs=0.08)
    assert exponents["BigBird"] == pytest.approx((1, 1), abs=0.2)
    length, heads = 200, 2
    three = window(10), global_tokens(3), random_blocks(1, 16, heads, 0, length)
    q, k, v = (torch.randn(1, heads, length, 4) for _ in range(3))
    masks = [BlockSparse.of(rule, 1, heads, length).dense() for rule in three]
    union = BlockSparse.of(three[0] | three[1] | three[2], 1, heads, length)
    assert union.dense().equal(masks[0] | masks[1] | masks[2])
    close(attend(q, k, v, union), attend(q, k, v, masks[0] | masks[1] | masks[2]))
    close(attend(q, k, v, BlockSparse.of(window(length), 1, heads, length)), attend(q, k, v))
