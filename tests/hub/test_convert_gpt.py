"""`heedful convert` and `heedful.load` on folders of GPT-2 and GPT, valid and broken: a result or one clear error."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from bert_folders import change
from gpt_folders import gpt_folder, pairs, random_gpt, release
from test_convert import broken, convert

import heedful
from heedful import load_recipe, train
from heedful.data.tokenizers.tokenizer import Characters, TrainedTokenizer
from heedful.errors import UserError
from heedful.hub.folder import read_config
from heedful.hub.loading import pretrained
from heedful.hub.model_folder import write_model
from heedful.hub.unpickling import read_any_weights
from heedful.tasks.language_model.predictor import TextGenerator


def test_gpt2_round_trip_generates_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = gpt_folder(random_gpt(), tmp_path / "theirs")
    assert convert(monkeypatch, theirs, tmp_path / "ours", "--ledger") == 0
    output = capsys.readouterr()
    before = safetensors.torch.load_file(theirs / "model.safetensors")
    assert {line.split("  ")[0] for line in output.out.splitlines()} == before.keys()
    assert f"read {len(before)} tensors" in output.err and "a context of 32" in output.err
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "back") == 0
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], value) for name, value in after.items())
    losses = []
    for folder in (theirs, tmp_path / "ours", tmp_path / "back"):
        writer = heedful.load(folder, "cpu")
        assert isinstance(writer, TextGenerator) and writer.tokenizer.json == pairs().json
        losses.append(writer.loss("the child came home"))
    assert len(set(losses)) == 1


def test_pickle_and_the_first_release_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_gpt()
    pickled = gpt_folder(model, tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match="heedful convert"):
        heedful.load(pickled)
    for source, name in ((pickled, "one"), (release(model, tmp_path / "117M"), "other")):
        assert convert(monkeypatch, source, tmp_path / name) == 0
        found = pretrained(tmp_path / name, role="causal")
        assert torch.equal(found.tensors["tokens.weight"], model.transformer.wte.weight)


def test_without_a_tokenizer_only_external_formats_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = gpt_folder(random_gpt(), tmp_path / "bare")
    (bare / "vocab.json").unlink()
    assert convert(monkeypatch, bare, tmp_path / "ours") == 2
    assert "vocab.json and merges.txt" in capsys.readouterr().err
    assert convert(monkeypatch, bare, tmp_path / "copy", "--to", "hf") == 0
    with pytest.raises(UserError, match="no tokenizer in this folder"):
        heedful.load(bare)
    assert convert(monkeypatch, bare, tmp_path / "x.onnx") == 2


def test_tokenizer_of_heedful_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pretrained(gpt_folder(random_gpt(), tmp_path / "theirs"), role="causal")
    settings = json.dumps({"task": "language_model", "model": found.config.model_dump(), "decode": {}})
    tokenizer = TrainedTokenizer.train(Characters(), ["the child came home"])
    write_model(tmp_path / "ours", settings, found.tensors, {"tokenizer.json": tokenizer.json}, {})
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "hf") == 0
    assert "the tokenizer is not exported" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_broken_gpt_folders_give_a_model_or_a_clear_error(tmp_path: Path, count: int) -> None:
    rng = random.Random(0)
    model = random_gpt()
    sources = [
        gpt_folder(model, tmp_path / "whole"),
        gpt_folder(random_gpt("OpenAIGPTLMHeadModel"), tmp_path / "shards", max_shard_size="10KB"),
        release(model, tmp_path / "117M"),
    ]
    pickled = gpt_folder(model, tmp_path / "pickled")
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    sources += [pickled, change(gpt_folder(model, tmp_path / "plain"), architectures=None)]
    errors = 0
    for number in range(count):
        folder = tmp_path / "broken"
        shutil.copytree(rng.choice(sources), folder)
        what = broken(rng, folder)
        try:
            pretrained(folder, read_any_weights, role="causal")
        except UserError:
            errors += 1
        except BaseException as error:
            raise AssertionError(f"{number}: {what}") from error
        shutil.rmtree(folder)
    assert errors > count / 2


def test_run_is_read_from_its_final_model_or_checkpoint(tmp_path: Path) -> None:
    small = ["model.width=16", "model.heads=2", "model.layers=1", "model.context=16", "tokenizer.vocab=300"]
    (tmp_path / "text.txt").write_text("".join(f"{chr(97 + n % 26)}{n} is the name of text {n}.\n" for n in range(200)))
    data = f"data={{kind: text, root: {tmp_path}, train: text.txt, valid: text.txt, test: text.txt}}"
    short = ["train.budget={steps: 2}", "train.batch_tokens=64", "train.samples=0"]
    recipe = load_recipe("gpt-prose", [data, *small, *short])
    run = tmp_path / "run"
    list(train(recipe, run))
    final = pretrained(run, role="causal")
    assert read_config(run, "causal") == final.config
    shutil.rmtree(run / "model")
    newest = pretrained(run, role="causal")
    assert newest.config == final.config and newest.config.vocab == 300
    assert all(torch.equal(newest.tensors[name], value) for name, value in final.tensors.items())
    assert read_config(run, "causal").model_copy(update={"vocab": 300}) == final.config
