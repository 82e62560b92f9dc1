"""Packed batches of pairs: the loss of padded ones, each pair once per epoch, within fixed widths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heedful.data.embedded import NumberWords
from heedful.data.formats.sources import Pair
from heedful.data.pairs.batches import (
    Batch,
    EncodedPairs,
    PackedBatch,
    PairBatches,
    Ragged,
    encode_pairs,
    max_packed,
    packed_widths,
    plan_packed,
)
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.tasks.translation.predictor import translation_loss

PAIRS = NumberWords(train=200, valid=1, test=1).pairs("train")[:200]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=80)


def random_lengths(count: int, longest: int = 60, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(2, longest, (count, 2))


def packed(batch: Batch) -> PackedBatch:
    assert isinstance(batch, PackedBatch)
    return batch


# ------------------------------------------------------------------ the same learning
@pytest.mark.parametrize("positions", ["sinusoid", "learned", "rotary", "alibi", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_loss_and_gradients_are_those_of_padded_pairs(positions: Any, norm: Any) -> None:
    model: Any = build(
        TransformerConfig(
            vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=2, decoder_layers=2, hidden=24, context=80,
            dropout=0.0, norm=norm, positions=positions,
        )
    ).double()  # fmt: skip
    rows = np.array([3, 141, 59, 26, 5, 35, 89, 79, 0])
    found = []
    for batch in (ENCODED.batch(rows), ENCODED.pack(rows, (350, 420))):
        model.zero_grad()
        loss = translation_loss(model, batch, 0.1)
        loss.total.backward()
        found.append((loss, torch.cat([weight.grad.flatten() for weight in model.parameters()])))
    (one, first), (other, second) = found
    assert float(other.total.detach()) == pytest.approx(float(one.total.detach()), rel=1e-10)
    assert float(other.plain) == pytest.approx(float(one.plain), rel=1e-10)
    assert int(other.count) == int(one.count) == ENCODED.batch(rows).tokens
    assert float((second - first).norm() / first.norm()) < 1e-9


def test_other_pairs_of_a_packed_row_do_not_matter() -> None:
    model: Any = build(
        TransformerConfig(
            vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=1, hidden=24, context=80,
            dropout=0.0,
        )
    )  # fmt: skip

    def loss(*rows: int) -> float:
        with torch.inference_mode():
            return float(translation_loss(model, ENCODED.pack(np.array(rows), (300, 300))).total)

    assert loss(4, 9, 70) == pytest.approx(loss(4) + loss(9) + loss(70), rel=1e-5)
    assert loss(70, 4, 9) == pytest.approx(loss(4, 9, 70), rel=1e-5)


# ------------------------------------------------------------------ the batch
def test_packed_batch_has_its_pairs_end_to_end() -> None:
    batch = ENCODED.pack(np.array([7, 2]), (200, 250))
    assert batch.source.shape == (1, 200)
    assert batch.target.shape == batch.labels.shape == (1, 250)
    source = [[*TOKENIZER.encode(PAIRS[row].source).ids, TrainedTokenizer.eos] for row in (7, 2)]
    target = [TOKENIZER.encode(PAIRS[row].target).ids for row in (7, 2)]
    given = [token for ids in target for token in (TrainedTokenizer.bos, *ids)]
    expected = [token for ids in target for token in (*ids, TrainedTokenizer.eos)]
    flat = [token for ids in source for token in ids]
    assert batch.source[0].tolist() == flat + [TrainedTokenizer.pad] * (200 - len(flat))
    assert batch.target[0].tolist() == given + [TrainedTokenizer.pad] * (250 - len(given))
    assert batch.labels[0].tolist() == expected + [TrainedTokenizer.pad] * (250 - len(expected))
    rest = max_packed(250) - 2
    assert batch.source_lengths.tolist() == [len(ids) for ids in source] + [0] * rest
    assert batch.target_lengths.tolist() == [len(ids) + 1 for ids in target] + [0] * rest
    assert batch.indices.tolist() == [7, 2] + [-1] * rest
    assert batch.tokens == len(expected) == ENCODED.batch(np.array([7, 2])).tokens
    assert batch.longest == 80


def test_batch_moves_to_a_device() -> None:
    batch = ENCODED.pack(np.array([7, 2]), (200, 250))
    tensors = [name for name in PackedBatch.__slots__ if name != "longest"]
    assert {getattr(batch.to("meta"), name).device.type for name in tensors} == {"meta"}
    assert all(torch.equal(getattr(batch.to("cpu"), name), getattr(batch, name)) for name in tensors)
    assert batch.to("meta").longest == 80


def test_indices_refer_to_the_encoded_list() -> None:
    pairs = [Pair("x " * 90, "b"), *PAIRS[:4]]
    encoded = encode_pairs(pairs, TOKENIZER, longest=80)
    assert encoded.pack(np.array([0, 3]), (200, 200)).indices.tolist()[:3] == [1, 4, -1]


# ------------------------------------------------------------------ the plan
@pytest.mark.parametrize(("count", "room"), [(1, 64), (7, 64), (1000, 512), (5000, 100), (2000, 10**6), (4000, 4096)])
@pytest.mark.parametrize("lean", [0, 40, -40], ids=["even", "long targets", "long sources"])
def test_packed_plan_has_every_sample_once_within_the_widths(count: int, room: int, lean: int) -> None:
    lengths = random_lengths(count)
    lengths[:, int(lean < 0)] = np.maximum(2, lengths[:, int(lean < 0)] - abs(lean))
    rooms = packed_widths(lengths, room)
    batches = plan_packed(lengths, 1, 2, room)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    for rows in batches:
        source, target = (lengths[rows] - (0, 1)).sum(axis=0)
        assert source <= rooms[0] and target <= rooms[1]
        assert 1 <= len(rows) <= max_packed(max(rooms))


def test_packed_plan_fills_batches() -> None:
    lengths = random_lengths(3000)
    rooms = packed_widths(lengths, 1024)
    batches = plan_packed(lengths, 0, 0, 1024)
    for rows, following in itertools.pairwise(batches):
        more = (lengths[[*rows, following[0]]] - (0, 1)).sum(axis=0)
        assert more[0] > rooms[0] or more[1] > rooms[1] or len(rows) == max_packed(max(rooms))
    full = [(lengths[rows] - (0, 1)).sum() / sum(rooms) for rows in batches[:-1]]
    assert np.mean(full) > 0.9


def test_plan_is_pure_and_differs_by_seed_and_epoch() -> None:
    lengths = random_lengths(2000)

    def flat(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in plan_packed(lengths.copy(), seed, epoch, 512)]

    assert flat(0, 0) == flat(0, 0)
    assert len({str(flat(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_short_pairs_do_not_exceed_the_maximum_per_batch() -> None:
    lengths = np.tile([1, 2], (100, 1))
    batches = plan_packed(lengths, 0, 0, 64)
    assert [len(rows) for rows in batches] == [8] * 12 + [4]


@pytest.mark.parametrize("room", [1, 16, 58])
def test_width_too_small_for_a_pair_is_rejected(room: int) -> None:
    lengths = random_lengths(100)
    lengths[50] = (60, 12)
    with pytest.raises(UserError, match="too small for one pair") as error:
        plan_packed(lengths, 0, 0, room)
    assert error.value.where == "train.batch_tokens"
    assert error.value.expected == "at least 60, the longest side of any pair"
    plan_packed(lengths, 0, 0, 60)


@pytest.mark.parametrize("room", [60, 100, 127, 128, 1000, 1060, 4096, 25_000])
@pytest.mark.parametrize("target", [2, 20, 60])
def test_packed_widths_follow_the_lengths_of_both_sides(room: int, target: int) -> None:
    lengths = np.stack([np.full(100, 30), np.full(100, target)], axis=1)
    first, second = packed_widths(lengths, room)
    longest = max(30, target)
    assert longest <= first <= room and longest <= second <= room
    tile = 64  # widths are rounded to the nearest multiple of 128
    assert max(first, second) >= room - tile
    share = min(30, target - 1) / max(30, target - 1)
    assert abs(min(first, second) - max(longest, min(room, 1.01 * share * room))) <= tile


# ------------------------------------------------------------------ the sequence
def test_batches_have_one_shape_and_an_epoch_has_each_pair_once() -> None:
    batches = PairBatches(ENCODED, 3, 512, packed=True)
    count = len(plan_packed(ENCODED.lengths, 3, 0, 512))
    seen: dict[int, list[int]] = {}
    shapes = set()
    for position in range(3 * count):
        batch = packed(batches.at(position))
        shapes.add((batch.source.shape, batch.target.shape, batch.indices.shape))
        seen.setdefault(batches.epoch_of(position), []).extend(batch.indices[batch.indices >= 0].tolist())
    assert len(shapes) == 1
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(200))
    assert seen[0] != seen[1]


def test_batch_depends_on_its_position_only() -> None:
    batches = PairBatches(ENCODED, 3, 512, packed=True)
    for position in (40, 0, 17, 41):
        fresh = packed(PairBatches(ENCODED, 3, 512, packed=True).at(position))
        assert torch.equal(packed(batches.at(position)).target, fresh.target)


def test_hash_covers_ids_and_their_order() -> None:
    assert ENCODED.sha256 == encode_pairs(PAIRS, TOKENIZER, longest=80).sha256
    others = [
        encode_pairs(PAIRS[::-1], TOKENIZER, 80),
        encode_pairs(PAIRS[1:], TOKENIZER, 80),
        encode_pairs([Pair("x " * 90, "b"), *PAIRS], TOKENIZER, 80),
        encode_pairs([Pair(pair.target, pair.source) for pair in PAIRS], TOKENIZER, 80),
    ]
    assert len({ENCODED.sha256, *(other.sha256 for other in others)}) == 5
    ids = np.arange(10, dtype=np.int32)
    cuts = [Ragged(ids, np.array([0, cut, 10])) for cut in (4, 5)]
    names = {EncodedPairs(cut, cut, np.arange(2), longest=64, dropped=0, replaced=0).sha256 for cut in cuts}
    assert len(names) == 2
