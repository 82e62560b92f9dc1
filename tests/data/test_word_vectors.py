"""Files of word vectors: round trip bit for bit, odd words, and located errors."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from heedful.data.embedding_init import EmbeddingInit
from heedful.data.word_vectors import (
    FORMATS,
    Format,
    WordVectors,
    detect_format,
    load_glove,
    load_vectors,
    load_word2vec,
)
from heedful.errors import UserError

ODD = ["plain", "Grüße", "\x85", "\xa0", "nul\x00byte", "\udce2\udc80", "emoji🙂", "12", "-", "\ufeff"]


def random_vectors(words: list[str], width: int = 7) -> WordVectors:
    numbers = np.random.default_rng(1).standard_normal((len(words), width)) * 10.0 ** np.arange(-3, width - 3)
    return WordVectors(words, numbers.astype(np.float32))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_word_vectors_round_trip_bit_for_bit(tmp_path: Path, format: Format, packed: bool) -> None:
    vectors, path = random_vectors(ODD), tmp_path / ("v.gz" if packed else "v")
    vectors.save(path, format)
    with (gzip.open if packed else open)(path, "rb") as file:  # type: ignore[operator]
        assert detect_format(file.read()) == format
    for again in (load_vectors(path), load_vectors(path, format)):
        assert again.words == ODD
        assert again.matrix.tobytes() == vectors.matrix.tobytes()
        assert again.notes == ()


def test_extension_determines_the_format(tmp_path: Path) -> None:
    for name, format in (("a.bin", "word2vec-binary"), ("a.txt", "word2vec"), ("a.bin.gz", "word2vec-binary")):
        random_vectors(["x", "y"]).save(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        assert detect_format(gzip.decompress(data) if name.endswith("gz") else data) == format
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.bin.gz", "a.txt"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_binary_files_may_have_line_ends_between_vectors(tmp_path: Path, end: bytes) -> None:
    rows = [struct.pack("<3f", *row) + end for row in ((1, 2, 3), (4, 5, 6))]
    (tmp_path / "v.bin").write_bytes(b"2 3\n" + b"in " + rows[0] + b"New_York " + rows[1])
    found = load_vectors(tmp_path / "v.bin")
    assert found.words == ["in", "New_York"]
    assert found.matrix.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_words_may_contain_spaces_even_in_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes(
        b". . . 1 2 3\nat name@domain.com 4 5 6\r\nword 7 8 9 \nmore 1 1 1\nand 0 0 0\nso 1 0 1\n"
    )
    found = load_vectors(tmp_path / "v.txt")
    assert found.words == [". . .", "at name@domain.com", "word", "more", "and", "so"]
    assert found.matrix[:3].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    with pytest.raises(UserError, match="this word cannot be written in this format"):
        found.save(tmp_path / "v.bin")
    found.save(tmp_path / "again.txt")
    assert load_vectors(tmp_path / "again.txt").words == found.words


def test_only_requested_words_are_kept(tmp_path: Path) -> None:
    vectors = random_vectors(["a", "b", "c", "d", "e"])
    vectors.save(tmp_path / "v.bin")
    assert load_vectors(tmp_path / "v.bin", most=2).words == ["a", "b"]
    assert load_vectors(tmp_path / "v.bin", only={"d", "z"}).words == ["d"]
    assert load_vectors(tmp_path / "v.bin", only={"d"}, most=2).words == ["a", "b", "d"]
    with pytest.raises(UserError, match="none of the words has a vector in this file"):
        load_vectors(tmp_path / "v.bin", only={"z"})


def test_of_duplicate_words_the_first_vector_counts(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4\na 5 6\na 7 8\n")
    found = load_vectors(tmp_path / "v.txt")
    assert found.words == ["a", "b"]
    assert found["a"].tolist() == [1, 2]
    assert len(found.notes) == 1
    assert found.notes[0].startswith("2 words occur more than once")
    assert "v.txt:3" in found.notes[0]


@pytest.mark.parametrize(
    ("contents", "message", "where"),
    [
        (b"", "this file is empty", "v"),
        (b"a 1 2\nb 3\nc 4 5\n", "different number of columns", "v:2"),
        (b"a 1\nb 3 4\nc 4 5\n", "different number of columns", "v:1"),
        (b"a 1 2\n\nc 4 5\n", "different number of columns", "v:2"),
        (b"a 1 2\nb 3 x4\n", "this is not a number", "v:2"),
        (b"a 1 2\nb nan 4\n", "this number is not finite", "v:2"),
        (b"a 1 2\nb 3 1e39\n", "this number is not finite", "v:2"),
        (b"word\nother\n", "this is not a word with its vector", "v:1"),
        (b"3 2\na 1 2\nb 3 4\n", "the header has the wrong number of words", "v:1"),
        (b"1 2\na 1 2\nb 3 4\n", "the header has the wrong number of words", "v:1"),
        (b"3 2\n", "the header has the wrong number of words", "v:1"),
        (b"2 2\na 1\nb 3 4\n", "different number of columns", "v:2"),
        (b"2 2\na 1 2\nb 3\n", "different number of columns", "v:3"),
        (b"2 99999999\na 1 2\nb 3\n", "this is not a word2vec header", "v:1"),
        (b"2 2\na " + struct.pack("<2f", 1, 2) + b"b " + b"\x00" * 7, "ends inside", "v, word 2 of 2"),
        (b"2 2\na " + struct.pack("<2f", 1, 2), "ends where a word should be", "v, word 2 of 2"),
        (b"1 2\na " + struct.pack("<4f", 1, 2, 3, 4), "more data than its header says", "v"),
        (b"1 2\na " + struct.pack("<2f", 1, float("inf")), "this number is not finite", "v, word 1 of 1"),
        (b"9999999 2\n" + b"\xff" * 20_000, "there is no word at this position", "v, word 1 of 9,999,999"),
        (gzip.compress(b"a 1 2\nb 3 4\n" * 1000, mtime=0)[:-20], "this gzip file is damaged", "v"),
    ],
)  # fmt: skip
def test_damaged_vector_files_are_located(tmp_path: Path, contents: bytes, message: str, where: str) -> None:
    (tmp_path / "v").write_bytes(contents)
    with pytest.raises(UserError, match=message) as raised:
        load_vectors(tmp_path / "v")
    assert raised.value.where == str(tmp_path / where)


def test_missing_files_and_unknown_formats_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        load_vectors(tmp_path / "none")
    with pytest.raises(UserError, match="this is a folder"):
        load_vectors(tmp_path)
    with pytest.raises(UserError, match="unknown format"):
        load_vectors(tmp_path, "bin")  # type: ignore[arg-type]


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    bad = WordVectors(["a", "b"], np.array([[1, np.nan], [1, 2]], np.float32))
    with pytest.raises(UserError, match="not finite"):
        bad.save(tmp_path / "v.txt")
    with pytest.raises(UserError, match="cannot be written"):
        random_vectors(["x"]).save(tmp_path / "none" / "v.txt")
    assert list(tmp_path.iterdir()) == []


def test_neighbours_are_by_cosine_without_the_word_itself() -> None:
    matrix = np.array([[1, 0], [2, 0.1], [0, 3], [-5, 0], [0, 0]], np.float32)
    vectors = WordVectors(["a", "b", "c", "d", "zero"], matrix)
    found = vectors.neighbours("a", 3)
    assert [one.word for one in found] == ["b", "c", "zero"]
    assert found[0].cosine == pytest.approx(2 / np.hypot(2, 0.1))
    assert [one.word for one in vectors.neighbours(np.array([0, 1]), 1)] == ["c"]
    assert len(vectors.neighbours("a", 100)) == 4
    assert vectors.neighbours("a", 1)[0].cosine == pytest.approx(vectors.neighbours("b", 1)[0].cosine)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        vectors.neighbours(np.zeros(3, np.float32))


def test_analogy_is_b_minus_a_plus_c_without_the_three() -> None:
    words = ["man", "king", "woman", "queen", "apple"]
    matrix = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0.2, 0]], np.float32)
    found = WordVectors(words, matrix).analogy("man", "king", "woman")
    assert [one.word for one in found] == ["queen", "apple"]
    unit = [row / np.linalg.norm(row) for row in matrix]
    expected = unit[1] - unit[0] + unit[2]
    assert found[0].cosine == pytest.approx(unit[3] @ expected / np.linalg.norm(expected))


def test_unknown_word_suggests_a_similar_one() -> None:
    vectors = random_vectors(["house", "river"])
    for word in ("River", "rivr"):
        with pytest.raises(UserError, match="this word has no vector") as raised:
            vectors[word]
        assert raised.value.todo == "did you mean river?"
    with pytest.raises(ValueError, match="2 words cannot have a matrix"):
        WordVectors(["a", "b"], np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("name", ["v.bin", "v.txt"])
def test_vectors_fill_the_rows_of_a_vocabulary(tmp_path: Path, name: str) -> None:
    vectors = random_vectors(["a", "b", "c"], 4)
    vectors.save(tmp_path / name)
    table = np.full((3, 4), 9, np.float32)
    found = load_word2vec(tmp_path / name, {"c": 0, "new": 1, "a": 2}, table)
    assert found is table
    assert (table == np.stack([vectors["c"], np.full(4, 9), vectors["a"]])).all()
    with pytest.raises(UserError, match="do not match the matrix"):
        load_word2vec(tmp_path / name, {"c": 0}, np.zeros((3, 5), np.float32))


def test_each_reader_rejects_the_other_format(tmp_path: Path) -> None:
    vectors = random_vectors(["a", "b", "c"], 4)
    vectors.save(tmp_path / "glove.txt", "glove")
    vectors.save(tmp_path / "w2v.txt")
    with pytest.raises(UserError, match="has no header") as raised:
        load_word2vec(tmp_path / "glove.txt", {"a": 0}, np.zeros((1, 4), np.float32))
    assert raised.value.todo == "read it with load_glove"
    with pytest.raises(UserError, match="different number of columns"):
        load_glove(tmp_path / "w2v.txt", {"a": 0}, np.zeros((1, 4), np.float32))


def test_initial_vectors_must_match_the_model_width(tmp_path: Path) -> None:
    random_vectors(["a", "b", "c"], 4).save(tmp_path / "v.bin")
    begins = EmbeddingInit(file=str(tmp_path / "v.bin"), read_fn="load_word2vec")
    assert begins.problems() == []
    assert begins.read({"c"}, 1, 4).words == ["a", "c"]
    with pytest.raises(UserError, match="width of the word vectors") as raised:
        begins.read({"c"}, 1, 5)
    assert raised.value.todo == "write model.width: 4"
    (problem,) = EmbeddingInit(file=str(tmp_path / "none")).problems()
    assert "embedding_init=null" in str(problem)
