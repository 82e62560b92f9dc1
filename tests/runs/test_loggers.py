"""Loggers: TensorBoard's file read back, what Weights & Biases and MLflow are given, and missing packages."""

from __future__ import annotations

import builtins
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train

RECIPE = """
task: {kind: text_classification}
data: {kind: number_languages, languages: [de, en], below: 1000, train: 48, valid: 20, test: 20}
tokenizer: {kind: characters}
model: {kind: conv_classifier, width: 4, filters: 2, sizes: [2]}
train: {budget: {steps: 6}, batch_examples: 16, evaluate_every: 3, save_every: 3, threads: 1, log_every: 2}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path / "tiny.yaml"


def trained(recipe: Path, logger: str) -> Path:
    run = recipe.parent / "run"
    for _ in train(load_recipe(str(recipe), [f"train.loggers=[{logger}]"]), run):
        pass
    return run


def recorded(run: Path) -> dict[tuple[str, int], float]:
    """The numbers of metrics.jsonl."""
    found: dict[tuple[str, int], float] = {}
    for event in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if event["kind"] == "step":
            found |= {(f"train/{name}", event["step"]): event[name] for name in ("loss", "rate", "norm")}
        elif event["kind"] == "evaluated":
            values = {"loss": event["loss"], **{name: score["value"] for name, score in event["scores"].items()}}
            found |= {(f"{event['split']}/{name}", event["step"]): value for name, value in values.items()}
    return found


def test_tensorboard_has_the_numbers_of_the_metrics(recipe: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(recipe, "{kind: tensorboard}")
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    found = {(tag, one.step): one.value for tag in board.Tags()["scalars"] for one in board.Scalars(tag)}
    assert found == {key: pytest.approx(value, rel=1e-6) for key, value in recorded(run).items()}
    assert {step for name, step in found if name == "train/loss"} == {1, 2, 4, 6}


class FakeWandb(ModuleType):
    """What a run calls of wandb."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.settings: dict[str, Any] = {}
        self.found: dict[tuple[str, int], float] = {}
        self.finished = False

    def init(self, **settings: Any) -> FakeWandb:
        self.settings = settings
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.found |= {(name, step): value for name, value in values.items()}

    def finish(self) -> None:
        self.finished = True


class FakeMlflow(ModuleType):
    """What a run calls of mlflow."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[str, Any]] = []
        self.found: dict[tuple[str, int], float] = {}

    def set_tracking_uri(self, uri: str) -> None:
        self.calls.append(("uri", uri))

    def set_experiment(self, name: str) -> None:
        self.calls.append(("experiment", name))

    def start_run(self, run_name: str) -> None:
        self.calls.append(("start", run_name))

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.found |= {(name, step): value for name, value in values.items()}

    def end_run(self) -> None:
        self.calls.append(("end", None))


def test_wandb_is_offline_and_gets_settings_and_numbers(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = trained(recipe, "{kind: wandb, project: mine}")
    assert fake.found == recorded(run) and fake.finished
    assert (fake.settings["mode"], fake.settings["project"], fake.settings["dir"]) == ("offline", "mine", str(run))
    assert fake.settings["config"]["model"]["kind"] == "conv_classifier"


def test_mlflow_is_a_folder_and_gets_the_numbers(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    run = trained(recipe, "{kind: mlflow}")
    assert fake.found == recorded(run)
    assert fake.calls == [
        ("uri", (run / "mlflow").as_uri()), ("experiment", "heedful"), ("start", "run"), ("end", None)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_missing_package_is_a_clear_error(kind: str, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = importlib.import_module

    def without(name: str, package: str | None = None) -> ModuleType:
        if name == kind:
            raise ModuleNotFoundError(f"No module named '{name}'")
        return usual(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(UserError, match=f"the package {kind} is not installed") as error:
        trained(recipe, f"{{kind: {kind}}}")
    assert f"pip install 'heedful[{kind}]'" in str(error.value)


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
@pytest.mark.parametrize(
    "call", ["init", "log", "finish", "set_tracking_uri", "set_experiment", "start_run", "log_metrics", "end_run"]
)
@pytest.mark.parametrize("error", [ValueError("bad\x07 name " + "x" * 999), ConnectionError(), SystemError("\ud800")])
def test_error_of_a_package_is_one_message_and_the_run_resumes_without_it(
    kind: str, call: str, error: Exception, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb() if kind == "wandb" else FakeMlflow()
    if not hasattr(fake, call):
        return

    def fails(*given: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(fake, call, fails)
    monkeypatch.setitem(sys.modules, kind, fake)
    with pytest.raises(UserError, match=f"the logger {kind} raised an error") as raised:
        trained(recipe, f"{{kind: {kind}}}")
    assert type(error).__name__ in str(raised.value) and len(str(raised.value)) < 900
    run = recipe.parent / "run"
    for _ in train(load_recipe(str(recipe)), run):
        pass
    assert (run / "model").is_dir()


def test_why_a_run_ended_is_reported_and_not_its_logger(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setattr(fake, "finish", lambda: {}["finish"])
    monkeypatch.setitem(sys.modules, "wandb", fake)
    events = train(load_recipe(str(recipe), ["train.loggers=[{kind: wandb}]"]), recipe.parent / "run")
    next(events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())


def test_packages_are_imported_only_where_they_are_used(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, seen = builtins.__import__, list[str]()

    def watched(name: str, *rest: Any) -> Any:
        seen.append(name.partition(".")[0])
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", watched)
    for _ in train(load_recipe(str(recipe)), recipe.parent / "plain"):
        pass
    assert not {"tensorboard", "wandb", "mlflow", "optuna"} & set(seen)
    assert "loggers" not in (recipe.parent / "plain" / "recipe.yaml").read_text()


def test_run_resumes_with_another_logger_and_unknown_ones_are_refused(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = recipe.parent / "run"
    for _ in train(load_recipe(str(recipe)), run):
        pass
    assert trained(recipe, "{kind: wandb}") == run and fake.finished
    with pytest.raises(UserError, match="kind is unknown") as error:
        load_recipe(str(recipe), ["train.loggers=[{kind: tensorbord}]"])
    assert error.value.todo == "did you mean tensorboard?"
