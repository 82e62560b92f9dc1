"""Runs, recipes, conversions and views as they were when the golden files were recorded, and as they must stay.

Run folders written before load, predict and evaluate as they did, and resume to the same end. Values may differ
between CPUs; `make golden` compares bits, on a machine like the one that recorded them.
`python tests/golden/record.py` writes what is missing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import heedful
from golden.comparing import EXACT, same, same_array
from golden.library import (
    LEDGERS,
    PACKETS,
    PUBLISHED,
    RUNS,
    SHOWN,
    command,
    ledger,
    packet,
    predictions,
    recipes,
    show_recipe,
    trained_kinds,
    views,
)
from heedful.errors import UserError
from heedful.training.loop import Saved
from tolerance import close

TRAINING_SLACK = 2**13  # epsilons, 1e-3 of the largest: errors of rounding grow over thirty steps
SCORE_SLACK = 2**13  # the same: a correlation of numbers that are near each other loses digits
NAMES = sorted(folder.name for folder in RUNS.iterdir())
TEXTS = sorted(file.relative_to(SHOWN).with_suffix("").as_posix() for file in SHOWN.rglob("*.yaml"))
PACKET_NAMES = sorted(file.stem for file in PACKETS.glob("*.json"))
NEW_KEYS = (  # keys added since, with defaults that change nothing
    "score: scaled_dot",
    "normalize: softmax",
    "full_sentences: false",
    "window: null",
    "sink: 0",
    "recompute: false",
    "hue: 0.0",
    "keep: auto",
    "resample: lanczos",
)
CONVERTED = sorted(folder.name for folder in PUBLISHED.iterdir())


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a golden run, which becomes the current folder, since data paths are relative to it."""
    copy = tmp_path / request.param
    shutil.copytree(RUNS / request.param, copy)
    monkeypatch.chdir(copy)
    return copy


every_run = pytest.mark.parametrize("run", NAMES, indirect=True)
FIRST = {name.partition("-")[0]: name for name in reversed(NAMES)}.values()  # of each task
first_runs = pytest.mark.parametrize(
    "run", [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name in NAMES], indirect=True
)


def read(path: Path) -> Any:
    """The contents of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def losses(run: Path, after: int = 0) -> list[list[Any]]:
    """The steps that a run has recorded, with the loss and the learning rate of each."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [[one["step"], one["loss"], one["rate"]] for one in events if one["kind"] == "step" and one["step"] > after]


def scores(found: dict[str, Any]) -> dict[str, Any]:
    """What of an evaluation depends on the model and the data."""
    return {name: found[name] for name in ("split", "loss", "scores", "unread")}


def checkpoint(run: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return run / "checkpoints" / f"step-{step:08}"


def same_tensors(found: Path, expected: Path) -> None:
    """Assert that two files hold the same tensors.

    Some are only rounding errors, like the gradient of a bias that softmax cancels: the tolerance is at least that of
    a tenth of the largest value of the same kind.
    """
    actual, reference = load_file(found), load_file(expected)
    assert actual.keys() == reference.keys()
    largest: dict[str, float] = {}
    for name, tensor in reference.items():
        largest[kind_of(name)] = max(float(tensor.abs().max()), largest.get(kind_of(name), 0.0))
    for name, tensor in reference.items():
        assert actual[name].dtype == tensor.dtype
        if EXACT:
            assert actual[name].equal(tensor), name
        else:
            size = max(float(tensor.abs().max()), largest[kind_of(name)] / 10)
            close(actual[name], tensor, TRAINING_SLACK, of=size, msg=name)


def kind_of(name: str) -> str:
    """The kind of optimizer state of a tensor, or empty for weights."""
    return next((kind for kind in ("exp_avg_sq.", "exp_avg.", "square.", "step.") if name.startswith(kind)), "")


# ------------------------------------------------------------------ nothing is left out
def test_every_task_recipe_and_view_has_golden_files() -> None:
    kinds = [heedful.load_recipe(str(RUNS / name / "recipe.yaml")) for name in NAMES]
    assert {(one.task.kind, one.model.kind) for one in kinds} == trained_kinds()
    assert set(TEXTS) == recipes()
    assert {name.partition(".")[0] for name in PACKET_NAMES} == views()
    assert sorted(file.stem for file in LEDGERS.glob("*.json")) == CONVERTED


# ------------------------------------------------------------------ recipes and conversions
@pytest.mark.parametrize("name", TEXTS)
def test_shown_recipe_is_unchanged(name: str, tmp_path: Path) -> None:
    found, expected = show_recipe(name, tmp_path), (SHOWN / f"{name}.yaml").read_text(encoding="utf-8")
    shown = [[line for line in text.splitlines() if line.strip() not in NEW_KEYS] for text in (found, expected)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_tensors_are_unchanged(name: str, tmp_path: Path) -> None:
    assert ledger(PUBLISHED / name, tmp_path) == read(LEDGERS / f"{name}.json")


# ------------------------------------------------------------------ runs
@every_run
def test_old_run_predictions_are_unchanged(run: Path) -> None:
    recipe = heedful.load_recipe("recipe.yaml")
    for folder in (run, run / "model"):
        predicted = predictions(heedful.load(folder, device="cpu"), recipe.task.kind, recipe.model.kind)
        same(predicted, read(run / "predictions.json"))


@every_run
def test_old_run_scores_are_unchanged(run: Path) -> None:
    recorded = read(run / "results.json")
    same(scores(json.loads(command("eval", run, "--json"))), scores(recorded), SCORE_SLACK)
    (run / "results.json").unlink()
    for _ in heedful.train(heedful.load_recipe("recipe.yaml"), run):  # complete except for its scores
        pass
    again = read(run / "results.json")
    same(scores(again), scores(recorded), SCORE_SLACK)
    assert again["samples"] == recorded["samples"]


def common_part(old: Any, new: Any) -> Any:
    """The part of new settings that old ones have; keys added since have defaults."""
    return {key: common_part(old[key], new[key]) for key in old} if isinstance(old, dict) else new


@every_run
def test_old_run_resumes_to_the_same_end(run: Path) -> None:
    recorded, whole = losses(run, after=20), RUNS / run.name
    for made in (checkpoint(run, 30), run / "model"):
        shutil.rmtree(made)
    (run / "results.json").unlink()
    for _ in heedful.train(heedful.load_recipe("recipe.yaml"), run):
        pass
    assert [step for step, *_ in recorded] == list(range(21, 31))
    same(losses(run, after=20), recorded, TRAINING_SLACK)
    for file in ("model.safetensors", "optimizer.safetensors"):
        same_tensors(checkpoint(run, 30) / file, checkpoint(whole, 30) / file)
    same_tensors(run / "model" / "model.safetensors", whole / "model" / "model.safetensors")
    written, old = (read(folder / "model" / "config.json") for folder in (run, whole))
    assert common_part(old, written) == old
    assert heedful.load(run / "model", "cpu").model.config == heedful.load(whole / "model", "cpu").model.config


@pytest.mark.parametrize("run", ["translation-transformer"], indirect=True)
def test_resuming_keeps_old_defaults_of_new_settings(run: Path) -> None:
    with pytest.raises(UserError, match="'softmax' in step-00000030, 'sparsemax' now"):
        list(heedful.train(heedful.load_recipe("recipe.yaml", ["model.normalize=sparsemax"]), run))


@first_runs
def test_new_run_has_the_same_losses(run: Path) -> None:
    then = read(run / "env.json")["torch"]
    if [*torch.__version__.split(".")[:2]] != then.split(".")[:2]:
        pytest.skip(f"recorded with torch {then}, whose initial weights are other random numbers")
    for event in heedful.train(heedful.load_recipe("recipe.yaml"), run / "again"):
        if isinstance(event, Saved) and event.step == 30:
            break  # how a run ends, the test above compares
    same(losses(run / "again"), losses(run), TRAINING_SLACK)
    for file in (one.name for one in run.glob("*.json") if one.name in ("tokenizer.json", "words.json", "images.json")):
        assert (run / "again" / file).read_bytes() == (run / file).read_bytes()
    same_tensors(checkpoint(run / "again", 30) / "model.safetensors", checkpoint(run, 30) / "model.safetensors")


# ------------------------------------------------------------------ views
SENTENCES = ("measure", "about", "sample")  # explanations, whose wording may change


def without_sentences(value: Any) -> Any:
    """The header of a packet without its explanations."""
    if isinstance(value, dict):
        return {name: without_sentences(part) for name, part in value.items() if name not in SENTENCES}
    return [without_sentences(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", PACKET_NAMES)
def test_view_packets_are_unchanged(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = read(PACKETS / f"{name}.json")
    copy = tmp_path / recorded["run"]
    shutil.copytree(RUNS / recorded["run"], copy)
    monkeypatch.chdir(copy)
    words, arrays = packet(copy, recorded["view"], recorded["call"], recorded["question"])
    same(without_sentences(words), without_sentences(recorded["words"]))
    assert list(arrays) == list(recorded["arrays"])
    for key, array in arrays.items():
        same_array(array, recorded["arrays"][key])
