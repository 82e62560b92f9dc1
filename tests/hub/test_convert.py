"""`heedful convert` and `heedful.load` on external folders, valid and broken: a result or one clear error."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import HEADS, batch, random_bert, save_folder

import heedful
from heedful.cli.app import main
from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.hub.rules import tensor_sha256
from heedful.hub.sentence_transformers import SentenceConfig, sentence_files
from heedful.hub.unpickling import read_any_weights

CHECKPOINT = Path(__file__).parent / "checkpoint"


def convert(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run `heedful convert`; returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["heedful", "convert", *map(str, words)])
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


@pytest.mark.parametrize("kind", HEADS)
def test_bert_round_trip_is_loadable_at_each_step(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = save_folder(random_bert(kind), tmp_path / "theirs")
    assert convert(monkeypatch, theirs, tmp_path / "ours", "--ledger") == 0
    output = capsys.readouterr()
    names = safetensors.torch.load_file(theirs / "model.safetensors").keys()
    assert {line.split("  ")[0] for line in output.out.splitlines()} == names
    assert f"read {len(names)} tensors" in output.err
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "back") == 0
    before, after = (
        safetensors.torch.load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back")
    )
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert before.keys() - after.keys() <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    predictors = [type(heedful.load(folder, "cpu")) for folder in (theirs, tmp_path / "ours", tmp_path / "back")]
    assert len(set(predictors)) == 1


def test_json_has_every_tensor_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = save_folder(random_bert(), tmp_path / "theirs")
    assert convert(monkeypatch, theirs, tmp_path / "ours", "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    assert {one["source"]: (one["shape"], one["sha256"]) for one in records} == {
        name: (list(tensor.shape), tensor_sha256(tensor)) for name, tensor in tensors.items()
    }
    ours = safetensors.torch.load_file(tmp_path / "ours" / "model.safetensors")
    assert {one["name"] for one in records} - {None} == ours.keys()


def test_only_a_model_is_overwritten_and_only_with_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, target = save_folder(random_bert(), tmp_path / "theirs"), tmp_path / "ours"
    target.mkdir()
    (target / "diary.txt").write_text("mine")
    for words in ((), ("--force",)):
        assert convert(monkeypatch, theirs, target, *words) == 2
    assert (target / "diary.txt").read_text() == "mine"
    assert convert(monkeypatch, theirs, tmp_path / "model") == 0
    assert convert(monkeypatch, theirs, tmp_path / "model") == 2
    assert "--force" in capsys.readouterr().err
    assert convert(monkeypatch, theirs, tmp_path / "model", "--force", "--to", "hf") == 0
    assert (tmp_path / "model" / "vocab.txt").exists()
    for place in (theirs, tmp_path):
        assert convert(monkeypatch, theirs, place, "--force") == 2
    assert convert(monkeypatch, theirs, tmp_path / "no" / "such") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours", "model"}


def test_failed_write_leaves_the_former_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.files import writing as files

    theirs = save_folder(random_bert(), tmp_path / "theirs")
    assert convert(monkeypatch, theirs, tmp_path / "model", "--to", "hf") == 0
    before = (tmp_path / "model" / "model.safetensors").read_bytes()

    def full(descriptor: int, data: bytes | memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    for target in ("model", "other"):
        assert convert(monkeypatch, theirs, tmp_path / target, "--to", "hf", "--force") == 74
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "model"}


def test_sentence_settings_survive_the_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = save_folder(random_bert(), tmp_path / "theirs")
    for name, text in sentence_files(24, SentenceConfig(pooling="mean", normalize=True), 16).items():
        (theirs / name).parent.mkdir(exist_ok=True)
        (theirs / name).write_text(text)
    assert convert(monkeypatch, theirs, tmp_path / "ours") == 0
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "back") == 0
    for folder in (tmp_path / "ours", tmp_path / "back"):
        found = pretrained(folder)
        assert (found.pooling, found.normalize, found.longest) == ("mean", True, 16)


def test_pickle_and_a_tensorflow_checkpoint_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_bert("BertForMaskedLM")
    theirs = save_folder(model, tmp_path / "theirs")
    (theirs / "model.safetensors").unlink()
    torch.save(model.state_dict(), theirs / "pytorch_model.bin")
    with pytest.raises(UserError, match="heedful convert"):
        heedful.load(theirs)
    for source, name in ((theirs, "new"), (CHECKPOINT, "tf")):
        assert convert(monkeypatch, source, tmp_path / name) == 0
        assert convert(monkeypatch, source, tmp_path / f"{name}-hf", "--to", "hf") == 0
        heedful.load(tmp_path / name, "cpu")
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "new-hf").eval()
    given = batch()
    with torch.no_grad():
        assert torch.equal(again(**given).logits, model(**given).logits)


def test_without_a_tokenizer_only_external_formats_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = save_folder(random_bert(), tmp_path / "theirs")
    (theirs / "vocab.txt").unlink()
    assert convert(monkeypatch, theirs, tmp_path / "ours") == 2
    assert "vocab.txt" in capsys.readouterr().err
    assert convert(monkeypatch, theirs, tmp_path / "copy", "--to", "hf") == 0


def broken(rng: random.Random, folder: Path) -> str:
    """Break something in a folder; returns what."""
    file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    data, way = bytearray(file.read_bytes()), rng.choice(["flip", "cut", "swap", "edit", "remove", "grow"])
    if way == "remove":
        file.unlink()
        return f"{file.name} removed"
    if way == "edit" and file.suffix == ".json":
        settings = json.loads(data)
        if isinstance(settings, dict) and settings:
            value = rng.choice([None, -1, 0, 10**12, "x", [], {}, True, 1.5, "../../etc/passwd", [[[]]], {"a": 1}])
            settings[rng.choice(sorted(settings))] = value
        file.write_text(json.dumps(settings))
        return f"{file.name} edited"
    if not data:
        return "nothing"
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(min(len(data), 4000) if rng.random() < 0.7 else len(data))
        if way == "swap":
            data[place] = rng.randrange(256)
        else:
            data[place] ^= 1 << rng.randrange(8)
    if way == "cut":
        data = data[: rng.randrange(len(data))]
    if way == "grow":
        data += bytes(rng.randrange(256) for _ in range(rng.randint(1, 100)))
    file.write_bytes(data)
    return f"{file.name}, {way}"


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_broken_bert_folders_give_a_model_or_a_clear_error(tmp_path: Path, count: int) -> None:
    rng = random.Random(0)
    sources = [
        save_folder(random_bert(kind), tmp_path / f"sound-{kind}")
        for kind in ("BertForPreTraining", "BertForTokenClassification")
    ]
    sources.append(save_folder(random_bert(), tmp_path / "shards", max_shard_size="10KB"))
    sentences = save_folder(random_bert(), tmp_path / "sentences")
    for name, text in sentence_files(24, SentenceConfig(pooling="mean", normalize=True), 16).items():
        (sentences / name).parent.mkdir(exist_ok=True)
        (sentences / name).write_text(text)
    pickled = save_folder(random_bert("BertForMaskedLM"), tmp_path / "pickled")
    torch.save(random_bert("BertForMaskedLM").state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    sources += [sentences, CHECKPOINT, pickled]
    errors = 0
    for number in range(count):
        folder = tmp_path / "broken"
        shutil.copytree(rng.choice(sources), folder)
        what = broken(rng, folder)
        try:
            pretrained(folder, read_any_weights)
        except UserError:
            errors += 1
        except BaseException as error:
            raise AssertionError(f"{number}: {what}") from error
        shutil.rmtree(folder)
    assert errors > count / 2
