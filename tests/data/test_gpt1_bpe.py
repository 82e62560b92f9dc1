"""GPT-1's tokenizer: the ids and texts of `transformers` on the same files."""

from __future__ import annotations

import json
import pydoc_data.topics
import random
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from heedful.data.tokenizers import byte_pairs as bytepairs
from heedful.data.tokenizers.base import replace_surrogates
from heedful.data.tokenizers.gpt1_bpe import Gpt1Tokenizer
from heedful.errors import UserError

TEXTS = [pydoc_data.topics.topics[topic] for topic in sorted(pydoc_data.topics.topics)[:30]]
ALPHABETS = [
    "abc DEF éàüñ", "漢字かな", "\x00\x01\x1c\x7f\x85\u200b\ufeff\ufffd", "0123456789²½", "😀👨\u200d👩🏽",
    " \t\n\r\u00a0\u3000", "İıſﬁÅẞσςΣe\u0301a\u0308", "<unk></w>", "[]{}()#@!?.,;:'\"-–—…", "\ud800\udfff",
]  # fmt: skip


def train_tokenizer() -> Gpt1Tokenizer:
    """A tokenizer trained on a little text."""
    engine = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    engine.train_from_iterator([*TEXTS, "Grüße, naïve Σίσυφος"], trainer)
    model = json.loads(engine.to_str())["model"]
    return Gpt1Tokenizer.from_vocab(model["vocab"], [(a, b) for a, b in model["merges"]], "made")


MADE = train_tokenizer()


def odd_strings(count: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(40))) for _ in range(count)]


def hugging_face_tokenizer(folder: Path) -> Any:
    """The same tokenizer in `transformers`, from the vocabulary and merges."""
    from transformers import OpenAIGPTTokenizerFast

    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text(MADE.files()[name], encoding="utf-8")
    return OpenAIGPTTokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def plain(theirs: Any, text: str) -> list[int]:
    found: list[int] = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return found


def test_gpt1_ids_and_decoding_equal_transformers_on_odd_texts(tmp_path: Path) -> None:
    theirs = hugging_face_tokenizer(tmp_path)
    texts = [*TEXTS, *odd_strings(2000)]
    for text, ids in zip(texts, MADE.ids(texts), strict=True):
        assert ids == plain(theirs, replace_surrogates(text)[0]), repr(text)
        assert MADE.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert MADE.ids([TEXTS[0]])[0] == MADE.encode(TEXTS[0]).ids == MADE.ids_of(TEXTS[0]).tolist()


def test_words_are_lowercased_and_end_with_a_mark() -> None:
    found = MADE.encode("The\n Statement")
    assert "".join(found.pieces) == "the</w>statement</w>"
    assert found.offsets[0][0] == 0 and found.offsets[-1][1] == 14
    assert MADE.decode(found.ids) == "the statement"
    assert MADE.bytes(found.ids) == b"the statement "
    assert MADE.ids(["\u2603"])[0] == [MADE.unk]
    assert MADE.end is None


def test_unk_in_a_text_is_ordinary_text() -> None:
    assert MADE.unk not in MADE.ids(["a <unk> b<unk>"])[0]
    assert MADE.unk not in MADE.encode_special("<unk>")
    assert MADE.encode("a \ud800").replaced == 1


def test_split_long_texts_have_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = odd_strings(300)
    expected = [MADE.encode(text).ids for text in texts]
    monkeypatch.setattr(bytepairs, "PART", 2)
    assert MADE.ids(texts) == expected
    assert [MADE.ids_of(text).tolist() for text in texts] == expected


@pytest.mark.parametrize("text", ["!", " ", "a", "ab ", "é"])
@pytest.mark.parametrize("length", [2**18, pytest.param(2**20, marks=pytest.mark.slow)])
def test_long_line_is_encoded_in_three_seconds(text: str, length: int) -> None:
    line = text * (length // len(text.encode()))
    begun = time.process_time()
    MADE.ids([line])
    assert time.process_time() - begun < 3


def test_files_round_trip_through_transformers(tmp_path: Path) -> None:
    from transformers import OpenAIGPTTokenizerFast

    for name, text in MADE.files(context=64).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    theirs = OpenAIGPTTokenizerFast.from_pretrained(tmp_path)
    assert plain(theirs, TEXTS[0]) == MADE.ids([TEXTS[0]])[0]
    assert (len(theirs), theirs.unk_token_id, theirs.model_max_length) == (MADE.vocab, MADE.unk, 64)
    theirs.save_pretrained(tmp_path / "saved")
    assert Gpt1Tokenizer.read(tmp_path / "saved").json == MADE.json
    assert Gpt1Tokenizer.read(tmp_path / "vocab.json").sha256 == MADE.sha256
    assert Gpt1Tokenizer.read(tmp_path).vocab == MADE.vocab
    MADE.save(tmp_path / "again.json")
    assert Gpt1Tokenizer.load(tmp_path / "again.json").files() == MADE.files()


GOOD = json.loads(MADE.json)


@pytest.mark.parametrize(
    ("part", "change", "found"),
    [
        ("model", {"end_of_word_suffix": None}, "model with end_of_word_suffix None"),
        ("model", {"unk_token": None}, "model with unk_token None"),
        ("model", {"fuse_unk": True}, "model with fuse_unk True"),
        ("model", {"merges": [["!", "z"]]}, "as merge 1 of 1, a merge into no known piece"),
        ("model", {"vocab": {"a": 0}, "merges": []}, "none is <unk>"),
        ("normalizer", {"lowercase": False}, "normalizer with lowercase False"),
        ("normalizer", {"type": "Replace"}, "normalizer of type 'Replace'"),
        ("pre_tokenizer", {"type": "ByteLevel"}, "pre_tokenizer of type 'ByteLevel'"),
        ("decoder", {"suffix": "@@"}, "decoder with suffix '@@'"),
    ],
)
def test_invalid_tokenizer_files_are_rejected(part: str, change: dict[str, Any], found: str) -> None:
    with pytest.raises(UserError) as error:
        Gpt1Tokenizer(json.dumps(GOOD | {part: GOOD[part] | change, "added_tokens": []}), "tokenizer.json")
    assert found in str(error.value)
    assert str(error.value).startswith("tokenizer.json")


def test_invalid_merges_and_a_missing_unk_are_reported() -> None:
    files = MADE.files()
    lines = files["merges.txt"].split("\n")
    with pytest.raises(UserError, match=r"merges\.txt:3: "):
        Gpt1Tokenizer.from_texts(
            files["vocab.json"], "\n".join([*lines[:2], "x </w>", *lines[2:]]), "vocab.json", "merges.txt"
        )
    with pytest.raises(UserError) as error:
        Gpt1Tokenizer.from_vocab({"a": 0, "a</w>": 1}, [], "vocab.json")
    assert "none is <unk>" in str(error.value)
