"""Word vocabularies and pretrained word vectors."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.treebank import WordsConfig
from heedful.data.word_vectors import load_vectors
from heedful.errors import UserError

GLOVE = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "glove-6b-100d-subset", "glove.6B.100d.subset.txt.gz")
TEXTS = [["The", "dog", "saw", "the", "cat"], ["the", "Dog"]]


def build_vocab(vectors: tuple[str, ...] = (), lowercase: bool = True, at_least: int = 1) -> WordVocab:
    return WordVocab.learn(WordsConfig(lowercase=lowercase, at_least=at_least), TEXTS, vectors)


def test_words_are_numbered_by_frequency() -> None:
    words = build_vocab()
    assert words.words == ["<pad>", "<unk>", "the", "dog", "cat", "saw"]
    assert words.vocab == 6
    assert words.ids(["THE", "cat", "bird", "<pad>"]) == [2, 4, WordVocab.unk, WordVocab.unk]
    assert words.pieces([2, 1]) == ["the", "<unk>"]


def test_without_lowercasing_case_distinguishes_words() -> None:
    words = build_vocab(lowercase=False)
    assert words.words[2:] == ["the", "Dog", "The", "cat", "dog", "saw"]
    assert words.id("THE") == WordVocab.unk


def test_rare_words_need_a_pretrained_vector() -> None:
    assert build_vocab(at_least=2).words[2:] == ["the", "dog"]
    assert build_vocab(("cat", "bird", "<unk>"), at_least=2).words[2:] == ["the", "dog", "cat", "bird"]


def test_json_round_trip() -> None:
    words = build_vocab()
    again = WordVocab(words.json, "here")
    assert (again.words, again.lowercase, again.sha256, again.vocab) == (words.words, True, words.sha256, 6)
    assert build_vocab(lowercase=False).sha256 != words.sha256
    assert build_vocab().sha256 == words.sha256


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "[" * 100_000, '{"words": []}',
        '{"kind": "words", "lowercase": true, "words": ["a"]}',
        '{"kind": "words", "lowercase": true, "words": ["<pad>", "<unk>", "a", "a"]}',
        '{"kind": "words", "lowercase": true, "words": ["<pad>", "<unk>", 3]}',
        '{"kind": "words", "lowercase": 2, "words": ["<pad>", "<unk>"]}',
        '{"kind": "other", "lowercase": true, "words": ["<pad>", "<unk>"]}',
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_damaged_vocabulary_file_is_named(text: str) -> None:
    with pytest.raises(UserError, match="damaged") as caught:
        WordVocab(text, "run/words.json")
    assert caught.value.where == "run/words.json"


def test_training_texts_without_words_are_an_error() -> None:
    with pytest.raises(UserError, match="no word"):
        WordVocab.learn(WordsConfig(), [[]])


FILE = "the 1 2 3\ncat 4 5 6\nbird -7e-1 8 9\ndog 0.5 0 0\nthe 9 9 9\n"


def test_vectors_are_loaded_for_requested_words_and_the_most_frequent(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "vectors.txt", tmp_path / "vectors.txt.gz"
    plain.write_text(FILE)
    compressed.write_bytes(gzip.compress(FILE.encode()))
    for path in (plain, compressed):
        vectors = load_vectors(path, only={"dog", "the"}, most=2)  # of duplicate words, the first counts
        assert list(vectors.rows) == ["the", "cat", "dog"]
        np.testing.assert_array_equal(vectors.matrix, np.array([[1, 2, 3], [4, 5, 6], [0.5, 0, 0]], np.float32))
        assert vectors.width == 3
    words = build_vocab(tuple(vectors.rows))
    table, found = words.table(vectors)
    assert found.tolist() == [False, False, True, True, True, False]
    np.testing.assert_array_equal(table[words.id("dog")], np.array([0.5, 0, 0], np.float32))
    assert not table[words.id("saw")].any()


def test_headers_and_words_with_spaces_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\nnew 1 2 3\nnew york 4 5 6 \n")
    assert list(load_vectors(path, only={"new york"}, most=9).rows) == ["new", "new york"]


@pytest.mark.parametrize(
    ("line", "message", "found"),
    [
        ("dog 1 2", "number of columns", "2 numbers"),
        ("dog 1", "number of columns", "1 number in"),
        ("dog", "number of columns", "0 numbers"),
        ("dog 1 2 x", "not a number", "'x'"),
        ("dog 1 nan 3", "not finite", "nan as number 2"),
        ("dog 1 2 1e99", "not finite", "inf as number 3"),
        ("", "number of columns", "0 numbers"),
    ],
)
def test_invalid_vector_is_reported_by_its_line(line: str, message: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(f"the 1 2 3\n{line}\ncat 1 2 3\n")
    with pytest.raises(UserError, match=message) as caught:
        load_vectors(path, only={"dog"}, most=0)
    assert caught.value.where == f"{path}:2"
    assert found in (caught.value.found or "")


def test_file_without_vectors_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("word\n")
    with pytest.raises(UserError, match="not a word with its vector"):
        load_vectors(path, only={"word"}, most=1)
    path.write_text("word 1 2\n")
    with pytest.raises(UserError, match="none of the words"):
        load_vectors(path, only={"dog"}, most=0)


@pytest.mark.skipif(not GLOVE.is_file(), reason=f"no word vectors in {GLOVE}; set HEEDFUL_DATA")
def test_king_minus_man_plus_woman_is_queen() -> None:
    vectors = load_vectors(GLOVE, only={"king"}, most=10_000)
    unit = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    king, man, woman = (unit[vectors.rows[word]] for word in ("king", "man", "woman"))
    nearest = np.argsort(-(unit @ (king - man + woman)))
    names = list(vectors.rows)
    assert next(names[row] for row in nearest if names[row] not in ("king", "man", "woman")) == "queen"


def test_json_format() -> None:
    assert json.loads(build_vocab().json) == {"kind": "words", "lowercase": True, "words": build_vocab().words}


def test_vocabulary_records_its_pretrained_vectors(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"

    def with_vectors(text: str) -> WordVocab:
        path.write_text(text)
        return build_vocab().initialized_from(load_vectors(path, only={"dog"}, most=0))

    words = with_vectors("dog 1 2\ncat 1 2\n")
    assert WordVocab(words.json, "again").vectors == words.vectors == with_vectors("cat 3 4\ndog 1 2\n").vectors
    assert with_vectors("dog 1 3\n").vectors != words.vectors
    assert (words.words, words.sha256 != build_vocab().sha256) == (build_vocab().words, True)
    assert build_vocab().vectors is None
    with pytest.raises(UserError, match="damaged"):
        WordVocab(json.dumps({**json.loads(words.json), "vectors": 3}), "here")
