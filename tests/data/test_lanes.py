"""Lanes: every token once per epoch, each window the continuation of the one before, in every process."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from heedful.data.text.lanes import LaneBatch, Lanes
from heedful.data.text.text_stream import TextCounts
from heedful.data.text.windows import EncodedText
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError

SHAPES = [(40, 4, 5), (41, 4, 5), (43, 3, 7), (23, 5, 4), (9, 3, 8), (7, 7, 3), (64, 1, 8)]  # tokens, lanes, context


def text(tokens: int, context: int, *starts: int) -> EncodedText:
    """A text whose ids are its positions."""
    return EncodedText(np.arange(tokens + 1), np.array([0, *starts]), context, TextCounts())


def lanes(tokens: int, count: int, context: int, seed: int = 0) -> Lanes:
    return Lanes(text(tokens, context), seed, count * context)


def targets(batch: LaneBatch) -> list[list[int]]:
    """The positions of the tokens that each lane predicts."""
    return [row[1:length].tolist() for row, length in zip(batch.ids, batch.lengths.tolist(), strict=True)]


def same(one: LaneBatch, other: LaneBatch) -> bool:
    names = ("ids", "lengths", "indices", "fresh")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize(("tokens", "count", "context"), SHAPES)
def test_every_token_is_predicted_once_per_epoch(tokens: int, count: int, context: int) -> None:
    batches = lanes(tokens, count, context)
    assert batches.lanes == count
    for epoch in range(3):
        positions = range(epoch * batches.count, (epoch + 1) * batches.count)
        assert {batches.epoch_of(position) for position in positions} == {epoch}
        found = [place for position in positions for row in targets(batches.at(position)) for place in row]
        assert sorted(found) == list(range(1, tokens + 1))
        assert sum(batches.tokens(position) for position in positions) == tokens
        assert all(batches.tokens(position) == batches.at(position).tokens for position in positions)


@pytest.mark.parametrize(("tokens", "count", "context"), SHAPES)
def test_each_window_continues_the_one_before(tokens: int, count: int, context: int) -> None:
    batches = lanes(tokens, count, context)
    for position in range(1, 3 * batches.count):
        former, batch = targets(batches.at(position - 1)), batches.at(position)
        starts_again = position % batches.count == 0
        assert batch.fresh.tolist() == [starts_again] * count
        if not starts_again:
            assert [row[-1] for row in former if row] == [int(ids[0]) for ids, row in zip(batch.ids, former) if row]  # noqa: B905
    first = batches.at(0)
    assert first.fresh.all()
    assert first.ids[0, 0] == 0


def test_window_boundaries_shift_with_the_epoch() -> None:
    batches, again, other = lanes(200, 4, 9), lanes(200, 4, 9), lanes(200, 4, 9, seed=1)
    span = range(8 * batches.count)
    assert all(same(batches.at(position), again.at(position)) for position in span)
    widths = {seed: [int(one.at(epoch * one.count).lengths[0]) for epoch in range(8)]
              for seed, one in enumerate((batches, other))}  # fmt: skip
    assert widths[0][0] == widths[1][0] == 10
    assert widths[0] != widths[1]
    assert len(set(widths[0])) > 1


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_shards_are_lanes_that_stay_with_their_process(parts: int) -> None:
    batches = lanes(203, 5, 7)
    for position in range(2 * batches.count):
        whole = batches.at(position)
        for part in range(parts):
            own = batches.at(position, part, parts)
            assert targets(own) == targets(whole)[part::parts]
            assert own.indices.tolist() == whole.indices[part::parts].tolist()
            assert own.fresh.tolist() == whole.fresh[part::parts].tolist()


def test_workers_change_nothing() -> None:
    batches = lanes(60, 4, 5)
    places = [BatchIndex(position, 1, 2) for position in range(9)]
    found = list(islice(load_batches(batches, lambda: iter(places), workers=2), 9))
    assert all(same(one, batches.at(*place)) for one, place in zip(found, places, strict=True))


def test_document_starts_are_marked() -> None:
    batches = Lanes(text(24, 4, 4, 10, 16), 0, 2 * 4)  # lane 0 reads 0 ... 11, lane 1 reads 12 ... 23
    found = [batches.at(position) for position in range(3)]
    assert [batch.fresh.tolist() for batch in found] == [[True, True], [True, True], [False, False]]
    known = [batch.documents.tolist() for batch in found if batch.documents is not None]
    assert known[1] == [[0, 0, 0, 0], [0, 0, 0, 0]]
    assert known[2] == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_text_too_short_for_its_lanes_is_rejected() -> None:
    with pytest.raises(UserError, match="too short"):
        lanes(3, 4, 5)
