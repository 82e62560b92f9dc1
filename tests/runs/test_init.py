"""`heedful init` for every task, from scratch and from a trained folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import heedful
from heedful.errors import UserError
from heedful.runs.init import OF_TASK, init_recipe
from heedful.runs.recipe import recipe_in
from heedful.runs.train import Step, train
from heedful.tasks import TASKS

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
FINETUNED = ("classification", "multi_label", "regression", "multiple_choice", "tagging", "answering")
RUN_OF = {path.name.partition("-")[0]: path for path in sorted(GOLDEN.iterdir())}


def test_every_task_has_a_template_and_a_run() -> None:
    assert OF_TASK.keys() == TASKS.keys() == RUN_OF.keys()


@pytest.mark.parametrize("task", TASKS)
def test_recipe_from_scratch_is_of_the_task(task: str, tmp_path: Path) -> None:
    file, schema = init_recipe(task, tmp_path)
    recipe = recipe_in(file)
    assert recipe.task.kind in (task, "classification") and schema.is_file()
    assert task in FINETUNED or recipe.start is None


@pytest.mark.parametrize("task", TASKS)
def test_recipe_from_a_run_starts_with_its_weights(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUN_OF[task], tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    kind = heedful.load_recipe("recipe.yaml").task.kind
    file, _ = init_recipe(kind, tmp_path / "next.yaml", start=Path("../run"))
    recipe = recipe_in(file)
    assert recipe.start.folder == "../run" and recipe.task.kind == kind
    assert recipe.model.kind == heedful.load_recipe("recipe.yaml").model.kind


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_recipe_from_a_run_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    shutil.copytree(GOLDEN / name, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    kind = heedful.load_recipe("recipe.yaml").task.kind
    file, _ = init_recipe(kind, tmp_path / "next.yaml", start=Path("."))
    recipe = recipe_in(file, ["train.budget={steps: 1}", "train.keep=2", "train.average=1", "train.use=last"])
    steps = [event for event in train(recipe, tmp_path / "next") if isinstance(event, Step)]
    assert [step.step for step in steps] == [1]


def test_an_encoder_of_another_task_is_fine_tuned(tmp_path: Path) -> None:
    folder = GOLDEN / "pretraining-bert"
    for task in FINETUNED:
        assert recipe_in(init_recipe(task, tmp_path / f"{task}.yaml", start=folder)[0]).start.folder == str(folder)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no template named clasify") as error:
        init_recipe("clasify", tmp_path)
    assert error.value.todo == "did you mean classify?"
    with pytest.raises(UserError, match="no such folder"):
        init_recipe("tag", tmp_path, start=tmp_path / "nosuch")
    with pytest.raises(UserError, match="starts from a run of that task") as error:
        init_recipe("translation", tmp_path, start=GOLDEN / "pretraining-bert")
    assert "a run of pretraining" in str(error.value.found)
    init_recipe("trees", tmp_path)
    with pytest.raises(UserError, match="this file exists"):
        init_recipe("trees", tmp_path)
