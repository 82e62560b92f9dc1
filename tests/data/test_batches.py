"""Padded batches of text pairs: every pair once per epoch, within the token budget, in a reproducible order."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heedful.blocks.losses import Loss
from heedful.data.embedded import NumberWords
from heedful.data.formats.sources import Pair
from heedful.data.pairs.batches import (
    EncodedPairs,
    PairBatch,
    PairBatches,
    Ragged,
    encode_pairs,
    plan_by_budget,
    round_up,
)
from heedful.data.tokenizers.tokenizer import Bpe, TrainedTokenizer
from heedful.errors import UserError
from heedful.models import build
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig
from heedful.tasks.translation.predictor import reinforce_loss, translation_loss

PAIRS = list(dict.fromkeys(NumberWords(train=1500, valid=10, test=10).pairs("train")))
TOKENIZER = TrainedTokenizer.train(Bpe(vocab=300), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=512)


def random_lengths(count: int, longest: int = 60, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(1, longest, (count, 2))


def same(one: PairBatch, other: PairBatch) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in PairBatch.__slots__)


@pytest.mark.parametrize(("count", "budget"), [(1, 64), (7, 64), (1000, 512), (5000, 100), (3000, 1), (2000, 10**9)])
def test_plan_has_every_sample_once_within_the_budget(count: int, budget: int) -> None:
    lengths = random_lengths(count)
    batches = plan_by_budget(lengths, 1, 2, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    for rows in batches:
        assert len(rows) * round_up(int(lengths[rows].max())) <= budget or len(rows) == 1


def test_plan_is_pure_and_differs_by_seed_and_epoch() -> None:
    lengths = random_lengths(2000)

    def flat(seed: int, epoch: int) -> list[int]:
        return [int(row) for rows in plan_by_budget(lengths.copy(), seed, epoch, 512) for row in rows]

    assert flat(0, 0) == flat(0, 0)
    assert len({tuple(flat(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_batches_mix_differently_in_each_epoch() -> None:
    lengths = np.full((600, 2), 12)

    def batch_mates(seed: int, epoch: int) -> set[frozenset[int]]:
        return {frozenset(rows.tolist()) for rows in plan_by_budget(lengths, seed, epoch, 160)}

    assert batch_mates(0, 0) == batch_mates(0, 0)
    assert not batch_mates(0, 0) & batch_mates(0, 1)
    assert not batch_mates(0, 0) & batch_mates(1, 0)


def test_plan_pads_little_and_is_not_sorted_by_length() -> None:
    lengths = random_lengths(20_000, longest=100)
    batches = plan_by_budget(lengths, 0, 0, 4096)
    widths = [round_up(int(lengths[rows].max())) for rows in batches]
    longer = lengths.max(axis=1).sum()
    assert longer / sum(len(rows) * width for rows, width in zip(batches, widths, strict=True)) > 0.85
    assert np.mean([len(rows) * width for rows, width in zip(batches, widths, strict=True)]) > 0.93 * 4096
    assert abs(np.corrcoef(np.arange(len(widths)), widths)[0, 1]) < 0.2


@pytest.mark.parametrize(("length", "expected"), [(1, 8), (8, 8), (9, 16)])
def test_round_up(length: int, expected: int) -> None:
    assert round_up(length) == expected


def test_batch_contains_the_pairs() -> None:
    batch = ENCODED.batch(np.array([5, 3, 9]))
    assert batch.indices.tolist() == [5, 3, 9]
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert batch.source.shape[1] % 8 == batch.target.shape[1] % 8 == 0
    for row, index in enumerate([5, 3, 9]):
        source = [*TOKENIZER.encode(PAIRS[index].source).ids, 3]
        target = [2, *TOKENIZER.encode(PAIRS[index].target).ids, 3]
        assert batch.source[row].tolist() == source + [0] * (batch.source.shape[1] - len(source))
        assert batch.target[row].tolist() == target + [0] * (batch.target.shape[1] - len(target))
        assert batch.source_lengths[row] == len(source)
        assert batch.target_lengths[row] == len(target)
    assert batch.tokens == int((batch.target[:, 1:] != 0).sum())
    assert torch.equal(batch.source_real, batch.source != 0)


def test_batch_moves_to_a_device() -> None:
    moved = ENCODED.batch(np.arange(4)).to("meta")
    assert {getattr(moved, name).device.type for name in PairBatch.__slots__} == {"meta"}
    assert same(ENCODED.batch(np.arange(4)).to("cpu"), ENCODED.batch(np.arange(4)))


def test_long_pairs_are_dropped_and_counted() -> None:
    pairs = [Pair("a", "b"), Pair("x " * 50, "b"), Pair("c", "y " * 50), Pair("\ud800", "d")]
    encoded = encode_pairs(pairs, TOKENIZER, longest=13)
    assert (len(encoded), encoded.dropped, encoded.replaced) == (2, 2, 1)
    assert encoded.indices.tolist() == [0, 3]
    assert encoded.batch(np.array([1])).indices.tolist() == [3]
    assert TOKENIZER.decode(encoded.batch(np.array([1])).target[0].tolist()) == "d"


def test_padding_never_exceeds_the_context() -> None:
    text = "".join("abcdefghijkl"[place % 12] for place in range(100))
    lengths = [len(TOKENIZER.encode(text[:end]).ids) for end in range(101)]
    fits = lengths.index(11)
    more = next(end for end, length in enumerate(lengths) if length > 11)
    pairs = [Pair(text[:fits], text[:fits]), Pair("a", text[:more]), Pair(text[: lengths.index(max(lengths))], "a")]
    encoded = encode_pairs(pairs, TOKENIZER, longest=13)  # with bos and eos, 12 tokens are one too many
    assert encoded.indices.tolist() == [0]
    batch = encoded.batch(np.array([0]))
    assert batch.source.shape == batch.target.shape == (1, 13)
    assert batch.target_lengths.tolist() == [13]


def test_no_pair_that_fits_is_an_error() -> None:
    with pytest.raises(UserError, match="longer than 3 tokens"):
        encode_pairs(PAIRS[:20], TOKENIZER, longest=3)
    with pytest.raises(UserError, match="no pairs"):
        encode_pairs([], TOKENIZER, longest=3)


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    encode_pairs(PAIRS, TOKENIZER, 512, lambda done, total: seen.append((done, total)))
    assert seen == [(1024, 1500), (1500, 1500)]


def test_text_without_tokens_is_a_pair() -> None:
    batch = encode_pairs([Pair("", "")], TOKENIZER, longest=8).batch(np.array([0]))
    assert batch.source_lengths.tolist() == [1]
    assert batch.target[0, :2].tolist() == [2, 3]


def test_in_order_has_every_pair_once_longest_first() -> None:
    batches = list(ENCODED.in_order(512))
    indices = torch.cat([batch.indices for batch in batches]).tolist()
    assert sorted(indices) == list(range(1500))
    widths = [max(batch.source.shape[1], batch.target.shape[1]) for batch in batches]
    assert widths == sorted(widths, reverse=True)
    assert all(len(batch.indices) * width <= 512 for batch, width in zip(batches, widths, strict=True))
    assert all(same(one, other) for one, other in zip(batches, ENCODED.in_order(512), strict=True))


def test_batch_depends_on_its_position_only() -> None:
    sequential = PairBatches(ENCODED, 7, 512)
    total = len(plan_by_budget(ENCODED.lengths, 7, 0, 512)) * 3
    batches = [sequential.at(position) for position in range(total)]
    jumping = PairBatches(ENCODED, 7, 512)
    for position in [total - 1, 0, total // 2, total // 2, 3, total - 1, *range(total)][::-1]:
        assert same(jumping.at(position), batches[position])
    for position in (0, 1, total // 2, total - 1):
        assert same(PairBatches(ENCODED, 7, 512).at(position), batches[position])


def test_epoch_has_every_sample_once() -> None:
    batches = PairBatches(ENCODED, 0, 512)
    seen: dict[int, list[int]] = {}
    for position in range(len(plan_by_budget(ENCODED.lengths, 0, 0, 512)) * 3):
        seen.setdefault(batches.epoch_of(position), []).extend(batches.at(position).indices.tolist())
    assert list(seen) == list(range(len(seen)))
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(1500))
    assert seen[0] != seen[1]


def test_sample_over_the_budget_is_a_batch_of_its_own() -> None:
    rows = Ragged(np.arange(4, 44, dtype=np.int32), np.array([0, 2, 38, 40], dtype=np.int64))
    encoded = EncodedPairs(rows, rows, np.arange(3), longest=64, dropped=0, replaced=0)
    assert [batch.indices.tolist() for batch in encoded.in_order(16)] == [[1], [0, 2]]


# ------------------------------------------------------------------ even batches
def test_even_batches_have_few_shapes_and_the_same_pairs() -> None:
    plain, even = PairBatches(ENCODED, 3, 1024), PairBatches(ENCODED, 3, 1024, even=True)
    assert even.few_shapes and not plain.few_shapes
    count = 2 * len(plan_by_budget(ENCODED.lengths, 3, 0, 1024))
    shapes, plain_shapes = set(), set()
    for position in range(count):
        one: Any = plain.at(position)
        other: Any = even.at(position)
        rows, width = len(one.source), other.source.shape[1]
        assert other.source.shape == other.target.shape == (1024 // width, width)
        assert width == max(one.source.shape[1], one.target.shape[1])
        for name in ("source", "target"):
            side = getattr(other, name)
            assert torch.equal(side[:rows, : getattr(one, name).shape[1]], getattr(one, name))
            assert not side[:rows, getattr(one, name).shape[1] :].any()
        assert other.indices.tolist() == one.indices.tolist() + [-1] * (len(other.source) - rows)
        assert other.tokens == one.tokens == even.tokens(position)
        shapes.add(other.source.shape)
        plain_shapes.add((one.source.shape, one.target.shape))
    assert len(shapes) <= -(-int(ENCODED.lengths.max()) // 8) < len(plain_shapes)


@pytest.mark.parametrize("choice", ["soft", "hard"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_filler_rows_do_not_change_loss_or_gradient(choice: Literal["soft", "hard"], smoothing: float) -> None:
    torch.manual_seed(1)
    attention = AttentionConfig(score="dot", feed="output", choice=choice)
    config = Seq2SeqConfig(
        vocab=TOKENIZER.vocab, width=8, encoder=RecurrentEncoder(hidden=8, layers=1), hidden=8, layers=1,
        attention=attention, dropout=0.0,
    )  # fmt: skip
    model: Any = build(config).double().eval()  # no dropout

    def loss_and_gradient(batch: PairBatch) -> tuple[Loss, torch.Tensor]:
        loss = (reinforce_loss if choice == "hard" else translation_loss)(model, batch, smoothing)
        grads = torch.autograd.grad(loss.total, list(model.parameters()))
        return loss, torch.cat([grad.flatten() for grad in grads])

    rows = np.array([4, 0, 7])
    plain, even = ENCODED.batch(rows), ENCODED.even(rows, 512)
    assert len(even.source) > len(plain.source)
    (one, grad), (other, same_grad) = loss_and_gradient(plain), loss_and_gradient(even)
    assert int(one.count) == int(other.count) == plain.tokens
    for name in ("total", "plain"):
        torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=1e-12, atol=0)
    torch.testing.assert_close(same_grad, grad, rtol=0, atol=1e-11 * float(grad.abs().max()))


def test_even_batch_without_pairs_has_no_targets() -> None:
    batch = ENCODED.even(np.arange(0), 512)
    assert batch.tokens == 0
    assert batch.source.shape == batch.target.shape == (64, 8)
    assert set(batch.indices.tolist()) == {-1}


def test_shards_of_an_even_batch_have_every_pair_once() -> None:
    even = PairBatches(ENCODED, 0, 512, even=True)
    parts = [even.at(5, part, 3) for part in range(3)]
    found = torch.cat([part.indices for part in parts])
    assert sorted(found[found >= 0].tolist()) == sorted(PairBatches(ENCODED, 0, 512).at(5).indices.tolist())
    assert sum(part.tokens for part in parts) == even.tokens(5)


def test_pair_over_the_budget_is_an_even_batch_of_its_own() -> None:
    longest = int(ENCODED.lengths.max(axis=1).argmax())
    assert ENCODED.even(np.array([longest]), 8).source.shape[0] == 1
