"""Error messages for common mistakes: what is wrong, and what to type instead."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from heedful.blocks.losses import Loss
from heedful.cli import app as cli
from heedful.cli.convert import require_convertible
from heedful.errors import UserError
from heedful.extras.estimators.pca import PCA
from heedful.files.writing import disk_errors
from heedful.hub.folder import read_config
from heedful.models.autoencoder.layers import Dense
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.training.distributed.team import find_process
from heedful.training.metrics import Score
from heedful.training.nan_checks import not_finite

Run = Callable[..., tuple[int, str]]
TINY = (
    "data.train=100", "data.valid=5", "data.test=5", "tokenizer.vocab=90", "model.width=8", "model.heads=2",
    "model.hidden=16", "model.context=40", "model.encoder_layers=1", "model.decoder_layers=1", "train.budget.steps=6",
    "train.batch_tokens=128", "train.evaluate_every=3", "train.save_every=3",
)  # fmt: skip


@pytest.fixture
def heedful(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process; returns its exit code and error output."""

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), capsys.readouterr().err

    return call


@pytest.mark.parametrize("verb", ["runs", "embed", "translate", "explore"])
def test_file_given_where_a_folder_is_expected(heedful: Run, tmp_path: Path, verb: str) -> None:
    (tmp_path / "notes.md").touch()
    code, message = heedful(verb, tmp_path / "notes.md", *(["a"] if verb in ("embed", "translate") else []))
    assert code == 2
    assert "notes.md: this is a file" in message and "name a folder" in message


def test_file_given_to_convert(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.md").touch()
    code, message = heedful("convert", tmp_path / "notes.md", tmp_path / "new")
    assert code == 2
    assert "notes.md: this is a file" in message


def test_run_folder_given_as_recipe_suggests_resume(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "recipe.yaml").write_text("a: b")
    code, message = heedful("train", tmp_path / "my run")
    assert code == 2
    run = f"'{tmp_path / 'my run'}'"
    assert f"resume it with: heedful train '{tmp_path / 'my run'}/recipe.yaml' --run {run}" in message


def test_empty_run_name(heedful: Run) -> None:
    code, message = heedful("train", "numbers", "--run", "")
    assert code == 2
    assert "--run is empty" in message


def test_too_long_run_name(heedful: Run, tmp_path: Path) -> None:
    code, message = heedful("train", "numbers", *TINY, "--run", tmp_path / ("x" * 300))
    assert code == 74
    assert "names of at most 255 bytes" in message and "writable" not in message


def test_missing_folder_may_have_been_moved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was it moved or deleted") as raised, disk_errors(tmp_path / "gone", "write"):
        (tmp_path / "gone" / "file").write_text("")
    assert "writable" not in str(raised.value)
    with pytest.raises(UserError, match="make the folder writable"), disk_errors(tmp_path, "write"):
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("kind", ["seq2seq", "autoencoder", "tree_lstm"])
def test_models_without_a_hugging_face_form_are_not_converted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"task": "translation", "model": {"kind": kind}}))
    with pytest.raises(UserError, match=r"only BERT, RoBERTa, .* Transformer-XL and Marian can be converted"):
        require_convertible(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "gpt", "classifier", "tagger"])
def test_convertible_models(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"task": "x", "model": {"kind": kind}}))
    require_convertible(tmp_path)


@pytest.mark.parametrize(("value", "name"), [("-1", "WORLD_SIZE"), ("0", "WORLD_SIZE"), ("x", "LOCAL_WORLD_SIZE")])
def test_number_of_processes_is_positive(value: str, name: str) -> None:
    with pytest.raises(UserError, match=f"variable {name}") as raised:
        find_process({"RANK": "0", "WORLD_SIZE": "1", name: value})
    assert raised.value.expected == "1 or more"


BERT = {
    "model_type": "bert", "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "intermediate_size": 8, "max_position_embeddings": 8, "type_vocab_size": 2,
}  # fmt: skip
GPT = {"model_type": "gpt2", "vocab_size": 10, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 8}


@pytest.mark.parametrize(
    ("settings", "read", "key"),
    [
        ({**BERT, "hidden_act": "selu"}, read_config, "hidden_act 'selu'"),
        ({**BERT, "architectures": ["BertForSomethingElse"]}, read_config, "architectures"),
        ({**GPT, "activation_function": "selu"}, read_config, "activation_function 'selu'"),
    ],
    ids=["act", "head", "gpt"],
)
def test_unsupported_config_is_not_reported_as_damaged(
    tmp_path: Path, settings: dict[str, Any], read: Callable[[Path], Any], key: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=f"not supported: {key}") as raised:
        read(tmp_path)
    assert "again" not in str(raised.value.todo)


def test_only_similar_figures_are_suggested(heedful: Run) -> None:
    assert "did you mean" not in heedful("figure", "zzz")[1]
    assert "did you mean recall?" in heedful("figure", "recal")[1]


# ------------------------------------------------------------------ numbers that are not finite
def test_divergence_before_any_checkpoint_offers_no_checkpoint(tmp_path: Path) -> None:
    recipe = load_recipe("numbers", [*TINY, "train.optimizer.lr=1e30", "train.precision=fp32", "train.clip=null"])
    with pytest.raises(UserError, match="not finite") as raised:
        list(train(recipe, tmp_path / "run"))
    assert str(raised.value.todo).endswith("nothing was saved yet")
    assert "fp32" not in str(raised.value.todo)


@dataclass
class ImageBatch:
    """A batch with the attributes that training reads."""

    pixels: torch.Tensor
    indices: torch.Tensor
    tokens: int = 1


@pytest.mark.parametrize(
    ("largest", "halved", "todo"),
    [
        (1e30, False, "scale the data: their numbers reach 1e+30"),
        (1.0, False, "lower the learning rate or the clip"),
        (1.0, True, "lower the learning rate or the clip, or use precision: fp32"),
    ],
)
def test_divergence_advice_depends_on_the_cause(largest: float, halved: bool, todo: str) -> None:
    model = nn.Linear(1, 1)
    batch: Any = ImageBatch(torch.full((1, 1), largest), torch.tensor([0]))

    def rerun(index: int) -> Loss:
        total = model(batch.pixels).sum() * torch.tensor(float("nan"))
        return Loss(total, total.detach(), torch.tensor(1))

    assert not_finite(model, 1, [batch], [float("nan")], rerun, halved).todo == todo


@pytest.mark.parametrize(("activation", "mentioned"), [("relu", True), ("sigmoid", False)])
def test_relu_advice_only_for_models_ending_in_relu(activation: Any, mentioned: bool) -> None:
    recipe = load_recipe("digits")
    last = recipe.model.decoder[-1]
    assert isinstance(last, Dense)
    decoder = (*recipe.model.decoder[:-1], last.model_copy(update={"activation": activation}))
    model = recipe.model.model_copy(update={"decoder": decoder})
    task = task_of(recipe.model_copy(update={"model": model}))
    (remark,) = task.remarks(Evaluated(1, "test", 1.0, (Score("explained", -1.0, ""),), (), 0))
    assert ("ReLU" in remark) is mentioned


def test_overflowing_variance_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    large = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32) * np.float32(1e25)
    assert np.isinf(PCA(2).fit(large).explained_variance_).any()
    assert [str(warning.message) for warning in recwarn if warning.category is RuntimeWarning] == []
