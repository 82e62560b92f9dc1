"""The commands for word vectors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from heedful.cli import app as cli
from heedful.data.word_vectors import WordVectors, load_vectors


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["heedful", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


@pytest.fixture
def file(tmp_path: Path) -> str:
    words = ["man", "king", "woman", "queen", "apple"]
    matrix = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0.2, 0]], np.float32)
    WordVectors(words, matrix).save(tmp_path / "v.bin")
    return str(tmp_path / "v.bin")


def test_word2vec_trains_and_writes_vectors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("one two three four five\n" * 50)
    words = ["word2vec", str(tmp_path / "text.txt"), "--width", "8", "--epochs", "2", "-o"]
    assert main(monkeypatch, *words, str(tmp_path / "a.bin")) == 0
    output = capsys.readouterr()
    assert "wrote 5 vectors of dimension 8" in output.out
    assert "250 words of text, vocabulary of 5" in output.err
    assert main(monkeypatch, *words, str(tmp_path / "b.bin")) == 0
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
    assert set(load_vectors(tmp_path / "a.bin").words) == {"one", "two", "three", "four", "five"}
    assert main(monkeypatch, *words, str(tmp_path / "none" / "b.bin")) == 2
    assert main(monkeypatch, *words, str(tmp_path / "c.bin"), "--width", "0") == 2
    assert "Invalid value for '--width'" in capsys.readouterr().err


def test_neighbours_and_analogies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert main(monkeypatch, "neighbours", file, "king", "man", "--top", "2") == 0
    assert capsys.readouterr().out == "king\n  queen   0.816\n  man     0.707\nman\n  king    0.707\n  woman   0.707\n"
    assert main(monkeypatch, "analogy", file, "man", "king", "woman", "--top", "1") == 0
    assert capsys.readouterr().out.splitlines() == ["man is to king as woman is to", "  queen   0.975"]
    assert main(monkeypatch, "analogy", file, "man", "king", "woman", "--json") == 0
    assert [one["word"] for one in json.loads(capsys.readouterr().out)["found"]] == ["queen", "apple"]
    assert main(monkeypatch, "neighbours", file, "king", "--limit", "2", "--json") == 0
    assert [one["word"] for one in json.loads(capsys.readouterr().out)["neighbours"]] == ["man"]
    assert main(monkeypatch, "neighbours", file, "kings") == 2
    assert "did you mean king?" in capsys.readouterr().err


def test_lookup_prints_rows_and_draws_a_map(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path
) -> None:
    words = ["man", "king", "apple"]
    assert main(monkeypatch, "lookup", file, *words, "--columns", "2", "--map", str(tmp_path / "m.png")) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table] == [
        ["0", "1"],
        ["man", "1.000000", "0.000000"],
        ["king", "1.000000", "1.000000"],
        ["apple", "-1.000000", "0.200000"],
    ]
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    assert main(monkeypatch, "lookup", file, "man", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"word": "man", "vector": [1.0, 0.0, 0.0]}
    assert main(monkeypatch, "lookup", file, "man", "king", "--map", str(tmp_path / "n.png")) == 2
