"""Every published encoder, with its own tokenizer, in every task that takes one: only the folder changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

import heedful
from heedful.data.tokenizers.encoders import KINDS
from heedful.explore.subjects import Explorer
from heedful.hub import pretrained, write
from heedful.hub.folder import exchanges
from heedful.hub.loading import Pretrained
from heedful.hub.onnx import write_onnx
from heedful.models import build, config_class
from tolerance import close

TEXTS = ["the old cat sat on a mat", "Ann saw the cat in Rome", "where is she and who saw a mat"]
SMALL = [
    "train.batch_examples=4", "train.budget={steps: 2}", "train.evaluate_every=2", "train.save_every=2",
    "train.log_every=1", "train.samples=1", "train.device=cpu",
]  # fmt: skip
TASKS = {"sst2": "sentence\tlabel", "stsb": "sentence1\tsentence2\tscore", "conll2003": "", "squad": ""}
every_encoder = pytest.mark.parametrize("kind", exchanges("encoder"))


def published_folder(kind: str, folder: Path) -> Path:
    """A small model with random weights and its usual tokenizer, as a Hugging Face folder."""
    config: Any = config_class(kind).tiny()
    own = next(one for one in KINDS if one.trained.model_fields["kind"].default == config.usual_tokenizer)
    tokenizer = own.tokenizer.train(own.trained(vocab=300), TEXTS * 9)
    config = config.model_copy(update={"vocab": tokenizer.vocab, "context": 48})
    torch.manual_seed(0)
    write(folder, Pretrained(config, tokenizer, build(config).state_dict(), ()))
    return folder


def task_files(name: str, folder: Path) -> list[str]:
    """Files of a few examples for a recipe, and the overrides that name them."""
    rows = range(8)
    if name == "conll2003":
        text = "\n".join(f"{word} {'I-PER' if word == 'Ann' else 'O'}" for word in TEXTS[1].split()) + "\n\n"
        (folder / "data").write_text(text * 8)
    elif name == "squad":
        answer = {"text": "Rome", "answer_start": TEXTS[1].index("Rome")}
        asked = [{"id": str(row), "question": "where is the cat", "answers": [answer]} for row in rows]
        (folder / "data").write_text(json.dumps({"data": [{"paragraphs": [{"context": TEXTS[1], "qas": asked}]}]}))
    else:
        cells = (
            [f"{TEXTS[row % 3]}\t{row % 2}" for row in rows]
            if name == "sst2"
            else [f"{TEXTS[row % 3]}\t{TEXTS[0]}\t{row % 3}.5" for row in rows]
        )
        (folder / "data").write_text("\n".join([TASKS[name], *cells]) + "\n")
    return [
        f"data.root={folder}",
        "data.train=data",
        "data.valid=data",
        *(["data.test=null"] if name == "conll2003" else []),
    ]


@every_encoder
def test_a_folder_fills_embeds_explores_and_exports(kind: str, tmp_path: Path) -> None:
    folder = published_folder(kind, tmp_path / "model")
    encoder: Any = heedful.load(folder, "cpu")
    assert len(encoder.fill(f"the old {encoder.tokenizer.mask_name} sat").predictions[0]) == 5
    close(encoder.embed(TEXTS[:1])[0], encoder.embed(TEXTS)[0])
    (subject,) = Explorer([folder]).subjects.values()
    assert {"heads", "fill", "map"} <= set(subject.views)
    found = pretrained(folder)
    names = write_onnx(tmp_path / "model.onnx", found)
    session = ort.InferenceSession(str(tmp_path / "model.onnx"))
    ids, segments = encoder.tokenizer.pair(*encoder.tokenizer.ids(TEXTS[:2]))
    given = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": segments}
    asked = {one.name: np.array([given[one.name]], dtype=np.int64) for one in session.get_inputs()}
    (output,) = session.run([names[0]], asked)
    with torch.no_grad():
        close(torch.from_numpy(output), encoder.model(torch.tensor([ids]), torch.tensor([segments])))


@every_encoder
@pytest.mark.parametrize("name", TASKS)
def test_a_task_starts_from_its_folder(kind: str, name: str, tmp_path: Path) -> None:
    folder = published_folder(kind, tmp_path / "start")
    recipe = heedful.load_recipe(name, [*SMALL, *task_files(name, tmp_path), f"start={{folder: {folder}}}"])
    for _ in heedful.train(recipe, tmp_path / "run"):
        pass
    predictor: Any = heedful.load(tmp_path / "run", "cpu")
    assert predictor.model.config.encoder.kind == kind
    given: Any = {
        "sst2": [TEXTS[0]], "stsb": [(TEXTS[0], TEXTS[1])], "conll2003": [TEXTS[1].split()],
        "squad": [("where is the cat", TEXTS[1])],
    }[name]  # fmt: skip
    before = predictor.predict(given)
    write(tmp_path / "back", pretrained(tmp_path / "run"))
    assert str(heedful.load(tmp_path / "back", "cpu").predict(given)) == str(before)
