"""Invalid settings, paths outside the folder, and unsupported files are refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import change, random_bert, save_folder

from heedful.cli import app as cli
from heedful.errors import UserError
from heedful.files.folders import path_inside
from heedful.hub import pretrained
from heedful.hub.folder import is_external, read_config
from patience import LONG


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return save_folder(random_bert(), tmp_path_factory.mktemp("sound") / "model")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in sound.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**6),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "2"),
        ("num_hidden_layers", 2.0),
        ("num_hidden_layers", True),
        ("vocab_size", 10**12),
        ("vocab_size", -1),
        ("hidden_size", 10**9),
        ("hidden_size", [24]),
        ("intermediate_size", 10**15),
        ("max_position_embeddings", 10**10),
        ("type_vocab_size", 10**10),
        ("num_attention_heads", 0),
        ("num_attention_heads", 5),
        ("hidden_dropout_prob", 7),
        ("layer_norm_eps", -1.0),
        ("hidden_act", "__import__('os')"),
        ("hidden_act", ["gelu"]),
        ("architectures", ["LlamaForCausalLM"]),
        ("architectures", ["BertLMHeadModel"]),
        ("architectures", "BertModel"),
        ("architectures", [["BertModel"]]),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("position_embedding_type", "relative_key"),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 4}),
        ("auto_map", {"AutoModel": "code.Model"}),
        ("id2label", {"0": "a", "2": "b"}),
        ("id2label", {"0": "a", "1": "a"}),
        ("id2label", ["a"]),
    ],
)
def test_invalid_settings_are_rejected_by_name(folder: Path, key: str, value: Any) -> None:
    change(folder, **{key: value})
    for read in (read_config, pretrained):
        with pytest.raises(UserError, match=key):
            read(folder)


def test_too_many_layers_are_rejected_before_any_is_built(folder: Path) -> None:
    change(folder, num_hidden_layers=1000)
    with pytest.raises(UserError, match=r"layer.2.* and .* more|not in the file"):
        pretrained(folder)


def test_model_of_impossible_size_is_rejected(folder: Path) -> None:
    change(folder, hidden_size=65_536, intermediate_size=1_048_576, num_hidden_layers=1000, num_attention_heads=64)
    with pytest.raises(UserError, match="billion"):
        read_config(folder)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_attention_heads"])
def test_missing_settings_are_those_of_transformers_and_must_fit_the_weights(folder: Path, key: str) -> None:
    change(folder, **{key: None})
    theirs = transformers.BertConfig.from_pretrained(folder)
    config = read_config(folder)
    assert (config.vocab, config.width, config.heads) == (
        theirs.vocab_size, theirs.hidden_size, theirs.num_attention_heads
    )  # fmt: skip
    if key == "num_attention_heads":  # which no weight shows
        assert "num_attention_heads 12" in pretrained(folder).notes[0]
        return
    with pytest.raises(UserError, match="do not fit"):
        pretrained(folder)


@pytest.mark.parametrize("kind", ["gpt2", "unheard-of", 7])
def test_other_model_types_are_rejected_by_name(folder: Path, kind: Any) -> None:
    change(folder, model_type=kind)
    with pytest.raises(UserError, match=f"model_type {kind!r}"):
        pretrained(folder, role="encoder")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        '{"hidden_size": NaN}',
        "[" * 100_000,
        '{"a":' * 60 + "1" + "}" * 60,
        '{"hidden_size": ' + "9" * 10_000 + "}",
        "\ud800".encode("utf-8", "surrogatepass"),
        b"\xff\xfe{}",
    ],
)
def test_malformed_settings_files_are_rejected(folder: Path, text: str | bytes) -> None:
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as raised:
        pretrained(folder)
    assert "config.json" in str(raised.value.where)


def test_unknown_settings_are_ignored(folder: Path) -> None:
    before = read_config(folder)
    change(folder, strange="x", trust_remote_code=True, top_k=50, classifier_dropout=0.5)
    assert read_config(folder) == before


ASTRAY = ["", ".", "..", "../secret", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\b", "c:x", "a\0b", "a/", "/"]


@pytest.mark.parametrize("name", ASTRAY)
def test_paths_outside_the_folder_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="points outside"):
        path_inside(tmp_path, name)


def test_only_links_within_the_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (folder / "model.safetensors").rename(secret)
    (folder / "model.safetensors").symlink_to(secret)
    with pytest.raises(UserError, match="points outside"):
        pretrained(folder)
    (folder / "model.safetensors").unlink()
    secret.rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    pretrained(folder)


def test_hugging_face_cache_snapshot_is_read(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "1a2b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert pretrained(snapshot).config == read_config(snapshot)


def write_shards(folder: Path, index: Any) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", [name for name in ASTRAY if name] + ["model.bin", "config.json"])
def test_weight_index_cannot_name_other_files(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_bytes(safetensors.torch.save({"a": torch.ones(1)}))
    write_shards(folder, {"weight_map": {"a": name}})
    with pytest.raises(UserError, match=r"points outside|a different type"):
        pretrained(folder)


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {}}])
def test_empty_weight_index_is_rejected(folder: Path, index: Any) -> None:
    write_shards(folder, index)
    with pytest.raises(UserError, match="index"):
        pretrained(folder)


def test_shard_that_differs_from_the_index_is_named(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(safetensors.torch.save({"x": torch.ones(1), "y": torch.ones(1)}))
    for index in ({"x": "a.safetensors"}, dict.fromkeys(("x", "y", "z"), "a.safetensors")):
        (folder / "model.safetensors").touch()
        write_shards(folder, {"weight_map": index})
        with pytest.raises(UserError, match=r"1 that differ: [yz]"):
            pretrained(folder)


def test_load_rejects_a_pickle_and_names_convert(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=f"heedful convert {folder} NEW_FOLDER") as raised:
        pretrained(folder)
    assert "weights_only" not in str(raised.value)


def test_model_in_the_subfolder_model_is_found(folder: Path) -> None:
    assert is_external(folder.parent)
    assert pretrained(folder.parent).config == read_config(folder.parent) == read_config(folder)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (None, "classifier"),
        ("single_label_classification", "classifier"),
        ("multi_label_classification", "multi_label"),
        ("regression", "regressor"),
    ],
)
def test_problem_type_names_the_head(folder: Path, problem: str | None, kind: str) -> None:
    labels = {str(index): f"label {index}" for index in range(1 if kind == "regressor" else 3)}
    change(folder, architectures=["BertForSequenceClassification"], problem_type=problem, id2label=labels)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights |= {"classifier.weight": torch.randn(len(labels), 24), "classifier.bias": torch.zeros(len(labels))}
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    head = pretrained(folder).head
    assert head is not None and head.kind == kind
    if kind != "regressor":
        assert head.labels == tuple(labels.values())


@pytest.mark.parametrize("problem", ["multi_label", "", 1, ["regression"]])
def test_unknown_problem_types_are_rejected(folder: Path, problem: object) -> None:
    change(folder, architectures=["BertForSequenceClassification"], problem_type=problem)
    for read in (read_config, pretrained):
        with pytest.raises(UserError, match="problem_type"):
            read(folder)


def test_empty_folder_names_the_expected_files(tmp_path: Path) -> None:
    assert not is_external(tmp_path)
    for read in (read_config, pretrained):
        with pytest.raises(UserError, match=r"bert_model\.ckpt"):
            read(tmp_path)
        with pytest.raises(UserError, match="no such folder"):
            read(tmp_path / "none")


def test_configs_are_read_without_torch(folder: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from heedful.hub.folder import read_config
heavy = [name for name in ("torch", "tokenizers") if name in sys.modules]
sys.stdout.write(f"{{read_config(Path({str(folder)!r})).width}} {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG)
    assert done.stdout == "24 []", done.stderr


@pytest.mark.parametrize("kind", [[], {}, None, 1, "x"])
@pytest.mark.parametrize("command", ["embed", "generate", "classify", "convert", "explore"])
def test_model_type_that_is_no_string_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: object, command: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    words = {"convert": [str(tmp_path / "new")], "explore": ["--no-browser"]}.get(command, ["a text"])
    monkeypatch.setattr(sys, "argv", ["heedful", command, str(tmp_path), *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "model" in capsys.readouterr().err
