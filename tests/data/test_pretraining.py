"""BERT's pre-training pairs: masking rates, invariants, and reproducible batches."""

from __future__ import annotations

import pydoc_data.topics
from collections import Counter
from dataclasses import fields, replace
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.batch import IGNORE_INDEX
from heedful.data.masking import MaskingVocab, apply_masking, choose_tokens, choose_whole_words, count_masked
from heedful.data.order import random_bits_at
from heedful.data.text.documents import sentences
from heedful.data.text.pretraining import (
    FOLLOWS,
    UNRELATED,
    EncodedDocuments,
    MaskedPairs,
    PairRules,
    count_truncated,
    encode_documents,
)
from heedful.data.text.pretraining_batches import PretrainingBatch, PretrainingBatches, batches_in_order
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError

CONTEXT = 64
TOPICS = [text for _, text in sorted(pydoc_data.topics.topics.items())][:50]
DOCUMENTS = [[one for one in sentences(text) if len(one) < 200] for text in TOPICS]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=1200, lowercase=True), (text for one in DOCUMENTS for text in one))
ENCODED = encode_documents(DOCUMENTS, TOKENIZER, CONTEXT, PairRules())


def build_epoch(encoded: EncodedDocuments = ENCODED, seed: int = 0, epoch: int = 0) -> MaskedPairs:
    """All examples of an epoch."""
    return encoded.build(seed, epoch, np.arange(encoded.cells))


def same(one: Any, other: Any) -> bool:
    parts = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in parts)


# ------------------------------------------------------------------ pairs
def test_pair_is_laid_out_as_in_bert_and_fills_the_context() -> None:
    found = build_epoch()
    for ids, length, segments in zip(found.ids, found.lengths, found.segments, strict=True):
        seps = np.flatnonzero(ids == TOKENIZER.sep)
        assert ids[0] == TOKENIZER.cls
        assert len(seps) == 2
        assert seps[1] == length - 1
        assert 1 < seps[0] < seps[1] - 1  # both segments have at least one token
        assert segments.tolist() == [0] * (seps[0] + 1) + [1] * (length - seps[0] - 1) + [0] * (len(ids) - length)
        assert (ids[length:] == TOKENIZER.pad).all()
    assert found.lengths.max() == CONTEXT
    full = np.mean(found.lengths == CONTEXT)
    assert 0.7 < full < 0.95  # all but a tenth, which is short on purpose, and document ends


def test_second_segment_follows_or_is_of_another_document() -> None:
    cells = np.arange(ENCODED.cells)
    spans = ENCODED.spans(3, 1, cells)
    documents = np.searchsorted(ENCODED.sentences[ENCODED.documents], np.stack([*spans.a, *spans.b]), side="right") - 1
    first, last = documents[0], np.searchsorted(ENCODED.sentences[ENCODED.documents], spans.a[1] - 1, side="right") - 1
    assert (first == last).all()  # a segment ends where its document does
    second = np.searchsorted(ENCODED.sentences[ENCODED.documents], spans.b[1] - 1, side="right") - 1
    assert (documents[2] == second).all()
    assert (first[spans.unrelated] != second[spans.unrelated]).all()
    assert (first[~spans.unrelated] == second[~spans.unrelated]).all()
    gaps = (spans.b[0] - spans.a[1])[~spans.unrelated]
    assert (gaps >= 0).all()
    assert gaps.max() < np.diff(ENCODED.sentences).max()  # the truncated part between the two
    assert np.median(gaps) < 10
    assert ENCODED.room >= (spans.lengths - 3).max()


def test_half_of_the_pairs_are_consecutive_in_every_epoch() -> None:
    shares = [float(ENCODED.spans(0, epoch, np.arange(ENCODED.cells)).unrelated.mean()) for epoch in range(8)]
    assert abs(np.mean(shares) - 0.5) < 4 * 0.5 / np.sqrt(8 * ENCODED.cells)
    assert len(set(shares)) > 4


def test_all_tokens_occur_about_equally_often() -> None:
    seen = np.zeros(len(ENCODED) + 1, dtype=np.int64)
    for epoch in range(60):
        spans = ENCODED.spans(0, epoch, np.arange(ENCODED.cells))
        for begin, end in (spans.a, spans.b):
            np.add.at(seen, begin, 1)
            np.add.at(seen, end, -1)
    times = seen.cumsum()[:-1]
    assert np.mean(times == 0) < 0.001  # ends of sentences longer than the context
    assert np.mean(times) == pytest.approx(60, rel=0.1)
    low, high = np.percentile(times, [5, 95])
    assert 15 < low < high < 150
    short = encode_documents([[" ".join("abcdefg")] * 9] * 5, TOKENIZER, 16, PairRules())
    spans = [short.spans(0, epoch, np.arange(short.cells)) for epoch in range(60)]
    ranges = [bounds for one in spans for side in (one.a, one.b) for bounds in zip(*side, strict=True)]
    assert {place for begin, end in ranges for place in range(begin, end)} == set(range(len(short)))


def test_pairs_are_truncated_as_in_bert() -> None:
    """A token at a time from the longer text, and from the second where they are as long as each other."""
    for a in range(1, 12):
        for b in range(1, 12):
            for room in range(2, 24):
                from_a, from_b = count_truncated(np.array([a]), np.array([b]), room)
                first, second = a, b
                while first + second > room:
                    first, second = (first - 1, second) if first > second else (first, second - 1)
                assert (a - int(from_a[0]), b - int(from_b[0])) == (first, second)


def test_document_of_one_sentence_is_paired_with_another_document() -> None:
    encoded = encode_documents(
        [["the first one"], ["the second"], ["a third"]], TOKENIZER, 16, PairRules(unrelated=0.0)
    )
    assert build_epoch(encoded).unrelated.all()


@pytest.mark.parametrize("documents", [[], [["only one document"] * 5], [["one"]]])
def test_text_without_possible_pairs_is_rejected(documents: list[list[str]]) -> None:
    with pytest.raises(UserError, match="too little text"):
        encode_documents(documents, TOKENIZER, 16, PairRules())


# ------------------------------------------------------------------ masks
def test_fifteen_percent_are_masked_and_most_replaced_by_mask() -> None:
    tokens, kinds = 0, Counter[str]()
    for epoch in range(12):
        found = build_epoch(replace(ENCODED, context=100), epoch=epoch)
        tokens += int(found.lengths.sum())
        shown, ids = found.shown[found.hidden], found.ids[found.hidden]
        kinds["masked"] += int((shown == TOKENIZER.mask).sum())
        kinds["kept"] += int((shown == ids).sum())
        kinds["swapped"] += int(((shown != TOKENIZER.mask) & (shown != ids)).sum())
        assert (found.shown[~found.hidden] == found.ids[~found.hidden]).all()
        assert not np.isin(ids, list(TOKENIZER.special)).any()
        assert not np.isin(shown[(shown != TOKENIZER.mask)], list(TOKENIZER.special)).any()
    hidden = sum(kinds.values())
    assert hidden / tokens == pytest.approx(0.15, abs=0.002)
    assert kinds["masked"] / tokens == pytest.approx(0.12, abs=0.002)
    assert kinds["swapped"] / tokens == pytest.approx(0.015, abs=0.001)
    assert kinds["kept"] / tokens == pytest.approx(0.015, abs=0.001)


def test_masked_positions_cover_the_context_and_change_with_the_epoch() -> None:
    places = sum(np.bincount(np.nonzero(build_epoch(epoch=epoch).hidden)[1], minlength=CONTEXT) for epoch in range(8))
    assert places[0] == 0  # [CLS]
    assert (places[1 : CONTEXT - 1] > 0).all()
    assert same(*(to_tensors(build_epoch(epoch=2)) for _ in range(2)))
    one, other = (ENCODED.build(0, epoch, np.arange(8)) for epoch in (0, 1))
    assert one.ids.shape != other.ids.shape or (one.hidden != other.hidden).any()


def to_tensors(found: MaskedPairs) -> PretrainingBatch:
    from heedful.data.text.pretraining_batches import padded_batch

    every = np.arange(len(found.ids))
    return padded_batch(found, every, every, ENCODED.marks)


@pytest.mark.parametrize("length", [1, 3, 4, 9, 10, 11, 64, 512])
def test_number_of_masked_tokens_is_a_rounded_share_and_at_least_one(length: int) -> None:
    assert count_masked(np.array([length]), 0.15)[0] == max(1, round(0.15 * length))


def test_requested_number_of_text_positions_is_chosen() -> None:
    rng = np.random.default_rng(0)
    text, counts = rng.random((50, 20)) < 0.5, rng.integers(1, 20, 50)
    text[3] = False
    found = choose_tokens(text, counts, rng.integers(0, 2**63, (50, 20)).astype(np.uint64))
    assert (found.sum(1) == np.minimum(counts, text.sum(1))).all()
    assert not (found & ~text).any()


def test_whole_word_masking_masks_whole_words() -> None:
    whole = replace(ENCODED, rules=PairRules(whole_words=True))
    found, marks = build_epoch(whole), ENCODED.marks
    plain = build_epoch()
    broken = 0
    for ids, hidden in zip(found.ids, found.hidden, strict=True):
        inner = marks.continues_word[ids] & ~marks.special[ids]
        joins = inner[1:] & ~marks.special[ids[:-1]]  # where a piece continues the one before it
        assert (hidden[1:][joins] == hidden[:-1][joins]).all()
    for ids, hidden in zip(plain.ids, plain.hidden, strict=True):
        joins = marks.continues_word[ids][1:] & ~marks.special[ids[:-1]]
        broken += int((hidden[1:][joins] != hidden[:-1][joins]).sum())
    assert broken > 100  # which plain masking ignores
    assert 0.97 * plain.hidden.sum() < found.hidden.sum() <= plain.hidden.sum()


def test_words_that_exceed_the_budget_are_skipped() -> None:
    text = np.array([[False, True, True, True, True, False]])
    inner = np.array([[False, False, True, True, False, False]])
    luck = np.array([[0, 1, 9, 9, 5, 0]], dtype=np.uint64)  # the long word comes first
    assert choose_whole_words(text, inner, np.array([1]), luck).tolist() == [[False] * 4 + [True, False]]
    assert choose_whole_words(text, inner, np.array([4]), luck).sum() == 4


def test_replacements_depend_on_the_random_numbers_only() -> None:
    marks = MaskingVocab.of(TOKENIZER)
    ids, hidden = np.array([[10, 11, 12, 13]], dtype=np.int32), np.array([[True, True, False, True]])
    luck = (np.array([0.79, 0.85, 0.95]) * 2.0**64).astype(np.uint64)
    other = np.array([0, 7, 0], dtype=np.uint64)
    assert apply_masking(ids, hidden, luck, other, marks).tolist() == [[TOKENIZER.mask, int(marks.ordinary[7]), 12, 13]]


def test_random_bits_at_an_index_are_independent_and_uniform() -> None:
    every = random_bits_at(1, 2, 3, np.arange(100_000))
    assert (random_bits_at(1, 2, 3, np.array([70_000, 5])) == every[[70_000, 5]]).all()
    assert len(set(every.tolist())) == 100_000
    shares = np.bincount((every >> np.uint64(60)).astype(np.int64), minlength=16) / 100_000
    assert np.abs(shares - 1 / 16).max() < 0.004
    assert np.abs(np.bincount((every % np.uint64(16)).astype(np.int64)) / 100_000 - 1 / 16).max() < 0.004
    assert not np.array_equal(every, random_bits_at(1, 2, 4, np.arange(100_000)))
    assert not np.array_equal(every, random_bits_at(1, 3, 3, np.arange(100_000)))


# ------------------------------------------------------------------ batches
def split_pairs(batch: PretrainingBatch) -> list[tuple[object, ...]]:
    """Each pair of a padded or packed batch with its masked tokens."""
    flat, segments, width = batch.ids.flatten(), batch.segments.flatten(), batch.ids.shape[1]
    begins = batch.sequences.begins.tolist()
    real = batch.targets >= 0
    targets = dict(zip(batch.places[real].tolist(), batch.targets[real].tolist(), strict=True))
    real = {place: target for place, target in targets.items() if target != IGNORE_INDEX}
    found = []
    for begin, length, follows, index in zip(
        begins, batch.lengths.tolist(), batch.follows.tolist(), batch.indices.tolist(), strict=True
    ):
        if index >= 0:
            hidden = tuple((place - begin, real[place]) for place in sorted(real) if begin <= place < begin + length)
            pieces = (tuple(some[begin : begin + length].tolist()) for some in (flat, segments))
            found.append((index, *pieces, follows, hidden))
    assert sum(len(one[4]) for one in found) == len(real)  # type: ignore[arg-type]
    assert width >= 1
    return found


@pytest.mark.parametrize("how", ["padded", "even", "packed"])
def test_epoch_has_every_cell_once_within_the_budget(how: str) -> None:
    batches = PretrainingBatches(ENCODED, 5, 1024, packed=how == "packed", even=how == "even")
    plain = {row[0]: row for row in split_pairs(to_tensors(ENCODED.build(5, 0, np.arange(ENCODED.cells))))}
    seen = Counter[object]()
    shapes = set()
    for position in range(batches.count):
        batch = batches.at(position)
        shapes.add((batch.ids.shape, batch.lengths.shape, batch.places.shape))
        assert batch.tokens == batches.tokens(position) == int(batch.whole[0])
        assert int(batch.whole[1]) == int((batch.targets != IGNORE_INDEX).sum())
        assert int(batch.whole[2]) == int((batch.indices >= 0).sum())
        assert batches.epoch_of(position) == 0
        for row in split_pairs(batch):
            assert row == plain[row[0]]  # the same pair, the same masked tokens, in either layout
            assert row[3] in (FOLLOWS, UNRELATED)
            seen[row[0]] += 1
    assert seen == Counter(range(ENCODED.cells))
    assert batches.few_shapes == batches.one_shape == (how != "padded")
    assert len(shapes) == 1 or how == "padded"
    assert batches.epoch_of(batches.count) == 1
    if how == "packed":
        filled = np.mean([batches.tokens(position) for position in range(batches.count - 1)]) / 1024
        assert filled > 0.94


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 40])
def test_shards_make_up_the_batch(packed: bool, parts: int) -> None:
    batches = PretrainingBatches(ENCODED, 0, 512, packed=packed)
    for position in (0, batches.count + 3):
        whole = batches.at(position)
        pieces = [batches.at(position, part, parts) for part in range(parts)]
        assert sorted(row for piece in pieces for row in split_pairs(piece)) == sorted(split_pairs(whole))
        assert sum(piece.tokens for piece in pieces) == whole.tokens
        assert all(torch.equal(piece.whole, whole.whole) for piece in pieces)


@pytest.mark.parametrize("packed", [False, True])
def test_batches_are_the_same_after_a_restart_and_from_workers(packed: bool) -> None:
    batches = PretrainingBatches(ENCODED, 1, 512, packed=packed)
    far = 3 * batches.count + 2
    fresh = PretrainingBatches(ENCODED, 1, 512, packed=packed)
    assert same(batches.at(far), fresh.at(far))
    first = [batches.at(position) for position in range(4)]
    places = lambda: (BatchIndex(position) for position in count())  # noqa: E731
    for workers in (0, 2):
        source = load_batches(PretrainingBatches(ENCODED, 1, 512, packed=packed), places, workers)
        assert all(same(one, other) for one, other in zip(first, islice(source, 4), strict=True))
        source.close()
    assert not same(batches.at(0), PretrainingBatches(ENCODED, 2, 512, packed=packed).at(0))


def test_batch_too_small_for_a_pair_is_rejected() -> None:
    with pytest.raises(UserError, match=r"train.batch_tokens"):
        PretrainingBatches(ENCODED, 0, CONTEXT - 1, packed=True)


def test_evaluation_has_every_cell_once_with_fixed_masks() -> None:
    once, again = (list(batches_in_order(ENCODED, 512)) for _ in range(2))
    assert [index for batch in once for index in batch.indices.tolist()] == list(range(ENCODED.cells))
    assert all(same(one, other) for one, other in zip(once, again, strict=True))
