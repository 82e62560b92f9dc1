"""Dense modules of sentence-transformers folders: the same vectors here, in every folder and file, and there again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bert_folders import random_bert, save_folder
from test_convert import convert
from test_sentences import sentence_config

import heedful
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.export.roles import graphs_of
from heedful.hub import pretrained, write
from heedful.hub.folder import read_config
from heedful.hub.sentence_transformers import TORCH, SentenceConfig, sentence_files
from heedful.lectures.occurrences import principal_components
from heedful.serve.models import embed
from tolerance import close

TEXTS = ["a bad cab", "a", "b c d e f, a bad cab"]
STACKS: dict[str, list[dict[str, Any]]] = {  # of layers, each with its width and what is not by default
    "the default": [{"out": 24}],
    "several": [
        {"out": 7, "bias": False, "activation_function": torch.nn.Identity()},
        {"out": 9, "activation_function": torch.nn.GELU(), "use_residual": True},
        {"out": 9, "activation_function": torch.nn.ReLU(), "use_residual": True},
    ],
}


def dense_folder(
    folder: Path, layers: list[dict[str, Any]], pooling: Any = "mean", normalize: bool = False
) -> tuple[Path, list[Any]]:
    """A folder of sentence-transformers with these layers, written by its own modules, which come with it."""
    theirs = pytest.importorskip("sentence_transformers").sentence_transformer.modules
    torch.manual_seed(0)
    config = SentenceConfig(pooling=pooling, normalize=normalize)
    sentence_config(save_folder(random_bert(), folder), sentence_files(24, config, 16))
    width, made = 24 * (len(pooling) if isinstance(pooling, tuple) else 1), []
    for layer in layers:
        settings = {"in_features": width, "out_features": layer["out"], **layer}
        del settings["out"]
        made.append(theirs.Dense(**settings))
        width = layer["out"]
    listed = json.loads((folder / "modules.json").read_text())
    below = [f"{index}_Dense" for index in range(2, len(layers) + 2)]
    listed[2:2] = [{"type": "sentence_transformers.models.Dense", "path": name, "name": name} for name in below]
    (folder / "modules.json").write_text(json.dumps(listed))
    for name, module in zip(below, made, strict=True):
        (folder / name).mkdir()
        module.save(str(folder / name))
    return folder, made


@pytest.mark.parametrize("stack", STACKS)
def test_vectors_are_those_of_sentence_transformers_in_every_folder(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    pooling = "mean" if stack == "the default" else ("first", "max")
    folder, made = dense_folder(tmp_path / "theirs", STACKS[stack], pooling, normalize=stack == "several")
    right = torch.from_numpy(theirs.SentenceTransformer(str(folder), device="cpu").double().encode(TEXTS))
    reader = heedful.load(folder, "cpu")
    assert reader.width() == right.shape[1] == made[-1].out_features
    assert reader.width("last", "first") == 24 and reader.width("concat_last_four", "first") == 96
    reader.save(tmp_path / "saved")
    assert convert(monkeypatch, folder, tmp_path / "ours") == 0
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "back") == 0
    for name in ("theirs", "saved", "ours", "back"):
        found = heedful.load(tmp_path / name, "cpu")
        close(found.embed(TEXTS), right.float())
        assert found.decode_settings == reader.decode_settings
    again = theirs.SentenceTransformer(str(tmp_path / "back"), device="cpu").double()
    close(torch.from_numpy(again.encode(TEXTS)), right)
    assert {line.name for line in pretrained(folder).ledger if line.source.startswith("2_")} >= {"sentences.0.weight"}
    config = read_config(folder)
    assert config == read_config(tmp_path / "ours") == reader.model.config
    assert not torch.equal(reader.embed(TEXTS, pooling="max")[:, :7], reader.embed(TEXTS)[:, :7])


@pytest.mark.parametrize("name", TORCH)
def test_activations_are_those_of_torch(name: str, tmp_path: Path) -> None:
    activation = getattr(torch.nn, name)()
    folder, (module,) = dense_folder(tmp_path / "theirs", [{"out": 5, "activation_function": activation}])
    reader = heedful.load(folder, "cpu")
    x = torch.randn(3, 24)
    close(reader.dense(x), module({"sentence_embedding": x})["sentence_embedding"])
    write(tmp_path / "back", pretrained(folder))
    settings = [json.loads((place / "2_Dense" / "config.json").read_text()) for place in (folder, tmp_path / "back")]
    names = ("in_features", "out_features", "bias", "activation_function")
    assert [settings[0][name] for name in names] == [settings[1][name] for name in names]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"activation_function": "my_code.Tanh"}, "not supported: this activation"),
        ({"activation_function": "torch.nn.modules.activation.Softplus"}, "Softplus"),
        ({"activation_function": 3}, "not supported: this activation"),
        ({"in_features": 23}, "in_features"),
        ({"in_features": True}, "in_features"),
        ({"out_features": 0}, "out_features"),
        ({"out_features": 6}, "the weights do not fit"),
        ({"bias": 1}, "bias"),
        ({"bias": False}, "linear.bias: unexpected"),
        ({"use_residual": True}, "residual.weight: not in the file"),
        ({"use_residual": None}, "use_residual"),
        ({"module_input_name": "token_embeddings"}, "not supported: a module for anything but"),
    ],
)
def test_wrong_settings_of_a_layer_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder, _ = dense_folder(tmp_path / "theirs", [{"out": 5}])
    file = folder / "2_Dense" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    with pytest.raises(UserError, match=words) as raised:
        pretrained(folder)
    assert str(folder / "2_Dense") in str(raised.value) and raised.value.todo


def test_pickled_and_missing_weights_name_the_whole_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, (module,) = dense_folder(tmp_path / "theirs", [{"out": 5}])
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        pretrained(folder)
    torch.save(module.state_dict(), folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UserError, match=f"heedful convert {folder} NEW_FOLDER"):
        pretrained(folder)
    assert convert(monkeypatch, folder, tmp_path / "ours") == 0
    assert torch.equal(heedful.load(tmp_path / "ours", "cpu").dense[0].weight, module.linear.weight)


def test_weights_and_settings_of_our_folder_belong_together(tmp_path: Path) -> None:
    folder, _ = dense_folder(tmp_path / "theirs", [{"out": 5}])
    heedful.load(folder, "cpu").save(tmp_path / "ours")
    settings = json.loads((tmp_path / "ours" / "config.json").read_text())
    for sentences, words in (
        (None, "0.weight: not in the model"),
        ({"dense": []}, "0.weight: not in the model"),
        ({"dense": [{"width": 6}]}, r"\(5, 24\) in the file, float32 \(6, 24\) in the model"),
        ({"dense": [{"width": 5}, {"width": 2}]}, "1.weight: not in the file"),
        ({"dense": [{"width": 0}]}, "dense"),
    ):
        (tmp_path / "ours" / "manifest.json").unlink(missing_ok=True)
        (tmp_path / "ours" / "config.json").write_text(json.dumps({**settings, "sentences": sentences}))
        for read in (heedful.load, pretrained):
            with pytest.raises(UserError, match=words):
                read(tmp_path / "ours")


def test_int8_the_server_the_map_and_the_graph_have_the_layers(tmp_path: Path) -> None:
    folder, _ = dense_folder(tmp_path / "theirs", [{"out": 5}], normalize=True)
    reader = heedful.load(folder, "cpu")
    right = reader.embed(TEXTS[:1])
    smaller = reader.int8()
    assert torch.nn.functional.cosine_similarity(smaller.embed(TEXTS[:1]), right) > 0.999
    assert smaller.dense[0] is not reader.dense[0]  # each has its own device
    assert [vector for vector, _ in embed(reader, TEXTS[:1])] == right.tolist()
    (graph,) = graphs_of(reader)
    row = torch.tensor(reader.tokenize(TEXTS[:1]).rows)
    given = {"input_ids": row, "attention_mask": torch.ones_like(row), "token_type_ids": torch.zeros_like(row)}
    close(graph.run(given)["sentence_embedding"], right)
    explorer = Explorer([folder])
    asked = {"model": next(iter(explorer.subjects)), "of": "sentences", "lines": TEXTS}
    words, arrays = unpack(explorer.answer("map", "points", asked))
    points, _ = principal_components(reader.embed(TEXTS))
    close(arrays["points"][words["layers"].index(words["last"])], points, slack=1024)
