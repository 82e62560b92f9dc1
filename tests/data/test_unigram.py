"""Unigram tokenizers compared with SentencePiece and `transformers`: ids, offsets, pairs; other files are refused."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

from heedful.data.tokenizers.encoders import KINDS, load_encoder_tokenizer, open_encoder_tokenizer
from heedful.data.tokenizers.sentencepiece import CONTROL, USER_DEFINED, Piece, parse_model, write_model
from heedful.data.tokenizers.unigram import (
    AlbertTokenizer,
    AlbertUnigram,
    UnigramTokenizer,
    XlmRobertaTokenizer,
    XlmUnigram,
    XlnetTokenizer,
    XlnetUnigram,
)
from heedful.errors import UserError

WEIGHTS = Path(os.environ.get("HEEDFUL_WEIGHTS", "../shared/weights"))
PUBLISHED = WEIGHTS / "vocab-albert-v2" / "spiece.model"
TEXTS = [
    "the cat sat on the mat, and the dog ran", "A dog's tail — naïve café! 日本", "it is 2024; isn't it?",
    "one (1) two (2) 3,000, or 5, and 1,2,3,", "Der Hund lief, die Katze saß.", "گربه روی فرش نشست، می‌رود",
]  # fmt: skip
ALPHABETS = [
    "abc éàüñ", "漢字かな한국", "\x00\x01\x1f\x7f\u200b\u200d\ufeff\u00ad\ufffd", "😀👨\u200d👩\u200d👧🏽🇩🇪",
    " \t\n\u00a0\u2003\u3000", "İıſﬁ½ÅǅẞσςΣe\u0301", "[]{}()#@!?.,;:'\"-–—…`~$^▁", "שלום مرحبا नमस्ते ไทย", "0123,4,",
    ["the ", "cat", " sat", "``x''", "<s", "[CLS", "گربه", "می\u200cرود", "ي", "ك"],
]  # fmt: skip
TRAINED: dict[str, UnigramTokenizer] = {
    "albert": AlbertTokenizer.train(AlbertUnigram(vocab=120), TEXTS * 3),
    "xlnet": XlnetTokenizer.train(XlnetUnigram(vocab=120), TEXTS * 3),
    "xlm": XlmRobertaTokenizer.train(XlmUnigram(vocab=120), TEXTS * 3),
}
kinds = pytest.mark.parametrize("kind", TRAINED)


def odd_strings(count: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(30))) for _ in range(count)]


def sentencepiece_model(kind: str = "unigram", **more: Any) -> bytes:
    """A model trained by SentencePiece on these texts, with its normalization table."""
    out = io.BytesIO()
    usual = {"vocab_size": 20 if kind == "word" else 90, "model_type": kind, "num_threads": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3), model_writer=out, hard_vocab_limit=False, **(usual | more)
    )
    return out.getvalue()


@pytest.fixture(scope="module")
def real() -> bytes:
    return sentencepiece_model()


def write_files(folder: Path, tokenizer: UnigramTokenizer, **settings: Any) -> Path:
    """Write the files of a tokenizer with some settings changed."""
    folder.mkdir()
    for name, text in tokenizer.files(64).items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def theirs(tokenizer: UnigramTokenizer, folder: Path) -> Any:
    return getattr(transformers, tokenizer.class_name).from_pretrained(folder)


def plain(texts: list[str], tokenizer: UnigramTokenizer) -> list[str]:
    """Texts without a special token, which `transformers` would find in them."""
    return [text for text in texts if not any(name in text for name in tokenizer.names)]


@kinds
@pytest.mark.parametrize("table", [False, True])
def test_ids_offsets_and_pairs_equal_transformers(kind: str, table: bool, real: bytes, tmp_path: Path) -> None:
    ours = TRAINED[kind]
    if table:  # with SentencePiece's normalization table
        ours = type(ours).from_parts(ours.parts._replace(charsmap=parse_model(real, "here").charsmap), "here")
    folder = write_files(tmp_path / "files", ours)
    other = theirs(ours, folder)
    read, longest, notes = type(ours).from_folder(folder, ours.vocab)
    assert isinstance(read, type(ours)) and (read.json, longest, notes) == (ours.json, 64, ())
    texts = plain([*TEXTS, *odd_strings(500)], ours)
    for text, found in zip(texts, ours.encode_batch(texts), strict=True):
        expected = other(text, add_special_tokens=False, return_offsets_mapping=True)
        assert found.ids == expected["input_ids"], text
        assert found.offsets == [tuple(place) for place in expected["offset_mapping"]], text
    for a, b in zip(texts[:60], filter(str.strip, texts[60:]), strict=False):
        ids, segments = ours.pair(*ours.ids([a, b]))
        both = other(a, b, return_token_type_ids=True)
        assert ids == both["input_ids"], (a, b)
        if kind != "xlm":  # it has no segments
            assert segments == both["token_type_ids"], (a, b)
        assert ours.pair(ours.ids([a])[0])[0] == other(a)["input_ids"], a
    ids = [getattr(other, f"{role}_token_id") for role in ("pad", "unk", "cls", "sep", "mask")]
    assert ids == [ours.pad, ours.unk, ours.cls, ours.sep, ours.mask] and len(other) == ours.vocab
    assert other.padding_side == ("left" if ours.pads_left else "right") and ours.cls_last == (kind == "xlnet")
    for text in ("the <mask> sat", "<mask>", "a  <mask><mask> b", "the<mask>, so"):
        text = text.replace("<mask>", ours.mask_name)
        assert ours.encode_with_masks(text) == other(text, add_special_tokens=False)["input_ids"], text


def test_sentencepiece_file_without_user_defined_pieces_is_read_as_transformers_does(
    real: bytes, tmp_path: Path
) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(real)
    ours, _, notes = XlmRobertaTokenizer.from_folder(tmp_path, 10_000)
    other = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    assert ours is not None and ours.vocab == len(other) == len(parse_model(real, "").pieces) + 2 and not notes
    texts = [text for text in [*TEXTS, *odd_strings(500)] if "<s>" not in text]
    assert ours.ids(texts) == [other(text, add_special_tokens=False)["input_ids"] for text in texts]


def test_ids_equal_sentencepiece(real: bytes) -> None:
    special = "<pad>,<cls>,<sep>,<mask>,<eod>,<eop>"
    data = sentencepiece_model(control_symbols=special.split(","), user_defined_symbols=["(", ")", "-"])
    ours = XlnetTokenizer.from_model(data, "here")
    other = sentencepiece.SentencePieceProcessor(model_proto=data)
    texts = [text for text in odd_strings(1000) if text.isascii() and "," not in text and "`" not in text]
    assert len(texts) > 50
    for text in [*texts, "a (b-c) d", "x--y", "((", "<sep> <cls>", "<s>"]:
        assert ours.ids([text])[0] == other.encode(text.replace("''", '"')), text
    own, again = XlmRobertaTokenizer.from_model(real, "here"), sentencepiece.SentencePieceProcessor(model_proto=real)
    # The `tokenizers` package, and so `transformers`, normalizes a letter together with the marks and joiners after it.
    for text in [*TEXTS, *odd_strings(1000)]:
        if any(unicodedata.category(letter) in ("Mn", "Mc", "Cf", "Sk") for letter in text):
            continue
        expected = [own.unk if number == 0 else number + 1 for number in again.encode(text)]
        assert own.ids([text])[0] == expected, text


@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"no vocabulary in {PUBLISHED}; set HEEDFUL_WEIGHTS")
def test_published_vocabulary_is_read(tmp_path: Path) -> None:
    ours = AlbertTokenizer.read(PUBLISHED, lowercase=True)
    assert (ours.vocab, ours.pad, ours.unk, ours.cls, ours.sep, ours.mask) == (30_000, 0, 1, 2, 3, 4)
    pieces = ours.encode("Hello (world), 1,000 naïve\u00a0dogs").pieces
    assert pieces == ["▁hello", "▁", "(", "world", ")", ",", "▁1,000", "▁naive", "▁dogs"]
    assert ours.encode("5, 7,").pieces == ["▁5", ",", "▁7", ","]  # split, as in ALBERT's own program
    other = theirs(ours, write_files(tmp_path / "files", ours))
    texts = plain([*TEXTS, *odd_strings(1000)], ours)
    assert ours.ids(texts) == [other(text, add_special_tokens=False)["input_ids"] for text in texts]
    processor = sentencepiece.SentencePieceProcessor(model_file=str(PUBLISHED))
    for text in (text for text in texts if text.isascii() and "," not in text):
        text = text.lower().replace("``", '"').replace("''", '"')
        assert ours.ids([text])[0] == processor.encode(text), text
    (folder := tmp_path / "bare").mkdir()
    (folder / "spiece.model").write_bytes(PUBLISHED.read_bytes())
    read, _, notes = AlbertTokenizer.from_folder(folder, 30_000)
    assert read is not None and read.json == ours.json and "user-defined" in notes[0]


@kinds
def test_both_forms_of_files_give_the_same_tokenizer(kind: str, real: bytes, tmp_path: Path) -> None:
    ours = TRAINED[kind]
    ours = type(ours).from_parts(ours.parts._replace(charsmap=parse_model(real, "here").charsmap), "here")
    folder = write_files(tmp_path / "files", ours)
    assert load_encoder_tokenizer(folder / "tokenizer.json").json == ours.json
    one = next(one for one in KINDS if one.tokenizer is type(ours))
    again = one.trained.model_fields["kind"].default.replace("unigram", "files")
    for file in (folder, folder / "tokenizer.json", folder / ours.model_file):
        config = one.files(kind=again, file=str(file))
        assert config.read().json == ours.json and config.vocab == ours.vocab
    (folder / "tokenizer.json").unlink()
    read, longest, _ = type(ours).from_folder(folder, ours.vocab)
    assert read is not None and read.json == ours.json and longest == 64
    (folder / ours.model_file).unlink()
    assert type(ours).from_folder(folder, ours.vocab).tokenizer is None


@kinds
def test_training_is_deterministic_and_texts_decode_back(kind: str) -> None:
    ours = TRAINED[kind]
    config = next(one.trained for one in KINDS if one.tokenizer is type(ours))(vocab=120)
    assert type(ours).train(config, iter(TEXTS * 3)).json == ours.json
    assert type(open_encoder_tokenizer(ours.json, "here")) is type(ours)
    for text in ("the cat sat", "one (1) two", "گربه روی فرش"):
        (ids,) = ours.ids([text])
        assert ours.decode(ids) == text and not ours.special & set(ids)
    for name in ours.names:
        assert ours.special.isdisjoint(set(ours.ids([f"the {name}cat{name} sat"])[0]) - {ours.unk})
    masked = ours.encode_with_masks("the [MASK] sat")
    assert ours.decode_with_special(masked) == f"the {ours.mask_name} sat"
    first, *rest = ours.words(["cat"])[0]
    assert not ours.continues_word[first] and all(ours.continues_word[number] for number in rest)


def test_switches_of_albert(tmp_path: Path) -> None:
    ours = AlbertTokenizer.train(AlbertUnigram(vocab=120, lowercase=False, keep_accents=True), TEXTS * 3)
    assert "é" in ours.pieces(range(ours.vocab)) and ours.decode(ours.ids(["Der café"])[0]) == "Der café"
    for lower, accents in ((False, True), (True, True), (False, False)):
        folder = write_files(tmp_path / f"{lower}{accents}", ours, do_lower_case=lower, keep_accents=accents)
        read, other = AlbertTokenizer.from_folder(folder, ours.vocab).tokenizer, theirs(ours, folder)
        assert isinstance(read, AlbertTokenizer) and (read.parts.lowercase, read.parts.keep_accents) == (lower, accents)
        assert read.ids(TEXTS) == [other(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


def test_added_tokens_are_matched_as_transformers_does(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", TRAINED["xlm"], extra_special_tokens=["[E1]", "<extra>"])
    ours, other = XlmRobertaTokenizer.from_folder(folder, 1000).tokenizer, theirs(TRAINED["xlm"], folder)
    assert ours is not None and ours.vocab == len(other) == TRAINED["xlm"].vocab + 2
    for text in ("the [E1] cat [E1]", "a<extra>b", "[E1]"):
        assert ours.ids([text])[0] == other(text, add_special_tokens=False)["input_ids"]
    assert set(ours.ids(["[E1] <extra>"])[0]) <= ours.special
    again = XlmRobertaTokenizer(ours.json, "here")
    assert again.json == ours.json and again.ids(["the [E1]"]) == ours.ids(["the [E1]"])
    assert set(ours.files(64)) == {"tokenizer.json", "tokenizer_config.json"}  # a .model cannot hold them


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("albert", {"tokenizer_class": "BertTokenizer"}, "tokenizer_class"),
        ("albert", {"mask_token": "<mask>"}, "mask_token"),
        ("albert", {"remove_space": False}, "remove_space"),
        ("albert", {"do_lower_case": "yes"}, "do_lower_case"),
        ("xlm", {"add_prefix_space": False}, "add_prefix_space"),
        ("xlnet", {"keep_accents": True}, "keep_accents"),
        ("xlnet", {"truncation_side": "left"}, "truncation_side"),
    ],
)
def test_settings_that_change_ids_are_rejected(kind: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        type(TRAINED[kind]).from_folder(write_files(tmp_path / "files", TRAINED[kind], **change), 1000)


def test_file_that_is_used_unchanged_must_have_the_usual_rules(tmp_path: Path) -> None:
    ours = TRAINED["xlm"]
    folder = write_files(tmp_path / "files", ours, tokenizer_class="PreTrainedTokenizerFast")
    assert XlmRobertaTokenizer.from_folder(folder, ours.vocab).tokenizer is not None
    data = json.loads(ours.json)
    for part, value, words in (
        ("normalizer", {"type": "Lowercase"}, "normalizers"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer"),
        ("post_processor", None, "special tokens of its model"),
    ):
        (folder / "tokenizer.json").write_text(json.dumps(data | {part: value}))
        with pytest.raises(UserError, match=words):
            XlmRobertaTokenizer.from_folder(folder, ours.vocab)


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_other_kinds_of_sentencepiece_models_are_rejected(kind: str) -> None:
    with pytest.raises(UserError, match="of another kind"):
        parse_model(sentencepiece_model(kind), "here")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"byte_fallback": True, "vocab_size": 350}, "byte_fallback"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix"),
        ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    ],
)
def test_other_settings_of_sentencepiece_are_rejected(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_model(sentencepiece_model(**more), "here")


def test_damaged_sentencepiece_files_are_rejected(real: bytes) -> None:
    rng = random.Random(0)
    for _ in range(300):
        at = rng.randrange(len(real))
        damaged = real[:at] if rng.random() < 0.5 else real[:at] + bytes([rng.randrange(256)]) + real[at + 1 :]
        with contextlib.suppress(UserError):
            XlmRobertaTokenizer.from_model(damaged, "here").ids(["the cat, naïve"])
    for data in (
        b"",
        b"\x00" * 50,
        b"hello there",
        b"\xff" * 100,
        real[:1000],
        write_model([Piece("<unk>", 0.0)], None, 0),
    ):
        with pytest.raises(UserError, match="here"):
            XlmRobertaTokenizer.from_model(data, "here")


def test_vocabularies_of_other_models_are_rejected(real: bytes, tmp_path: Path) -> None:
    for other in (AlbertTokenizer, XlnetTokenizer):
        with pytest.raises(UserError, match="none is"):
            other.from_model(real, "here")
    with pytest.raises(UserError, match="first pieces"):
        XlmRobertaTokenizer.from_model(TRAINED["albert"].model, "here")
    with pytest.raises(UserError, match="does not match the model"):
        AlbertTokenizer.from_folder(write_files(tmp_path / "files", TRAINED["albert"]), TRAINED["albert"].vocab - 1)
    with pytest.raises(UserError, match="cannot be read"):
        AlbertTokenizer.read(tmp_path / "nothing.model")


def test_damaged_tokenizer_files_are_rejected() -> None:
    data = json.loads(TRAINED["albert"].json)
    vocab, added = data["model"]["vocab"], data["added_tokens"]
    table = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"nonsense").decode()}
    for change in (
        {"model": {**data["model"], "vocab": [*vocab, vocab[9]]}},
        {"model": {**data["model"], "vocab": vocab[1:]}},
        {"model": {**data["model"], "vocab": [["x", "y"]]}},
        {"model": {**data["model"], "vocab": [*vocab, ["\ud800", 0.0]]}},
        {"model": {**data["model"], "byte_fallback": True}},
        {"model": {**data["model"], "type": "BPE"}},
        {"added_tokens": [*added, {**added[-1], "id": 500, "content": "x"}]},
        {"added_tokens": [{**added[0], "id": 3}]},
        {"added_tokens": 3},
        {"normalizer": table},
        {"normalizer": {**table, "precompiled_charsmap": "%"}},
        {"normalizer": None},
        {"pre_tokenizer": None},
    ):
        with pytest.raises(UserError, match="here"):
            AlbertTokenizer(json.dumps(data | change), "here")
    with pytest.raises(UserError, match="here"):
        AlbertTokenizer("{", "here")


def test_types_of_pieces_are_kept_in_written_files() -> None:
    pieces = [Piece("<unk>", 0.0, 2), Piece("[X]", 0.0, CONTROL), Piece("(", 0.0, USER_DEFINED), Piece("▁a", -1.5)]
    assert parse_model(write_model(pieces, b"", 0), "here").pieces == tuple(pieces)
    processor = sentencepiece.SentencePieceProcessor(model_proto=TRAINED["albert"].model)
    assert processor.unk_id() == 1 and processor.is_control(2) and processor.id_to_piece(4) == "[MASK]"
