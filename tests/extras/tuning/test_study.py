"""Studies: trained, killed and resumed with the same trials; failed trials; folders of others."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heedful.cli import tune
from heedful.errors import UserError
from heedful.extras.tuning.outcomes import Metric, outcome
from heedful.extras.tuning.results import comparisons, plain, rows_of, table
from heedful.extras.tuning.samplers import Kind
from heedful.extras.tuning.space import read_space
from heedful.extras.tuning.study import NAME, Study, TrialRun, check_points
from heedful.runs.train import train
from patience import until

RECIPE = """
task: {kind: text_classification}
data: {kind: number_languages, languages: [de, en], below: 1000, train: 96, valid: 20, test: 20}
tokenizer: {kind: characters}
model: {kind: conv_classifier, width: 8, filters: 4, sizes: [3], dropout: 0.0}
train:
  budget: {steps: 9}
  batch_examples: 24
  schedule: {kind: constant}
  evaluate_every: 3
  save_every: 3
  threads: 1
  samples: 0
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    return "tiny.yaml"


def study_of(
    *words: str,
    kind: Kind = "grid",
    trials: int | None = None,
    seed: int = 0,
    prune: bool = False,
    metric: str = "loss",
) -> Study:
    return Study(Path("study"), read_space(words), Metric(metric), kind, trials, 0, prune)


def train_runs(study: Study, most: int = 1000) -> list[TrialRun]:
    """Train the runs of a study one after the other, as its processes do."""
    done: list[TrialRun] = []
    while len(done) < most and (run := study.take()) is not None:
        for _ in train(run.recipe, run.folder):
            pass
        study.progress(run)
        study.ended(run, None)
        done.append(run)
    return done


def accuracies(run: Path) -> list[float]:
    """The accuracy of each evaluation of a run."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["scores"]["accuracy"]["value"] for event in events if event.get("split") == "valid"]


@pytest.fixture
def folder(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()


@pytest.mark.usefixtures("folder")
def test_grid_with_seeds_gives_mean_deviation_and_paired_differences(recipe: str) -> None:
    study = study_of(recipe, "train.optimizer.lr=1e-5,3e-2", "train.seed=0,1,2", metric="accuracy")
    study.open()
    names = [f"{trial:04d}-seed{seed}" for trial in (0, 1) for seed in (0, 1, 2)]
    assert [run.name for run in train_runs(study)] == names
    rows = rows_of(study)
    assert [row.trial.number for row in rows] == [1, 0]  # the lower rate learns nothing
    best_of = [max(accuracies(run.folder)) for run in study.trials[1].runs]
    assert rows[0].mean == pytest.approx(statistics.fmean(best_of))
    assert rows[0].deviation == pytest.approx(statistics.stdev(best_of))
    ((best, other, found),) = comparisons(rows)
    assert (best.trial.number, other.trial.number) == (1, 0) and found.pairs == 3 and found.difference > 0
    written = plain(study, rows)
    assert written["best"] == 1 and written["trials"][0]["values"].keys() == {"0", "1", "2"}
    assert next(line for line in table(study, rows) if "3e-2" in line).count("±") == 1


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", ["tpe", pytest.param("random", marks=pytest.mark.slow)])
def test_study_that_was_killed_goes_on_with_the_same_trials(recipe: str, kind: Kind, tmp_path: Path) -> None:
    words = (recipe, "train.optimizer.lr=1e-4..1e-1", "model.width=4,8")
    whole = study_of(*words, kind=kind, trials=4)
    whole.open()
    train_runs(whole)
    (tmp_path / "study").rename(tmp_path / "whole")
    (tmp_path / "study").mkdir()
    first = study_of(*words, kind=kind, trials=4)
    first.open()
    train_runs(first, most=2)
    started = first.take()  # and killed here, with half a line written
    assert started is not None
    with (tmp_path / "study" / NAME).open("a") as log:
        log.write('{"tell": 2, "sta')
    second = study_of(*words, kind=kind, trials=4)
    second.open()
    assert [run.name for run in train_runs(second)] == ["0002", "0003"]
    assert [trial.point for trial in second.trials] == [trial.point for trial in whole.trials]
    records = [json.loads(line) for line in (tmp_path / "study" / NAME).read_text().splitlines()]
    assert records == [json.loads(line) for line in (tmp_path / "whole" / NAME).read_text().splitlines()]


@pytest.mark.usefixtures("folder")
def test_run_whose_recipe_is_refused_fails_and_the_others_go_on(recipe: str) -> None:
    study = study_of(recipe, "model.width=4,-1", "train.seed=0,1")
    study.open()
    assert len(train_runs(study)) == 2
    assert [(trial.state, bool(trial.error)) for trial in study.trials] == [("complete", False), ("failed", True)]
    assert "model.width" in str(study.trials[1].error)


@pytest.mark.usefixtures("folder")
def test_error_of_a_process_fails_its_trial_only(recipe: str) -> None:
    study = study_of(recipe, "model.width=4,8", "train.seed=0,1")
    study.open()
    first = study.take()
    assert first is not None
    study.ended(first, "out of memory")
    assert len(train_runs(study)) == 2
    assert [trial.state for trial in study.trials] == ["failed", "complete"]
    assert plain(study, rows_of(study))["trials"][1]["error"] == "out of memory"


@pytest.mark.usefixtures("folder")
def test_bad_runs_are_pruned(recipe: str) -> None:
    words = (recipe, "train.optimizer.lr=1e-5,3e-2")
    study = study_of(*words, kind="tpe", trials=6, prune=True)
    study.open()
    ended = []
    while (run := study.take()) is not None:
        for _ in train(run.recipe, run.folder):
            pass
        ended.append(study.progress(run))
        study.ended(run, "" if ended[-1] else None, pruned=ended[-1])
    rates = [trial.point["train.optimizer.lr"] for trial in study.trials]
    assert any(ended) and all(rate == "1e-5" for rate, end in zip(rates, ended, strict=True) if end)
    again = study_of(*words, kind="tpe", trials=6, prune=True)
    again.open()
    assert [trial.state for trial in again.trials] == [trial.state for trial in study.trials] and again.take() is None


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "change", "found"),
    [
        (("model.width=4,8",), {}, "axes"),
        (("train.optimizer.lr=1e-3,1e-2", "train.seed=0,1"), {}, "seeds"),
        (("train.optimizer.lr=1e-3,1e-2", "model.width=8"), {}, "settings"),
        (("train.optimizer.lr=1e-3,1e-2",), {"metric": "accuracy"}, "metric"),
        (("train.optimizer.lr=1e-3,1e-2",), {"kind": "random", "trials": 2}, "sampler"),
    ],
)
def test_folder_of_another_study_is_refused(recipe: str, words: tuple[str, ...], change: Any, found: str) -> None:
    study_of(recipe, "train.optimizer.lr=1e-3,1e-2").open()
    with pytest.raises(UserError, match="another study") as error:
        study_of(recipe, *words, **change).open()
    assert found in str(error.value.found)


@pytest.mark.usefixtures("folder")
def test_changed_recipe_is_refused(recipe: str, tmp_path: Path) -> None:
    study_of(recipe, "train.optimizer.lr=1e-3,1e-2").open()
    (tmp_path / recipe).write_text(RECIPE.replace("steps: 9", "steps: 8"))
    with pytest.raises(UserError, match="another study") as error:
        study_of(recipe, "train.optimizer.lr=1e-3,1e-2").open()
    assert error.value.found == "the recipe has changed"


@pytest.mark.usefixtures("folder")
def test_file_that_is_no_record_is_refused(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "study" / NAME).write_text("[1]\n")
    with pytest.raises(UserError, match="not a record of a study") as error:
        study_of(recipe, "model.width=4,8").open()
    assert error.value.where == f"study/{NAME}:1"


def test_unknown_keys_are_refused_before_anything_is_trained(recipe: str) -> None:
    space = read_space([recipe, "train.optimiser.lr=1e-4,1e-3"])
    with pytest.raises(UserError, match="unknown key") as error:
        check_points(space)
    assert error.value.todo is not None and "train.optimizer" in error.value.todo


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("train.optimizer.lr=1e-3,fast", "'fast'"),
        ("train.optimizer.lr=-1..1", "-1"),
        ("model.width=2.5..8", "2.5"),
        ("model.sizes=[2],[3],[0]", "0"),
    ],
)
def test_values_that_are_never_valid_are_refused_before_anything_is_trained(recipe: str, word: str, found: str) -> None:
    """Also the last of a list, and an end of a range."""
    for words in ([recipe, word], [recipe, "train.seed=0,1", word], [recipe, "train.clip=1,2", word]):
        with pytest.raises(UserError, match=f"invalid value for {word.partition('=')[0]}") as error:
            check_points(read_space(words))
        assert str(error.value.found) == found
    check_points(read_space([recipe, "train.optimizer.lr=1e-4..1e-2", "model.width=2,4"]))


def test_value_that_fits_some_of_the_others_is_tried() -> None:
    """Three heads divide 96, not 64."""
    check_points(read_space(["numbers", "model.width=64,96", "model.heads=3,4"]))
    with pytest.raises(UserError, match="heads"):
        check_points(read_space(["numbers", "model.width=64,128", "model.heads=3,4"]))


def test_words_without_anything_to_vary_are_refused(recipe: str) -> None:
    with pytest.raises(UserError, match="nothing to vary"):
        tune.tune_command([recipe, "model.width=4"], None, None, None, False, 0, None, None, True)


def test_value_is_that_of_the_best_checkpoint(recipe: str, tmp_path: Path) -> None:
    from heedful.runs.recipe import load_recipe

    for _ in train(load_recipe(recipe), tmp_path / "run"):
        pass
    found = outcome(tmp_path / "run", Metric("accuracy"))
    assert found is not None and found.value == max(accuracies(tmp_path / "run"))
    with pytest.raises(UserError, match="no such score"):
        outcome(tmp_path / "run", Metric("bleu"))
    assert outcome(tmp_path / "elsewhere", Metric("loss")) is None


@pytest.mark.slow
def test_command_killed_in_the_middle_resumes_and_reports(recipe: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "heedful", "tune", recipe, "train.optimizer.lr=1e-4,1e-2", "train.seed=0,1"]
    words += ["train.budget={steps: 300}", "train.log_every=1", "--jobs", "2"]
    folder = tmp_path / "runs" / "tune-tiny"
    study = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: (folder / "0000-seed0" / "metrics.jsonl").exists() or study.poll() is not None)
    study.send_signal(signal.SIGKILL)
    study.communicate()
    done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "best     trial 1" in done.stdout and "with 2 seeds" in done.stdout and (folder / "study.png").exists()
    results = json.loads((folder / "study.json").read_text())
    assert [trial["state"] for trial in results["trials"]] == ["complete", "complete"]
    again = subprocess.run([*words, "--json"], capture_output=True, text=True)
    assert json.loads(again.stdout) == results
