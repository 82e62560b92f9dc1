"""Tagged sentences as windows and batches."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from heedful.data.formats.conll import Sentence
from heedful.data.labelled.tagging import (
    IGNORE_INDEX,
    EncodedTags,
    TagBatch,
    TagBatches,
    encode_tags,
    encode_words,
    word_windows,
)
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.errors import UserError

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TOKENIZER = BertTokenizer.from_vocab([*NAMES, "ann", "bob", "saw", "rome", "##a", "##s", "a", "s", "."], True, "here")
SPECIAL = {TOKENIZER.cls, TOKENIZER.sep, TOKENIZER.pad}


def sentences(count: int, longest: int = 9) -> list[Sentence]:
    luck = random.Random(0)
    words = ["Ann", "Bob", "Saw", "Romeas", "romea", "as", ".", "Zoe", "annsas"]
    found = []
    for number in range(count):
        some = [luck.choice(words) for _ in range(luck.randint(1, longest))]
        found.append(Sentence(tuple(some), tuple(luck.choice(LABELS) for _ in some), f"file:{number}"))
    return found


def starts(words: Sequence[str]) -> list[int]:
    """The id of each word's first piece."""
    return [ids[0] for ids in TOKENIZER.words(list(words))]


# ------------------------------------------------------------------ windows
def test_every_word_is_tagged_once_in_its_window() -> None:
    luck = random.Random(0)
    for _ in range(500):
        room = luck.randint(1, 12)
        sizes = [luck.randint(1, min(room, luck.choice([1, 3, 12]))) for _ in range(luck.randint(1, 30))]
        windows = word_windows(sizes, room)
        assert [n for w in windows for n in range(w.first, w.last)] == list(range(len(sizes)))
        for window in windows:
            assert window.start <= window.first < window.last <= window.end
            assert sum(sizes[window.start : window.end]) <= room


def test_word_in_two_windows_is_tagged_where_it_has_more_context() -> None:
    windows = word_windows([1] * 40, 16)
    assert [(window.start, window.end) for window in windows] == [(0, 16), (12, 28), (24, 40)]
    for window in windows:
        for word in range(window.first, window.last):
            here = min(word - window.start, window.end - 1 - word)
            for other in windows:
                if other.start <= word < other.end:
                    assert here >= min(word - other.start, other.end - 1 - word) - 1


def test_sentence_that_fits_has_one_window() -> None:
    assert word_windows([3, 2, 3], 8) == [(0, 3, 0, 3)]


# ------------------------------------------------------------------ encoding
@pytest.mark.parametrize("context", [64, 12, 6])
def test_words_are_tagged_at_their_first_piece(context: int) -> None:
    some = sentences(60)
    encoded = encode_tags(some, TOKENIZER, LABELS, context)
    assert len(encoded) == 60 and encoded.cut == 0
    assert encoded.counts.tolist() == [len(sentence.words) for sentence in some]
    at = np.concatenate(
        [encoded.ids.starts[n] + encoded.words.flat[slice(*encoded.words.starts[n : n + 2])]
         for n in range(len(encoded.ids.lengths))]
    )  # fmt: skip
    assert encoded.ids.flat[at].tolist() == [number for sentence in some for number in starts(sentence.words)]
    assert [LABELS[number] for number in encoded.labels] == [tag for sentence in some for tag in sentence.tags]
    assert int(encoded.ids.lengths.max()) <= context
    assert (len(encoded.ids.lengths) > 60) == (context < 60)
    for row in range(len(encoded.ids.lengths)):
        ids = encoded.ids.flat[encoded.ids.starts[row] : encoded.ids.starts[row + 1]].tolist()
        assert (ids[0], ids[-1]) == (TOKENIZER.cls, TOKENIZER.sep)


def test_words_with_too_many_pieces_are_truncated_and_counted() -> None:
    encoded = encode_words([["annssssss", "bob"]], TOKENIZER, 6)
    assert encoded.cut == 1
    assert encoded.ids.lengths.tolist() == [6, 3]
    assert encoded.labels.tolist() == [IGNORE_INDEX, IGNORE_INDEX]


def test_unknown_tag_is_reported() -> None:
    with pytest.raises(UserError) as error:
        encode_tags([Sentence(("Ann",), ("B-ORG",), "file:7")], TOKENIZER, LABELS, 16)
    assert str(error.value.where).startswith("file:7") and error.value.found == "'B-ORG'"
    assert error.value.expected == "one of " + ", ".join(LABELS)


# ------------------------------------------------------------------ batches
def read_back(batch: TagBatch) -> list[tuple[int, int]]:
    """The first id of each word of a batch, with its tag."""
    ids = batch.ids.flatten()[batch.words].tolist()
    return [pair for pair in zip(ids, batch.labels.tolist(), strict=True) if pair[1] != IGNORE_INDEX]


def one_epoch(batches: TagBatches, parts: int = 1) -> list[TagBatch]:
    found, position = [], 0
    while batches.epoch_of(position) == 0:
        found += [batches.at(position, part, parts) for part in range(parts)]
        position += 1
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("examples", [None, 4])
@pytest.mark.parametrize("parts", [1, 3])
def test_epoch_has_every_word_once(packed: bool, examples: int | None, parts: int) -> None:
    encoded = encode_tags(sentences(50), TOKENIZER, LABELS, 12)
    batches = TagBatches(encoded, 0, 64, examples, packed)
    every = one_epoch(batches, parts)
    words = encoded.ids.flat[word_positions(encoded)].tolist()
    expected = sorted(zip(words, encoded.labels.tolist(), strict=True))
    assert sorted(pair for batch in every for pair in read_back(batch)) == expected
    assert batches.few_shapes is packed
    for position, start in enumerate(range(0, len(every), parts)):
        assert sum(batch.tokens for batch in every[start : start + parts]) == batches.tokens(position)
    for batch in every:
        assert batch.sequences.packed is packed
        assert not {TOKENIZER.cls, TOKENIZER.sep, TOKENIZER.pad} & {number for number, _ in read_back(batch)}


def word_positions(encoded: EncodedTags) -> list[int]:
    return [
        int(encoded.ids.starts[row] + place)
        for row in range(len(encoded.ids.lengths))
        for place in encoded.words.flat[encoded.words.starts[row] : encoded.words.starts[row + 1]]
    ]


def test_packed_batches_of_a_budget_have_one_shape() -> None:
    encoded = encode_tags(sentences(80), TOKENIZER, LABELS, 12)
    shapes = {(batch.ids.shape, batch.words.shape) for batch in one_epoch(TagBatches(encoded, 0, 128, None, True))}
    assert len(shapes) == 1


def test_order_of_batches_depends_on_the_seed_only() -> None:
    encoded = encode_tags(sentences(50), TOKENIZER, LABELS, 12)
    first, again, other = (one_epoch(TagBatches(encoded, seed, 64)) for seed in (0, 0, 1))
    assert all(a.ids.equal(b.ids) and a.labels.equal(b.labels) for a, b in zip(first, again, strict=True))
    assert any(not a.ids.equal(b.ids) for a, b in zip(first, other, strict=False))


def test_in_order_has_every_word_once() -> None:
    encoded = encode_tags(sentences(50), TOKENIZER, LABELS, 12)
    labels = np.full(len(encoded.labels), -1)
    for batch, places in encoded.in_order(64):
        labels[places] = batch.labels.numpy()
    assert labels.tolist() == encoded.labels.tolist()


def test_tags_change_the_hash() -> None:
    some = sentences(5)
    changed = [*some[:-1], some[-1]._replace(tags=("I-LOC", *some[-1].tags[1:]))]
    one, other = (encode_tags(each, TOKENIZER, LABELS, 12).sha256 for each in (some, changed))
    assert one == encode_tags(some, TOKENIZER, LABELS, 12).sha256 != other
