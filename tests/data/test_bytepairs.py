"""GPT-2's tokenizer: the ids of `transformers` on any text, lossless decoding, and strict parsing of files."""

from __future__ import annotations

import gzip
import json
import os
import pydoc_data.topics
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.tokenizers import base, byte_pairs
from heedful.data.tokenizers.byte_pairs import END, Gpt2Bpe, Gpt2BpeFiles, Gpt2Tokenizer, gpt2_tokenizer, split_text
from heedful.data.tokenizers.tokenizer import byte_letters
from heedful.errors import UserError

DATA = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"))
PUBLISHED = Path(os.environ.get("HEEDFUL_WEIGHTS", "../shared/weights"), "vocab-gpt2")
published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no files of GPT-2 in {PUBLISHED}; set HEEDFUL_WEIGHTS")
TEXTS = [pydoc_data.topics.topics[topic] for topic in sorted(pydoc_data.topics.topics)[:30]]
TRAINED = Gpt2Tokenizer.train(Gpt2Bpe(vocab=600), TEXTS)
ALPHABETS = [
    "abc DEF éàüñ", "漢字かな한국", "\x00\x01\x1c\x1f\x7f\x85\u200b\u200d\ufeff\u00ad\ufffd", "0123456789²½Ⅷ٣",
    "😀👨\u200d👩\u200d👧🏽🇩🇪", " \t\n\r\v\f\u00a0\u2003\u2028\u3000", "İıſﬁ½ÅǅẞσςΣe\u0301a\u0308", "'s't're've'm'll'd",
    "<|endoftext|>", "[]{}()#@!?.,;:'\"-–—…`~$^", "שלום مرحبا नमस्ते ไทย", "\ud800\udfff", "\ue000\ufffe\uffff\U0010ffff",
]  # fmt: skip


def odd_strings(count: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(40))) for _ in range(count)]


def hugging_face_tokenizer(folder: Path, tokenizer: Gpt2Tokenizer) -> Any:
    """The same tokenizer in `transformers`, from the vocabulary and merges."""
    from transformers import GPT2TokenizerFast

    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text(tokenizer.files()[name], encoding="utf-8")
    return GPT2TokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def plain(theirs: Any, text: str) -> list[int]:
    found: list[int] = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return found


def readable(text: str) -> str:
    return byte_pairs.replace_surrogates(text)[0]


def test_ids_equal_transformers_and_decode_back_on_odd_texts(tmp_path: Path) -> None:
    theirs = hugging_face_tokenizer(tmp_path, TRAINED)
    texts = [*TEXTS, *odd_strings(2000)]
    for text, ids in zip(texts, TRAINED.ids(texts), strict=True):
        assert ids == plain(theirs, readable(text)), repr(text)
        assert TRAINED.decode(ids) == readable(text)
        assert TRAINED.bytes(ids) == readable(text).encode()
    for text, found in zip(texts, TRAINED.encode_batch(texts), strict=True):
        assert found.replaced == sum("\ud800" <= letter <= "\udfff" for letter in text)
        assert found.pieces == TRAINED.pieces(found.ids)
        covered = {place for start, end in found.offsets for place in range(start, end)}
        assert covered == set(range(len(text)))


@published
def test_published_files_equal_transformers_and_round_trip(tmp_path: Path) -> None:
    ours = Gpt2Tokenizer.read(PUBLISHED)
    assert (ours.vocab, ours.end) == (50257, 50256)
    assert ours.ids(["Hello world", " Hello world", "the child came home from"]) == [
        [15496, 995], [18435, 995], [1169, 1200, 1625, 1363, 422],
    ]  # fmt: skip
    files = ours.files()
    assert files["vocab.json"].encode() == (PUBLISHED / "encoder.json").read_bytes()
    assert files["merges.txt"].encode() == (PUBLISHED / "vocab.bpe").read_bytes()
    theirs = hugging_face_tokenizer(tmp_path, ours)
    texts = odd_strings(500)
    for name in ("novels/Stevenson_Treasure_1883.txt.gz", "wikitext-2/wiki.valid.raw.gz"):
        if (DATA / name).is_file():
            texts.append(gzip.decompress((DATA / name).read_bytes()).decode()[:300_000])
    for text, ids in zip(texts, ours.ids(texts), strict=True):
        assert ids == plain(theirs, readable(text)), repr(text[:80])
        assert ours.decode(ids) == readable(text)
    assert [ours.ids_of(text).tolist() for text in texts[-2:]] == ours.ids(texts[-2:])


def test_random_ids_decode_as_in_transformers(tmp_path: Path) -> None:
    theirs = hugging_face_tokenizer(tmp_path, TRAINED)
    rng = random.Random(1)
    for _ in range(500):
        ids = [rng.randrange(rng.choice([256, TRAINED.vocab])) for _ in range(rng.randrange(12))]
        assert TRAINED.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_transformers_reads_exported_tokenizers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GPT2TokenizerFast

    for name, text in TRAINED.files(context=64).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    expected = TRAINED.ids([TEXTS[0]])[0]
    for theirs in (GPT2TokenizerFast.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert theirs(TEXTS[0][:10])["input_ids"] == TRAINED.ids([TEXTS[0][:10]])[0]
        assert plain(theirs, TEXTS[0]) == expected
        assert (theirs.eos_token_id, theirs.bos_token_id, len(theirs)) == (TRAINED.end, TRAINED.end, TRAINED.vocab)
        assert theirs.model_max_length == 64
        assert theirs.pad_token is None
    (tmp_path / "tokenizer.json").unlink()
    assert plain(GPT2TokenizerFast.from_pretrained(tmp_path), TEXTS[0]) == expected


def test_tokenizers_written_by_transformers_are_read(tmp_path: Path) -> None:
    hugging_face_tokenizer(tmp_path, TRAINED).save_pretrained(tmp_path / "saved")
    read = Gpt2Tokenizer.read(tmp_path / "saved")
    assert read.json == TRAINED.json
    assert (read.sha256, read.files()) == (TRAINED.sha256, TRAINED.files())


def test_endoftext_in_a_text_is_ordinary_text_unless_requested(tmp_path: Path) -> None:
    theirs = hugging_face_tokenizer(tmp_path, TRAINED)
    for text in ("<|endoftext|>", "a<|endoftext|> b", "<|endoftext|><|endoftext|>\n", "<|endof<|endoftext|>text|>", ""):
        assert TRAINED.end not in TRAINED.ids([text])[0]
        assert TRAINED.end not in TRAINED.encode(text).ids
        assert TRAINED.end not in TRAINED.ids_of(text)
        assert TRAINED.decode(TRAINED.ids([text])[0]) == text
        assert TRAINED.encode_special(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert TRAINED.encode_special(text).count(TRAINED.end) == text.count(END)
    assert TRAINED.decode(TRAINED.encode_special("a<|endoftext|>b")) == "ab"
    assert TRAINED.pieces([TRAINED.end]) == [END]


def test_lone_surrogates_become_replacement_characters() -> None:
    found = TRAINED.encode("the \ud800 dog\udfff")
    assert found.replaced == 2
    assert TRAINED.decode(found.ids) == "the \ufffd dog\ufffd"
    assert found.ids == TRAINED.ids(["the \ud800 dog\udfff"])[0] == TRAINED.ids_of("the \udfff dog\ud801").tolist()


def test_partial_characters_are_shown_as_bytes_and_streamed_whole() -> None:
    ids = TRAINED.ids(["漢"])[0]
    assert TRAINED.pieces(ids) == ["\\xe6", "\\xbc", "\\xa2"]
    assert [TRAINED.bytes([number]) for number in ids] == [b"\xe6", b"\xbc", b"\xa2"]
    assert TRAINED.decode(ids[:2]) == "\ufffd"
    assert TRAINED.encode("a漢").offsets == [(0, 1), (1, 2), (1, 2), (1, 2)]


LETTERS = [*"ab1! \n\t\r'\x1c\x85\u00a0\u3000\u2028漢é", "'s", "'ll", "  ", "\n\n"]
# Learned from such letters in any order, so that whatever may be one piece is one.
WOVEN = Gpt2Tokenizer.train(
    Gpt2Bpe(vocab=3000), ["".join(random.Random(seed).choices(LETTERS, k=9)) for seed in range(3000)]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(LETTERS), max_size=30))
def test_split_texts_have_the_same_ids(letters: list[str]) -> None:
    text = "".join(letters)
    whole = WOVEN.encode(text).ids
    usual = byte_pairs.PART
    try:
        for part in (1, 2, 5):
            byte_pairs.PART = part
            assert "".join(split_text(text)) == text
            assert WOVEN.ids([text, "a", text]) == [whole, WOVEN.encode("a").ids, whole]
            found = WOVEN.ids_of(text)
            assert (found.tolist(), found.dtype) == (whole, np.int32)
    finally:
        byte_pairs.PART = usual


def test_parallel_encoding_has_the_same_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "\n".join(TEXTS * 3)
    assert len(text) > 5 * byte_pairs.PART
    parts = list(split_text(text))
    assert max(map(len, parts)) < byte_pairs.PART + 200
    whole = TRAINED.encode(text).ids
    assert TRAINED.ids_of(text).tolist() == whole
    monkeypatch.setattr(byte_pairs, "GROUP", 2 * byte_pairs.PART)
    sizes = [len(group) for group in byte_pairs.group_parts(split_text(text))]
    assert sum(sizes) == len(parts) and max(sizes) <= 2
    assert TRAINED.ids_of(text).tolist() == whole


@pytest.mark.parametrize("text", ["!", " ", "a", "\n", "ab ", "e\u0301", "' "])
@pytest.mark.parametrize("length", [2**18, pytest.param(2**20, marks=pytest.mark.slow)])
def test_long_line_is_encoded_in_three_seconds(text: str, length: int) -> None:
    line = text * (length // len(text.encode()))
    begun = time.process_time()
    ids = TRAINED.ids([line])[0]
    assert time.process_time() - begun < 3
    assert TRAINED.decode(ids) == line


def test_bpe_training_is_deterministic_and_numbered_as_gpt2() -> None:
    code = (
        "import pydoc_data.topics as p\n"
        "from heedful.data.tokenizers.byte_pairs import *\n"
        "texts = (p.topics[name] for name in sorted(p.topics)[:30])\n"
        "print(Gpt2Tokenizer.train(Gpt2Bpe(vocab=600), texts).sha256)\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert process.stdout.strip() == TRAINED.sha256
    assert (TRAINED.vocab, TRAINED.end) == (600, 599)
    vocab = json.loads(TRAINED.files()["vocab.json"])
    assert list(vocab)[:256] == sorted(byte_letters())
    merges = TRAINED.files()["merges.txt"].split("\n")[1:-1]
    assert [vocab[merge.replace(" ", "")] for merge in merges] == list(range(256, 599))


def test_smallest_vocabulary_is_bytes_only() -> None:
    bare = Gpt2Tokenizer.train(Gpt2Bpe(vocab=257), ["some text"])
    assert (bare.vocab, bare.end) == (257, 256)
    assert bare.bytes(bare.ids(["Grüße"])[0]) == "Grüße".encode()
    with pytest.raises(UserError, match="no text to train"):
        Gpt2Tokenizer.train(Gpt2Bpe(), ["", " \n"])


def test_saved_tokenizers_load(tmp_path: Path) -> None:
    TRAINED.save(tmp_path / "tokenizer.json")
    assert Gpt2Tokenizer.load(tmp_path / "tokenizer.json").json == TRAINED.json
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    with pytest.raises(UserError, match="cannot write tokenizer"):
        TRAINED.save(tmp_path / "no" / "tokenizer.json")


def test_recipe_accepts_all_published_file_names(tmp_path: Path) -> None:
    files = TRAINED.files()
    for folder, vocab, merges in (("hf", "vocab.json", "merges.txt"), ("openai", "encoder.json", "vocab.bpe")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / vocab).write_text(files["vocab.json"])
        (tmp_path / folder / merges).write_text(files["merges.txt"])
        for file in (tmp_path / folder, tmp_path / folder / vocab):
            config = Gpt2BpeFiles(file=str(file))
            assert gpt2_tokenizer(config, []).json == TRAINED.json
            assert config.vocab == 600
    other = tmp_path / "pieces.json"
    other.write_text(files["vocab.json"])
    assert Gpt2BpeFiles(file=str(other), merges=str(tmp_path / "openai" / "vocab.bpe")).read().json == TRAINED.json
    assert gpt2_tokenizer(Gpt2Bpe(vocab=600), TEXTS).json == TRAINED.json
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"a folder without tokenizer\.json"):
        Gpt2Tokenizer.read(empty)
    (tmp_path / "hf" / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"merges.txt: .*No such file"):
        Gpt2Tokenizer.read(tmp_path / "hf")


GOOD = json.loads(TRAINED.json)
VOCAB = GOOD["model"]["vocab"]
WORD = next(name for name, number in VOCAB.items() if number == 300)
BYTES = {name: number for name, number in VOCAB.items() if number < 256}


def edit(**parts: Any) -> str:
    """The text of a valid file with some parts replaced."""
    return json.dumps(GOOD | parts)


def model(**parts: Any) -> str:
    return edit(model=GOOD["model"] | parts)


def test_settings_without_effect_are_ignored() -> None:
    padding = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    assert Gpt2Tokenizer(edit(padding=padding, truncation=truncation, post_processor=None), "x").json == TRAINED.json
    strings = [" ".join(pair) for pair in GOOD["model"]["merges"]]
    old = {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": False, "vocab": VOCAB, "merges": strings,
    }  # fmt: skip
    assert Gpt2Tokenizer(edit(model=old), "x").json == TRAINED.json
    more = {**GOOD["added_tokens"][0], "id": 600, "content": "[padding漢]"}
    read = Gpt2Tokenizer(edit(added_tokens=[*GOOD["added_tokens"], more]), "x")
    assert (read.vocab, read.end, read.special) == (601, 599, {599, 600})
    assert read.ids(["a [padding漢]b"])[0] == [*read.ids(["a "])[0], 600, *read.ids(["b"])[0]]  # not split
    assert read.decode([600, *read.ids(["a [padding 漢]"])[0]]) == "a [padding 漢]"
    assert Gpt2Tokenizer(read.json, "x").json == read.json


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "tokenizer.json:1:2"),
        ("[1]", "no object"),
        ("[" * 100_000, "JSON that cannot be read"),
        (model(type="WordPiece"), "model of type 'WordPiece'"),
        (edit(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+b"}}), "pre_tokenizer of type 'Split'"),
        (edit(pre_tokenizer=None), "pre_tokenizer of type None"),
        (edit(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True}), "add_prefix_space True"),
        (edit(pre_tokenizer={**GOOD["pre_tokenizer"], "use_regex": False}), "use_regex False"),
        (edit(normalizer={"type": "NFC"}), "normalizer of type 'NFC'"),
        (edit(decoder={"type": "BPEDecoder"}), "decoder of type 'BPEDecoder'"),
        (model(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (model(ignore_merges=True), "ignore_merges"),
        (model(dropout=0.5), "dropout 0.5"),
        (model(vocab=[]), "without its vocab"),
        (model(vocab=VOCAB | {"zz": True}), "'zz' with the id True"),
        (model(vocab=VOCAB | {"zz": 300}), "'zz' with the id 300, a second time"),
        (model(vocab=VOCAB | {"zz": 602}), "'zz' with the id 602, but none has 600"),
        (model(vocab=VOCAB | {"a b": 600}), "'a b', which does not stand for bytes"),
        (model(vocab=VOCAB | {"": 600}), "'', which does not stand for bytes"),
        (edit(added_tokens=[], model=GOOD["model"] | {"vocab": BYTES, "merges": []}), "none is <|endoftext|>"),
        (model(vocab={END: 599}, merges=[]), "'<|endoftext|>' with the id 599, but none has 0"),
        (edit(added_tokens=[], model=GOOD["model"] | {"vocab": {END: 0, "a": 1}, "merges": []}), "of the 256 bytes"),
        (model(merges=[["a", "漢"]]), "as merge 1 of 1, a merge of '漢', which is not in the vocabulary"),
        (model(merges=[["!", "z"]]), "a merge into no known piece, '!z'"),
        (model(merges=[*GOOD["model"]["merges"], GOOD["model"]["merges"][3]]), "for the second time"),
        (model(merges=["ab"]), "model.merges[0]"),
        (model(merges=[["a", 1]]), "model.merges[0]"),
        (edit(added_tokens=[{"id": 97, "content": "dog", "special": False}]), "the id 97, a second time"),
        (edit(added_tokens=[{"id": 3, "content": END, "special": True}]), "an added token"),
        (edit(added_tokens=[{"id": 600, "content": "\ud800", "special": True}]), "which is not valid text"),
        (edit(added_tokens=[{"id": 300, "content": WORD, "special": True}]), f"into no known piece, {WORD!r}"),
        (edit(added_tokens=[{"id": VOCAB["a"], "content": "a", "special": True}]), "no piece for 1 of the 256"),
        (edit(added_tokens=7), "added_tokens of 7"),
    ],
)  # fmt: skip
def test_invalid_tokenizer_files_are_rejected(text: str, found: str) -> None:
    with pytest.raises(UserError) as error:
        Gpt2Tokenizer(text, "tokenizer.json")
    assert found in str(error.value)
    assert str(error.value).startswith("tokenizer.json")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a", "the line 'a'"),
        ("", "the line ''"),
        ("a b c", "not two pieces"),
        ("! z", "a merge into no known piece, '!z'"),
        ("<| endoftext|>", "which is not in the vocabulary"),
    ],
)
def test_invalid_merge_is_reported_by_its_line(line: str, found: str) -> None:
    header, *lines = TRAINED.files()["merges.txt"].split("\n")
    for top in ([header], []):
        text = "\r\n".join([*top, *lines[:6], line, *lines[6:]])
        with pytest.raises(UserError) as error:
            Gpt2Tokenizer.from_texts(TRAINED.files()["vocab.json"], text, "vocab.json", "merges.txt")
        assert str(error.value).startswith(f"merges.txt:{len(top) + 7}: ")
        assert found in str(error.value)
    good = "\r\n".join(lines)
    assert Gpt2Tokenizer.from_texts(TRAINED.files()["vocab.json"], good, "v", "m").json == TRAINED.json


def test_binary_or_too_large_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b"{\xff")
    with pytest.raises(UserError, match=r"tokenizer.json:byte 1: ") as error:
        Gpt2Tokenizer.load(file)
    assert "not UTF-8" in str(error.value)
    monkeypatch.setattr(base, "MAX_FILE", 100)
    file.write_text(TRAINED.json)
    with pytest.raises(UserError) as error:
        Gpt2Tokenizer.load(file)
    assert "over 100 bytes" in str(error.value)
    with pytest.raises(UserError, match="No such file"):
        Gpt2Tokenizer.load(tmp_path / "nothing.json")


def test_single_string_instead_of_a_list_is_rejected() -> None:
    with pytest.raises(TypeError, match="give a list of texts"):
        TRAINED.ids("a text")


def test_corrupted_files_load_or_are_rejected_by_name(tmp_path: Path) -> None:
    rng = random.Random(0)
    small = Gpt2Tokenizer.train(Gpt2Bpe(vocab=270), TEXTS[:3])
    messages = []
    for _ in range(300):
        data = bytearray(small.json.encode())
        place = rng.randrange(len(data))
        data[place : place + rng.randrange(20)] = rng.randbytes(rng.randrange(4))
        (tmp_path / "tokenizer.json").write_bytes(data)
        try:
            read = Gpt2Tokenizer.load(tmp_path / "tokenizer.json")
        except UserError as error:
            messages.append(str(error))
        else:
            assert read.decode(read.ids(["Grüße <|endoftext|>"])[0]) == "Grüße <|endoftext|>"
    assert len(messages) > 100
    assert all(text.startswith(str(tmp_path / "tokenizer.json")) for text in messages)
