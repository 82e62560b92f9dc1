"""BERT's tokenizer: the ids of `transformers` on any text, and strict parsing of files."""

from __future__ import annotations

import json
import os
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Engine

from heedful.data.tokenizers import base
from heedful.data.tokenizers.base import truncate_pair
from heedful.data.tokenizers.encoders import encoder_tokenizer
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer, WordPieceFile, read_vocab
from heedful.errors import UserError

WEIGHTS = Path(os.environ.get("HEEDFUL_WEIGHTS", "../shared/weights"))
PUBLISHED = WEIGHTS / "vocab-bert-base-uncased" / "vocab.txt"
TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "Über naïve Cafés in Zürich!", "can't won't don't", "漢字 and kana",
    "unaffable understanding unbelievable", "3.14 is pi, roughly", "[MASK] [CLS] [unused0]",
]  # fmt: skip
ALPHABETS = [
    "abc éàüñ", "漢字かな한국", "\x00\x01\x1f\x7f\x85\u200b\u200d\ufeff\u00ad\ufffd",
    "😀👨\u200d👩\u200d👧🏽🇩🇪", " \t\n\u00a0\u2003\u3000",
    "İıſﬁ½ÅǅẞσςΣe\u0301", "[]{}()#@!?.,;:'\"-–—…`~$^", "שלום مرحبا नमस्ते ไทย", "##ing ##s the unaffable",
]  # fmt: skip
TRAINED = {lower: BertTokenizer.train(WordPiece(vocab=200, lowercase=lower), TEXTS * 3) for lower in (False, True)}


def odd_strings(count: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(40))) for _ in range(count)]


def edit(**parts: Any) -> str:
    """The text of a valid file with some parts replaced."""
    return json.dumps(json.loads(TRAINED[True].json) | parts)


@pytest.mark.parametrize("lower", [False, True])
def test_ids_equal_transformers_on_odd_texts(lower: bool, tmp_path: Path) -> None:
    from transformers import BertTokenizer as HuggingFaceTokenizer

    ours = TRAINED[lower]
    (tmp_path / "vocab.txt").write_text("\n".join(ours.pieces(range(ours.vocab))) + "\n", encoding="utf-8")
    theirs = HuggingFaceTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lower)
    texts = [text for text in [*TEXTS, *odd_strings(400)] if "[MASK]" not in text]
    for text, ids in zip(texts, ours.ids(texts), strict=True):
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
    a, b = ours.ids(["a lazy fox", "the dog"])
    ids, segments = ours.pair(a, b)
    both = theirs("a lazy fox", "the dog", return_token_type_ids=True)
    assert (ids, segments) == (both["input_ids"], both["token_type_ids"])
    read = BertTokenizer.from_vocab(read_vocab(tmp_path / "vocab.txt"), lower, "vocab.txt")
    assert read.json == ours.json
    assert encoder_tokenizer(WordPieceFile(file=str(tmp_path / "vocab.txt"), lowercase=lower), []).json == ours.json


@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"no vocabulary in {PUBLISHED}; set HEEDFUL_WEIGHTS")
def test_published_vocabulary_equals_transformers() -> None:
    from transformers import BertTokenizer as HuggingFaceTokenizer

    ours = BertTokenizer.from_vocab(read_vocab(PUBLISHED), True, str(PUBLISHED))
    assert (ours.vocab, ours.pad, ours.unk, ours.cls, ours.sep, ours.mask) == (30522, 0, 100, 101, 102, 103)
    theirs = HuggingFaceTokenizer(vocab=str(PUBLISHED), do_lower_case=True)
    texts = [*TEXTS[:-1], *odd_strings(300)]
    assert ours.ids(texts) == [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert ours.pieces(ours.ids(["unaffable"])[0]) == ["una", "##ffa", "##ble"]


def test_transformers_reads_exported_files_with_their_layout(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "tokenizer.json").write_text(TRAINED[True].json)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ours = TRAINED[True]
    a, b = ours.ids(["the quick fox", "a dog"])
    assert theirs("the quick fox", "a dog")["input_ids"] == ours.pair(a, b)[0]
    assert theirs("the quick fox")["input_ids"] == ours.pair(a)[0]


def test_special_tokens_in_texts_are_ordinary_text() -> None:
    for tokenizer in TRAINED.values():
        for name in NAMES:
            assert not (tokenizer.special - {tokenizer.unk}) & set(tokenizer.ids([f"a {name} b{name}c"])[0])
        encoding = tokenizer.encode("The [MASK] dog")
        assert encoding.offsets[0] == (0, 3)
        assert encoding.offsets[-1][1] == len("The [MASK] dog")


def test_lone_surrogates_are_counted_and_replaced() -> None:
    encoding = TRAINED[True].encode("the \ud800 dog\udfff")
    assert encoding.replaced == 2
    assert encoding.ids == TRAINED[True].ids(["the  dog"])[0]


def test_words_have_at_least_one_piece_and_decode_back() -> None:
    tokenizer = TRAINED[True]
    words = ["quick", "\x00\u200b", "漢字", "", "unaffable"]
    found = tokenizer.words(words)
    assert [len(ids) >= 1 for ids in found] == [True] * 5
    assert found[1] == found[3] == [tokenizer.unk]
    cut = tokenizer.ids(["lazier dogs"])[0]
    assert sum(piece.startswith("##") for piece in tokenizer.pieces(cut)) > 1
    assert tokenizer.decode(cut) == "lazier dogs"  # pieces that continue a word are joined to it
    assert tokenizer.decode([tokenizer.cls, *tokenizer.ids(["The lazy dog"])[0], tokenizer.sep]) == "the lazy dog"


def test_training_is_deterministic_with_special_tokens_first() -> None:
    again = BertTokenizer.train(WordPiece(vocab=200, lowercase=True), iter(TEXTS * 3))
    assert again.sha256 == TRAINED[True].sha256 != TRAINED[False].sha256
    assert again.pieces(range(5)) == list(NAMES)
    assert BertTokenizer(again.json, "x").json == again.json


@pytest.mark.parametrize("room", range(2, 20))
def test_pairs_are_truncated_as_tokenizers_does(room: int, tmp_path: Path) -> None:
    engine = Engine.from_str(TRAINED[True].json)
    engine.enable_truncation(room + 3, strategy="longest_first")
    dog = TRAINED[True].ids(["d"])[0]
    for a, b in product(range(13), repeat=2):
        kept = engine.encode("d " * a, "d " * b).ids
        assert TRAINED[True].pair(*truncate_pair(dog * a, dog * b, room))[0] == kept, (a, b)


def test_odd_token_goes_to_the_longer_text() -> None:
    found = [tuple(map(len, truncate_pair(range(a), range(b), 45))) for a, b in ((40, 30), (30, 40), (30, 30))]
    assert found == [(23, 22), (22, 23), (22, 23)]


def test_padding_and_truncation_settings_of_files_are_ignored() -> None:
    padding = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    read = BertTokenizer(
        edit(truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0}, padding=padding), "x"
    )
    assert read.json == TRAINED[True].json
    added = json.loads(TRAINED[True].json)["added_tokens"]
    more = {**added[0], "id": TRAINED[True].vocab, "content": "[E1]", "special": True}
    assert BertTokenizer(edit(added_tokens=[*added, more]), "x").vocab == TRAINED[True].vocab + 1


def test_added_tokens_are_not_split_and_round_trip() -> None:
    added, count = json.loads(TRAINED[True].json)["added_tokens"], TRAINED[True].vocab
    more = [{**added[0], "id": count + place, "content": name} for place, name in enumerate(("[E1]", "[/E1]"))]
    word = {**added[0], "id": count + 2, "content": "DogCat", "special": False, "normalized": True}
    text = edit(added_tokens=[*added, *more, word])
    ours, theirs = BertTokenizer(text, "x"), Engine.from_str(text)
    for given in ("the [E1]quick fox[/E1] and [e1] a dogcat[E1][E1]", "xDOGCATx [E1", "[E1][MASK][/E1]"):
        ids = theirs.encode(given.replace("[MASK]", "[ mask ]"), add_special_tokens=False).ids
        assert ours.ids([given])[0] == ids == ours.encode(given).ids
    assert ours.special == TRAINED[True].special | {count, count + 1} and ours.vocab == count + 3
    assert BertTokenizer(ours.json, "x").json == ours.json
    assert [token["special"] for token in json.loads(ours.json)["added_tokens"]] == [True] * 7 + [False]
    assert ours.decode(ours.ids(["the [E1] quick dogcat"])[0]) == "the quick dogcat"


GOOD = json.loads(TRAINED[True].json)
VOCAB = GOOD["model"]["vocab"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "not JSON"),
        ("[1]", "no object"),
        ("[" * 100_000, "JSON that cannot be read"),
        (edit(model=GOOD["model"] | {"type": "BPE"}), "model of type 'BPE'"),
        (edit(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+b"}}), "pre_tokenizer of type 'Split'"),
        (edit(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}), "type 'Replace'"),
        (edit(added_tokens=[], model=GOOD["model"] | {"vocab": {k: v for k, v in VOCAB.items() if v != 9}}), "ids"),
        (edit(model=GOOD["model"] | {"vocab": {"[CLS]": 0}}), "added token"),
        (edit(added_tokens=[], model=GOOD["model"] | {"vocab": {"a": 0, "[UNK]": 1}}), "none is [PAD] or [CLS]"),
        (edit(model=GOOD["model"] | {"vocab": VOCAB | {"x": True}}), "ids"),
        (edit(model=GOOD["model"] | {"max_input_chars_per_word": 10**9}), "max_input_chars_per_word"),
        (edit(model=GOOD["model"] | {"continuing_subword_prefix": "@@"}), "continuing_subword_prefix"),
        (edit(normalizer=GOOD["normalizer"] | {"lowercase": 3}), "a normalizer"),
        (edit(added_tokens=[{"id": 5, "content": "dog", "special": False}]), "the added token 'dog' with the id 5"),
        (edit(added_tokens=[{"id": 500, "content": "[E1]", "special": True}]), "the added token '[E1]'"),
        (edit(added_tokens=[{"id": 5, "content": 3, "special": True}]), "an added token"),
        (edit(added_tokens=[{"id": 5, "content": "[E1]", "lstrip": 1}]), "an added token"),
        (edit(added_tokens=3), "added_tokens of 3"),
    ],
)  # fmt: skip
def test_invalid_tokenizer_files_are_rejected(text: str, found: str) -> None:
    with pytest.raises(UserError) as error:
        BertTokenizer(text, "tokenizer.json")
    assert found in str(error.value)
    assert str(error.value).startswith("tokenizer.json")


def test_invalid_vocabulary_is_reported_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join([*NAMES, "dog", "cat", "dog"]))
    with pytest.raises(UserError, match=r"vocab.txt:8") as error:
        BertTokenizer.from_vocab(read_vocab(file), True, str(file))
    assert "'dog' for the second time" in str(error.value)
    file.write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_vocab(file)
    with pytest.raises(UserError, match="No such file"):
        BertTokenizer.load(tmp_path / "nothing.json")


def test_too_large_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_FILE", 100)
    (tmp_path / "tokenizer.json").write_text(TRAINED[True].json)
    with pytest.raises(UserError, match="over 100 bytes"):
        BertTokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("lower", [False, True])
def test_persian_texts_have_the_ids_of_transformers(lower: bool, tmp_path: Path) -> None:
    """Letters of Arabic and Persian, the zero-width non-joiner, digits, marks, and text in both directions."""
    from transformers import BertTokenizer as HuggingFaceTokenizer

    texts = ["او به خانه می‌رود", "آب و نان، ۱۲۳ تا", "كتاب علي", "مُدَرِّس", "کتـــاب", "ABC و آب ۴۵٪", "\u202bمن\u202c"]
    ours = BertTokenizer.train(WordPiece(vocab=120, lowercase=lower), texts * 3)
    (tmp_path / "vocab.txt").write_text("\n".join(ours.pieces(range(ours.vocab))) + "\n", encoding="utf-8")
    theirs = HuggingFaceTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lower)
    for text in texts:
        found = ours.encode(text)
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert found.ids == expected["input_ids"] and ours.unk not in found.ids
        assert found.offsets == [tuple(place) for place in expected["offset_mapping"]]
    assert ours.decode(ours.ids(["می‌رود"])[0]) == "میرود"  # the non-joiner is a format character
    assert ours.decode(ours.ids(["آب"])[0]) == ("اب" if lower else "آب")  # without accents, the madda is lost
