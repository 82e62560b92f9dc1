"""Every published encoder, with its own tokenizer, in every task that takes one: only the folder changes."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

import heedful
from golden.record import SPLITS, TRAINED, TUNED, Texts
from heedful.data.tokenizers.encoders import KINDS
from heedful.explore.subjects import Explorer
from heedful.hub import pretrained, write
from heedful.hub.folder import exchanges
from heedful.hub.loading import Pretrained
from heedful.hub.onnx import write_onnx
from heedful.models import build, config_class
from tolerance import close

TASKS = (
    "classification-classifier", "regression-regressor", "multiple_choice-multiple_choice", "tagging-tagger",
    "answering-answerer",
)  # fmt: skip
LESS = ["train.budget.steps=2", "train.evaluate_every=2", "train.save_every=2", "train.schedule.warmup=0"]
ENCODERS = tuple(exchanges("encoder"))
PAIRS = [  # every kind and every task in some pair, and all pairs among the slow ones
    pytest.param(kind, task, marks=() if (row + column) % 4 == 0 else pytest.mark.slow)
    for row, kind in enumerate(ENCODERS)
    for column, task in enumerate(TASKS)
]


def published_folder(kind: str, texts: list[str], folder: Path) -> Path:
    """A small model with random weights and its usual tokenizer, as a Hugging Face folder."""
    config: Any = config_class(kind).tiny()
    own = next(one for one in KINDS if one.trained.model_fields["kind"].default == config.usual_tokenizer)
    tokenizer = own.tokenizer.train(own.trained(vocab=300), texts)
    config = config.model_copy(update={"vocab": tokenizer.vocab, "context": 48})
    torch.manual_seed(0)
    write(folder, Pretrained(config, tokenizer, build(config).state_dict(), ()))
    return folder


@pytest.fixture
def texts() -> list[str]:
    made = Texts(1)
    return [made.sentence() for _ in range(50)]


@pytest.mark.parametrize("kind", ENCODERS)
def test_folder_fills_embeds_and_is_explored(kind: str, texts: list[str], tmp_path: Path) -> None:
    folder = published_folder(kind, texts, tmp_path / "model")
    encoder: Any = heedful.load(folder, "cpu")
    assert len(encoder.fill(f"{texts[0]} {encoder.tokenizer.mask_name}").predictions[0]) == 5
    close(encoder.embed(texts[:1])[0], encoder.embed(texts[:4])[0])
    (subject,) = Explorer([folder]).subjects.values()
    assert {"heads", "fill", "map"} <= set(subject.views)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODERS)
def test_folder_is_exported(kind: str, texts: list[str], tmp_path: Path) -> None:
    folder = published_folder(kind, texts, tmp_path / "model")
    encoder: Any = heedful.load(folder, "cpu")
    names = write_onnx(tmp_path / "model.onnx", pretrained(folder))
    session = ort.InferenceSession(str(tmp_path / "model.onnx"))
    ids, segments = encoder.tokenizer.pair(*(ids[:9] for ids in encoder.tokenizer.ids(texts[:2])))
    given = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": segments}
    asked = {one.name: np.array([given[one.name]], dtype=np.int64) for one in session.get_inputs()}
    (output,) = session.run([names[0]], asked)
    with torch.no_grad():
        close(torch.from_numpy(output), encoder.model(torch.tensor([ids]), torch.tensor([segments])))


@pytest.mark.claim("G7")
@pytest.mark.parametrize(("kind", "task"), PAIRS)
def test_each_task_starts_from_a_folder_of_each_kind(kind: str, task: str, texts: list[str], tmp_path: Path) -> None:
    text, make = TRAINED[task]
    made = Texts(1)
    (tmp_path / "data").mkdir()
    for split, size in SPLITS.items():
        for file, contents in make(made, split, size // 4).items():
            (tmp_path / "data" / file).write_text(str(contents), encoding="utf-8")
    published_folder(kind, texts, tmp_path / "encoder")
    head = TUNED.replace("KIND", task.partition("-")[2])
    started = "start: {folder: encoder}\nmodel:\n" + "".join(head.splitlines(True)[3:4])
    assert head in text
    recipe = text.replace(head, started).replace(
        "reader: {kind: bilstm, hidden: 8, layers: 1}", "reader: {kind: linear}"
    )
    (tmp_path / "recipe.yaml").write_text(recipe)
    with chdir(tmp_path):
        list(heedful.train(heedful.load_recipe("recipe.yaml", LESS), "run"))
        found = pretrained(Path("run"))
        assert found.config.kind == kind and found.head is not None
        write(Path("back"), found)
        again = pretrained(Path("back"))
        assert again.head is not None and again.head.kind == found.head.kind
        assert again.tokenizer is not None and again.tokenizer.json == found.tokenizer.json
        assert all(torch.equal(again.tensors[name], value) for name, value in found.tensors.items())
        assert heedful.load("back", "cpu").task == heedful.load("run", "cpu").task
