"""ONNX export: equal outputs in onnxruntime, at other batch sizes and lengths than exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bert_folders import batch, random_bert, save_folder
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.hub import onnx, pretrained
from heedful.hub.loading import Pretrained
from heedful.hub.onnx import Exported, write_onnx
from heedful.models import build, config_class
from heedful.models.bigbird.config import BigBirdConfig
from tolerance import close

ort = pytest.importorskip("onnxruntime", reason="ONNX files need `pip install 'heedful[onnx]'`")
pytest.importorskip("onnxscript", reason="ONNX files need `pip install 'heedful[onnx]'`")


def export(found: Pretrained, file: Path) -> Any:
    outputs = write_onnx(file, found)
    session = ort.InferenceSession(str(file))
    assert [output.name for output in session.get_outputs()] == outputs
    assert list(file.parent.glob("*.tmp-*")) == []
    return session


def test_onnx_outputs_equal_the_model_at_any_size(tmp_path: Path) -> None:
    model = random_bert("BertForPreTraining")
    found = pretrained(save_folder(model, tmp_path / "theirs"))._replace(pooling="mean", normalize=True)
    session = export(found, tmp_path / "model.onnx")
    for rows, length in ((1, 1), (2, 7), (3, 32), (5, 10)):
        given = batch(rows, length) | ({"attention_mask": torch.ones(1, 1, dtype=torch.long)} if length == 1 else {})
        results = session.run(None, {name: value.numpy() for name, value in given.items()})
        names = [output.name for output in session.get_outputs()]
        with torch.no_grad():
            theirs = dict(model(**given, output_hidden_states=True))
            theirs["last_hidden_state"] = theirs.pop("hidden_states")[-1]
        real = given["attention_mask"].bool()
        for name, value in theirs.items():
            ours = torch.from_numpy(results[names.index(name)])
            ours, value = (ours[real], value[real]) if value.dim() == 3 else (ours, value)
            close(ours, value)
        x, weight = theirs["last_hidden_state"], given["attention_mask"][:, :, None]
        mean = torch.nn.functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)
        close(torch.from_numpy(results[names.index("sentence_embedding")]), mean)


@pytest.mark.parametrize("kind", [pytest.param("rnn_encoder", marks=pytest.mark.slow), "conv_encoder"])
def test_encoders_without_attention_are_exported(kind: str, tmp_path: Path) -> None:
    config = config_class(kind).tiny().model_copy(update={"pooler": True})
    model: Any = build(config).eval()
    session = export(Pretrained(config, None, model.state_dict(), ()), tmp_path / "model.onnx")
    for rows, length in ((1, 2), (3, 5), (4, config.context)):
        ids, real = torch.randint(1, 23, (rows, length)), torch.ones(rows, length, dtype=torch.long)
        real[0, 1:] = 0
        given = {"input_ids": ids, "attention_mask": real, "token_type_ids": torch.zeros_like(ids)}
        x, pooled, words = map(torch.from_numpy, session.run(None, {name: one.numpy() for name, one in given.items()}))
        with torch.no_grad():
            ours = model(ids, None, Padded(real != 0))
            close(x[real != 0], ours[real != 0])
            close(pooled, model.summarize(ours, Padded(real != 0)))
            close(words[real != 0], model.words(ours)[real != 0])


def test_random_blocks_by_a_seed_are_not_exported(tmp_path: Path) -> None:
    config = BigBirdConfig(vocab=23, width=16, heads=2, layers=2, hidden=20, context=64)
    with pytest.raises(UserError, match="cannot be written as ONNX") as caught:
        write_onnx(tmp_path / "model.onnx", Pretrained(config, None, {}, ()))
    assert "random blocks by a seed" in str(caught.value.found)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"random_from": "first"}, {"random_blocks": 0, "global_tokens": 4}], ids=str)
def test_block_sparse_attention_is_exported_for_short_and_long_texts(settings: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 60}
    config = BigBirdConfig(**sizes | {"block": 2, "random_blocks": 1} | settings)
    model: Any = build(config).eval()
    tensors = {name: value + 0.2 * torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(tensors)
    session = export(Pretrained(config, None, tensors, ()), tmp_path / "model.onnx")
    for length in (3, 14, 15, 33, 60):  # 14 are the most that all see each other
        ids, real = torch.randint(5, 23, (2, length)), torch.arange(length) < torch.tensor([[length], [length - 2]])
        given = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)}
        found, *_ = session.run(None, {name: value.numpy() for name, value in given.items()})
        with torch.no_grad():
            close(torch.from_numpy(found)[real], model(ids, None, Padded(real))[real], slack=64)


@pytest.mark.parametrize(
    "kind", ["BertModel", "BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering"]
)
def test_onnx_outputs_of_other_heads_equal_transformers(kind: str, tmp_path: Path) -> None:
    model, given = random_bert(kind), batch()
    module = Exported(pretrained(save_folder(model, tmp_path / "theirs"))._replace(pooling="first")).eval()
    with torch.no_grad():
        results = dict(zip(module.outputs, module(*given.values()), strict=True))
        theirs = dict(model(**given))
    real = given["attention_mask"].bool()
    for name, value in theirs.items():
        each = value.shape[:2] == real.shape
        close(*((results[name][real], value[real]) if each else (results[name], value)))
    assert torch.equal(results["sentence_embedding"], results["last_hidden_state"][:, 0])


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnx, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(UserError, match=r"no_such_package[^$]*heedful\[onnx\]"):
        write_onnx(tmp_path / "x.onnx", pretrained(save_folder(random_bert(), tmp_path / "theirs")))


SIDES = {"left": [[0] * 4 + [1] * 4], "between": [[0, 1, 0, 0, 1, 1, 0, 1]], "wide": [[0] * 30 + [1] * 4 + [0] * 7]}


def assert_padding_is_ignored(run: Callable[[dict[str, Tensor]], dict[str, Tensor]], side: str) -> None:
    """The outputs for four tokens equal those without padding."""
    ids, segments = torch.tensor([[3, 9, 4, 7]]), torch.tensor([[0, 1, 1, 0]])
    real = torch.tensor(SIDES[side])
    alone = run({"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": segments})
    laid = [torch.zeros_like(real).masked_scatter(real.bool(), rows) for rows in (ids, segments)]
    padded = run({"input_ids": laid[0], "attention_mask": real, "token_type_ids": laid[1]})
    for name, value in alone.items():
        each = value.shape[:2] == ids.shape
        close(padded[name][real.bool()] if each else padded[name], value[0] if each else value, msg=name)


HEADED = ["BertForPreTraining", "BertForSequenceClassification", "BertForTokenClassification"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", [*HEADED, "BertForQuestionAnswering"])
def test_padding_anywhere_changes_nothing(kind: str, side: str, tmp_path: Path) -> None:
    found = pretrained(save_folder(random_bert(kind), tmp_path / "theirs"))._replace(pooling="first", normalize=True)
    module = Exported(found).eval()

    @torch.no_grad()
    def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(module.outputs, module(*given.values()), strict=True))

    assert_padding_is_ignored(run, side)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADED)
def test_padding_anywhere_changes_nothing_in_the_file(kind: str, tmp_path: Path) -> None:
    found = pretrained(save_folder(random_bert(kind), tmp_path / "theirs"))._replace(pooling="first", normalize=True)
    session = export(found, tmp_path / "model.onnx")

    def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
        results = session.run(None, {name: value.numpy() for name, value in given.items()})
        return {
            output.name: torch.from_numpy(value) for output, value in zip(session.get_outputs(), results, strict=True)
        }

    for side in SIDES:
        assert_padding_is_ignored(run, side)
