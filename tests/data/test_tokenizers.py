"""Tokenizers trained by Heedful: BPE, WordPiece, unigram, characters and words."""

import json
import os
import pydoc_data.topics
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.tokenizers.base import Encoding, require_list
from heedful.data.tokenizers.tokenizer import (
    Bpe,
    Characters,
    TokenizerConfig,
    TrainedTokenizer,
    Unigram,
    WholeWords,
    WordPiece,
    byte_letters,
    make_deterministic,
)
from heedful.errors import UserError

TEXTS = [
    line for topic in sorted(pydoc_data.topics.topics)[:30] for line in pydoc_data.topics.topics[topic].split("\n")
]
TEXTS += ["Grüße aus Köln, schöne Straße", "naïve café", "漢字かな", "<eos> <pad>", "<eos>" * 50]
KINDS: dict[str, TokenizerConfig] = {
    "bpe": Bpe(vocab=600),
    "bpe-lower": Bpe(vocab=600, lowercase=True),
    "wordpiece": WordPiece(vocab=600),
    "wordpiece-lower": WordPiece(vocab=600, lowercase=True),
    "unigram": Unigram(vocab=600),
    "unigram-lower": Unigram(vocab=600, lowercase=True),
    "characters": Characters(vocab=90),
    "characters-lower": Characters(vocab=60, lowercase=True),
    "words": WholeWords(vocab=600),
    "words-lower": WholeWords(vocab=600, lowercase=True),
}
TRAINED = {name: TrainedTokenizer.train(config, TEXTS) for name, config in KINDS.items()}
kinds = pytest.mark.parametrize("kind", KINDS)


def odd_strings(count: int) -> list[str]:
    rng = random.Random(0)
    alphabets: list[list[str]] = [
        [chr(number) for number in range(0x20)],
        [chr(number) for number in range(0x7F, 0xA0)],
        [chr(number) for number in range(0xD800, 0xE000, 7)],
        list(" \t\u00a0\u2003\u2028\u3000\n"),
        list("\u200b\u200d\ufeff\u00ad\u202e\ufffd\ufffe\uffff\U0010ffff\ue000"),
        list("e\u0301a\u0308\u1100\u1161ǅßİıſﬁ½Å"),
        list("😀👨\u200d👩\u200d👧🏽🇩🇪"),
        list("<>eospadbunk▁#Ġ"),
        list("שלום مرحبا नमस्ते ไทย"),
    ]
    strings = ["", " ", "\n", "\0", "<pad>", "<unk>", "<bos>", "<eos>", "▁", "##a", "\ud83d\ude00"]
    while len(strings) < count:
        if rng.random() < 0.2:
            strings.append("".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(30))))
        else:
            letters = [letter for _ in range(2) for letter in rng.choice(alphabets)]
            strings.append("".join(rng.choices(letters, k=rng.randrange(40))))
    return strings


def is_valid(tokenizer: TrainedTokenizer, text: str, encoding: Encoding) -> bool:
    ends = [0, *(end for _, end in encoding.offsets)]
    return (
        all(len(SPECIAL_IDS) <= number < tokenizer.vocab or number == tokenizer.unk for number in encoding.ids)
        and len(encoding.ids) == len(encoding.offsets) == len(encoding.pieces)
        and all(0 <= start <= end <= len(text) for start, end in encoding.offsets)
        and ends == sorted(ends)
        and encoding.replaced == sum("\ud800" <= letter <= "\udfff" for letter in text)
    )


SPECIAL_IDS = (TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos, TrainedTokenizer.eos)


@kinds
def test_odd_strings(kind: str) -> None:
    tokenizer = TRAINED[kind]
    strings = odd_strings(2000)
    encodings = tokenizer.encode_batch(strings)
    assert [text for text, one in zip(strings, encodings, strict=True) if not is_valid(tokenizer, text, one)] == []
    assert [one.ids for one in encodings] == tokenizer.ids(strings)
    assert all(isinstance(tokenizer.decode(one.ids), str) for one in encodings)
    if kind == "bpe":
        whole = ["".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text) for text in strings]
        assert [tokenizer.decode(one.ids) for one in encodings] == whole


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_byte_level_pieces_cover_the_text(text: str) -> None:
    tokenizer = TRAINED["bpe"]
    encoding = tokenizer.encode(text)
    assert tokenizer.decode(encoding.ids) == text
    covered = {place for start, end in encoding.offsets for place in range(start, end)}
    assert covered == set(range(len(text)))


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_texts_decode_back(kind: str) -> None:
    tokenizer = TRAINED[kind]
    text = "Grüße aus Köln"
    encoding = tokenizer.encode(text)
    assert tokenizer.decode(encoding.ids) == text
    covered = {place for start, end in encoding.offsets for place in range(start, end)}
    assert {place for place, letter in enumerate(text) if letter != " "} <= covered


@kinds
def test_offsets_point_into_the_text_as_given(kind: str) -> None:
    text = "Two  İstanbul\ud800 Straße the the"
    encoding = TRAINED[kind].encode(text)
    last = [text[start:end] for start, end in encoding.offsets][-1]
    assert text.endswith(last)
    assert last.strip()
    assert encoding.replaced == 1


@kinds
def test_special_tokens_and_unknowns(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert SPECIAL_IDS == (0, 1, 2, 3)
    assert tokenizer.pieces(range(4)) == ["<pad>", "<unk>", "<bos>", "<eos>"]
    for text in ("<eos>", "<pad><bos>", "a<eos>b", "x <eos> y", "<eos>\n<unk>"):
        assert not {0, 2, 3} & set(tokenizer.encode(text).ids)
    spelled = tokenizer.encode("the end").ids
    assert tokenizer.decode([2, *spelled, 3, 0, 0]) == tokenizer.decode(spelled) == "the end"


@kinds
def test_empty_text(kind: str) -> None:
    assert TRAINED[kind].encode("") == ([], [], [], 0)
    assert TRAINED[kind].encode_batch([]) == []
    assert TRAINED[kind].ids([]) == []
    assert TRAINED[kind].decode([]) == ""


def test_pieces_are_readable() -> None:
    tokenizer = TRAINED["bpe"]
    assert " the" in tokenizer.encode("at the end").pieces
    assert "".join(tokenizer.encode("at the end").pieces) == "at the end"
    assert tokenizer.encode("\U0001f9ff").pieces == ["\\xf0", "\\x9f", "\\xa7", "\\xbf"]


def test_byte_letters_equal_the_package() -> None:
    assert sorted(byte_letters()) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert split.pre_tokenize_str("ü\n")[0][0] == "".join(byte_letters()[byte] for byte in "ü\n".encode())


@kinds
def test_vocabulary_sizes_and_lowercasing(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert tokenizer.vocab <= 600
    assert max(len(tokenizer.encode(line).ids) for line in TEXTS[:50]) > 1
    assert (tokenizer.encode("THE END").ids == tokenizer.encode("the end").ids) == kind.endswith("lower")


@pytest.mark.parametrize("length", [2**18, pytest.param(2**20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", ["a", "!", " ", "hello world ", "é"])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "characters", "words"])
def test_long_lines_are_fast(kind: str, text: str, length: int) -> None:
    line = text * (length // len(text.encode()))
    begin = time.process_time()
    TRAINED[kind].ids([line])
    assert time.process_time() - begin < 3


@kinds
def test_save_and_load(kind: str, tmp_path: Path) -> None:
    tokenizer = TRAINED[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = TrainedTokenizer.load(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert loaded.sha256 == tokenizer.sha256
    assert loaded.vocab == tokenizer.vocab
    strings = odd_strings(200)
    assert loaded.encode_batch(strings) == tokenizer.encode_batch(strings)


def test_training_is_deterministic_across_processes() -> None:
    script = (
        "import sys; sys.path[:0] = ['tests', 'tests/data']; import test_tokenizers as t\n"
        "print(*(one.sha256 for one in t.TRAINED.values()))"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [one.sha256 for one in TRAINED.values()]


def test_rounding_of_scores_does_not_change_unigram_tokenizers() -> None:
    data = json.loads(TRAINED["unigram"].json)
    found = set()
    for noise in (-4e-11, 0.0, 4e-11):  # as measured between processes
        vocab = [[piece, score + 5e-10 + noise if number > 3 else score]
                 for number, (piece, score) in enumerate(data["model"]["vocab"])]  # fmt: skip
        found.add(make_deterministic(json.dumps({**data, "model": {**data["model"], "vocab": vocab}})))
    assert len(found) == 1


@pytest.mark.parametrize("texts", [[], [""], [" ", "\n"]])
def test_empty_corpus_is_rejected(texts: list[str]) -> None:
    with pytest.raises(UserError, match="no text"):
        TrainedTokenizer.train(Bpe(), texts)


@pytest.mark.parametrize("config", [Bpe(vocab=260), WordPiece(vocab=32), Unigram(vocab=32)])
def test_tiny_corpus(config: TokenizerConfig) -> None:
    tokenizer = TrainedTokenizer.train(config, ["ab ab", "\ud800"])
    assert tokenizer.vocab <= config.vocab
    assert is_valid(tokenizer, "ab zz", tokenizer.encode("ab zz"))


def test_vocabulary_smaller_than_the_alphabet_is_rejected() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.vocab"):
        TrainedTokenizer.train(Unigram(vocab=40), ["".join(map(chr, range(0x400, 0x480)))])
    letters = TrainedTokenizer.train(WordPiece(vocab=40), ["".join(map(chr, range(0x400, 0x480)))])
    assert letters.vocab <= 40


def edit(**changes: object) -> str:
    return json.dumps({**json.loads(TRAINED["bpe"].json), **changes})


BPE_MODEL = json.loads(TRAINED["bpe"].json)["model"]
DAMAGED = {
    "empty": "",
    "no JSON": "{",
    "another JSON": "[1]",
    "nested": "[" * 100_000,
    "no model": "{}",
    "half": TRAINED["bpe"].json[:5000],
    "a pattern": edit(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}),
    "truncation": edit(truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}),
    "no special tokens": edit(added_tokens=[]),
    "prefix": edit(model={**BPE_MODEL, "continuing_subword_prefix": "zzzzzzzz"}),
    "no vocab": edit(model={name: value for name, value in BPE_MODEL.items() if name != "vocab"}),
    "no merges": edit(model={**BPE_MODEL, "merges": None}),
    "a lost merge": edit(model={**BPE_MODEL, "merges": [["a" * 40, "b" * 40]]}),
    "a type of types": edit(normalizer={"type": ["Lowercase"]}),
    "no unknown token": json.dumps(
        {**(one := json.loads(TRAINED["unigram"].json)), "model": {**one["model"], "unk_id": None}}
    ),
    "dropout": edit(model={**BPE_MODEL, "dropout": 0.5}),
    "no decoder": edit(decoder=None),
    "gap in ids": edit(model={**BPE_MODEL, "vocab": {**BPE_MODEL["vocab"], "zzzz": 10**6}}),
    "lost bytes": edit(
        model={**BPE_MODEL, "merges": [], "vocab": dict(list(BPE_MODEL["vocab"].items())[:200])},
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(DAMAGED[name])
    with pytest.raises(UserError, match=r"tokenizer\.json.*damaged"):
        TrainedTokenizer.load(path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer\.json: .*No such file"):
        TrainedTokenizer.load(path)
    with pytest.raises(UserError, match="it is a folder"):
        TrainedTokenizer.load(tmp_path)
    path.write_bytes(b"{\xff")
    with pytest.raises(UserError, match=r"tokenizer\.json:byte 1"):
        TrainedTokenizer.load(path)


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        TRAINED["bpe"].save(path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("tokenizer.json", "old")]
    with pytest.raises(UserError, match="No such file"):
        TRAINED["bpe"].save(tmp_path / "absent" / "tokenizer.json")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "characters", "words"])
def test_scrambled_files_load_valid_or_are_rejected(kind: str) -> None:
    rng = random.Random(0)
    text = TRAINED[kind].json
    scraps = ['"', "{", "]", ",", "9", "-", "null", "x", "\\ud800", "🙂"]
    refused = misplaced = 0
    for _ in range(300):
        data = list(text)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(3)] = rng.choice(scraps)
        try:
            tokenizer = TrainedTokenizer("".join(data), "tokenizer.json")
        except UserError as error:
            refused += 1
            misplaced += "tokenizer.json" not in str(error.where)
            continue
        assert all(is_valid(tokenizer, one, tokenizer.encode(one)) for one in ("the end", "<eos>", "😀 ü"))
    assert refused > 30
    assert misplaced == 0


def test_characters_and_words_keep_the_most_frequent() -> None:
    texts = ["b a n a n a", "band a", "<unk> <eos> B"]
    letters = TrainedTokenizer.train(Characters(vocab=7), texts)
    assert letters.pieces(range(letters.vocab))[4:] == [" ", "a", "n"]
    assert letters.pieces(letters.encode("an <x>").ids) == ["a", "n", " ", "<unk>", "<unk>", "<unk>"]
    assert letters.decode(letters.encode("nana an").ids) == "nana an"
    words = TrainedTokenizer.train(WholeWords(vocab=7, lowercase=True), texts)
    assert words.pieces(range(words.vocab))[4:] == ["a", "b", "n"]
    assert words.encode("A b <pad> <unk> <eos> band").ids == [4, 5, 1, 1, 1, 1]
    assert words.decode(words.encode("n  A").ids) == "n a"


def test_single_string_instead_of_a_list_is_rejected() -> None:
    assert require_list(("six", "seven")) == ["six", "seven"]
    with pytest.raises(TypeError, match="a list of texts"):
        require_list("six")
