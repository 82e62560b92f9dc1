"""Token files of documents: memory-mapped, and refused if they were changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from heedful.data.formats.sources import Split
from heedful.data.text.pretraining import PairRules, encode_documents, tokenize_documents
from heedful.data.text.token_documents import TokenFiles, write_tokens
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError

DOCUMENTS = [[f"the cat number {number} sat.", "\u200b", "it slept for a while", "漢字"] for number in range(20)]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=120), (text for document in DOCUMENTS[:15] for text in document[:3]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of token files."""
    splits: dict[Split, list[list[str]]] = {"train": DOCUMENTS[:15], "valid": DOCUMENTS[15:]}
    write_tokens(
        tmp_path / "tokens", TOKENIZER, {split: tokenize_documents(some, TOKENIZER) for split, some in splits.items()}
    )
    return tmp_path / "tokens"


def test_token_files_equal_encoding_in_memory(folder: Path) -> None:
    read = TokenFiles(folder=str(folder)).read("train")
    encoded = encode_documents(DOCUMENTS[:15], TOKENIZER, 32, PairRules())
    for one, other in (
        (read.ids, encoded.ids),
        (read.sentences, encoded.sentences),
        (read.documents, encoded.documents),
    ):
        assert isinstance(one, np.memmap)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert read.unknown == encoded.unknown > 0
    assert read.tokenizer.sha256 == TOKENIZER.sha256
    assert read.sha256 != TokenFiles(folder=str(folder)).read("valid").sha256
    counts = TokenFiles(folder=str(folder)).manifest().splits["train"]
    assert (counts.documents, counts.sentences, counts.tokens) == (15, 45, len(encoded))
    assert TokenFiles(folder=str(folder)).vocab == TOKENIZER.vocab
    assert not TokenFiles(folder=str(folder)).problems()


def test_missing_split_is_reported(folder: Path) -> None:
    assert TokenFiles(folder=str(folder)).test is None
    with pytest.raises(UserError, match="there is no test data"):
        TokenFiles(folder=str(folder)).read("test")


@pytest.mark.parametrize("name", ["tokenizer.json", "train.ids", "train.sentences", "train.documents"])
def test_one_changed_byte_is_detected(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"damaged.*") as error:
        TokenFiles(folder=str(folder)).read("train")
    assert name in str(error.value)


def test_missing_and_short_files_are_reported_without_reading(folder: Path) -> None:
    (folder / "train.ids").unlink()
    (folder / "valid.ids").write_bytes(b"1234")
    message = "\n".join(map(str, TokenFiles(folder=str(folder)).problems()))
    assert "train.ids" in message
    assert "no such file" in message
    assert "4 bytes, not" in message
    with pytest.raises(UserError, match=r"train.ids"):
        TokenFiles(folder=str(folder)).read("train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ('{"format": 2}', "format"),
        (json.dumps({"format": 1, "kind": "tokens", "vocab": 9, "splits": {}, "files": {}, "more": 1}), "more"),
    ],
)
def test_invalid_manifest_is_rejected(folder: Path, text: str, message: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest.json") as error:
        TokenFiles(folder=str(folder)).read("train")
    assert message in str(error.value)


def test_inconsistent_files_are_rejected_despite_a_matching_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["tokens"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="do not fit together"):
        TokenFiles(folder=str(folder)).read("train")


def test_token_folders_are_written_atomically(tmp_path: Path) -> None:
    def broken() -> object:
        yield [[5, 6], [7]]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tokens(tmp_path / "tokens", TOKENIZER, {"train": broken()})  # type: ignore[dict-item]
    assert os.listdir(tmp_path) == []
    with pytest.raises(UserError, match="there is no text for train"):
        write_tokens(tmp_path / "tokens", TOKENIZER, {"train": []})
    assert os.listdir(tmp_path) == []
    (tmp_path / "tokens").mkdir()
    with pytest.raises(UserError, match="already exists"):
        write_tokens(tmp_path / "tokens", TOKENIZER, {"train": [[[5]]]})
    with pytest.raises(UserError, match="there is no such folder"):
        TokenFiles(folder=str(tmp_path / "nothing")).read("train")
    with pytest.raises(UserError, match=r"no manifest.json"):
        TokenFiles(folder=str(tmp_path / "tokens")).read("train")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "train.ids/../../outside", "more.ids"])
def test_manifest_cannot_name_outside_files(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"size": 1, "sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (error,) = TokenFiles(folder=str(folder)).problems()
    assert "a file named" in str(error)
    with pytest.raises(UserError, match="a file named"):
        TokenFiles(folder=str(folder)).read("train")


def test_links_are_rejected(folder: Path, tmp_path: Path) -> None:
    (folder / "train.ids").rename(tmp_path / "elsewhere")
    (folder / "train.ids").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="a link"):
        TokenFiles(folder=str(folder)).read("train")
