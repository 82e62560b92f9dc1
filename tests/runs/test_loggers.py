"""Loggers: files of TensorBoard, Weights & Biases and MLflow, where these are installed; what stand-ins of them get.

Packages that are missing, cannot start or fail."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from heedful.errors import UserError
from heedful.runs.events import read_events
from heedful.runs.loggers import Loggers, numbers
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Evaluated, Finished, Noted, Started, Step, train
from heedful.tasks.base import Score
from patience import LONG, until

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


Numbers = dict[tuple[str, int], float]


def from_tensorboard(run: Path) -> Numbers:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    points = [(tag, one.step, one.value) for tag in board.Tags()["scalars"] for one in board.Scalars(tag)]
    assert len(points) == len({point[:2] for point in points}), "a step is there twice"
    return {(tag, step): value for tag, step, value in points}


def from_wandb(run: Path) -> Numbers:
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = (run / "wandb").glob("offline-run-*/*.wandb")
    found: Numbers = {}
    for data in leveldb_log(path.read_bytes()):
        message = messages.Record()
        message.ParseFromString(data)
        if message.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): item.value_json for item in message.history.item}
            points = {(name, int(row["_step"])): float(value) for name, value in row.items() if name[0] != "_"}
            assert not points.keys() & found.keys(), "a step is there twice"
            found |= points
    return found


def leveldb_log(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, after its header of 7 bytes."""
    at, record, block = 7, b"", 1 << 15
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record, at = record + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def from_mlflow(run: Path) -> Numbers:
    client = importlib.import_module("mlflow.tracking").MlflowClient(f"sqlite:///{run}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("heedful")
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.status == "FINISHED" and made.data.params["model.kind"] == "conv_classifier"
    points = [
        (key, one.step, one.value)
        for key in made.data.metrics
        for one in client.get_metric_history(made.info.run_id, key)
    ]
    assert len(points) == len({point[:2] for point in points}), "a step is there twice"
    return {(key, step): value for key, step, value in points}


READERS = {"tensorboard": from_tensorboard, "wandb": from_wandb, "mlflow": from_mlflow}


def require_same(kind: str, run: Path) -> None:
    """What a tool reads from its files is what metrics.jsonl has."""
    expected = recorded(run)
    precision = 1e-6 if kind == "tensorboard" else 0  # it stores floats of 32 bits
    if kind == "wandb":  # its own process writes the file
        until(lambda: len(from_wandb(run)) >= len(expected))
    assert READERS[kind](run) == {key: pytest.approx(value, rel=precision) for key, value in expected.items()}


def require_package(kind: str) -> None:
    pytest.importorskip(kind, reason=f"the package {kind} is not installed")


@pytest.mark.parametrize("kind", READERS)
def test_tool_has_the_numbers_of_the_metrics(kind: str, recipe: Path) -> None:
    require_package(kind)
    run = trained(recipe, f"{{kind: {kind}}}")
    require_same(kind, run)
    assert {step for name, step in recorded(run) if name == "train/loss"} == {1, 2, 4, 6}
    assert trained(recipe, f"{{kind: {kind}}}") == run  # it is complete: nothing is added
    require_same(kind, run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("step", [1, 4, 6])
def test_killed_run_has_every_step_once(kind: str, step: int, recipe: Path) -> None:
    require_package(kind)
    killed(recipe, f"{{kind: {kind}}}", step)
    require_same(kind, trained(recipe, f"{{kind: {kind}}}"))


@pytest.mark.slow
def test_tool_that_comes_later_gets_the_steps_before(recipe: Path) -> None:
    """Two tools at once; one of them is named only when the run resumes."""
    for kind in READERS:
        require_package(kind)
    killed(recipe, "{kind: tensorboard}", 5)
    run = trained(recipe, ", ".join(f"{{kind: {kind}}}" for kind in READERS))
    for kind in READERS:
        require_same(kind, run)


KILLED = """
import os, sys
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Step, train
for event in train(load_recipe(sys.argv[1], ["train.loggers=[" + sys.argv[2] + "]"]), sys.argv[3]):
    if isinstance(event, Step) and event.step == int(sys.argv[4]):
        os.kill(os.getpid(), 9)
"""


def killed(recipe: Path, logger: str, step: int) -> None:
    """Train until a step, and end as by SIGKILL."""
    command = [sys.executable, "-c", KILLED, str(recipe), logger, str(recipe.parent / "run"), str(step)]
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # not the one of this process
    assert subprocess.run(command, env=own, timeout=LONG, check=False).returncode == -9


class FakeWandb(ModuleType):
    """What a run calls of wandb."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.settings: dict[str, Any] = {}
        self.found: Numbers = {}
        self.code: int | None = None
        self.step = 0
        self.Settings = dict

    def init(self, **settings: Any) -> FakeWandb:
        self.settings = settings
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.found |= {(name, step): value for name, value in values.items()}

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_is_offline_and_gets_settings_and_numbers(recipe: Path, wandb: FakeWandb) -> None:
    run = trained(recipe, "{kind: wandb, project: mine}")
    assert wandb.found == recorded(run) and wandb.code == 0
    assert (wandb.settings["mode"], wandb.settings["project"], wandb.settings["dir"]) == ("offline", "mine", str(run))
    assert wandb.settings["config"]["model"]["kind"] == "conv_classifier"
    assert wandb.settings["id"] == json.loads((run / "env.json").read_text())["run"]  # not the name of its folder


def test_parts_that_wandb_has_not_uploaded_are_replaced(recipe: Path, wandb: FakeWandb) -> None:
    run = trained(recipe, "{kind: wandb}")
    part = run / "wandb" / f"offline-run-20300101_000000-{wandb.settings['id']}"
    part.mkdir(parents=True)
    trained(recipe, "{kind: wandb}")
    assert not part.exists() and wandb.found == recorded(run)
    part.mkdir()
    (part / "run.wandb.synced").touch()
    wandb.found = {}
    trained(recipe, "{kind: wandb}")
    assert part.exists() and not wandb.found  # the run was complete, and all of it has been uploaded


class FakeMlflow:
    """What a run calls of MLflow's client, for a single run."""

    def __init__(self, uri: str) -> None:
        self.uri, self.experiment, self.status, self.made = uri, "", "", False
        self.params: dict[str, str] = {}
        self.points: list[tuple[str, int, float]] = []

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, kept: str) -> str:
        self.experiment = name
        return "1"

    def search_runs(self, experiments: list[str], tags: str, max_results: int) -> list[Any]:
        return [self._run()] if self.made else []

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        self.made = True
        return self._run()

    def _run(self) -> Any:
        data = SimpleNamespace(metrics={name for name, *_ in self.points}, params=self.params)
        return SimpleNamespace(info=SimpleNamespace(run_id="r"), data=data)

    def update_run(self, run: str, status: str) -> None:
        self.status = status

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=step, value=value) for name, step, value in self.points if name == key]

    def log_batch(self, run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
        assert len(metrics) <= 1000 and len(params) <= 100
        self.points += [(key, step, value) for key, value, _, step in metrics]
        self.params |= dict(params)

    def set_terminated(self, run: str, status: str) -> None:
        self.status = status


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[FakeMlflow]:
    """The clients that are made; they know the runs of the first one."""
    made: list[FakeMlflow] = []

    def client(uri: str) -> FakeMlflow:
        made.append(made[0] if made else FakeMlflow(uri))
        return made[-1]

    for name in ("mlflow", "mlflow.tracking", "mlflow.entities"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["mlflow.tracking"].__dict__["MlflowClient"] = client
    sys.modules["mlflow.entities"].__dict__.update(Metric=lambda *given: given, Param=lambda *given: given)
    return made


def test_mlflow_is_a_file_and_a_resumed_run_is_continued(recipe: Path, mlflow: list[FakeMlflow]) -> None:
    for event in train(load_recipe(str(recipe), ["train.loggers=[{kind: mlflow}]"]), recipe.parent / "run"):
        if isinstance(event, Step) and event.step == 5:
            break
    assert mlflow[0].status == "FAILED"
    run = trained(recipe, "{kind: mlflow}")
    fake = mlflow[-1]
    assert fake.uri == f"sqlite:///{run}/mlflow/mlflow.db" and fake.experiment == "heedful"
    assert {(name, step): value for name, step, value in fake.points} == recorded(run)
    assert len(fake.points) == len(recorded(run)) and fake.status == "FINISHED"
    assert fake.params["model.kind"] == "conv_classifier" and fake.params["train.budget.steps"] == "6"


def test_names_that_mlflow_refuses_are_replaced(recipe: Path, mlflow: list[FakeMlflow]) -> None:
    tool = Loggers(load_recipe(str(recipe), ["train.loggers=[{kind: mlflow}]"]), recipe.parent)
    list(tool.log(Started(0, 1, 1, 0, 0, 1, "cpu", 1, 1, ())))
    score = Score("f1 A/../C++ (größe)", 0.5, "")
    list(tool.log(Evaluated(3, "valid", 0.5, (score,), (), 0)))
    list(tool.log(Finished(3, False, "")))
    assert [point[:2] for point in mlflow[0].points] == [("valid/loss", 3), ("valid/f1 A_.._C__ _größe_", 3)]


def test_tool_that_fails_does_not_end_the_run(recipe: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = wandb.log

    def log(values: dict[str, float], step: int) -> None:
        if step == 4:
            raise ConnectionError("the server is gone\nand more")
        usual(values, step)

    monkeypatch.setattr(wandb, "log", log)
    events = list(train(load_recipe(str(recipe), ["train.loggers=[{kind: wandb}]"]), recipe.parent / "run"))
    (note,) = [event.text for event in events if isinstance(event, Noted)]
    assert note.startswith("wandb failed") and note.endswith("ConnectionError: the server is gone")
    assert {step for _, step in wandb.found} == {1, 2, 3} and wandb.code == 1
    assert isinstance(events[-1], Finished) and not events[-1].stopped
    assert {step for _, step in recorded(recipe.parent / "run")} == {1, 2, 3, 4, 6}


def test_tool_that_cannot_start_is_a_clear_error(
    recipe: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**settings: Any) -> None:
        raise RuntimeError("api_key not configured")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="the logger wandb could not start") as error:
        trained(recipe, "{kind: wandb, mode: online}")
    assert "api_key not configured" in str(error.value)


def test_runs_of_older_versions_have_numbers_for_tools() -> None:
    runs = sorted((Path(__file__).parents[1] / "golden" / "runs").glob("*/metrics.jsonl"))
    assert runs
    for path in runs:
        records = read_events(path.parent).records
        assert any(numbers(record) for record in records), path
    assert numbers({"kind": "step", "step": 3}) == numbers({"kind": "epoch", "step": 3, "loss": 1.0}) == {}


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_missing_package_is_a_clear_error(kind: str, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = importlib.import_module

    def without(name: str, package: str | None = None) -> ModuleType:
        if name.partition(".")[0] == kind:
            raise ModuleNotFoundError(f"No module named '{name}'")
        return usual(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(UserError, match=f"the package {kind} is not installed") as error:
        trained(recipe, f"{{kind: {kind}}}")
    assert f"pip install 'heedful[{kind}]'" in str(error.value)


def test_folder_with_the_name_of_a_package_is_not_one(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (recipe.parent / "wandb").mkdir()  # as Weights & Biases leaves it where a script was run
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(recipe.parent)])
    with pytest.raises(UserError, match="the package wandb is not installed"):
        Loggers(load_recipe(str(recipe), ["train.loggers=[{kind: wandb}]"]), recipe.parent)


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


def test_run_resumes_with_another_logger_and_unknown_ones_are_refused(recipe: Path, wandb: FakeWandb) -> None:
    run = recipe.parent / "run"
    for _ in train(load_recipe(str(recipe)), run):
        pass
    assert trained(recipe, "{kind: wandb}") == run and wandb.found == recorded(run)
    with pytest.raises(UserError, match="kind is unknown") as error:
        load_recipe(str(recipe), ["train.loggers=[{kind: tensorbord}]"])
    assert error.value.todo == "did you mean tensorboard?"
