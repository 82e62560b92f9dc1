"""Pairs of texts from parallel files, TSV and JSON lines, with located errors."""

import gzip
import json
import random
import resource
from pathlib import Path

import pytest
from pydantic import ValidationError

from heedful.data.formats.sources import FilePair, Jsonl, Pair, PairSource, ParallelFiles, Split, Tsv, lines
from heedful.errors import UserError


def parallel(root: Path, source: bytes, target: bytes, longest: int = 100_000) -> ParallelFiles:
    (root / "s").write_bytes(source)
    (root / "t").write_bytes(target)
    files = FilePair(source="s", target="t")
    return ParallelFiles(root=str(root), train=files, valid=files, longest=longest)


def tsv(root: Path, data: bytes, source_column: int = 0, target_column: int = 1) -> Tsv:
    (root / "x").write_bytes(data)
    return Tsv(root=str(root), train="x", valid="x", source_column=source_column, target_column=target_column)


def jsonl(root: Path, data: bytes, source: str = "source") -> Jsonl:
    (root / "x").write_bytes(data)
    return Jsonl(root=str(root), train="x", valid="x", source=source)


def error_for(source: PairSource, split: Split = "train") -> UserError:
    with pytest.raises(UserError) as caught:
        source.pairs(split)
    assert str(caught.value).startswith(f"{caught.value.where}: ")
    return caught.value


def test_parallel_lines(tmp_path: Path) -> None:
    data = parallel(tmp_path, b"ein Hund\nzwei\n", b"a dog\ntwo")
    assert data.pairs("train") == [Pair("ein Hund", "a dog"), Pair("zwei", "two")]
    assert data.problems() == []


def test_only_newlines_separate_lines(tmp_path: Path) -> None:
    odd = "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg\rh"
    assert parallel(tmp_path, f"{odd}\n".encode(), b"one\n").pairs("train") == [Pair(odd, "one")]
    assert tsv(tmp_path, f"{odd}\tone\n".encode()).pairs("train") == [Pair(odd, "one")]
    line = json.dumps({"source": odd, "target": "one"}, ensure_ascii=False)
    assert jsonl(tmp_path, f"{line}\n".encode()).pairs("train") == [Pair(odd, "one")]


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    data = parallel(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n", "\ufeffeins\nzwei\ufeff\n".encode())
    assert data.pairs("train") == [Pair("one", "eins"), Pair("two", "zwei\ufeff")]


def test_blank_pairs_are_skipped_and_counted(tmp_path: Path) -> None:
    found = parallel(tmp_path, b"one\n\n \t\nfour\n\n", "eins\nzwei\ndrei\n\u00a0\n\n".encode()).read("train")
    assert found.pairs == [Pair("one", "eins")]
    assert found.skipped == 4
    assert tsv(tmp_path, b"a\tb\n\n\tc\n").read("train") == ([Pair("a", "b")], 2)
    assert (
        jsonl(tmp_path, b'{"source": "a", "target": "b"}\n\n{"source": "a", "target": ""}').read("train").skipped == 2
    )


@pytest.mark.parametrize("suffix", ["", ".gz", ".txt"])
def test_gzip_is_detected_by_content(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfone\n") + gzip.compress(b"two\n"))
    assert list(lines(path, 100)) == ["one", "two"]


def test_unequal_line_counts_name_both_files(tmp_path: Path) -> None:
    error = error_for(parallel(tmp_path, b"1\n2\n3\n4\n5\n", b"1\n2\n"))
    assert error.found == f"5 lines in {tmp_path}/s, 2 in {tmp_path}/t"
    assert error_for(parallel(tmp_path, b"1\n", b"1\n2\n")).found == f"1 lines in {tmp_path}/s, 2 in {tmp_path}/t"


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"one\ntwo\xff\n", ":2:4", "not UTF-8"),
        ("Grüße\n".encode("latin-1"), ":1:3", "not UTF-8"),
        ("one\n".encode("utf-16"), ":1:4", "not text"),
        (b"one\n\ntw\0o\n", ":3:3", "not text"),
        (b"ok\n" + b"x" * 51 + b"\n", ":2", "too long"),
        (b"ok\n" + "ü".encode() * 51, ":2", "too long"),
        (b"x" * 10_000, ":1", "too long"),
        (b"", "", "empty"),
    ],
)
def test_invalid_lines_are_located(tmp_path: Path, data: bytes, place: str, message: str) -> None:
    error = error_for(parallel(tmp_path, data, b"one\n" * 3, longest=50))
    assert error.where == f"{tmp_path}/s{place}"
    assert message in error.message


def test_longest_counts_characters(tmp_path: Path) -> None:
    text = "😀" * 50
    assert (
        parallel(tmp_path, b"\xef\xbb\xbf" + text.encode() + b"\r\n", b"one\n", longest=50).pairs("train")[0][0] == text
    )


def test_missing_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "good").write_text("one\n")
    data = ParallelFiles(
        root=str(tmp_path),
        train=FilePair(source="absent", target="good"),
        valid=FilePair(source="folder", target="empty"),
        test=FilePair(source="good/inside", target="x" * 300),
    )
    found = {str(problem.where): problem.message for problem in data.problems()}
    assert found == {
        f"{tmp_path}/absent": "there is no such file",
        f"{tmp_path}/folder": "this is a folder",
        f"{tmp_path}/empty": "this file is empty",
        f"{tmp_path}/good/inside": "there is no such file",
        f"{tmp_path}/{'x' * 300}": "this file cannot be accessed: File name too long",
    }
    assert "no such file" in error_for(data).message
    assert "folder" in error_for(data, "valid").message


def test_missing_folder_is_one_problem() -> None:
    files = FilePair(source="a", target="b")
    (problem,) = ParallelFiles(root="no/such/place", train=files, valid=files).problems()
    assert problem.where == "data.root"


def test_devices_are_rejected() -> None:
    with pytest.raises(UserError, match="not a regular file"):
        list(lines(Path("/dev/zero"), 100))


def test_split_that_is_not_given_is_reported(tmp_path: Path) -> None:
    assert error_for(tsv(tmp_path, b"a\tb\n"), "test").where == "data.test"


def test_blank_files_are_an_error(tmp_path: Path) -> None:
    assert "2 pairs" in str(error_for(parallel(tmp_path, b"\n\n", b"a\nb\n")))


def test_tsv_columns(tmp_path: Path) -> None:
    data = tsv(tmp_path, b'id\t"a\tb\nid\tc\t d \n', source_column=2, target_column=1)
    assert data.pairs("train") == [Pair("b", '"a'), Pair(" d ", "c")]


@pytest.mark.parametrize(
    ("data", "line", "expected"),
    [(b"a\tb\na\tb\tc\n", 2, "2 columns"), (b"a\tb\na\n", 2, "2 columns"), (b"a\n", 1, "least 2")],
)
def test_ragged_tsv_is_rejected(tmp_path: Path, data: bytes, line: int, expected: str) -> None:
    error = error_for(tsv(tmp_path, data))
    assert error.where == f"{tmp_path}/x:{line}"
    assert expected in str(error.expected)


def test_tsv_needs_two_columns(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="both 1"):
        tsv(tmp_path, b"", source_column=1)


def test_jsonl(tmp_path: Path) -> None:
    data = jsonl(tmp_path, b'{"en": "a\\nb", "target": "c", "more": [1]}\n', source="en")
    assert data.pairs("train") == [Pair("a\nb", "c")]


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        (b'{"source": "a", "target" "b"}', ":2:26", "not JSON"),
        (b'{"source": "a", "tgt": "b"}', ":2", "'target' is missing"),
        (b'{"source": 3, "target": "b"}', ":2", "the value of 'source' is not a string"),
        (b'["a", "b"]', ":2", "not a JSON object"),
        (b'{"source": ' + b"[" * 40_000, ":2", "cannot be read"),
        (b'{"source": ' + b"1" * 5000 + b"}", ":2", "cannot be read"),
    ],
)
def test_invalid_json_lines_are_located(tmp_path: Path, line: bytes, place: str, message: str) -> None:
    error = error_for(jsonl(tmp_path, b'{"source": "a", "target": "b"}\n' + line + b"\n"))
    assert error.where == f"{tmp_path}/x{place}"
    assert message in error.message


@pytest.mark.parametrize("end", [5, 15, 100, -4])
def test_truncated_gzip_is_reported(tmp_path: Path, end: int) -> None:
    text = "".join(f"{number * number}\n" for number in range(1000)).encode()
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(text)[:end])
    with pytest.raises(UserError, match="damaged"):
        list(lines(path, 100))


def test_corrupted_gzip_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    packed = bytearray(gzip.compress(b"some text\n" * 100))
    packed[-6] ^= 1  # the checksum
    for data in (bytes(packed), b"plain text\n"):
        path.write_bytes(data)
        with pytest.raises(UserError, match="damaged"):
            list(lines(path, 100))


def test_gzip_bomb_of_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress((b"a" * 63 + b"\n") * 2**21))
    with pytest.raises(UserError, match="suspiciously high"):
        for _ in lines(path, 100):
            pass
    path.write_bytes(gzip.compress((b"a" * 63 + b"\n") * 2**17))  # as repetitive, but short
    assert sum(1 for _ in lines(path, 100)) == 2**17


def test_too_long_lines_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(2**30)
        file.seek(0)
        file.write(b"x" * 1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="too long"):
        list(lines(path, 100_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_random_files_give_pairs_or_a_located_error(tmp_path: Path) -> None:
    rng = random.Random(0)
    good = {
        "parallel": b"one two\nthree\n",
        "tsv": b"one\ttwo\nthree\tfour\n",
        "jsonl": b'{"source": "one", "target": "two"}\n{"source": "a", "target": "b"}\n',
    }
    scraps = [
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\t",
        b'"',
        b"{",
        b"\xed\xa0\x80",
        "\u2028".encode(),
        b"x" * 300,
    ]
    read = misplaced = 0
    for _ in range(1500):
        kind = rng.choice(list(good))
        data = bytearray(good[kind])
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(data) + 1)
            data[place : place + rng.randrange(3)] = rng.choice(scraps)
        packed = bytearray(gzip.compress(bytes(data)) if rng.random() < 0.3 else data)
        if packed and rng.random() < 0.3:
            packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
        source: PairSource
        if kind == "parallel":
            source = parallel(tmp_path, bytes(packed), good[kind], longest=200)
        else:
            source = tsv(tmp_path, bytes(packed)) if kind == "tsv" else jsonl(tmp_path, bytes(packed))
        try:
            assert source.pairs("train")
            read += 1
        except UserError as error:
            misplaced += str(tmp_path) not in str(error.where)
    assert misplaced == 0
    assert 300 < read < 1400
