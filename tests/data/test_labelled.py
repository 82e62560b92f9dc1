"""Labelled texts as batches: nothing lost or duplicated, truncated to the context, the same in every process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.data.embedded import NumberLanguages
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, LabelledBatches, encode_texts
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.data.workers import BatchIndex, load_batches

ITEMS = NumberLanguages(languages=("de", "en"), train=300, valid=1, test=1).read("train").items
TOKENIZER = BertTokenizer.train(WordPiece(vocab=120), [item.text for item in ITEMS])
WAYS = [(256, None, False), (256, None, True), (256, 16, False), (256, 16, True)]


@pytest.fixture(scope="module")
def encoded() -> EncodedTexts:
    return encode_texts([(item.text, None) for item in ITEMS], np.arange(300) % 2, TOKENIZER, 64)


def rows(batch: LabelledBatch) -> list[tuple[list[int], int]]:
    """The ids and the target of each text of a padded or packed batch."""
    real, found = batch.indices >= 0, []
    for number, begin in enumerate(batch.sequences.begins.tolist()):
        if real[number]:
            ids = batch.ids.flatten()[begin : begin + int(batch.lengths[number])]
            found.append((ids.tolist(), int(batch.targets[number])))
    return found


def test_texts_and_pairs_are_laid_out_as_in_bert() -> None:
    found = encode_texts([("one", None), ("one", "two hundred")], np.zeros(2, np.int64), TOKENIZER, 64)
    t, (a, b) = TOKENIZER, TOKENIZER.ids(["one", "two hundred"])
    single, pair = found.row(0), found.row(1)
    assert single[0].tolist() == [t.cls, *a, t.sep] and not single[1].any()
    assert pair[0].tolist() == [t.cls, *a, t.sep, *b, t.sep]
    assert pair[1].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_texts_are_truncated_to_the_context_and_counted() -> None:
    long = "neunhundertneunundneunzigtausend " * 9
    found = encode_texts(
        [("one", None), (long, None), ("one", long), (long, long)], np.zeros(4, np.int64), TOKENIZER, 24
    )
    ids = TOKENIZER.ids(["one", long])
    short, size = len(ids[0]), len(ids[1])
    assert found.lengths.tolist() == [short + 2, 24, 24, 24]
    assert found.lost.tolist() == [0, size - 22, short + size - 21, 2 * size - 21]
    assert found.row(1)[0].tolist() == [TOKENIZER.cls, *ids[1][:22], TOKENIZER.sep]
    assert found.row(2)[0].tolist()[: short + 2] == [
        TOKENIZER.cls,
        *ids[0],
        TOKENIZER.sep,
    ]  # the short one is not truncated
    assert abs(int(found.firsts[3]) - 12) <= 1  # two long ones have half each


@pytest.mark.parametrize(("budget", "examples", "packed"), WAYS)
def test_epoch_has_every_text_once_with_its_target(
    budget: int, examples: int | None, packed: bool, encoded: EncodedTexts
) -> None:
    batches = LabelledBatches(encoded, 3, budget, examples, packed)
    for epoch in range(2):
        positions = [position for position in range(200) if batches.epoch_of(position) == epoch]
        seen = [batches.at(position) for position in positions]
        indices = torch.cat([batch.indices[batch.indices >= 0] for batch in seen])
        assert sorted(indices.tolist()) == list(range(300))
        for position, batch in zip(positions, seen, strict=True):
            assert batch.tokens == batches.tokens(position) == len(rows(batch))
            own = batch.indices[batch.indices >= 0].tolist()
            assert rows(batch) == [(encoded.row(row)[0].tolist(), int(encoded.targets[row])) for row in own]
            if examples is None:
                assert batch.ids.numel() <= max(budget, int(encoded.lengths.max()))
        if examples:
            assert sorted(batch.tokens for batch in seen) == [12] + [16] * 18
    first = batches.at(0).indices.tolist()
    assert first == LabelledBatches(encoded, 3, budget, examples, packed).at(0).indices.tolist()
    assert first != LabelledBatches(encoded, 4, budget, examples, packed).at(0).indices.tolist()


@pytest.mark.parametrize(("budget", "examples", "packed"), WAYS)
def test_no_batch_is_wider_than_the_context(budget: int, examples: int | None, packed: bool) -> None:
    found = encode_texts([("neunhundert " * 9, None)] * 20, np.zeros(20, np.int64), TOKENIZER, 21)
    batch = LabelledBatches(found, 0, budget, examples, packed).at(0)
    assert batch.longest == 21 and int(batch.lengths.max()) == 21
    assert packed or batch.ids.shape[1] == 21


@pytest.mark.parametrize(("budget", "examples", "packed"), WAYS)
def test_shards_of_a_batch_make_up_the_batch_and_may_be_empty(
    budget: int, examples: int | None, packed: bool, encoded: EncodedTexts
) -> None:
    batches = LabelledBatches(encoded, 0, budget, examples, packed)
    parts = [batches.at(5, part, 40) for part in range(40)]
    assert sum(part.tokens for part in parts) == batches.tokens(5)
    assert min(part.tokens for part in parts) == 0
    whole = sorted(rows(batches.at(5)))
    assert sorted(row for part in parts for row in rows(part)) == whole


def test_packed_batches_with_fixed_examples_have_few_shapes(encoded: EncodedTexts) -> None:
    batches = LabelledBatches(encoded, 0, 1, 16, packed=True)
    shapes = {(tuple(batches.at(position).ids.shape), len(batches.at(position).lengths)) for position in range(100)}
    assert len(shapes) <= 6 and all(count == 16 for _, count in shapes)
    assert batches.few_shapes and len({batches.at(position).longest for position in range(100)}) == 1


def test_workers_load_the_same_batches(encoded: EncodedTexts) -> None:
    batches = LabelledBatches(encoded, 0, 256, 16)

    def indices() -> list[BatchIndex]:  # type: ignore[misc]
        return iter([BatchIndex(position) for position in range(6)])  # type: ignore[return-value]

    for plain, sent in zip(load_batches(batches, indices), load_batches(batches, indices, workers=2), strict=True):  # type: ignore[arg-type]
        assert rows(plain) == rows(sent) and plain.longest == sent.longest
