"""Added tokens of published tokenizers: the ids of `transformers`, read, split in long texts, and written back."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken

from heedful.data.tokenizers import byte_pairs
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.data.tokenizers.lm_tokenization import codec_of
from heedful.data.tokenizers.roberta import RobertaBpe, RobertaTokenizer
from heedful.errors import UserError
from heedful.hub.gpt_tokenizers import find_tokenizer

TEXT = "the child came home from school, naïve and New York again. " * 5
ADDED = (
    "covid", "New York", "naïve", "漢字", "the", "e", " \n", "<|im_start|>",
    AddedToken("<mid>", lstrip=True, rstrip=True), AddedToken("wo", single_word=True),
)  # fmt: skip
PIECES = ("covid", "New", " ", "York", "naïve", "漢字", "the", "school", "\n", "<mid>", "wo", "two", "<a>", "x", "é")
MANY = 1000


def folder_of(kind: str, folder: Path) -> tuple[Path, Any]:
    """A folder of `transformers` with added tokens, and its tokenizer."""
    ours: Any = (
        Gpt2Tokenizer.train(Gpt2Bpe(vocab=300), [TEXT])
        if kind == "gpt2"
        else RobertaTokenizer.train(RobertaBpe(vocab=300), [TEXT])
    )
    folder.mkdir()
    for name, text in ours.files(64).items():
        (folder / name).write_text(text)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens(list(ADDED))
    theirs.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": ["<a>"]})
    theirs.save_pretrained(folder)
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


def read(kind: str, folder: Path) -> Any:
    """Our tokenizer of a folder."""
    return (
        find_tokenizer(folder, MANY, "byte_pairs")[0]
        if kind == "gpt2"
        else RobertaTokenizer.from_folder(folder, MANY)[0]
    )


def texts() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(PIECES, k=rng.randint(0, 30))) for _ in range(200)]


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_added_tokens_have_the_ids_of_transformers(kind: str, tmp_path: Path) -> None:
    folder, theirs = folder_of(kind, tmp_path / "theirs")
    ours, right = read(kind, folder), [theirs(text, add_special_tokens=False)["input_ids"] for text in texts()]
    assert ours.vocab == len(theirs) and {*range(300, 304), ours.vocab - 1} < {
        number for ids in right for number in ids
    }
    assert ours.ids(texts()) == right == [one.ids for one in ours.encode_batch(texts())]
    assert ours.decode(theirs("naïve 漢字 covid <mid> x", add_special_tokens=False)["input_ids"]).split() == [
        "naïve", "漢字", "covid<mid>x",
    ]  # fmt: skip
    assert ours.decode([theirs.convert_tokens_to_ids("<a>")]) == ""
    for name, text in ours.files(64).items():
        (tmp_path / name).write_text(text)
    for again in (read(kind, tmp_path), type(ours)(ours.json, "tokenizer.json")):
        assert (again.json, again.ids(texts()), again.special) == (ours.json, right, ours.special)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [back(text, add_special_tokens=False)["input_ids"] for text in texts()] == right


def test_long_texts_are_not_split_inside_added_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = read("gpt2", folder_of("gpt2", tmp_path / "theirs")[0])
    codec, whole = codec_of(ours), " ".join(texts())
    right = ours.ids([whole])[0]
    monkeypatch.setattr(byte_pairs, "PART", 3)
    assert len(list(ours.split_text(whole))) > 200
    assert ours.ids([whole])[0] == ours.ids_of(whole).tolist() == right
    for end in range(20, 1000, 7):
        cut = codec.split_point(whole[:end])
        assert codec.encode(whole[:cut]) + codec.encode(whole[cut:]) == right, end


@pytest.mark.parametrize(
    ("token", "found"),
    [
        ({"id": 900, "content": "x y"}, "but none has"),
        ({"id": 5, "content": "xy"}, "the piece"),
        ({"id": 308, "content": ""}, "an added token"),
        ({"id": 308, "content": "xy", "lstrip": 1}, "an added token"),
        ({"id": True, "content": "xy"}, "an added token"),
        ({"id": 308, "content": "\ud800"}, "not valid text"),
        ("xy", "an added token"),
    ],
)
def test_broken_added_tokens_are_refused(token: Any, found: str, tmp_path: Path) -> None:
    ours = Gpt2Tokenizer.train(Gpt2Bpe(vocab=300), [TEXT])
    data = json.loads(ours.json)
    data["added_tokens"].append(token)
    with pytest.raises(UserError, match=found) as raised:
        Gpt2Tokenizer(json.dumps(data), "tokenizer.json")
    assert "GPT" in str(raised.value) and "tokenizer.json" in str(raised.value)
