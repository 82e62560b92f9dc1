"""Runs on tables: from a file, a DataFrame or a module; held-out rows are recorded, and the same when a run resumes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heedful.data.formats.sources import SPLITS
from heedful.data.own import Dataset
from heedful.errors import UserError
from heedful.runs.fit import fit
from heedful.runs.load import read_recipe
from heedful.runs.own import with_own_data
from heedful.runs.recipe import check_recipe, recipe_of
from heedful.runs.train import Finished, Started, Step, train
from heedful.tasks import task_of
from heedful.tasks.recipe_parts import Recipe

pytestmark = pytest.mark.usefixtures("no_loss_curve")

ROWS = [{"review": f"text {n} is {['good', 'bad'][n % 2]}", "verdict": "ab"[n % 2], "user": n // 4} for n in range(60)]
RECIPE = """
task: {kind: classification}
data: {kind: table, TRAIN test: 0.1, columns: {text: review, label: verdict}, held_out: {group: user, seed: 1}}
model: {kind: conv_classifier, width: 4, filters: 2}
train: {budget: {steps: 4}, batch_examples: 8, evaluate_every: 2, save_every: 2, samples: 1}
"""


def recipe(train: str = "") -> Recipe:
    return recipe_of(RECIPE.replace("TRAIN", train), "recipe.yaml")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    with (tmp_path / "all.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    return tmp_path / "all.csv"


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def from_pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def from_polars() -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)


def from_datasets() -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(ROWS)


def run_until(step: int, recipe: Recipe, run: Path, data: Any = None) -> list[Any]:
    at, events = [0], []
    for event in train(recipe, run, lambda: at[0] >= step, data=data):
        at[0] = event.step if isinstance(event, Started | Step) else at[0]
        events.append(event)
    return events


def test_held_out_rows_are_recorded_grouped_and_the_same_when_a_run_resumes(table: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_until(9, recipe(f"train: {table},"), whole)
    run_until(3, recipe(f"train: {table},"), stopped)
    first = json.loads((stopped / "held_out.json").read_text())
    assert isinstance(run_until(9, recipe(f"train: {table},"), stopped)[-1], Finished)
    assert weights(whole) == weights(stopped)
    assert json.loads((stopped / "held_out.json").read_text()) == first and set(first) == {"valid", "test"}
    users = {split: {ROWS[row - 1]["user"] for row in rows} for split, rows in first.items()}
    assert users["valid"] and users["test"] and not users["valid"] & users["test"]
    task = task_of(read_recipe(whole))
    texts = {split: [item.text for item in task.read(split).items] for split in SPLITS}
    assert texts["valid"] == [ROWS[row - 1]["review"] for row in first["valid"]]
    assert sum(map(len, texts.values())) == len(ROWS)
    assert not any(ROWS[row - 1]["review"] in texts["train"] for rows in first.values() for row in rows)


@pytest.mark.parametrize("make", [from_pandas, from_polars, from_datasets, lambda: ROWS])
def test_tables_from_python_train_the_same_run_as_a_file(make: Callable[[], Any], table: Path, tmp_path: Path) -> None:
    list(train(recipe(f"train: {table},"), tmp_path / "file"))
    data = make()
    predictor = fit(recipe(), tmp_path / "python", data=data)
    assert weights(tmp_path / "python") == weights(tmp_path / "file")
    assert (tmp_path / "python" / "held_out.json").read_text() == (tmp_path / "file" / "held_out.json").read_text()
    assert list(predictor.predict(["text 3 is bad"]))
    with pytest.raises(UserError, match="come from Python"):
        check_recipe(read_recipe(tmp_path / "python"))
    list(train(recipe(), tmp_path / "python", data=data))  # it is finished, and may be asked for again


def test_tables_of_each_split_and_wrong_ones() -> None:
    given = recipe().model_copy(update={"data": recipe("train: x.csv,").data})
    data = with_own_data(given, {"train": ROWS[:40], "validation": ROWS[40:50], "test": ROWS[50:]}).data
    assert [len(data.read(split).items) for split in SPLITS] == [40, 10, 10] and data.shares == {}
    data = with_own_data(given, Dataset(ROWS[:40], ROWS[40:])).data
    assert len(data.read("valid").items) == 20 and len(data.read("train").items) == 36
    with pytest.raises(UserError, match="this is no table"):
        with_own_data(given, [1, 2])
    with pytest.raises(UserError, match="no column 'review'") as error:
        with_own_data(given, [{"reviews": "a", "verdict": "b"}] * 20).data.read("train")
    assert "did you mean data.columns.text=reviews" in str(error.value) and "data.train" in str(error.value)


PICTURES = """
task: {kind: image_classification}
data: {kind: image_folder, train: FOLDER, valid: 0.25, test: null, channels: 1}
model: {kind: lenet}
train: {budget: {steps: 1}, batch_examples: 2, samples: 0, save_every: 1}
"""


def test_images_that_are_held_out_are_recorded_by_name(tmp_path: Path) -> None:
    for number in range(8):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((28, 28), number * 30, np.uint8)).save(file)
    given = recipe_of(PICTURES.replace("FOLDER", str(tmp_path / "photos")), "recipe.yaml")
    list(train(given, tmp_path / "run"))
    ((split, names),) = json.loads((tmp_path / "run" / "held_out.json").read_text()).items()
    assert split == "valid" and len(names) == 2 and {name[0] for name in names} == {"a", "b"}
    read = task_of(given).read("valid")
    assert read.files == tuple(str(tmp_path / "photos" / name) for name in names)


MODULE = """
class Reviews:
    def __init__(self, split):
        self.rows = {"train": range(40), "valid": range(40, 50)}[split]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, number):
        row = self.rows[number]  # a dataset of torch need not raise IndexError
        return f"text {row} is {['good', 'bad'][row % 2]}", "ab"[row % 2]

def stream(split):
    return (Reviews(split)[number] for number in range(len(Reviews(split))))

def broken(split):
    raise ValueError("no such file")
"""


@pytest.mark.parametrize("name", ["Reviews", "stream"])
def test_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"reviews_{name}.py").write_text(MODULE)
    text = RECIPE.split("data:")[0] + "data: {kind: module, path: PATH}\nmodel:" + RECIPE.split("model:")[1]
    given = recipe_of(text.replace("PATH", f'"reviews_{name}:{name}"'), "recipe.yaml")
    list(train(given, tmp_path / "whole"))
    run_until(3, given, tmp_path / "stopped")
    run_until(9, given, tmp_path / "stopped")
    assert weights(tmp_path / "whole") == weights(tmp_path / "stopped")
    assert read_recipe(tmp_path / "whole").data.path == f"reviews_{name}:{name}"
    for path, message in (
        (f"reviews_{name}:broken", "failed: ValueError: no such file"),
        (f"reviews_{name}:nothing", "no class or function nothing"),
        ("no_module_of_this_name:x", "no such module"),
    ):
        with pytest.raises(UserError, match=message):
            list(train(recipe_of(text.replace("PATH", f'"{path}"'), "recipe.yaml"), tmp_path / "other"))
    with pytest.raises(UserError, match=r"data\.path"):
        recipe_of(text.replace("PATH", '"../x.py:y"'), "recipe.yaml")
