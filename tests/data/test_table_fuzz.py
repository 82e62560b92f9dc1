"""Broken and hostile tables: every file is read, or refused with its name and a place; nothing else happens."""

from __future__ import annotations

import gzip
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from heedful.data.formats import sources
from heedful.data.tables.checking import check_data
from heedful.data.tables.texts import FieldTable, LabelTable, QuestionTable, TagTable
from heedful.errors import UserError

GOOD = {
    "csv": 'text,label\n"a, b",x\n"two\nlines",y\n"a ""quote""",x\n' + "plain,y\n" * 8,
    "tsv": "text\tlabel\na b\tx\nc d\ty\n" + "e\tx\n" * 8,
    "jsonl": '{"text": "a", "label": "x"}\n{"text": "b", "label": 3}\n' + '{"text": "c", "label": true}\n' * 8,
}
PIECES = [
    b"\xef\xbb\xbf", b"\x00", b"\xff\xfe", b"\xe9", b'"', b'""', b",", b"\t", b";", b"|", b"\r\n", b"\r", b"\n\n", b"{",
    b"[", b"}", b'{"text": ', b"NaN", b"1e999", b"\\ud800", b"9" * 400, b"[" * 3000, b"x" * 3000, b"text,text\n",
    "\u2028".encode(), b"\xf0\x9f\x98\x80", b"=cmd()", b"\x1f\x8b", b"../../etc", b"<script>",
]  # fmt: skip


def broken(seed: int) -> tuple[str, bytes]:
    """A file name, and a good table with a few faults."""
    chance = random.Random(seed)
    kind = chance.choice([*GOOD])
    data = bytearray(GOOD[kind].encode())
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[place:place] = chance.choice(PIECES)
            case 1:
                del data[place : place + chance.randint(1, 20)]
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case _:
                data = data[:place] + data[chance.randrange(len(data) + 1) :]
    found = bytes(data)
    if chance.random() < 0.2:
        found = gzip.compress(found)
        found = found[: chance.randrange(len(found))] if chance.random() < 0.5 else found
        return f"t.{kind}.gz", found
    return f"t.{chance.choice([kind, *GOOD])}", found


def try_table(folder: Path, seed: int) -> bool:
    """Whether a broken table can be read; the error names the file."""
    name, data = broken(seed)
    (folder / name).write_bytes(data)
    chance = random.Random(seed)
    cls: Any = chance.choice([LabelTable, FieldTable, TagTable, QuestionTable])
    extra = chance.choice([{}, {}, {"quotes": False}, {"separator": ";"}, {"header": False}, {"encoding": "cp1252"}])
    table = cls(root=str(folder), train=name, longest=1000, **extra)
    done = 0
    for job in (table.problems, lambda: check_data(table, 10, True), lambda: table.read("train")):
        try:
            job()
            done += 1
        except UserError as error:
            text = str(error)
            assert name in text or "data." in text or "data.train" in text, text
            assert len(text) < 5000
            assert text.isprintable() or "\n" in text
    return done == 3


@pytest.mark.parametrize("block", range(4))
def test_broken_tables_are_read_or_refused_with_their_name(block: int, tmp_path: Path) -> None:
    results = [try_table(tmp_path, 100 * block + seed) for seed in range(100)]
    assert any(results) and not all(results)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_broken_tables(block: int, tmp_path: Path) -> None:
    for seed in range(1000, 1500):
        try_table(tmp_path, 1000 * block + seed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000  # kB, torch of other tests included


def label_table(tmp_path: Path, name: str, data: bytes, **settings: Any) -> LabelTable:
    (tmp_path / name).write_bytes(data)
    return LabelTable(root=str(tmp_path), train=name, **settings)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", b"", "empty"),
        ("t.csv", b"text,label\n", "no rows"),
        ("t.csv", b'text,label\n"never closed,x\n' + b"a,b\n" * 5, "not CSV"),
        ("t.csv", b"text,label\na,b,c\n", "different number of columns"),
        ("t.csv", b"text,text\na,b\n", "two columns have one name"),
        ("t.csv", b"text,label\n\x00,b\n", "NUL"),
        ("t.csv", b"t\x00e\x00x\x00", "UTF-16"),
        ("t.csv", b"text,label\n" + b"a" * 5000 + b",b\n", "too long"),
        ("t.jsonl", b'[{"text": "a"}]\n', "not a JSON object"),
        ("t.jsonl", b'{"text": "a", "label": \n', "not JSON"),
        ("t.xlsx", b"PK", "spreadsheets are not read"),
        ("t.csv.gz", gzip.compress(b"text,label\na,b\n", mtime=0)[:-9], "damaged"),
        ("t.parquet", b"PAR1 no PAR1", "not a Parquet file"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    table = label_table(tmp_path, name, data, longest=1000)
    (problem,) = table.problems()
    assert message in str(problem) and name in str(problem)
    with pytest.raises(UserError, match=message):
        table.read("train")


def test_gzip_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b"text,label\n" + b"aaaaaaaaa,b\n" * 100_000)
    table = label_table(tmp_path, "t.csv.gz", bomb)
    assert len(list(table.source("train"))) == 100_000  # 1.2 MB may be repetitive
    monkeypatch.setattr(sources, "FREE", 2**18)
    with pytest.raises(UserError, match="suspiciously high compression ratio"):
        list(table.source("train"))
    monkeypatch.setattr(sources, "MOST", 2**18)
    with pytest.raises(UserError, match="too large"):
        list(table.source("train"))


def test_long_unclosed_quotes_end_early(tmp_path: Path) -> None:
    """A quote that is never closed is not read to the end of a large file."""
    table = label_table(tmp_path, "t.csv", b'text,label\n"' + b"word word\n" * 100_000, longest=100)
    with pytest.raises(UserError, match="field larger than field limit"):
        table.read("train")
