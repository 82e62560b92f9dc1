"""RoBERTa's tokenizer compared with `transformers`: ids, offsets and pairs; unsupported files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from heedful.data.tokenizers.roberta import RobertaBpe, RobertaBpeFiles, RobertaTokenizer
from heedful.errors import UserError

TEXTS = ["the cat sat on the mat, and the dog ran", "A dog's tail — naïve café! 日本", "it is 2024; isn't it?\n\nso"]
ODD = [
    "", " ", "  two  spaces ", "\n", "tab\tand\r\nlines", "naïve — café", "日本語 text", "👩‍👩‍👧 family",
    "e\u0301", "\u00a0x", "the cat's 12,345.67!!", "\u200b", "ß İ ﬁ", "a" * 300, " leading", "trailing ", "x \n y",
    "<S>", "[MASK]",
]  # fmt: skip
OURS = RobertaTokenizer.train(RobertaBpe(vocab=320), TEXTS)


def write_files(folder: Path, tokenizer: RobertaTokenizer = OURS, **settings: Any) -> Path:
    """Write the files of a tokenizer with some settings changed."""
    folder.mkdir(exist_ok=True)
    for name, text in tokenizer.files(64).items():
        (folder / name).write_text(text, encoding="utf-8")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_ids_and_offsets_equal_transformers(prefix: bool, listed: bool, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", add_prefix_space=prefix)
    if listed:
        (folder / "tokenizer.json").unlink()
    ours, longest, notes = RobertaTokenizer.from_folder(folder, OURS.vocab)
    theirs = transformers.RobertaTokenizer.from_pretrained(folder)
    assert isinstance(ours, RobertaTokenizer) and (ours.prefix, longest, notes) == (prefix, 64, ())
    for text in ODD:
        expected = theirs(text, return_offsets_mapping=True, add_special_tokens=False)
        found = ours.encode(text)
        assert found.ids == expected["input_ids"] == ours.ids([text])[0], text
        assert found.offsets == [tuple(place) for place in expected["offset_mapping"]], text
        assert ours.pair(found.ids)[0] == theirs(text)["input_ids"]
        for other in filter(None, ODD):  # an empty one is None to `transformers`
            assert ours.pair(found.ids, ours.ids([other])[0])[0] == theirs(text, other)["input_ids"], (text, other)
    ids = (theirs.cls_token_id, theirs.pad_token_id, theirs.sep_token_id, theirs.unk_token_id, theirs.mask_token_id)
    assert ids == (ours.cls, ours.pad, ours.sep, ours.unk, ours.mask) == (0, 1, 2, 3, OURS.vocab - 1)
    for text in ("the <mask> sat", "<mask>", "a  <mask><mask> b", "the<mask>, so"):
        assert ours.encode_with_masks(text) == theirs(text, add_special_tokens=False)["input_ids"], text


def test_texts_decode_back_and_special_tokens_are_ordinary_text() -> None:
    for text in (*ODD, "<s></s><pad><unk><mask>"):
        ids = OURS.ids([text])[0]
        assert OURS.decode(ids) == text and not OURS.special & set(ids)
    assert OURS.encode_with_masks("the [MASK] sat") == OURS.encode_with_masks("the <mask> sat")
    assert RobertaTokenizer(OURS.json, "again").json == OURS.json


def test_words_start_with_a_space() -> None:
    (ids,) = OURS.words(["cat"])
    assert OURS.decode(ids) == " cat" and OURS.words([""]) == [[OURS.unk]]
    assert not OURS.continues_word[ids[0]] and all(OURS.continues_word[number] for number in ids[1:])


def test_files_are_read_by_their_names(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files")
    for file in (folder, folder / "tokenizer.json", folder / "vocab.json"):
        assert RobertaBpeFiles(file=str(file)).read().json == OURS.json


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer_class": "BertTokenizer"}, "tokenizer_class"),
        ({"mask_token": "[MASK]"}, "mask_token"),
        ({"trim_offsets": False}, "trim_offsets"),
        ({"add_prefix_space": "yes"}, "add_prefix_space"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"extra_special_tokens": ["<extra>"]}, "317 pieces"),
    ],
)
def test_settings_that_change_ids_are_rejected(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        RobertaTokenizer.from_folder(write_files(tmp_path / "files", **change), OURS.vocab)


def test_damaged_files_are_rejected(tmp_path: Path) -> None:
    data = json.loads(OURS.json)
    moved = {piece: (number + 1) % OURS.vocab for piece, number in data["model"]["vocab"].items()}
    for change in ({"vocab": moved}, {"vocab": {}}, {"merges": [["zz", "q"]]}):
        with pytest.raises(UserError):
            RobertaTokenizer(json.dumps({**data, "added_tokens": [], "model": {**data["model"], **change}}), "file")
    folder = write_files(tmp_path / "files")
    with pytest.raises(UserError, match="does not match the model"):
        RobertaTokenizer.from_folder(folder, OURS.vocab - 1)
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").unlink()
    with pytest.raises(UserError, match="has no merges"):
        RobertaTokenizer.from_folder(folder, OURS.vocab)
