"""Token files of running text: the same with several processes and after an interruption; damaged files are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.data.formats.sources import Split
from heedful.data.text import token_building
from heedful.data.text.files import DocumentStream, TextFiles, collect
from heedful.data.text.text_stream import passages, shards
from heedful.data.text.token_building import build_tokens
from heedful.data.text.token_text import TokenizedText
from heedful.data.text.windows import EncodedText, TextBatches, encode_text
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, LineCodec, last_split
from heedful.data.tokenizers.tokenizer import Characters, TrainedTokenizer
from heedful.errors import UserError
from patience import LONG, until

DOCUMENTS = [[f"document {number} !", "", *["some words, and more"] * (number % 7)] for number in range(60)]
PAIRS = Gpt2Tokenizer.train(Gpt2Bpe(vocab=300), ["\n".join(document) for document in DOCUMENTS])
LETTERS = TrainedTokenizer.train(Characters(vocab=60), ["some words, and more dcut 01234", "!"])
PLAN = {"tokenizer": "pairs"}


def documents_of(begin: int, end: int) -> Callable[[], DocumentStream]:
    return lambda: iter(DOCUMENTS[begin:end])


def build(
    folder: Path, tokenizer: LanguageTokenizer = PAIRS, plan: dict[str, Any] = PLAN, jobs: int = 1, **more: Any
) -> list[str]:
    """Build token files; returns the messages."""
    said: list[str] = []
    splits: dict[Split, Callable[[], DocumentStream]] = {"train": documents_of(0, 50), "valid": documents_of(50, 60)}
    build_tokens(folder, plan, lambda: tokenizer, splits | more, jobs, say=said.append)
    return said


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small shards, so that there are many."""
    monkeypatch.setattr(token_building, "shards", partial(shards, most=500))
    monkeypatch.setattr(token_building, "passages", partial(passages, most=40))


# ------------------------------------------------------------------ what is written
@pytest.mark.parametrize("tokenizer", [PAIRS, LETTERS], ids=["bytes", "lines"])
def test_token_files_equal_encoding_in_memory(tmp_path: Path, tokenizer: LanguageTokenizer) -> None:
    build(tmp_path / "tokens", tokenizer)
    data = TokenizedText(folder=str(tmp_path / "tokens"))
    read, encoded = data.read("train"), encode_text(collect(iter(DOCUMENTS[:50])), tokenizer, 16)
    assert isinstance(read.ids, np.memmap)
    assert read.ids.dtype == np.uint16
    assert read.ids.tolist() == encoded.ids.tolist()
    assert read.starts.tolist() == encoded.starts.tolist()
    assert read.amounts == encoded.amounts
    assert (read.tokenizer.sha256, data.vocab) == (tokenizer.sha256, tokenizer.vocab)
    assert data.test is None
    assert not data.problems()
    assert os.listdir(tmp_path) == ["tokens"]
    same = TextBatches(EncodedText(read.ids, read.starts, 16, read.amounts, read.sha256), 0, 64).at(3)
    other = TextBatches(encoded, 0, 64).at(3)
    assert (same.ids.tolist(), same.ids.dtype) == (other.ids.tolist(), other.ids.dtype)
    with pytest.raises(UserError, match="there is no test data"):
        data.read("test")


def test_large_vocabulary_is_stored_in_wider_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_building, "SMALL", 256)
    build(tmp_path / "tokens")
    read = TokenizedText(folder=str(tmp_path / "tokens")).read("train")
    assert read.ids.dtype == np.uint32
    assert read.ids.tolist() == encode_text(collect(iter(DOCUMENTS[:50])), PAIRS, 16).ids.tolist()


def test_two_processes_write_the_same_files_as_one(tmp_path: Path) -> None:
    build(tmp_path / "one")
    build(tmp_path / "two", jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# ------------------------------------------------------------------ going on
class StopError(Exception):
    """Interrupts the building of token files."""


def build_and_stop(folder: Path, after: int, split: Split = "train", **more: Any) -> None:
    """Start writing token files, and stop after this many documents of a split."""

    def documents() -> DocumentStream:
        yield from DOCUMENTS[:after]
        raise StopError

    with pytest.raises(StopError):
        build(folder, **{split: documents}, **more)
    assert not folder.exists()


@pytest.mark.parametrize(("split", "after"), [("train", 1), ("train", 30), ("train", 50), ("valid", 5)])
def test_interrupted_tokenization_resumes_to_the_same_files(tmp_path: Path, split: Split, after: int) -> None:
    build(tmp_path / "whole")
    begin = 0 if split == "train" else 50

    def cut() -> DocumentStream:
        yield from DOCUMENTS[begin : begin + after]
        raise StopError

    with pytest.raises(StopError):
        build(tmp_path / "tokens", **{split: cut})
    work = tmp_path / "tokens.unfinished"
    with open(work / "journal.jsonl", "ab") as journal:
        journal.write(b'{"split": "train", "te')  # as after a power failure
    for name in ("train.ids", "train.documents"):
        with open(work / "tokens" / name, "ab") as file:
            file.write(b"half a shard")
    said = build(tmp_path / "tokens")
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")
    assert [line.startswith("resuming after") for line in said] == ([True] if after > 1 else [])
    assert not work.exists()


def test_changed_text_or_recipe_restarts_tokenization(tmp_path: Path) -> None:
    build(tmp_path / "whole")
    build_and_stop(tmp_path / "a", 40)
    assert "the recipe or the text files" in build(tmp_path / "a", plan={"tokenizer": "other"})[0]
    for changed in (["something else"], None):
        name = f"b-{changed is None}"
        with pytest.raises(StopError):
            build(tmp_path / name, train=lambda changed=changed: changed_documents(changed))
        said = build(tmp_path / name)
        assert said[1].startswith("starting over: the text has")
        assert contents(tmp_path / name) == contents(tmp_path / "whole")
    build_and_stop(tmp_path / "c", 40)
    (tmp_path / "c.unfinished" / "tokens" / "train.ids").write_bytes(b"")
    assert "shorter than its journal says" in build(tmp_path / "c")[1]
    for name in "ac":
        assert contents(tmp_path / name) == contents(tmp_path / "whole")


def changed_documents(changed: list[str] | None) -> DocumentStream:
    """The documents with the first one changed, or with more of them."""
    yield from [changed, *DOCUMENTS[1:40]] if changed is not None else DOCUMENTS * 2
    raise StopError


@pytest.mark.slow
def test_killed_tokenize_command_resumes(tmp_path: Path) -> None:
    text = "".join(f"line {number} of a text that is long enough to be cut\n" for number in range(90_000))
    (tmp_path / "text.txt").write_text(text)
    words = ["tokenize", "gpt-prose", "-o", "tokens", "data={kind: text, train: text.txt}", "tokenizer.vocab=300"]
    command = [sys.executable, "-m", "heedful", *words, "--jobs", "2"]
    begun = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    journal = tmp_path / "tokens.unfinished" / "journal.jsonl"
    until(lambda: begun.poll() is not None or (journal.is_file() and journal.stat().st_size))
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    assert not (tmp_path / "tokens").exists()
    done = subprocess.run([*command[:-1], "1"], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert "resuming after" in done.stderr
    assert "training the tokenizer" not in done.stderr
    read = TokenizedText(folder=str(tmp_path / "tokens")).read("train")
    kept = TextFiles(root=str(tmp_path), train="text.txt").read("train")
    assert np.array_equal(read.ids, encode_text(kept, read.tokenizer, 16).ids)
    assert "data={kind: tokens, folder: tokens}" in done.stdout


def test_existing_folders_and_concurrent_writers_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="already exists"):
        build(tmp_path / "there")
    (tmp_path / "mine.unfinished").mkdir()
    (tmp_path / "mine.unfinished" / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match=r"contains other files.*"):
        build(tmp_path / "mine")
    assert (tmp_path / "mine.unfinished" / "diary.txt").read_text() == "dear diary"

    def meanwhile() -> DocumentStream:
        with pytest.raises(UserError, match="another process"):
            build(tmp_path / "tokens")
        yield from DOCUMENTS

    build(tmp_path / "tokens", train=meanwhile)
    with pytest.raises(UserError, match="there is no text for valid"):
        build(tmp_path / "none", valid=lambda: iter([]))


@pytest.mark.parametrize("cut", [last_split, LineCodec.split_point])
def test_tokenization_never_loads_the_whole_text(tmp_path: Path, cut: Callable[[str], int]) -> None:
    path = tmp_path / "text.txt"
    with path.open("w") as file:
        for number in range(100_000):
            file.write(f"{number} " + "all work and no play makes jack a dull boy " * 2 + "\n")
    source = TextFiles(root=str(tmp_path), train="text.txt", held_out=0.01)
    tracemalloc.start()
    found = passages(source.stream("train"), cut, 1 << 17)
    size = sum(len(passage.text) for some in shards(found, 1 << 19) for passage in some)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 9_000_000
    assert peak < 4_000_000


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize("name", ["tokenizer.json", "train.ids", "train.documents"])
def test_one_changed_byte_is_detected(tmp_path: Path, name: str) -> None:
    build(tmp_path / "tokens")
    path = tmp_path / "tokens" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"damaged.*") as error:
        TokenizedText(folder=str(tmp_path / "tokens")).read("train")
    assert name in str(error.value)
    path.write_bytes(bytes(data[:-1]))
    (problem,) = TokenizedText(folder=str(tmp_path / "tokens")).problems()
    assert name in str(problem)


def test_inconsistent_files_are_rejected_despite_a_matching_manifest(tmp_path: Path) -> None:
    build(tmp_path / "tokens")
    path = tmp_path / "tokens" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["tokens"] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="do not fit together"):
        TokenizedText(folder=str(tmp_path / "tokens")).read("train")
    manifest["files"]["../outside"] = manifest["files"]["train.ids"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="a file named"):
        TokenizedText(folder=str(tmp_path / "tokens")).manifest()
    path.write_text(json.dumps({"format": 1, "kind": "tokens", "vocab": 9, "splits": {}, "files": {}}))
    with pytest.raises(UserError, match="kind"):
        TokenizedText(folder=str(tmp_path / "tokens")).manifest()
