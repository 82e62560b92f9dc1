"""Marian folders compared with `transformers`: equal ids, logits and translations, and folders that round-trip."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import change
from marian_folders import (
    SOURCE,
    TARGET,
    marian_folder,
    own_vocabulary,
    random_marian,
    random_settings,
    two_vocabularies,
    vocabulary,
)
from test_convert import convert

import heedful
from heedful.cli.app import main
from heedful.cli.convert import write_own
from heedful.contracts.doctor import doctor
from heedful.data.tokenizers.multilingual import open_translation_tokenizer
from heedful.data.tokenizers.sentence_pieces import SentencePieceTokenizer
from heedful.errors import UserError
from heedful.explore.inspect import TextInput, reading, vocabulary_of
from heedful.export.check import TOLERANCE
from heedful.export.write import export
from heedful.hub import pretrained, write
from heedful.models import build
from heedful.runs.recipe import recipe_of
from heedful.runs.train import train

LETTERS = "abcdefghijklmnopqrstuvwxyz  .,!?ABCDEßäö漢字\u0301\u3000\uff21\t"
FORMS: dict[str, dict[str, Any]] = {
    "one vocabulary": {},
    "two vocabularies": two_vocabularies(),
    "two, and logits of their own": two_vocabularies(untied=True),
}
many = pytest.mark.parametrize(
    ("form", "seed"),
    [
        pytest.param(form, seed, marks=[pytest.mark.slow] if seed > (1 if FORMS[form] else 3) else [])
        for form in FORMS
        for seed in range(24)
    ],
)
every_form = pytest.mark.parametrize("form", FORMS)


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def theirs_of(ids: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """Their ids of ours, in a vocabulary of `count` tokens."""
    last = (len(vocabulary()) if count is None else count) - 1
    return torch.tensor([last, 1, last, 0, *range(2, last)])[ids]


def random_texts(rng: random.Random, count: int) -> list[str]:
    odd = ["", " ", "  a  b ", ">>deu<< the child", ">>xyz<< home", ">>fra<<", "</s> <pad> <unk>", "▁a▁b", "z z", "zoo"]
    words = " ".join(SOURCE + TARGET).split()
    mixed = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]
    return odd + mixed + ["".join(rng.choices(LETTERS, k=rng.randint(1, 30))) for _ in range(count)]


@every_form
def test_ids_and_texts_are_those_of_transformers(form: str, tmp_path: Path) -> None:
    model = random_marian(**FORMS[form])
    folder, source, count = (
        marian_folder(model, tmp_path / "theirs"), model.config.vocab_size, model.config.decoder_vocab_size
    )  # fmt: skip
    theirs: Any = transformers.MarianTokenizer.from_pretrained(folder)
    ours: Any = pretrained(folder).tokenizer
    assert isinstance(ours, SentencePieceTokenizer)
    assert (ours.vocab, ours.source_vocab) == (count + 1, source + 1 if FORMS[form] else None)
    again: Any = open_translation_tokenizer(ours.json, "tokenizer.json")
    texts = random_texts(random.Random(0), 300)
    unlike = [text for text in texts if "<pad>" in text]  # special tokens in a text are ordinary text here
    for text, ids in zip(texts, ours.ids(texts), strict=True):
        right = theirs.convert_tokens_to_ids(theirs._tokenize(text))
        right = [1 if text in unlike and one in (0, source - 1) else one for one in right]
        assert theirs_of(torch.tensor(ids, dtype=torch.long), source).tolist() == right, text
        assert again.ids([text])[0] == ids
        encoding = ours.encode(text)
        assert len(encoding.offsets) == len(encoding.ids) and encoding.pieces == ours.source_pieces(ids)
        ids = ours.target_ids([text])[0]
        assert again.target_ids([text])[0] == ids
        plain = [number for number in ids if number not in ours.special]
        assert ours.decode(ids) == theirs.decode(theirs_of(torch.tensor(plain, dtype=torch.long), count).tolist())


@many
def test_random_models_give_the_same_logits_and_translations(form: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = random_marian(bias=rng.choice([0.0, 1.0]), **random_settings(rng), **FORMS[form])
    many, count = model.config.vocab_size, model.config.decoder_vocab_size
    folder = marian_folder(model, tmp_path / "theirs")
    found = pretrained(folder)
    ours: Any = build(found.config)
    ours.load_state_dict(found.tensors)
    ours.eval()
    source, target = torch.randint(3, many + 1, (3, 9)), torch.randint(3, count + 1, (3, 7))
    target[:, 0] = 2
    with torch.no_grad():
        right = model(input_ids=theirs_of(source, many), decoder_input_ids=theirs_of(target, count)).logits
        logits = ours.tokens.logits(ours.read(source, target))
    agree(logits, right[..., theirs_of(torch.arange(count + 1), count)])
    translator: Any = heedful.load(folder, "cpu")
    assert translator.settings.beams == 4 and translator.settings.max_length == 29
    tokenizer: Any = transformers.MarianTokenizer.from_pretrained(folder)
    texts = [*SOURCE, "home", ">>deu<< a child is home"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    for beams in (1, 4):
        with torch.no_grad():
            rows = model.generate(**inputs, num_beams=beams, max_length=30)
        for row, (mine, *_) in zip(rows[:, 1:].tolist(), translator.search(texts, beams=beams), strict=True):
            row = row[: row.index(0) + 1]
            assert theirs_of(torch.tensor(mine.ids), count).tolist() == row, beams
            assert mine.text == tokenizer.decode(row, skip_special_tokens=True)


@many
def test_folders_round_trip(form: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seed)
    model = random_marian(**random_settings(random.Random(seed)), **FORMS[form])
    folder = marian_folder(model, tmp_path / "theirs")
    assert convert(monkeypatch, folder, tmp_path / "ours") == 0
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "back") == 0
    before, after = (safetensors.torch.load_file(one / "model.safetensors") for one in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], value) for name, value in after.items())
    one, other = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "back"))
    silu = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh"}
    one["activation_function"] = silu.get(one["activation_function"], one["activation_function"])
    assert {key: one[key] for key in other if key in one} == {key: other[key] for key in other if key in one}
    loaded = transformers.GenerationConfig.from_pretrained(tmp_path / "back")
    assert (loaded.num_beams, loaded.max_length, loaded.renormalize_logits) == (4, 30, True)
    assert (loaded.bad_words_ids, loaded.forced_eos_token_id) == ([[model.config.pad_token_id]], 0)
    for name in ("source.spm", "target.spm"):
        assert (folder / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    for path in folder.glob("*vocab.json"):
        assert json.loads((tmp_path / "back" / path.name).read_text()) == json.loads(path.read_text())
    reopened: Any = transformers.MarianMTModel.from_pretrained(tmp_path / "back")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in reopened.state_dict().items())
    tokenizer: Any = transformers.MarianTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer.separate_vocabs == bool(FORMS[form])
    texts = [heedful.load(place, "cpu").translate(SOURCE) for place in (folder, tmp_path / "ours", tmp_path / "back")]
    assert texts[0] == texts[1] == texts[2]


def test_translate_command_reads_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    folder = marian_folder(random_marian(), tmp_path / "theirs")
    expected = heedful.load(folder, "cpu").translate([SOURCE[0]])
    monkeypatch.setattr(sys, "argv", ["heedful", "translate", str(folder), SOURCE[0]])
    with contextlib.suppress(SystemExit):
        main()
    assert capsys.readouterr().out.splitlines()[0].strip() == expected[0]


def test_model_without_a_bias_of_the_logits_is_written_without_one(tmp_path: Path) -> None:
    folder = marian_folder(random_marian(), tmp_path / "theirs")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    del tensors["final_logits_bias"]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    found = pretrained(folder)
    assert found.config.output == "tied" and "tokens.bias" not in found.tensors
    write(tmp_path / "back", found)
    assert safetensors.torch.load_file(tmp_path / "back" / "model.safetensors").keys() == tensors.keys()


def test_tied_matrices_may_have_any_of_their_names(tmp_path: Path) -> None:
    shared, *others = ("model.shared.weight", *(f"model.{side}coder.embed_tokens.weight" for side in ("en", "de")))
    for number, names in enumerate((["lm_head.weight"], others, [*others, shared, "lm_head.weight"])):
        folder = marian_folder(random_marian(), tmp_path / str(number))
        tensors, expected = safetensors.torch.load_file(folder / "model.safetensors"), pretrained(folder).tensors
        tensors |= dict.fromkeys(names, tensors.pop(shared))
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        safetensors.torch.save_file(copies, folder / "model.safetensors", {"format": "pt"})
        found = pretrained(folder)
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.items())
        assert len(found.ledger) == len(copies)
    folder = marian_folder(random_marian(**two_vocabularies()), tmp_path / "two")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors[others[1]] + 1
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lm_head.weight of its own(.|\n)*tie_word_embeddings"):
        pretrained(folder)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share_encoder_decoder_embeddings": False}, "embed_tokens.weight: not in the file"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: not supported"),
        ({"decoder_ffn_dim": 7}, "not supported: decoder_ffn_dim"),
        ({"decoder_attention_heads": 1}, "not supported: decoder_attention_heads"),
        ({"normalize_before": True}, "normalize_before: not supported"),
        ({"pad_token_id": 3}, "not supported: another pad_token_id"),
        ({"decoder_start_token_id": 0}, "not supported: another decoder_start_token_id"),
        ({"eos_token_id": 2}, "not supported: another eos_token_id"),
        ({"activation_function": "laplace"}, "not supported: activation_function"),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 3}, "a divisor of d_model"),
        ({"architectures": ["MarianModel"]}, "MarianMTModel"),
        ({"vocab_size": 50, "pad_token_id": 49, "decoder_start_token_id": 49, "decoder_vocab_size": 50}, "do not fit"),
    ],
)
def test_unsupported_settings_are_one_clear_error(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = change(marian_folder(random_marian(), tmp_path / "theirs"), **settings)
    with pytest.raises(UserError, match=words) as refused:
        pretrained(folder)
    assert refused.value.todo and str(folder) in str(refused.value)


def test_broken_vocabularies_are_one_clear_error(tmp_path: Path) -> None:
    folder = marian_folder(random_marian(), tmp_path / "theirs")
    whole = vocabulary()
    swapped = {**whole, "</s>": 1, "<unk>": 0}
    gaps = {**whole, "<pad>": 10**6}
    for vocab, words in (
        ({**whole, "more": len(whole)}, "does not match the model"),
        (swapped, "special tokens in other places"),
        (gaps, "have gaps"),
        ([1, 2], "no vocabulary"),
    ):
        (folder / "vocab.json").write_text(json.dumps(vocab))
        with pytest.raises(UserError, match=words):
            pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps(whole))
    (folder / "source.spm").write_bytes(b"no model")
    with pytest.raises(UserError, match="SentencePiece model"):
        pretrained(folder)
    (folder / "source.spm").unlink()
    with pytest.raises(UserError, match="missing"):
        pretrained(folder)
    (folder / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"no tokenizer"):
        heedful.load(folder, "cpu")


def test_damage_of_folders_with_two_vocabularies_is_one_clear_error(tmp_path: Path) -> None:
    folder, count = marian_folder(random_marian(**two_vocabularies()), tmp_path / "theirs"), len(own_vocabulary(1))
    text = (folder / "target_vocab.json").read_text()
    fewer = {name: number for name, number in own_vocabulary(1).items() if number < count - 1}
    places = {"pad_token_id": count - 2, "decoder_start_token_id": count - 2}
    damages: tuple[tuple[str, str | None, str], ...] = (
        ("target_vocab.json", text[: len(text) // 2], "target_vocab.json(.|\n)*JSON"),
        ("target_vocab.json", json.dumps(fewer), f"{count - 1} pieces(.|\n)*{count}, the decoder_vocab_size"),
        ("target_vocab.json", None, "target_vocab.json: this file is missing"),
        ("target.spm", None, "target.spm: this file is missing"),
        ("decoder_vocab_size", f"{count - 1}", f"another pad_token_id(.|\n)*the last of {count - 1} tokens, decoder"),
        ("decoder_vocab_size", '"many"', "decoder_vocab_size(.|\n)*a whole number"),
        ("places", json.dumps(places | {"decoder_vocab_size": count - 1}), "decoder.embed_tokens.weight: .* in the"),
        ("tie_word_embeddings", "false", "lm_head.weight: not in the file"),
        ("share_encoder_decoder_embeddings", '"no"', "share_encoder_decoder_embeddings(.|\n)*true or false"),
    )
    for number, (name, value, words) in enumerate(damages):
        copy = shutil.copytree(folder, tmp_path / str(number))
        if value is None:
            (copy / name).unlink()
        elif (copy / name).exists():
            (copy / name).write_text(value)
        else:
            change(copy, **(json.loads(value) if name == "places" else {name: json.loads(value)}))
        with pytest.raises(UserError, match=words) as refused:
            pretrained(copy)
        assert refused.value.todo and str(copy) in str(refused.value)


def test_generation_settings_that_are_not_followed_are_named(tmp_path: Path) -> None:
    folder = marian_folder(random_marian(), tmp_path / "theirs")
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "no_repeat_ngram_size": 3, "num_beams": 6}))
    found = pretrained(folder)
    assert found.decode.beams == 6 and "no_repeat_ngram_size 3 is not followed" in found.notes[-1]
    more = {"bad_words_ids": [[59], [7]], "forced_bos_token_id": 5, "max_new_tokens": 9, "early_stopping": True}
    file.write_text(json.dumps(more))
    assert {note.split()[1] for note in pretrained(folder).notes} == set(more)
    file.write_text(json.dumps({"bad_words_ids": [[7]], "pad_token_id": 7, "forced_eos_token_id": 0}))
    assert not pretrained(folder).notes
    file.write_text(json.dumps({"num_beams": "six"}))
    with pytest.raises(UserError, match="beams"):
        pretrained(folder)


@every_form
def test_targets_are_split_by_the_model_of_their_language(form: str, tmp_path: Path) -> None:
    model = random_marian(**FORMS[form])
    folder = marian_folder(model, tmp_path / "theirs")
    theirs: Any = transformers.MarianTokenizer.from_pretrained(folder)
    ours: Any = pretrained(folder).tokenizer
    texts, count = [*SOURCE, *TARGET, "", "zoo Haus"], model.config.decoder_vocab_size
    found = [theirs_of(torch.tensor(ids, dtype=torch.long), count).tolist() for ids in ours.target_ids(texts)]
    assert found == [theirs(text_target=text)["input_ids"][:-1] for text in texts]
    assert ours.target_ids(TARGET) != ours.ids(TARGET)


@pytest.mark.parametrize("form", ["one vocabulary", "two vocabularies"])
def test_model_and_tokenizer_of_our_own_folder_belong_together(form: str, tmp_path: Path) -> None:
    model = pretrained(marian_folder(random_marian(**FORMS[form]), tmp_path / "theirs"))
    write_own(tmp_path / "ours", model, tmp_path / "theirs")
    file, cut = tmp_path / "ours" / "tokenizer.json", ["source_pieces", "pieces"] if FORMS[form] else ["pieces"]
    whole = json.loads(file.read_text())
    (tmp_path / "ours" / "manifest.json").unlink()
    for key in cut:
        file.write_text(json.dumps({"sentencepiece": {**whole["sentencepiece"], key: ["a", "b"]}}))
        for read in (pretrained, heedful.load):
            with pytest.raises(UserError, match="do not belong together"):
                read(tmp_path / "ours")
        file.write_text(json.dumps({"sentencepiece": {**whole["sentencepiece"], key: None}}))
        with pytest.raises(UserError, match="damaged"):
            pretrained(tmp_path / "ours")


def test_source_tokens_are_shown_by_their_own_pieces(tmp_path: Path) -> None:
    torch.manual_seed(1)
    translator: Any = heedful.load(marian_folder(random_marian(**two_vocabularies()), tmp_path / "theirs"), "cpu")
    tokenizer, text = translator.tokenizer, "the child came home"
    pieces = tokenizer.encode(text).pieces
    assert "".join(pieces).replace("▁", " ").strip() == text
    translation = translator.predict([text])[0]
    alignment = translator.align(text, translation)
    assert (alignment.source, alignment.target) == ([*pieces, "</s>"], tokenizer.pieces(translation.ids))
    sides = reading(translator, TextInput(text=text, other=TARGET[0])).sides
    assert [token.piece for token in sides["source"]] == alignment.source
    written = tokenizer.target_ids([TARGET[0]])[0]
    assert [token.id for token in sides["written"]] == [*written, 3] and written != tokenizer.ids([TARGET[0]])[0]
    assert vocabulary_of(translator)[4:] == list(own_vocabulary(0))[2:-1]


def test_doctor_finds_nothing_wrong_with_two_vocabularies(tmp_path: Path) -> None:
    torch.manual_seed(1)
    folder = marian_folder(random_marian(**two_vocabularies(untied=True)), tmp_path / "theirs")
    findings = doctor(folder).findings
    assert {one.verdict for one in findings} <= {"passed", "not applicable"}, findings


@pytest.mark.parametrize("untied", [False, True])
def test_two_vocabularies_are_exported(untied: bool, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs `pip install 'heedful[ctranslate2]'`")
    torch.manual_seed(2)
    folder = marian_folder(random_marian(**two_vocabularies(untied), activation_function="relu"), tmp_path / "theirs")
    (one,) = export(heedful.load(folder, "cpu"), tmp_path / "out", "ctranslate2")
    about = json.loads((tmp_path / "out" / "export.json").read_text())["files"][0]
    assert one.difference <= TOLERANCE
    assert about["equal_searches"] == {"greedy": about["searches"], "beams": about["searches"]}
    names = [json.loads((tmp_path / "out" / f"{side}_vocabulary.json").read_text()) for side in ("source", "target")]
    assert [some[4:] for some in names] == [list(own_vocabulary(side))[2:-1] for side in range(2)]


def tuned(folder: Path, tmp_path: Path, **model: Any) -> Path:
    """A short fine-tuning run that starts from a folder."""
    rows = "".join(f"{source}\t{target}\n" for source, target in zip(SOURCE, TARGET, strict=True))
    (tmp_path / "pairs.tsv").write_text(rows)
    settings = {
        "task": {"kind": "translation"}, "start": {"folder": str(folder)},
        "data": {"kind": "tsv", "train": str(tmp_path / "pairs.tsv"), "valid": str(tmp_path / "pairs.tsv")},
        "tokenizer": {"kind": "unigram", "vocab": 300}, "model": {"kind": "transformer", **model},
        "train": {"budget": {"steps": 3}, "batch_tokens": 64, "evaluate_every": 3, "save_every": 3, "device": "cpu"},
    }  # fmt: skip
    list(train(recipe_of(json.dumps(settings), "recipe"), tmp_path / "run"))
    return tmp_path / "run"


@pytest.mark.parametrize("form", ["one vocabulary", "two, and logits of their own"])
def test_fine_tuning_starts_from_the_folder_itself(form: str, tmp_path: Path, no_loss_curve: None) -> None:
    torch.manual_seed(0)
    folder = marian_folder(random_marian(**FORMS[form]), tmp_path / "theirs")
    settings = pretrained(folder).config.model_dump(mode="json") | {"dropout": 0.0, "vocab": None}
    before, after = pretrained(folder), pretrained(tuned(folder, tmp_path, **settings))
    assert after.tokenizer.json == before.tokenizer.json and after.tensors.keys() == before.tensors.keys()
    change = max(float((after.tensors[name] - x).abs().max()) for name, x in before.tensors.items())
    assert 0 < change < 0.1  # of a few steps
    with pytest.raises(UserError, match=r"other settings than the recipe(.|\n)*norm: pre(.|\n)*norm: post"):
        tuned(folder, tmp_path / "theirs", **{**settings, "norm": "pre"})
    other = None if FORMS[form] else 29
    with pytest.raises(UserError, match="source_vocab") as refused:
        tuned(folder, tmp_path / "theirs", **{**settings, "source_vocab": other})
    assert refused.value.todo
