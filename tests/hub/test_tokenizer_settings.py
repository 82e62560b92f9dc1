"""Tokenizer folders with all kinds of settings: the ids of `transformers`, or an error with its reason."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Engine
from tokenizers import models, normalizers, pre_tokenizers, processors

from heedful.data.tokenizers.base import FolderTokenizer, truncate_pair
from heedful.data.tokenizers.wordpiece import NAMES
from heedful.data.tokenizers.wordpiece_files import find_tokenizer, tokenizer_files
from heedful.errors import UserError

LETTERS = "abcdefghijklmnoprstuvwxyzABCDEFGHÉéÄäñ日本[]/1."
PIECES = [*NAMES, "[unused1]", "[unused2]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "cafe", "Café"]
TEXTS = [
    "Abc, ja! bad cafe", "ÀBC äb é Café ÉCOLE", "日a本 ab", "", "a [E1]B[/E1] b [e1] cafe[E1]", "[unused1] [unused2] a",
    "x<b>y <B> </s>a <s> New York newyork NEWYORK", "a\u0301 E\u0301 \x00\u200b zz\ufffd", "İ ß Σας ﬁ",
]  # fmt: skip
CONFIGS: list[dict[str, Any]] = [
    {},
    {"do_lower_case": True},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": True},
    {"strip_accents": False},
    {"tokenize_chinese_chars": False, "do_lower_case": False},
    {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False},
    {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True},
    {"tokenizer_class": "TokenizersBackend"},
    {"tokenizer_class": "BertJapaneseTokenizer"},
    {"tokenizer_class": "DistilBertTokenizer"},
    {"cls_token": "[unused1]"},
    {"sep_token": "[unused2]", "do_lower_case": False},
    {"mask_token": "<mask>"},
    {"unk_token": "[unused1]"},
    {"bos_token": "<s>", "eos_token": "</s>"},
    {"additional_special_tokens": ["[E1]", "[/E1]"]},
    {"extra_special_tokens": ["[E1]", "[unused1]"], "do_lower_case": False},
    {"extra_special_tokens": {"marker_token": "[E1]"}},
    {"marker_token": "<b>"},
    {"split_special_tokens": True},
    {"truncation_side": "left"},
    {"padding_side": "left", "model_max_length": 10, "never_split": ["abc"], "do_basic_tokenize": False},
]
END = len(PIECES)
FILES: list[dict[str, Any]] = [  # beside tokenizer_config.json
    {},
    {"added_tokens.json": {"[E1]": END, "newyork": END + 1}},
    {"added_tokens.json": {"[E1]": END}, "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]}},
    {"special_tokens_map.json": {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]", "lstrip": True}}},
    {"special_tokens_map.json": {"sep_token": "[unused1]"}},
]
LOWERCASE = "before"  # whether another normalizer comes first, as sentence-transformers writes it
NORMALIZERS: list[dict[str, Any] | None] = [
    None,  # no tokenizer.json
    {"lowercase": True},
    {"lowercase": False},
    {"lowercase": False, "strip_accents": True, "handle_chinese_chars": False, "clean_text": False},
    {LOWERCASE: True, "lowercase": True},
    {LOWERCASE: True, "lowercase": False},
    {LOWERCASE: True, "lowercase": False, "strip_accents": True},
]
LAYOUT = processors.TemplateProcessing(
    "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", NAMES.index("[CLS]")), ("[SEP]", NAMES.index("[SEP]"))]
)
ADDED: list[list[dict[str, Any]]] = [
    [],
    [{"id": END, "content": "[E1]", "special": True, "normalized": False}],
    [{"id": END, "content": "NewYork", "special": False, "normalized": True},
     {"id": END + 1, "content": "<b>", "special": True, "normalized": True, "lstrip": True, "rstrip": True}],
    [{"id": END, "content": "cafe", "special": False, "normalized": False, "single_word": True}],
    [{"id": 5, "content": "[unused1]", "special": True, "normalized": False}],
    [{"id": END + 4, "content": "[E1]", "special": True, "normalized": False}],
]  # fmt: skip


def write_folder(
    folder: Path, config: dict[str, Any], beside: dict[str, Any], normalizer: dict[str, Any] | None,
    added: list[dict[str, Any]], layout: Any = LAYOUT,
) -> Path:  # fmt: skip
    """Write a folder with the files of a tokenizer, and only the type of a model."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, value in beside.items():
        (folder / name).write_text(json.dumps(value))
    if normalizer is None:
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
        return folder
    engine = Engine(models.WordPiece({piece: number for number, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    own = {key: value for key, value in normalizer.items() if key != LOWERCASE}
    engine.normalizer = normalizers.BertNormalizer(**own)
    if LOWERCASE in normalizer:
        engine.normalizer = normalizers.Sequence([normalizers.Lowercase(), engine.normalizer])
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.add_special_tokens(list(NAMES))
    if layout is not None:
        engine.post_processor = layout
    data = json.loads(engine.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    data["added_tokens"] += [{**flags, **token} for token in added]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def is_read_equally(folder: Path) -> bool:
    """Whether a folder is read; if so, texts, pairs and special tokens must have the ids of `transformers`."""
    refusal = None
    try:
        found = find_tokenizer(folder, 1000)
    except UserError as error:
        refusal = error
    if refusal is not None:
        assert str(folder) in str(refusal) and refusal.found is not None and refusal.todo is not None
        return False
    same(found, folder)
    back = folder / "back"
    back.mkdir()
    (back / "config.json").write_text('{"model_type": "bert"}')
    assert found.tokenizer is not None
    for name, text in tokenizer_files(found.tokenizer, found.longest or 512).items():
        (back / name).write_text(text)
    same(find_tokenizer(back, 1000), back)
    same(found, back)
    return True


def same(found: FolderTokenizer, folder: Path) -> None:
    ours, theirs = found.tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    assert ours is not None and len(theirs) == ours.vocab
    roles = zip(
        (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id), (ours.pad, ours.unk, ours.mask), strict=True
    )
    assert all(number in (None, own) for number, own in roles)
    for text, ids in zip(TEXTS, ours.ids(TEXTS), strict=True):
        assert ours.pair(ids)[0] == theirs(text)["input_ids"], (text, theirs.convert_ids_to_tokens(ids))
        assert ours.pair(ids, ours.ids([TEXTS[0]])[0]) == tuple(
            theirs(text, TEXTS[0], return_token_type_ids=True)[part] for part in ("input_ids", "token_type_ids")
        )
    if found.longest is not None:
        cut = ours.pair(ours.ids(["abc " * 9])[0][: found.longest - 2])[0]
        assert cut == theirs("abc " * 9, truncation=True)["input_ids"]
        a, b = ours.ids(["abc " * 9, "abc " * 8 + "b"])
        assert (
            ours.pair(*truncate_pair(a, b, found.longest - 3))[0]
            == (theirs("abc " * 9, "abc " * 8 + "b", truncation=True)["input_ids"])
        )
    else:
        assert theirs.model_max_length > 500


READ = {"tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "bos_token", "eos_token",
        "additional_special_tokens", "extra_special_tokens", "marker_token", "padding_side"}  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_tokenizer_settings_are_followed_or_rejected(config: dict[str, Any], tmp_path: Path) -> None:
    for number, normalizer in enumerate(NORMALIZERS):
        follows = config.keys() <= READ | {"model_max_length", "never_split", "do_basic_tokenize"}
        follows = follows and config.get("tokenizer_class") != "BertJapaneseTokenizer"
        if normalizer is None and config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
            continue  # these need a tokenizer.json
        assert is_read_equally(write_folder(tmp_path / str(number), config, {}, normalizer, [])) == follows


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_added_token_files_are_followed_or_rejected(normalizer: Any, tmp_path: Path) -> None:
    for number, beside in enumerate(FILES):
        read = is_read_equally(write_folder(tmp_path / str(number), {"do_lower_case": True}, beside, normalizer, []))
        assert read == (beside is not FILES[-1])


@pytest.mark.parametrize("added", ADDED, ids=str)
def test_added_tokens_are_not_split(added: list[dict[str, Any]], tmp_path: Path) -> None:
    decoder = {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in added}
    names = {str(number): {"content": name, "special": True} for number, name in enumerate(NAMES)}
    for number, config in enumerate(
        ({"do_lower_case": True}, {"added_tokens_decoder": names | decoder}, {"tokenizer_class": "TokenizersBackend"})
    ):
        read = is_read_equally(write_folder(tmp_path / str(number), config, {}, {"lowercase": True}, added))
        assert read == (added not in (ADDED[3], ADDED[5]))


@pytest.mark.parametrize("layout", [None, processors.TemplateProcessing("$A [SEP]", "$A $B:1", [("[SEP]", 3)])])
def test_layout_other_than_berts_is_rejected_unless_overridden(layout: Any, tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own", {"tokenizer_class": "TokenizersBackend"}, {}, {"lowercase": True}, [], layout)
    with pytest.raises(UserError, match="'s special tokens"):
        find_tokenizer(own, 1000)
    assert is_read_equally(
        write_folder(tmp_path / "bert", {"do_lower_case": True}, {}, {"lowercase": True}, [], layout)
    )
    bert = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    assert is_read_equally(
        write_folder(tmp_path / "same", {"tokenizer_class": "TokenizersBackend"}, {}, {"lowercase": True}, [], bert)
    )


def test_overridden_tokenizer_settings_are_noted(tmp_path: Path) -> None:
    found = find_tokenizer(write_folder(tmp_path / "a", {}, {}, {"lowercase": False}, []), 1000)
    assert found.notes == (
        "tokenizer.json has lowercase false, but tokenizer_config.json does not set do_lower_case: true is used, "
        "as in `transformers`",
    )
    assert (
        find_tokenizer(write_folder(tmp_path / "b", {"do_lower_case": True}, {}, {"lowercase": False}, []), 1000).notes
        == ()
    )
    assert (
        "vocab.txt has capital letters" in find_tokenizer(write_folder(tmp_path / "c", {}, {}, None, []), 1000).notes[0]
    )


@pytest.mark.slow
def test_many_combinations_of_settings_are_followed_or_rejected(tmp_path: Path) -> None:
    rng, read = random.Random(0), 0
    every = list(product(CONFIGS, FILES, NORMALIZERS, ADDED))
    for number, (config, beside, normalizer, added) in enumerate(rng.sample(every, 400)):
        if normalizer is None and config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
            continue
        more = rng.choice(CONFIGS)
        if "tokenizer_class" not in more:
            config = {**config, **more}
        read += is_read_equally(write_folder(tmp_path / str(number), config, beside, normalizer, added))
    assert 50 < read < 350
