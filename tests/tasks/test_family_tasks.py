"""Every task over an encoder takes ALBERT and DistilBERT by `start.folder` alone, and their folders come back."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from golden.record import SPLITS, TRAINED, TUNED, Texts
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.hub import pretrained, write
from heedful.hub.loading import Pretrained
from heedful.models import build, config_class

TASKS = (
    "classification-classifier", "regression-regressor", "multiple_choice-multiple_choice", "tagging-tagger",
    "answering-answerer",
)  # fmt: skip
LESS = ["train.budget.steps=2", "train.evaluate_every=2", "train.save_every=2", "train.schedule.warmup=0"]


@pytest.mark.claim("G7")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["albert", "distilbert"])
def test_each_task_starts_from_a_folder_of_each_kind(kind: str, task: str, tmp_path: Path) -> None:
    text, make = TRAINED[task]
    texts = Texts(1)
    (tmp_path / "data").mkdir()
    for split, size in SPLITS.items():
        for file, contents in make(texts, split, size // 4).items():
            (tmp_path / "data" / file).write_text(str(contents), encoding="utf-8")
    tokenizer = BertTokenizer.train(WordPiece(vocab=60), [texts.sentence() for _ in range(50)])
    torch.manual_seed(0)
    config: Any = config_class(kind).tiny().model_copy(update={"vocab": tokenizer.vocab, "context": 32})
    write(tmp_path / "encoder", Pretrained(config, tokenizer, build(config).state_dict(), ()))
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
        assert all(torch.equal(again.tensors[name], value) for name, value in found.tensors.items())
        assert heedful.load("back", "cpu").task == heedful.load("run", "cpu").task
