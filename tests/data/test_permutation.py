"""Examples of permutation language modelling: what is predicted, in which order, and from where the text is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.blocks.masks import dense, order
from heedful.data.batch import IGNORE_INDEX
from heedful.data.text.permutation import PermutationBatches, PermutationRules, choose_spans, random_lengths
from heedful.data.text.pretraining import EncodedDocuments, PairRules, encode_documents
from heedful.data.tokenizers.unigram import XlnetTokenizer, XlnetUnigram

SENTENCES = [[f"the {word} {verb} a {thing} ." for thing in ("ball", "stone")] for word in ("cat", "dog", "bird")
             for verb in ("sees", "takes", "likes")]  # fmt: skip
TOKENIZER = XlnetTokenizer.train(XlnetUnigram(vocab=60), [text for some in SENTENCES for text in some])


def encoded(context: int) -> EncodedDocuments:
    return encode_documents(SENTENCES, TOKENIZER, context, PairRules())


def batches(context: int = 32, seed: int = 3, tokens: int = 128, **rules: float) -> PermutationBatches:
    return PermutationBatches(encoded(context), PermutationRules(**rules), seed, tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("earlier", [0, 16])
def test_row_is_earlier_text_and_a_pair_that_ends_with_cls(earlier: int) -> None:
    some = batches(earlier=earlier)
    text = some.encoded.ids
    for position in range(6):
        batch = some.at(position)
        assert batch.ids.shape == (4, 32)
        for ids, segments in zip(batch.ids.tolist(), batch.segments.tolist(), strict=True):
            assert ids[-2:] == [TOKENIZER.sep, TOKENIZER.cls]
            split = ids.index(TOKENIZER.sep)
            assert split > earlier and ids.count(TOKENIZER.sep) == 2
            assert segments == [0] * (split + 1) + [1] * (32 - split - 2) + [2]
            ring = np.concatenate([text, text[:40]]).tolist()
            first = ids[:split]
            assert any(ring[at : at + split] == first for at in range(len(text)))


def test_lanes_read_on_and_related_pairs_too() -> None:
    some = batches(earlier=16, unrelated=0.0)
    one, other = some.at(0), some.at(1)
    assert bool(one.fresh.all()) and not bool(other.fresh.any())
    for now, then in zip(one.ids.tolist(), other.ids.tolist(), strict=True):
        kept = [number for number in now[16:] if number not in (TOKENIZER.sep, TOKENIZER.cls)]
        assert then[: len(kept)] == kept  # the text goes on through A and B


def test_one_token_of_six_is_predicted_in_spans() -> None:
    some = batches(context=128, tokens=1024)
    counts, spans = [], []
    for position in range(20):
        batch = some.at(position)
        for row in range(len(batch.ids)):
            places = batch.places[row][batch.targets[row] != IGNORE_INDEX]
            assert batch.ids[row, places].equal(batch.targets[row][: len(places)])
            counts.append(len(places))
            ends = (places[1:] != places[:-1] + 1).nonzero()[:, 0].tolist()
            spans += np.diff([-1, *ends, len(places) - 1]).tolist()
    assert np.mean(counts) / 128 == pytest.approx(1 / 6, abs=0.01)
    assert max(counts) <= some.rules.most(128)
    assert min(spans) >= 1 and np.mean(spans) > 1.5


def test_span_lies_in_each_stretch_of_k_times_its_length() -> None:
    text, rules = np.ones((1, 24), dtype=np.bool_), PermutationRules(one_in=4, longest=3)
    lengths, starts = np.array([[2, 3, 1] + [1] * 21]), np.array([[6, 9, 3] + [0] * 21])
    assert np.flatnonzero(choose_spans(text, rules, lengths, starts)[0]).tolist() == [6, 7, 17, 18, 19, 23]
    random = np.random.default_rng(0).integers(2**64, size=30_000, dtype=np.uint64)
    shares = np.bincount(random_lengths(random, 5), minlength=6)[1:] / 30_000
    np.testing.assert_allclose(shares, (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum(), atol=0.02)


def test_order_puts_the_context_first_and_earlier_text_before_all() -> None:
    batch = batches(earlier=16).at(2)
    ranks = batch.ranks
    seen = dense(order(ranks, ranks + 1), ranks[:, None, :, None], ranks[:, None, :, None])[:, 0]  # of the content
    assert not bool(seen[:, :16, 16:].any()) and bool(seen[:, 16:, :16].all())
    for row in range(4):
        chosen = torch.zeros(32, dtype=torch.bool)
        chosen[batch.places[row][batch.targets[row] != IGNORE_INDEX]] = True
        for part in (slice(0, 16), slice(16, 32)):
            given, asked = ranks[row, part][~chosen[part]], ranks[row, part][chosen[part]]
            assert given.unique().numel() == 1  # they see each other
            assert asked.sort().values.tolist() == [int(given[0]) + 1 + n for n in range(len(asked))]


def test_example_is_a_function_of_seed_epoch_and_place() -> None:
    some, again, other = batches(), batches(), batches(seed=4)
    far = some.count * 3 + 1
    one, two = some.at(far), again.at(far)
    assert all(getattr(one, name).equal(getattr(two, name)) for name in ("ids", "ranks", "places", "targets"))
    assert not one.ranks.equal(other.at(far).ranks)
    assert not some.at(1).ranks.equal(some.at(1 + some.count).ranks)  # another epoch
    parts = [some.at(far, part, 3) for part in range(3)]
    for name in ("ids", "ranks", "places", "targets"):
        whole = torch.empty_like(getattr(one, name))
        for part, shard in enumerate(parts):
            whole[part::3] = getattr(shard, name)
        assert whole.equal(getattr(one, name))
    assert all(part.whole.equal(one.whole) for part in parts)


def test_shard_without_lanes_has_nothing_to_predict() -> None:
    shard = batches(tokens=32).at(0, 1, 2)
    assert len(shard.ids) == 1 and shard.tokens == 0 and bool((shard.targets == IGNORE_INDEX).all())
