"""Events of a run as the records of other tools. Each package is imported only if a recipe names it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

from heedful.errors import UserError
from heedful.runs.progress import Event
from heedful.tasks.base import Evaluated
from heedful.tasks.recipe_parts import Recipe
from heedful.training.loggers import LoggerConfig, MlflowLogger, TensorBoardLogger, WandbLogger
from heedful.training.loop import Step

Record = Callable[[Mapping[str, float], int], None]  # takes numbers by name, and the step


@contextmanager
def loggers(recipe: Recipe, run: Path) -> Iterator[Callable[[Event], None]]:
    """A function that passes the numbers of an event to all loggers of a recipe."""
    with ExitStack() as stack:
        records = [stack.enter_context(_logger(config, recipe, run)) for config in recipe.train.loggers]

        def log(event: Event) -> None:
            if found := numbers(event, recipe.train.log_every):
                for record in records:
                    record(*found)

        yield log


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


@contextmanager
def _logger(config: LoggerConfig, recipe: Recipe, run: Path) -> Iterator[Record]:
    settings = recipe.model_dump(mode="json")
    match config:
        case TensorBoardLogger():
            _require("tensorboard", "tensorboard")
            board = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(run / "tensorboard"))

            def add(values: Mapping[str, float], step: int) -> None:
                for name, value in values.items():
                    board.add_scalar(name, value, step)

            try:
                yield add
            finally:
                board.close()
        case WandbLogger():
            wandb = _require("wandb", "wandb")
            made = wandb.init(
                project=config.project, mode=config.mode, dir=str(run), name=run.resolve().name, id=_id(run),
                resume="allow", config=settings,
            )  # fmt: skip
            try:
                yield lambda values, step: made.log(dict(values), step=step)
            finally:
                made.finish()
        case MlflowLogger():
            mlflow = _require("mlflow", "mlflow")
            mlflow.set_tracking_uri(config.uri or (run.resolve() / "mlflow").as_uri())
            mlflow.set_experiment(config.experiment)
            mlflow.start_run(run_name=run.resolve().name)
            try:
                yield lambda values, step: mlflow.log_metrics(dict(values), step=step)
            finally:
                mlflow.end_run()


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
