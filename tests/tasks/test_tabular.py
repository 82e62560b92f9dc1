"""Predicting a column of a table: learning, exact resume, the predictor, its files, and clear errors."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.data.batch import IGNORE_INDEX
from heedful.data.fields.batches import RowBatch, encode_rows
from heedful.data.fields.learned import TableSpec
from heedful.data.fields.rows import from_python
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe, recipe_of
from heedful.runs.train import train
from heedful.tasks.tabular.predictor import outputs_of, target_loss
from heedful.training.checkpoint.folder import newest
from heedful.training.distributed.team import Team
from tolerance import close
from training.test_distributed import run_team

PARCELS = """
task: {kind: tabular, predict: carrier, leave_out: [price]}
data: {kind: parcels, train: 96, valid: 20, test: 20}
columns:
  note: {kind: text, tokenizer: {kind: words, vocab: 60}, longest: 12}
model:
  {kind: tabular, text: {kind: mean, width: 8}, image: {kind: lenet, padding: 4, filters: [2, 3]}, width: 6,
   hidden: [12]}
train:
  budget: {steps: 4}
  schedule: {kind: constant}
  batch_examples: 32
  evaluate_every: 4
  save_every: 2
  threads: 1
"""


def recipe(*changes: tuple[str, str], text: str = PARCELS) -> Any:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return recipe_of(text, "small.yaml")


PRICE = (("carrier, leave_out: [price]", "price, metric: r2, leave_out: [carrier]"),)


def trained(folder: Path, *changes: tuple[str, str], **more: Any) -> Any:
    list(heedful.train(recipe(*changes), folder, **more))
    return heedful.load(folder, heedful.TablePredictor, device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "run"
    trained(folder)
    return folder


@pytest.fixture
def predictor(run: Path) -> heedful.TablePredictor:
    return heedful.load(run, heedful.TablePredictor, device="cpu")


def held_out() -> list[dict[str, object]]:
    return [row for row, _ in recipe().data.read("test").one_by_one()]


# ------------------------------------------------------------------ runs
@pytest.mark.claim("M7")
def test_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    for number, changes in enumerate((PRICE, (("train: 96", "train: 97"), ("batch_examples: 32", "workers: 2")))):
        whole, parts = tmp_path / f"whole{number}", tmp_path / f"parts{number}"
        trained(whole, *changes)
        trained(parts, *changes, ("steps: 4", "steps: 2"))
        trained(parts, *changes)
        one, other = (folder / "checkpoints" / "step-00000004" / "model.safetensors" for folder in (whole, parts))
        assert one.read_bytes() == other.read_bytes()
        assert (whole / "columns.json").read_bytes() == (parts / "columns.json").read_bytes()


def joint_rows(count: int, seed: int) -> list[dict[str, object]]:
    """Rows whose class is that of a word and the sign of a number together: neither says anything alone."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        word, number = rng.choice(["warm day", "cold day"]), rng.uniform(-1, 1)
        kind = rng.choice(["a", "b"])
        rows.append({
            "word": word, "number": number, "kind": kind,
            "label": "yes" if (word == "warm day") == (number > 0) else "no",
            "value": (3.0 if kind == "a" else -3.0) * number + 100,
        })  # fmt: skip
    return rows


OWN = """
task: {kind: tabular, predict: label, leave_out: [value]}
data: {kind: own}
columns: {word: {kind: text, tokenizer: {kind: words, vocab: 10}, longest: 8}}
model: {kind: tabular, text: {kind: recurrent, width: 8, cell: gru, hidden: 8}, width: 8, hidden: [32], dropout: 0.0}
train:
  {budget: {steps: 150}, schedule: {kind: constant}, batch_examples: 32, evaluate_every: 150, save_every: 150,
   threads: 1, optimizer: {lr: 1.0e-2}}
"""
DATA = heedful.Dataset(train=joint_rows(400, 0), valid=joint_rows(100, 1), test=joint_rows(100, 2))


def test_data_that_changed_are_refused_on_resume(tmp_path: Path) -> None:
    short = (("steps: 150", "steps: 2"), ("save_every: 150", "save_every: 1"))
    list(heedful.train(recipe(*short, text=OWN), tmp_path / "run", data=DATA))
    rows = [*joint_rows(400, 0)[:-1], {**joint_rows(400, 0)[-1], "number": 0.123}]
    longer = recipe(("steps: 150", "steps: 4"), short[1], text=OWN)
    with pytest.raises(UserError, match="training data"):
        list(heedful.train(longer, tmp_path / "run", data=DATA._replace(train=rows)))


@pytest.mark.claim("M7")
def test_a_class_that_depends_on_two_columns_is_learned_from_both_and_not_from_one(tmp_path: Path) -> None:
    accuracies = []
    for name, left_out in (("both", "value"), ("one", "value, number")):
        list(heedful.train(recipe(("[value]", f"[{left_out}]"), text=OWN), tmp_path / name, data=DATA))
        found = heedful.load(tmp_path / name, heedful.TablePredictor).evaluate(joint_rows(100, 2))
        accuracies.append(found.scores["accuracy"])
    assert accuracies[0] > 90 and accuracies[1] < 70


def test_a_number_is_learned_and_restored_to_its_scale(tmp_path: Path) -> None:
    text = recipe(("label, leave_out: [value]", "value, metric: r2, leave_out: [label, word]"), text=OWN)
    list(heedful.train(text, tmp_path / "run", data=DATA))
    predictor = heedful.load(tmp_path / "run", heedful.TablePredictor)
    rows = joint_rows(100, 2)
    assert predictor.evaluate(rows).scores["r2"] > 90 and predictor.labels == ()
    found = np.array([one.value for one in predictor.predict(rows)])
    right = np.array([row["value"] for row in rows])
    assert 99 < found.mean() < 101 and np.abs(found - right).mean() < 0.6


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(OWN.replace("steps: 150", "steps: 3").replace("lr: 1.0e-2", "eps: 1.0e-3"))

    def together(team: Team) -> None:
        list(train(load_recipe(str(tmp_path / "two.yaml")), tmp_path / "two", team=team, data=DATA))

    run_team(2, together, tmp_path)
    list(heedful.train(load_recipe(str(tmp_path / "two.yaml")), tmp_path / "one", data=DATA))
    one, two = (newest(tmp_path / name, 1)[0][0].load("model") for name in ("one", "two"))
    for name in one:
        close(two[name], one[name], 2**13, of=one["head.weight"])


# ------------------------------------------------------------------ loss
def test_losses_are_those_of_the_rows() -> None:
    logits = torch.randn(4, 3, dtype=torch.double)
    targets = torch.tensor([0, 2, 1, IGNORE_INDEX])
    loss = target_loss(logits, RowBatch((), targets, torch.tensor([5, 6, 7, -1])))
    close(loss.total, -sum(logits[row].log_softmax(-1)[targets[row]] for row in range(3)))
    assert loss.count == 3
    numbers = torch.tensor([1.0, -2.0, 0.0], dtype=torch.double)
    loss = target_loss(logits[:3, :1], RowBatch((), numbers, torch.tensor([5, 6, -1])))
    close(loss.total, (logits[:2, 0] - numbers[:2]).square().sum())
    assert loss.count == 2


# ------------------------------------------------------------------ the predictor
def test_rows_are_predicted_alike_alone_in_any_order_and_after_saving(
    predictor: heedful.TablePredictor, tmp_path: Path
) -> None:
    rows = held_out()
    together = predictor.predict(rows)
    alone = [predictor.predict([row])[0] for row in rows]
    backwards = predictor.predict(rows[::-1])[::-1]
    predictor.save(tmp_path / "model")
    saved = heedful.load(tmp_path / "model", heedful.TablePredictor, device="cpu").predict(rows)
    for results in (alone, backwards, saved):
        for one, other in zip(together, results, strict=True):
            assert one.label == other.label
            close(torch.tensor(one.probability), torch.tensor(other.probability), 2**6)
    assert sum(together[0].probabilities.values()) == pytest.approx(1)
    assert predictor.columns == ("note", "weight", "size", "country", "items")
    assert json.loads((tmp_path / "model" / "columns.json").read_text())["target"]["carrier"]["kind"] == "class"


def test_evaluation_is_that_of_the_run(predictor: heedful.TablePredictor, run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    found = predictor.evaluate(held_out())
    assert found.count == 20 and found.loss == pytest.approx(results["loss"], rel=1e-5)
    assert {name: one["value"] for name, one in results["scores"].items()} == pytest.approx(found.scores)


def test_unknown_classes_other_columns_and_long_texts_are_read(predictor: heedful.TablePredictor) -> None:
    row = {**held_out()[0], "country": "Norway", "color": "red", "note": "words " * 30}
    (found,) = predictor.predict([row])
    assert found.label in predictor.labels and found.cut == 20
    with pytest.raises(UserError, match="the column 'weight' is missing"):
        predictor.predict([{key: value for key, value in row.items() if key != "weight"}])
    with pytest.raises(UserError, match="not a number") as error:
        predictor.predict([row, {**row, "weight": "heavy"}])
    assert "row[1], column 'weight'" in str(error.value)
    assert predictor.predict([]) == []


def test_frames_are_predicted_like_dicts(predictor: heedful.TablePredictor) -> None:
    pandas = pytest.importorskip("pandas")
    rows = held_out()
    assert [*predictor.predict(pandas.DataFrame(rows))] == [*predictor.predict(rows)]


# ------------------------------------------------------------------ files
def write_files(folder: Path, *, images: int = 12) -> None:
    """Three CSV files of parcels, with paths of images."""
    (folder / "images").mkdir()
    table = recipe().data
    for split in ("train", "valid", "test"):
        rows = table.read(split)
        lines = ["note,weight,size,country,photo,carrier"]
        for number, (row, _) in enumerate(rows.one_by_one()):
            path = f"images/{split}{number % images}.png"
            Image.fromarray(row["items"]).save(folder / path)
            size = " ".join(map(str, row["size"]))
            lines.append(f'"{row["note"]}",{row["weight"]},{size},{row["country"]},{path},{row["carrier"]}')
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


FILES = (
    ("leave_out: [price]", "leave_out: []"),
    (
        "kind: parcels, train: 96, valid: 20, test: 20",
        "kind: csv, root: ROOT, train: train.csv, valid: valid.csv, test: test.csv",
    ),
    ("model:\n", "  photo: {kind: image, channels: 1}\nmodel:\n"),
)


def test_a_table_of_files_with_images_is_trained_on(tmp_path: Path) -> None:
    write_files(tmp_path)
    changes = [(before, after.replace("ROOT", str(tmp_path))) for before, after in FILES]
    predictor = trained(tmp_path / "run", *changes)
    kinds = {name: column.kind for name, column in predictor.tokenizer.inputs.items()}
    assert kinds == {"note": "text", "weight": "number", "size": "numbers", "country": "class", "photo": "image"}
    found = predictor.evaluate(tmp_path / "test.csv")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found.scores["accuracy"] == results["scores"]["accuracy"]["value"]
    assert recipe(*changes).data_notes() == [
        "types of columns guessed from 96 rows, which the recipe may set: weight: number, size: numbers, "
        "country: class, carrier: class"
    ]
    report = (tmp_path / "run" / "report.html").read_text()
    assert all(name in report for name in ("freight", "precision", "recall"))


@pytest.mark.parametrize(
    ("file", "change", "messages"),
    [
        ("train", (",3,", ",three,"), ["not a number", "'three'", "column 'weight'"]),
        ("valid", ("images/valid3.png", "images/gone.png"), ["no such image", "gone.png", "column 'photo'"]),
        ("test", (",express\n", ",rocket\n"), ["no training row has this class", "'rocket'", "column 'carrier'"]),
        ("valid", (",France,", ",,"), ["a value is missing", "column 'country'"]),
    ],
)
def test_invalid_values_are_named_before_training(
    tmp_path: Path, file: str, change: tuple[str, str], messages: list[str]
) -> None:
    folder = tmp_path / ("deep" * 20)  # a long path is shown in full
    folder.mkdir()
    write_files(folder)
    path = folder / f"{file}.csv"
    lines = path.read_text().splitlines(keepends=True)
    if change[0] == ",3,":
        cells = lines[5].split(",")
        lines[5] = lines[5].replace(f",{cells[2]},", ",three,")
        number = 6
    else:
        number = next(place for place, line in enumerate(lines, 1) if change[0] in line)
        lines[number - 1] = lines[number - 1].replace(*change)
    path.write_text("".join(lines))
    changes = [(before, after.replace("ROOT", str(folder))) for before, after in FILES]
    with pytest.raises(UserError) as error:
        trained(tmp_path / "run", *changes)
    for message in (*messages, f"{path}:{number}"):
        assert message in str(error.value)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("predict: carrier", "predict: carier")], "did you mean carrier"),
        ([("[price]", "[prize]")], "did you mean price"),
        ([("note: {", "notes: {")], "did you mean note"),
        ([("predict: carrier", "predict: note")], "cannot be predicted"),
        ([("predict: carrier", "predict: carrier, metric: r2")], "no such score"),
        ([("{kind: tabular, text", "{kind: tabular, outputs: 3, text")], "other outputs than the data"),
    ],
)
def test_recipes_that_do_not_fit_the_data_are_refused(
    changes: list[tuple[str, str]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        trained(tmp_path / "run", *changes)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("note: {kind: txt}", "columns.note.kind is unknown.*did you mean text"),
        ("note: {kind: text, longst: 9}", "columns.note.longst is an unknown key.*did you mean columns.note.longest"),
        ("note: {kind: image, channels: 2}", "invalid value for columns.note.channels"),
        ("note: text", "invalid value for columns.note.*{kind: text}"),
    ],
)
def test_types_that_do_not_exist_are_named_with_their_column(column: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        recipe(("note: {kind: text, tokenizer: {kind: words, vocab: 60}, longest: 12}", column))
    assert re.search(message, str(error.value), re.DOTALL) and "small.yaml:5:" in str(error.value)


def test_an_encoder_must_read_the_longest_text(tmp_path: Path) -> None:
    bert = "{kind: bert, width: 8, heads: 2, layers: 1, hidden: 8, context: 10}"
    with pytest.raises(UserError, match="write context: 12"):
        trained(tmp_path / "run", ("{kind: mean, width: 8}", bert))


def test_one_class_is_too_few(tmp_path: Path) -> None:
    rows = [{**row, "label": "yes"} for row in joint_rows(10, 0)]
    with pytest.raises(UserError, match="only one class"):
        list(heedful.train(recipe(text=OWN), tmp_path / "run", data=heedful.Dataset(train=rows, valid=rows)))


def test_outputs_come_in_the_order_of_the_rows(predictor: heedful.TablePredictor) -> None:
    rows = from_python(held_out())
    spec: TableSpec = predictor.tokenizer
    encoded = encode_rows(rows, spec)
    outputs = outputs_of(predictor.model, encoded, predictor.device)
    for row in (0, 7, 19):
        with torch.inference_mode():
            close(outputs[row], predictor.model(encoded.batch(np.array([row])).values)[0], 2**6)
