"""Corpora in several languages: files, columns and number words; pairs with the target's language; the tokenizer."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from heedful.config import parse
from heedful.data.formats.parallel import (
    ParallelColumns,
    ParallelCorpora,
    ParallelNumbers,
    require_language,
    split_tag,
    tagged,
)
from heedful.data.tokenizers.multilingual import MultilingualTokenizer, open_translation_tokenizer
from heedful.data.tokenizers.tokenizer import Bpe, TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.runs.recipe import check_recipe, load_recipe

MULTI30K = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "multi30k")
TEXTS = {"en": ["one", "two", "three"], "de": ["eins", "zwei", "drei"], "fr": ["un", "deux", "trois"]}


def corpora(folder: Path, texts: dict[str, list[str]] = TEXTS, **more: Any) -> ParallelCorpora:
    for code, column in texts.items():
        (folder / f"train.{code}").write_text("".join(f"{text}\n" for text in column))
    files = {code: f"train.{code}" for code in texts}
    return parse(ParallelCorpora, {"root": str(folder), "train": files, "valid": files, **more})


@pytest.mark.claim("M8")
def test_every_direction_has_the_pairs_of_aligned_lines(tmp_path: Path) -> None:
    data = corpora(tmp_path)
    assert data.texts("train") == TEXTS and data.codes == ("en", "de", "fr")
    pairs = data.read("train").pairs
    assert len(pairs) == 18 and len(set(pairs)) == 18
    for pair in pairs:
        target, text = split_tag(pair.source, data.codes)
        assert target is not None
        row = TEXTS[target].index(pair.target)
        assert text in {TEXTS[code][row] for code in data.codes if code != target}
    assert Counter(split_tag(pair.source, data.codes)[0] for pair in pairs) == {"en": 6, "de": 6, "fr": 6}
    some = corpora(tmp_path, directions=[["en", "fr"]]).read("train").pairs
    assert [tuple(pair) for pair in some] == [("<2fr> one", "un"), ("<2fr> two", "deux"), ("<2fr> three", "trois")]


def test_blank_sides_are_left_out_and_counted(tmp_path: Path) -> None:
    data = corpora(tmp_path, TEXTS | {"fr": ["un", " ", "trois"]})
    found = data.read("train")
    assert len(found.pairs) == 14 and found.skipped == 4
    assert data.texts("train") == {code: [column[0], column[2]] for code, column in TEXTS.items()}


def test_unequal_numbers_of_lines_are_counted(tmp_path: Path) -> None:
    data = corpora(tmp_path, TEXTS | {"de": ["eins"]})
    with pytest.raises(UserError, match="unequal") as error:
        data.read("train")
    for words in ("3 lines in", "1 lines in", "train.de", "train.fr"):
        assert words in str(error.value)
    (tmp_path / "train.de").unlink()
    assert "train.de" in str(data.problems(["train"])[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"valid": {"en": "a", "de": "b"}}, "the languages are en, de"),
        ({"directions": [["en", "it"]]}, "no language 'it'"),
        ({"directions": [["en", "en"]]}, "both source and target"),
        ({"valid": {"en": "a", "de": "a", "fr": "b"}}, "one file"),
        ({"train": {"e n": "a", "de": "b"}}, "train"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], message: str) -> None:
    files = {code: f"train.{code}" for code in TEXTS}
    with pytest.raises(UserError, match=message):
        parse(ParallelCorpora, {"train": files, "valid": files, **settings})


def test_columns_of_a_table_are_languages(tmp_path: Path) -> None:
    rows = [dict(zip(("English", "German"), row, strict=True)) for row in (("one", "eins"), ("two", None))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"root": str(tmp_path), "train": "a.jsonl", "valid": "a.jsonl"}
    data = parse(ParallelColumns, {**settings, "languages": {"en": "English", "de": "German"}})
    found = data.read("train")
    assert [tuple(pair) for pair in found.pairs] == [
        ("<2de> one", "eins"),
        ("<2en> eins", "one"),
    ] and found.skipped == 2
    assert data.texts("train") == {"en": ["one"], "de": ["eins"]}
    with pytest.raises(UserError, match="no column 'Deutsch'"):
        parse(ParallelColumns, {**settings, "languages": {"en": "English", "de": "Deutsch"}}).read("train")


def test_numbers_are_the_same_in_every_language_and_splits_are_disjoint() -> None:
    data = ParallelNumbers(train=50, valid=10, test=10, below=1000, languages=("en", "de", "fr"))
    splits = {split: data.aligned(split) for split in ("train", "valid", "test")}
    assert all(len({*map(len, texts.values())}) == 1 for texts in splits.values())
    for split, others in (("train", ("valid", "test")), ("valid", ("test",))):
        for other in others:
            assert not {*splits[split]["de"]} & {*splits[other]["de"]}
    place = splits["train"]["en"].index("zero")
    assert splits["train"]["de"][place] == "null" and splits["train"]["fr"][place] == "zéro"


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no Multi30k in {MULTI30K.parent}; set HEEDFUL_DATA")
def test_multi30k_is_aligned_in_three_languages() -> None:
    recipe: Any = load_recipe("multi30k-three", [f"data.root={MULTI30K}"])
    check_recipe(recipe)
    texts = recipe.data.texts("valid")
    assert {code: len(column) for code, column in texts.items()} == {"en": 1014, "de": 1014, "fr": 1014}
    assert texts["en"][0].startswith("A group of men") and texts["de"][0].startswith("Eine Gruppe von Männern")
    assert texts["fr"][0].startswith("Un groupe d'hommes")
    assert len(recipe.data.read("test").pairs) == 6000


# ------------------------------------------------------------------ the tokenizer
@pytest.mark.parametrize("config", [Bpe(vocab=280), WordPiece(vocab=60, lowercase=True)])
def test_the_language_is_one_token_at_the_beginning(config: Any) -> None:
    texts = [text for column in TEXTS.values() for text in column]
    words = MultilingualTokenizer.learn(config, texts, ("en", "de", "fr"))
    plain = TrainedTokenizer.train(config, texts)
    assert words.vocab == plain.vocab + 3 and words.first == plain.vocab
    (ours,), (theirs,) = words.ids([tagged("one two", "de")]), plain.ids(["one two"])
    assert ours == [plain.vocab + 1, *theirs] and words.ids(["one two"]) == [theirs]
    assert words.pieces(ours)[0] == "<2de>" and words.decode(ours) == plain.decode(theirs)
    unknown = "<2it> one"
    assert words.ids([unknown]) == plain.ids([unknown]), "ordinary text"
    encoded = words.encode("<2fr> one")
    assert encoded.ids == words.ids(["<2fr> one"])[0] and encoded.offsets[0] == (0, 6)
    assert encoded.offsets[-1][1] == len("<2fr> one") and encoded.offsets[1][0] >= len("<2fr>")
    again = open_translation_tokenizer(words.json, "tokenizer.json")
    assert isinstance(again, MultilingualTokenizer) and again.json == words.json and again.languages == words.languages
    assert type(open_translation_tokenizer(plain.json, "tokenizer.json")) is TrainedTokenizer
    broken = json.dumps({**json.loads(words.json), "languages": ["en"]})
    with pytest.raises(UserError, match="damaged"):
        open_translation_tokenizer(broken, "tokenizer.json")


def test_unknown_languages_are_named() -> None:
    with pytest.raises(UserError, match="did you mean de"):
        require_language("dee", ("en", "de"), "to")
