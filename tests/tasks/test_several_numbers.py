"""Regression with several numbers for a text: folders of transformers and back, the loss, training and evaluation."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import heedful
from classifier_folders import FAMILIES, TEXTS, TOKENIZER, WORDS, folder, theirs_on
from heedful.cli.app import main
from heedful.data.labelled.batches import encode_texts
from heedful.errors import UserError
from heedful.explore.inspect import TextInput
from heedful.explore.predictions import values
from heedful.export.write import export
from heedful.hub import pretrained, write
from heedful.runs.recipe import load_recipe, recipe_of
from heedful.runs.train import train
from heedful.tasks.classification.numbers import mean_scores
from heedful.tasks.classification.predictor import number_loss
from heedful.training.metrics import pearson, spearman
from tolerance import close

NAMES = ("valence", "arousal", "dominance")
NAMED = {"id2label": dict(enumerate(NAMES)), "label2id": {name: at for at, name in enumerate(NAMES)}}


def table_of(numbers: list[Any]) -> torch.Tensor:
    """The predicted numbers (N, C)."""
    return torch.tensor([list(one.values.values()) for one in numbers])


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_of_transformers_give_the_same_numbers_and_round_trip(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    named = NAMED if family == "Bert" else {}
    theirs = folder(tmp_path / "theirs", family, random.Random(1), "regression", 3, **named)
    ours = heedful.load(tmp_path / "theirs", heedful.MultiRegressor, "cpu")
    assert ours.names == (NAMES if named else ("LABEL_0", "LABEL_1", "LABEL_2"))
    right = theirs_on(theirs, family)  # (N, C)
    close(table_of(ours.predict(TEXTS)), right)
    write(tmp_path / "back", pretrained(tmp_path / "theirs"))
    ours.save(tmp_path / "saved")
    write(tmp_path / "again", pretrained(tmp_path / "saved"))
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    for name in ("back", "again"):
        after = safetensors.torch.load_file(tmp_path / name / "model.safetensors")
        assert all(torch.equal(before[key], x) for key, x in after.items())
        model = getattr(transformers, f"{family}ForSequenceClassification").from_pretrained(tmp_path / name).eval()
        assert (model.config.problem_type, model.config.num_labels) == ("regression", 3)
        assert tuple(model.config.id2label.values()) == ours.names
        close(theirs_on(model, family), right)
    assert table_of(heedful.load(tmp_path / "saved", "cpu").predict(TEXTS)).equal(table_of(ours.predict(TEXTS)))


@pytest.mark.parametrize("packed", [False, True])
def test_loss_and_gradients_are_those_of_transformers(packed: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = folder(tmp_path, "Bert", random.Random(3), "regression", 3, **dropouts)
    ours: Any = heedful.load(tmp_path, "cpu").model
    rng = np.random.default_rng(0)
    texts, numbers = [(" ".join(rng.choice(WORDS, 1 + row % 7)), None) for row in range(8)], rng.normal(size=(8, 3))
    encoded = encode_texts(texts, numbers.view(np.int64), TOKENIZER, 32)
    batch = encoded.batch(np.arange(8))
    loss = number_loss(ours, encoded.pack(np.arange(8), 128, 10) if packed else batch)
    real = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long()
    right = theirs(batch.ids, attention_mask=real, labels=torch.from_numpy(numbers).float()).loss
    assert int(loss.count) == 8
    close(loss.total / loss.count, right)
    (loss.total / loss.count).backward()
    right.backward()
    close(ours.head.weight.grad, theirs.classifier.weight.grad)


def test_scores_are_the_means_of_those_of_each_number() -> None:
    found, right = np.random.default_rng(0).normal(size=(2, 9, 2))
    for score, alone in zip(mean_scores(found, right), (pearson, spearman), strict=True):
        assert score.name == alone(found[:, 0], right[:, 0]).name
        assert score.value == pytest.approx(np.mean([alone(found[:, at], right[:, at]).value for at in (0, 1)]))


def test_training_prediction_and_evaluation(tmp_path: Path) -> None:
    rows = [("the red cat", "0.5, -1"), ("a big dog", "1.5,2"), ("the stone", "-0.5,0"), ("runs home", "2, 1e-1")]
    with (tmp_path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    folder(tmp_path / "start", "Bert", random.Random(1), "regression", 3)
    recipe = f"""
task: {{kind: regression}}
data: {{kind: csv, root: {tmp_path}, train: data.csv, valid: data.csv, text: text, label: label}}
start: {{folder: {tmp_path / "start"}}}
model: {{kind: regressor, numbers: [valence, arousal]}}
train: {{budget: {{steps: 40}}, batch_examples: 4, optimizer: {{lr: 3.0e-3}}}}
"""
    list(train(recipe_of(recipe, "test"), tmp_path / "run"))
    ours = heedful.load(tmp_path / "run", heedful.MultiRegressor, "cpu")
    found = ours.evaluate(tmp_path / "data.csv")
    assert found.scores == ours.evaluate(rows).scores and found.count == 4
    right = np.array([[float(x) for x in label.split(",")] for _, label in rows])
    values = table_of(ours.predict([text for text, _ in rows])).double().numpy()
    assert found.loss == pytest.approx(((values - right) ** 2).mean()) and found.loss < right.var(0).mean()
    assert json.loads(json.dumps(ours.predict(["a dog"])[0].to_dict()))["values"].keys() == {"valence", "arousal"}
    for label in ("1", "1, 2, 3", "", "1, two"):
        with pytest.raises(UserError, match="number") as raised:
            ours.evaluate([("a dog", label)])
        assert raised.value.where == "example 1"


@pytest.mark.usefixtures("no_loss_curve")
def test_columns_of_numbers_from_a_table_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*command: str) -> str:
        monkeypatch.setattr("sys.argv", ["heedful", *command])
        with pytest.raises(SystemExit, match="0"):
            main()
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    rows = [
        {"note": f"the {'wide' * (n % 2)} box {n}", "width": n % 2, "height, cm": n / 2, "id": n} for n in range(40)
    ]
    with (tmp_path / "boxes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    folder(tmp_path / "start", "Bert", random.Random(1), "regression", 3)
    out = run(
        "init", "regression", "r.yaml", "data.columns.label=[width, 'height, cm']", "--data", "boxes.csv",
        "--from", "start",
    )  # fmt: skip
    assert "text is 'note', label is 'width' and 'height, cm'" in out
    assert "no mistakes" in run("check", "r.yaml")
    run("train", "r.yaml", "train.budget.epochs=1", "--run", "run")
    ours = heedful.load(tmp_path / "run", heedful.MultiRegressor, "cpu")
    assert ours.names == ("width", "height, cm")
    run("predict", "run", "boxes.csv", "--out", "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    right = [one.values for one in ours.predict([str(row["note"]) for row in rows])]
    for row, numbers in zip(found, right, strict=True):
        assert json.loads(row["prediction"]) == pytest.approx(numbers) and row["id"]
        assert {name: float(row[f"prediction_{name}"]) for name in numbers} == pytest.approx(numbers)
    scored = json.loads(run("eval", "run", "data.test=boxes.csv", "--json"))
    alone = ours.evaluate([(str(row["note"]), f"{row['width']}, {row['height, cm']}") for row in rows])
    assert scored["loss"] == pytest.approx(alone.loss)
    with pytest.raises(UserError, match="these are 3 names, and"):
        load_recipe("r.yaml", ["model.numbers=[a,b,c]"])


def test_the_command_line_and_the_explorer_show_every_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path / "theirs", "Bert", random.Random(1), "regression", 3, **NAMED)
    ours = heedful.load(tmp_path / "theirs", heedful.MultiRegressor, "cpu")
    right = ours.predict(["a dog"])[0].values
    monkeypatch.setattr("sys.argv", ["heedful", "classify", str(tmp_path / "theirs"), "a dog"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == f"{', '.join(f'{name} {value:.3f}' for name, value in right.items())}  a dog\n"
    (tmp_path / "rows.csv").write_text("text\na dog\n")
    files = [str(tmp_path / name) for name in ("theirs", "rows.csv", "out.jsonl")]
    monkeypatch.setattr("sys.argv", ["heedful", "predict", *files[:2], "--out", files[2]])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert json.loads(Path(files[2]).read_text())["prediction"] == pytest.approx(right)
    found = values(ours, TextInput(text="a dog"))
    assert [one.text for one in found.candidates()] == [f"{name}: {value:.4g}" for name, value in right.items()]
    assert found.losses().tolist() == [0.0] * 3 and found.pieces == list(NAMES)


@pytest.mark.slow
def test_several_numbers_are_exported(tmp_path: Path) -> None:
    folder(tmp_path / "theirs", "Bert", random.Random(1), "regression", 3)
    (file,) = export(heedful.load(tmp_path / "theirs", heedful.MultiRegressor, "cpu"), tmp_path / "onnx", "onnx")
    assert file.difference < 1e-4
