"""The vocabulary of a published Transformer-XL: pickles as they were written, vocab.txt, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from heedful.cli.app import app
from heedful.data.tokenizers.lm_tokenization import codec_of, open_tokenizer
from heedful.data.tokenizers.words import WordTokenizer
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained
from heedful.models import build
from heedful.models.transformer_xl.config import TransformerXLConfig
from heedful.runs.load import load

WORDS = ["<eos>", "the", ",", "<unk>", "mice", "naïve", "日本", "Mice", '"', "."]


def described(**changes: Any) -> dict[str, Any]:
    """What the published code keeps of a vocabulary."""
    usual = {
        "counter": Counter({word: 100 - number for number, word in enumerate(WORDS)}), "special": ["<eos>"],
        "min_freq": 0, "max_size": None, "lower_case": False, "delimiter": None, "vocab_file": None,
        "idx2sym": list(WORDS), "sym2idx": OrderedDict((word, number) for number, word in enumerate(WORDS)),
    }  # fmt: skip
    return usual | changes


def saved(value: Any, how: str) -> bytes:
    """The value as vocab.bin, in the older or the current format of torch.save, or as vocab.pkl."""
    if how.startswith("pickle"):
        return pickle.dumps(value, protocol=int(how[-1]))
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=how == "zip")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Transformer-XL without a vocabulary."""
    torch.manual_seed(0)
    model: Any = build(TransformerXLConfig(**TransformerXLConfig.tiny().model_dump() | {"vocab": len(WORDS)}))
    write(tmp_path / "xl", Pretrained(model.config, None, model.state_dict(), ()))
    return tmp_path / "xl"


@pytest.mark.parametrize("how", ["stream", "zip", "pickle2", "pickle3", "pickle4", "pickle5"])
def test_pickled_vocabulary_is_read(how: str, folder: Path) -> None:
    (folder / ("vocab.pkl" if how.startswith("pickle") else "vocab.bin")).write_bytes(saved(described(), how))
    found: Any = pretrained(folder).tokenizer
    assert found.pieces(range(found.vocab)) == WORDS
    assert (found.eos, found.unk) == (0, 3)
    assert found.ids(['the naïve Mice , "', "The <eos> <unk>"]) == [[1, 5, 7, 2, 8], [3, 3, 3]]


def test_folder_with_its_words_generates_text_and_is_written_again(folder: Path, tmp_path: Path) -> None:
    (folder / "vocab.bin").write_bytes(saved(described(), "stream"))
    done = CliRunner().invoke(app, ["generate", str(folder), "the naïve mice", "--length", "12", "--json"])
    assert done.exit_code == 0, done.output
    text = json.loads(done.stdout)["text"]
    assert text.startswith("the naïve mice")
    assert set(text.split()) <= set(WORDS) - {"<eos>", "<unk>"}
    writer: Any = load(folder)
    assert "".join(writer.stream("the naïve mice", length=12)) == text.removeprefix("the naïve mice")
    for form in ("heedful", "hf"):
        done = CliRunner().invoke(app, ["convert", str(folder), str(tmp_path / form), "--to", form])
        assert done.exit_code == 0, done.output
        again: Any = load(tmp_path / form)
        assert again.tokenizer.json == writer.tokenizer.json
        assert again.generate(["the"], length=12)[0].text == writer.generate(["the"], length=12)[0].text
    assert (tmp_path / "hf" / "vocab.txt").read_text(encoding="utf-8").splitlines() == WORDS


def test_words_of_a_text_file_and_lower_case(folder: Path) -> None:
    (folder / "vocab.txt").write_text("<eos>\nthe 17\n<UNK>\nmice\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TransfoXLTokenizer", "lower_case": true}')
    found: Any = pretrained(folder).tokenizer
    assert found.ids(["The MICE are"]) == [[1, 3, 2]]
    codec = codec_of(open_tokenizer(found.json, "again"))
    assert codec.encode("the\nmice") == [1, 0, 3]
    assert codec.decode([1, 0, 3]) == "the\nmice"
    assert (codec.start_id, codec.end_id, codec.unknown_id, codec.suppressed) == (0, None, 2, (2,))


class Attack:
    """What would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/attacked",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (described(moses=Attack()), "it wants to call posix.system"),
        (["the"], "it has no list of words, idx2sym"),
        (described(idx2sym=["the", 3]), "it has no list of words, idx2sym"),
        (described(idx2sym=["the", "the", "<eos>", "<unk>"]), "'the' twice"),
        (described(idx2sym=["the", "<unk>"]), "2 words without <eos>"),
        (described(idx2sym=["the", "<eos>"]), "2 words without <unk>"),
        (described(idx2sym=[*WORDS, "more"]), "does not match the model"),
        (described(delimiter="|"), "cut at whitespace alone"),
        (described(lower_case="yes"), "lower_case"),
    ],
)
@pytest.mark.parametrize("how", ["stream", "zip", "pickle4"])
def test_other_vocabularies_are_rejected_by_their_name(value: Any, message: str, how: str, folder: Path) -> None:
    (folder / "vocab.bin").write_bytes(saved(value, how))
    with pytest.raises(UserError, match=message) as error:
        pretrained(folder)
    assert str(folder / "vocab.bin") in str(error.value)


@pytest.mark.parametrize("cut", [0, 1, 40, 200])
def test_damaged_pickle_is_rejected_by_its_name(cut: int, folder: Path) -> None:
    (folder / "vocab.bin").write_bytes(saved(described(), "stream")[:cut])
    with pytest.raises(UserError) as error:
        pretrained(folder)
    assert str(folder / "vocab.bin") in str(error.value)


def test_folder_without_a_vocabulary_says_what_it_lacks(folder: Path) -> None:
    with pytest.raises(UserError, match="there is no tokenizer") as error:
        load(folder)
    assert "vocab.bin, vocab.pkl or vocab.txt" in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {"vocab": {"a": 5}}}', '{"model": 3}'])
def test_damaged_tokenizer_file_is_rejected(text: str) -> None:
    with pytest.raises(UserError, match="not a vocabulary of words"):
        WordTokenizer(text, "tokenizer.json")
