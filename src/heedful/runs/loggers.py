"""The numbers of metrics.jsonl in other tools, whose packages are imported only if a recipe names them.

The file is what counts: whenever a run starts or resumes, a tool is given those numbers of the file that it does not
have yet.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from heedful.errors import UserError, short
from heedful.files.writing import delete_tree, unlink
from heedful.runs.events import read_events, values
from heedful.runs.finish import as_record
from heedful.runs.progress import Event, Finished, Noted, Started
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.ownership import leaves
from heedful.training.checkpoint.ties import name_in
from heedful.training.loggers import LoggerConfig, MlflowLogger, TensorBoardLogger, WandbLogger

MODULES = {
    "tensorboard": ("tensorboard", "torch.utils.tensorboard"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow.tracking", "mlflow.entities"),
}
# What the packages would print, send or wait for on their own; variables that are set already are kept.
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
}
PAUSE, MOST, MOST_PARAMS = 1.0, 1000, 100  # seconds between requests to MLflow, and what one may contain
FORBIDDEN = re.compile(r"[^\w. -]")  # in MLflow's names of metrics and parameters


class Tool(Protocol):
    """The open record of a run in another tool."""

    def add(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self, status: str) -> None:
        """End the record of a run that is FINISHED, KILLED (stopped, and may resume) or FAILED."""


class Loggers:
    """The tools that a recipe names."""

    def __init__(self, recipe: Recipe, run: Path) -> None:
        self.recipe, self.run = recipe, run
        self.open: list[tuple[str, Tool]] = []
        for config in recipe.train.loggers:
            _require(config.kind)  # now, not after the data have been read

    def log(self, event: Event) -> Iterator[Noted]:
        """Pass the numbers of an event to all tools; one that fails is closed, and the run goes on."""
        if isinstance(event, Started):
            for config in self.recipe.train.loggers:
                self.open.append((config.kind, _opened(config, self.recipe, self.run, event.step)))
            for record in read_events(self.run).records if self.open else ():
                if record.get("split") != "test":  # these follow when the run is finished again
                    yield from self._add(record)
        elif isinstance(event, Finished):
            yield from self.close("KILLED" if event.stopped else "FINISHED")
        elif new := as_record(event, self.recipe.train.log_every):
            yield from self._add(new)

    def close(self, status: str) -> Iterator[Noted]:
        """Close all tools, with the status of the run in MLflow's words."""
        for tool in list(self.open):
            yield from self._try(tool, partial(tool[1].close, status))
        self.open = []

    def _add(self, record: Mapping[str, Any]) -> Iterator[Noted]:
        if values := numbers(record):
            for tool in list(self.open):
                yield from self._try(tool, partial(tool[1].add, values, record["step"]))

    def _try(self, tool: tuple[str, Tool], call: partial[None]) -> Iterator[Noted]:
        try:
            call()
        except Exception as error:
            self.open.remove(tool)
            with suppress(Exception):
                tool[1].close("FAILED")
            yield Noted(f"{tool[0]} failed and gets no more numbers, metrics.jsonl has them all: {_brief(error)}")


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event of metrics.jsonl by name, such as train/loss and valid/accuracy; none of other events."""
    if record.get("kind") == "step":
        split, found = "train", {name: record.get(name) for name in ("loss", "rate", "norm")} | record.get("parts", {})
    elif record.get("kind") == "evaluated":
        split, found = record["split"], {"loss": record.get("loss"), **values(record)}
    else:
        return {}
    return {f"{split}/{name}": float(value) for name, value in found.items() if isinstance(value, int | float)}


class _TensorBoard:
    """New event files with all numbers, in place of those of a run that was killed."""

    def __init__(self, run: Path) -> None:
        _, module = _require("tensorboard")
        for old in (run / "tensorboard").glob("events.out.tfevents.*"):
            unlink(old)
        self.board = module.SummaryWriter(str(run / "tensorboard"), purge_step=0, flush_secs=10)

    def add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def close(self, status: str) -> None:
        self.board.close()


class _Wandb:
    """Another part of the run in Weights & Biases.

    Without a network it has all numbers, in place of former parts; if those have been uploaded, or with a network, it
    has those that follow them, since steps cannot be deleted there.
    """

    def __init__(self, config: WandbLogger, recipe: Recipe, run: Path, step: int) -> None:
        (wandb,) = _require("wandb")
        name = str(name_in(run))
        parts = list((run / "wandb").glob(f"offline-run-*-{name}"))
        sent = any(list(part.glob("*.synced")) for part in parts)
        for part in () if sent else parts:
            delete_tree(part)
        self.run = wandb.init(
            project=config.project, mode=config.mode, dir=str(run), name=run.resolve().name, id=name, resume="allow",
            config=recipe.model_dump(mode="json"), settings=wandb.Settings(console="off"),
        )  # fmt: skip
        self.after = step if sent else self.run.step - 1

    def add(self, values: Mapping[str, float], step: int) -> None:
        if step > self.after:
            self.run.log(dict(values), step=step)

    def close(self, status: str) -> None:
        self.run.finish(exit_code=int(status != "FINISHED"))


class _Mlflow:
    """A run in MLflow, which is continued when the run resumes; numbers are sent together, about once a second."""

    def __init__(self, config: MlflowLogger, recipe: Recipe, run: Path) -> None:
        tracking, self.entities = _require("mlflow")
        folder = run.resolve() / "mlflow"
        if config.uri is None:
            folder.mkdir(exist_ok=True)
        path = str(folder / "mlflow.db").replace("%", "%25").replace("?", "%3F")
        self.client = tracking.MlflowClient(config.uri or f"sqlite:///{path}")
        kept = None if config.uri else (folder / "artifacts").as_uri()
        known = self.client.get_experiment_by_name(config.experiment)
        experiment = known.experiment_id if known else self.client.create_experiment(config.experiment, kept)
        name = str(name_in(run))
        found = self.client.search_runs([experiment], f"tags.`heedful.run` = '{name}'", max_results=1)
        made = found[0] if found else self.client.create_run(
            experiment, run_name=run.resolve().name, tags={"heedful.run": name}
        )  # fmt: skip
        self.id, self.waiting, self.sent = made.info.run_id, list[Any](), time.monotonic()
        self.client.update_run(self.id, "RUNNING")
        histories = {key: self.client.get_metric_history(self.id, key) for key in made.data.metrics}
        self.known = {(key, one.step): one.value for key, history in histories.items() for one in history}
        settings = {
            FORBIDDEN.sub("_", key): str(value)[:500] for key, value in leaves(recipe.model_dump(mode="json")).items()
        }
        params = [self.entities.Param(*one) for one in settings.items() if one[0] not in made.data.params]
        for start in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.id, params=params[start : start + MOST_PARAMS])

    def add(self, values: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 1_000_000
        for name, value in values.items():
            split, _, score = name.partition("/")
            key = f"{split}/{FORBIDDEN.sub('_', score)}"
            if self.known.get((key, step)) != value:
                self.waiting.append(self.entities.Metric(key, value, now, step))
        if len(self.waiting) >= MOST or time.monotonic() - self.sent >= PAUSE:
            self._send()

    def _send(self) -> None:
        for start in range(0, len(self.waiting), MOST):
            self.client.log_batch(self.id, metrics=self.waiting[start : start + MOST])
        self.waiting, self.sent = [], time.monotonic()

    def close(self, status: str) -> None:
        self._send()
        self.client.set_terminated(self.id, status)


def _opened(config: LoggerConfig, recipe: Recipe, run: Path, step: int) -> Tool:
    """The record of a run that starts or resumes at a step."""
    try:
        match config:
            case TensorBoardLogger():
                return _TensorBoard(run)
            case WandbLogger():
                return _Wandb(config, recipe, run, step)
            case MlflowLogger():
                return _Mlflow(config, recipe, run)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the logger {config.kind} could not start", where="train.loggers", found=_brief(error),
            todo="change its settings, or remove it: metrics.jsonl has the same numbers",
        ) from error  # fmt: skip


def _require(kind: str) -> list[ModuleType]:
    """Import the package of an extra."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        found = [importlib.import_module(name) for name in MODULES[kind]]
        if found[0].__spec__ and found[0].__spec__.origin is None:
            raise ImportError(f"{found[0].__path__[0]} is a folder without a package")  # such as ./wandb
        return found
    except ImportError as error:
        raise UserError(
            f"the package {kind} is not installed", where=f"train.loggers: {kind}", found=str(error),
            todo=f"pip install 'heedful[{kind}]'\nor remove this logger; metrics.jsonl has the same numbers",
        ) from error  # fmt: skip


def _brief(error: Exception) -> str:
    """The first line of an error, and its class."""
    return short(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", 300)
