"""Training a recipe in a run folder: data, vocabulary, model, steps, scores and report."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from heedful.config import render
from heedful.errors import OwnCodeError, UserError
from heedful.models.own import OwnModel
from heedful.runs.finish import finish, record
from heedful.runs.load import read_recipe
from heedful.runs.loggers import Loggers
from heedful.runs.own import AnyData, builder, require_named, with_own_data, with_own_model
from heedful.runs.prepare import Data, Run, prepare, require_memory
from heedful.runs.progress import Event, Finished, Hint, Noted, Stage, Started
from heedful.runs.recipe import check_recipe, recipe_of
from heedful.tasks.base import AnyTask, Evaluated, HeldOut
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.folder import RunFolder, is_saved
from heedful.training.checkpoint.ownership import MAY_DIFFER, MAY_GROW, make_parents
from heedful.training.checkpoint.saver import Saver
from heedful.training.checkpoint.tensors import EXIT_NOT_FINITE
from heedful.training.checkpoint.weights import gather_weights
from heedful.training.distributed.team import Team
from heedful.training.loop import Due, Epoch, Saved, Step, choose_device, fit, is_finished, set_deterministic
from heedful.training.penalties import penalized

__all__ = ["Epoch", "Evaluated", "Event", "Finished", "Hint", "Noted", "Saved", "Stage", "Started", "Step", "train"]

NOTHING_SAVED = "nothing was saved yet"
STARTS_OVER = f"it starts over, since {NOTHING_SAVED}"


def train(
    recipe: Recipe,
    run: str | Path,
    stop: Callable[[], bool] = lambda: False,
    team: Team | None = None,
    *,
    model: OwnModel | None = None,
    data: AnyData | None = None,
) -> Iterator[Event]:
    """Train a recipe in a run folder, or resume its run; events are recorded in the folder as they happen.

    `model` is a module of your own, or a function that builds one from the recipe's model settings, trained in place of
    the library's; `data` are examples in place of the recipe's, or a table: a DataFrame, a `Dataset` of
    the package `datasets`, or a list of dicts. To resume, pass the same again.

    Every process of a team calls this; only the leader opens the folder.
    """
    team = team or Team()
    recipe = with_own_data(with_own_model(recipe, model), data)
    examples = recipe.data
    if team.leads and is_saved(Path(run)):
        require_named(read_recipe(Path(run)).own_model, model, str(run), "heedful.train(recipe, run, model=...)")
    team.require_same("recipe", render(recipe), "give every process the same recipe and the same settings")
    recipe = _filled(recipe, Path(run), team)
    recipe = recipe.model_copy(update={"data": examples}) if data is not None else recipe
    check_recipe(recipe)
    set_deterministic(recipe.train)
    device = choose_device(recipe.train, team.local_rank)
    path, size, build = Path(run), 0 if recipe.own_model else recipe.size, builder(model)
    require_memory(size, device, team, recipe.train.parallel)
    if not team.leads:
        yield from _train(Run(recipe, path, None, device, team, build), stop)
        return
    make_parents(path)
    with RunFolder.create_or_open(
        path,
        render(recipe),
        keep=recipe.train.keep,
        every=recipe.train.save_every,
        may_differ=MAY_DIFFER | MAY_GROW,
    ) as folder:
        folder.preflight(4 * size, 4 * size * 3, recipe.train.keep_best)
        tools = Loggers(recipe, path)
        try:
            for event in _train(Run(recipe, path, folder, device, team, build), stop):
                yield from tools.log(event)
                yield event
        except OwnCodeError as error:
            error.todo = f"{error.todo}: {'it resumes from the last checkpoint' if is_saved(path) else STARTS_OVER}"
            raise
        except UserError as error:
            if error.exit_code == EXIT_NOT_FINITE:
                error.todo = f"{error.todo}; {'the last checkpoint is good' if is_saved(path) else NOTHING_SAVED}"
            raise
        finally:
            list(tools.close("FAILED"))


def _filled(recipe: Recipe, run: Path, team: Team) -> Recipe:
    """The recipe completed from the leader's files; a run with checkpoints keeps its own."""
    if not isinstance(recipe, Finetuning):
        return recipe
    if team.leads:
        known = recipe.fill_in_like(read_recipe(run)) if is_saved(run) else recipe
        check_recipe(known)
        recipe = known.fill_in()
    return recipe_of(team.broadcast(render(recipe)), str(run / "recipe.yaml"))


def _train(run: Run, stop: Callable[[], bool]) -> Iterator[Event]:
    """Train until the budget is spent or `stop()` is true; the leader records events and finishes the run."""
    ready = yield from prepare(run)
    recipe, path, folder, device, team, _ = run
    task, data, model, counters, settings = ready.task, ready.data, ready.model, ready.counters, ready.settings
    # No process has all weights of a sharded model; the leader evaluates a gathered copy.
    sharded = team.distributed and recipe.train.parallel == "fsdp"
    shown = copy.deepcopy(model) if sharded and team.leads else model
    predictor = task.predictor(shown, ready.config, data.vocabulary, task.decode, device)
    loss_of = penalized(
        task.loss_on(model, ready.about["packed"], data.encoded, data.vocabulary), model, recipe.train.regularize
    )
    with Saver(folder, recipe.train.save_behind) if folder else nullcontext() as saver:
        for event in fit(
            model, loss_of, ready.batches, settings, device, saver, ready.about, counters, ready.saved, stop, team,
            task.records and not recipe.own_model, ready.carry, captures=not recipe.own_model, players=task.players,
        ):  # fmt: skip
            if isinstance(event, Due):
                weights = gather_weights(model, team) if sharded else {}
                if not team.leads:
                    continue
                if sharded:
                    shown.load_state_dict(weights)
                    del weights
                result = _validated(task, predictor, data, event)
                counters.add_score(event.step, result.selection_score(task.metric), event.saved, recipe.train)
                record(path, result)
                yield result
            else:
                if team.leads:
                    record(path, event, recipe.train.log_every)
                yield event
    stopped = not is_finished(settings, counters)
    if not stopped and not counters.patient(recipe.train):
        yield Noted(
            f"stopped early: no better {task.metric} on the validation set in the last {counters.waited:,} evaluations"
        )
    if folder and not stopped:
        yield from finish(ready, folder, shown, predictor)
    yield Finished(counters.step, stopped, str(path))


def _validated(task: AnyTask, predictor: Any, data: Data, event: Due) -> Evaluated:
    """Evaluate the model on the validation set during training."""
    loss = task.quick_loss(predictor, data.encoded_valid)
    if not math.isfinite(loss):
        raise UserError(
            f"the loss on the validation set is not finite after step {event.step}",
            found=f"loss {loss}",
            todo="lower the learning rate or the clip",
            exit_code=EXIT_NOT_FINITE,
        )
    return task.evaluate(predictor, HeldOut(data.valid, data.encoded_valid, loss, event.step, "valid", beams=1))
