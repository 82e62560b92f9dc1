"""Batches with named parts: the lecture's keys, padding, buckets, lengths, order, and alignment in n languages."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import heedful
from heedful.data.embedded import NumberWords
from heedful.data.formats.parallel import ParallelNumbers
from heedful.data.keyed import KeyedBatches, MonoText, PairedText, ParallelText
from heedful.data.pairs.batches import PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import Bpe
from heedful.errors import UserError

PAIRS = NumberWords(train=200, below=2000, valid=1, test=1).pairs("train")
THREE = ParallelNumbers(train=150, valid=5, test=5, below=2000)


def decoded(words: Any, ids: torch.Tensor, length: torch.Tensor) -> str:
    """The text of a row, after checks of its padding and special tokens."""
    size = int(length)
    assert (ids[size:] == words.pad).all() and (ids[:size] != words.pad).all(), (
        "padding is on the right, and only there"
    )
    assert ids[size - 1] == words.eos and words.eos not in ids[: size - 1]
    text: str = words.decode(ids[:size].tolist())
    return text


def check_buckets(batches: KeyedBatches, name: str, budget: int, count: int) -> None:
    seen, padded, real = list[int](), 0, 0
    for batch in batches.epoch():
        ids, length = batch[f"{name}text_ids"], batch[f"{name}length"]
        assert ids.shape[0] == len(length) and ids.shape[1] % 8 == 0 and ids.dtype == torch.long
        assert ids.numel() <= budget or len(ids) == 1
        seen += batch["indices"].tolist()
        padded, real = padded + ids.numel(), real + int(length.sum())
    assert sorted(seen) == list(range(count)) and seen != sorted(seen)
    assert real / padded > 0.6, "texts of similar lengths are together"


@pytest.mark.claim("M3")
def test_mono_text_has_ids_and_lengths_and_a_vocabulary() -> None:
    texts = [pair.target for pair in PAIRS]
    batches = heedful.MonoText(texts, Bpe(vocab=300), batch_tokens=512)
    batch = batches.at(0)
    assert set(batch) == {"text_ids", "length", "indices"}
    for ids, length, row in zip(batch["text_ids"], batch["length"], batch["indices"], strict=True):
        assert ids[0] == batches.tokenizer.bos
        assert decoded(batches.tokenizer, ids, length) == texts[row]
    assert batches.vocab == batches.tokenizer.vocab and int(batch["text_ids"].max()) < batches.vocab
    check_buckets(batches, "", 512, len(texts))


@pytest.mark.claim("M4")
def test_paired_text_has_the_keys_of_the_slide_and_the_batches_of_translation() -> None:
    batches = heedful.PairedText(PAIRS, Bpe(vocab=300), batch_tokens=512, seed=3)
    words = batches.tokenizer
    for batch in batches.epoch():
        assert set(batch) == {"source_text_ids", "source_length", "target_text_ids", "target_length", "indices"}
        for place, row in enumerate(batch["indices"].tolist()):
            target = batch["target_text_ids"][place]
            assert decoded(words, batch["source_text_ids"][place], batch["source_length"][place]) == PAIRS[row].source
            assert decoded(words, target, batch["target_length"][place]) == PAIRS[row].target
            assert target[0] == words.bos and batch["source_text_ids"][place][0] != words.bos
    check_buckets(batches, "target_", 512, len(PAIRS))
    used = PairBatches(encode_pairs(PAIRS, words, 512), 3, 512)
    for position in (0, 3, 40):
        ours, theirs = batches.at(position), used.at(position)
        assert torch.equal(ours["source_text_ids"], theirs.source)
        assert torch.equal(ours["target_length"], theirs.target_lengths)


@pytest.mark.claim("M8")
def test_texts_in_three_languages_stay_aligned() -> None:
    texts = THREE.texts("train")
    batches = heedful.ParallelText(texts, Bpe(vocab=300), batch_tokens=512)
    keys = {f"{code}_{part}" for code in ("en", "de", "fr") for part in ("text_ids", "length")}
    numbers = {row: number for number, row in enumerate(zip(*texts.values(), strict=True))}
    for batch in itertools.islice(batches.epoch(), 60):
        assert set(batch) == keys | {"indices"}
        for place, row in enumerate(batch["indices"].tolist()):
            found = tuple(
                decoded(batches.tokenizer, batch[f"{code}_text_ids"][place], batch[f"{code}_length"][place])
                for code in texts
            )
            assert found in numbers and found == tuple(column[row] for column in texts.values())
    for code in texts:
        check_buckets(batches, f"{code}_", 512, len(texts["en"]))


def test_a_position_gives_the_same_batch_again() -> None:
    for make in (
        lambda seed: PairedText(PAIRS, batch_tokens=256, seed=seed),
        lambda seed: ParallelText(THREE.texts("train"), batch_tokens=256, seed=seed),
        lambda seed: MonoText([pair.source for pair in PAIRS], batch_tokens=256, seed=seed),
    ):
        order = [batch["indices"].tolist() for batch in make(0)]
        rest = [batch["indices"].tolist() for batch in make(0).epoch(5)]
        assert rest == order[5:], "from a position on, as after an interruption"
        assert [batch["indices"].tolist() for batch in make(0).epoch(len(order))] != order, "another epoch"
        assert [batch["indices"].tolist() for batch in make(1)] != order


def test_texts_that_are_too_long_are_left_out_in_all_languages() -> None:
    texts = {"en": ["a b c d e", "a", "b"], "de": ["x", "x y z x y z", "y"]}
    batches = ParallelText(texts, longest=6)
    assert batches.dropped == 2 and batches.at(0)["indices"].tolist() == [2]
    assert PairedText([("a b c d e f", "x"), ("a", "b")], longest=6).dropped == 1


@pytest.mark.parametrize("texts", [{}, {"en": ["a"], "de": []}, {"en": ["a"], "de": ["b", "c"]}, {"en": []}])
def test_texts_that_are_not_aligned_are_refused(texts: dict[str, list[str]]) -> None:
    with pytest.raises(UserError, match="not aligned"):
        ParallelText(texts)
    with pytest.raises(UserError, match="no text is left"):
        MonoText(["a b c d"], longest=3)
