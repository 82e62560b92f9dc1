"""Events of a run as the records of other tools. Each package is imported only if a recipe names it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from heedful.errors import OwnCodeError, UserError, short
from heedful.runs.progress import Event
from heedful.tasks.base import Evaluated
from heedful.tasks.recipe_parts import Recipe
from heedful.training.loggers import LoggerConfig, MlflowLogger, TensorBoardLogger, WandbLogger
from heedful.training.loop import Step

Record = Callable[[Mapping[str, float], int], None]  # takes numbers by name, and the step
Close = Callable[[], object]


@contextmanager
def loggers(recipe: Recipe, run: Path) -> Iterator[Callable[[Event], None]]:
    """A function that passes the numbers of an event to all loggers of a recipe."""
    made = list[tuple[str, Record, Close]]()

    def log(event: Event) -> None:
        if found := numbers(event, recipe.train.log_every):
            for kind, record, _ in made:
                with _own_errors(kind):
                    record(*found)

    try:
        for config in recipe.train.loggers:
            with _own_errors(config.kind):
                made.append((config.kind, *_logger(config, recipe, run)))
        yield log
    except BaseException:
        for _, _, close in made:
            with suppress(Exception):  # why the run ended is what is reported
                close()
        raise
    for kind, _, close in made:
        with _own_errors(kind):
            close()


@contextmanager
def _own_errors(kind: str) -> Iterator[None]:
    """An error of another package is one message; the run can go on without it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # any: of another package
        raise OwnCodeError(
            f"the logger {kind} raised an error", where=f"train.loggers: {kind}",
            found=f"{type(error).__name__}: {short(str(error), 300)}",
            todo="remove this logger, whose numbers are in metrics.jsonl too, or repair it; then run the same command",
        ) from error  # fmt: skip


def numbers(event: Event, every: int = 1) -> tuple[dict[str, float], int] | None:
    """The numbers of a step or an evaluation by name, such as train/loss and valid/accuracy; None of other events."""
    if isinstance(event, Step):
        if event.step % every and event.step != 1 and event.progress < 1:
            return None
        found = {"loss": event.loss, "rate": event.rate, "norm": event.norm, **event.parts}
        return {f"train/{name}": float(value) for name, value in found.items()}, event.step
    if isinstance(event, Evaluated):
        scores = {score.name: score.value for score in event.scores}
        known = {"loss": event.loss, **scores}
        return {f"{event.split}/{name}": float(value) for name, value in known.items()}, event.step
    return None


def _logger(config: LoggerConfig, recipe: Recipe, run: Path) -> tuple[Record, Close]:
    settings = recipe.model_dump(mode="json")
    match config:
        case TensorBoardLogger():
            _require("tensorboard", "tensorboard")
            board = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(run / "tensorboard"))

            def add(values: Mapping[str, float], step: int) -> None:
                for name, value in values.items():
                    board.add_scalar(name, value, step)

            return add, board.close
        case WandbLogger():
            wandb = _require("wandb", "wandb")
            made = wandb.init(
                project=config.project, mode=config.mode, dir=str(run), name=run.resolve().name, id=_id(run),
                resume="allow", config=settings,
            )  # fmt: skip
            return lambda values, step: made.log(dict(values), step=step), made.finish
        case MlflowLogger():
            mlflow = _require("mlflow", "mlflow")
            mlflow.set_tracking_uri(config.uri or (run.resolve() / "mlflow").as_uri())
            mlflow.set_experiment(config.experiment)
            mlflow.start_run(run_name=run.resolve().name)
            return lambda values, step: mlflow.log_metrics(dict(values), step=step), mlflow.end_run


def _id(run: Path) -> str:
    """A name by which a resumed run is found again."""
    return "".join(letter if letter.isalnum() else "-" for letter in run.resolve().name)[:64]


def _require(module: str, extra: str) -> ModuleType:
    """Import a package of an extra."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorBoard's own messages
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"the package {extra} is not installed", where=f"train.loggers: {extra}", found=str(error),
            todo=f"pip install 'heedful[{extra}]'\nor remove this logger; metrics.jsonl has the same numbers",
        ) from error  # fmt: skip
