"""Initialize a run from a trained model: all weights of a model of the same task, or the encoder of another one."""

from __future__ import annotations

from typing import Any

from torch import nn

from heedful.errors import UserError
from heedful.runs.artifacts import hashes
from heedful.runs.load import Opened, opened
from heedful.tasks.base import AnyTask, Source
from heedful.tasks.recipe_parts import Start
from heedful.training.checkpoint.ownership import changes, forbidden_changes
from heedful.training.checkpoint.weights import load_part, load_strictly


def source_of(task: AnyTask) -> Opened | Source | None:
    """The model of `start.folder` in the recipe, if set: one of the same task, or the part that the task can use."""
    start: Start | None = task.recipe.start
    if start is None:
        return None
    source = opened(start.path)
    if isinstance(source, Opened) and source.task is type(task):
        return source
    if (part := task.elsewhere(start.path)) is not None:
        return part
    raise UserError(
        "this run cannot start from that folder",
        where=f"start.folder: {start.folder}",
        found="a model of another task" if isinstance(source, Opened) else "a published model",
        expected=f"a run or a model of the task {task.recipe.task.kind}",
        todo="name another folder in start.folder",
    )


def for_model(source: Opened | Source, config: Any, task: AnyTask, vocabulary: Any) -> Opened | Source:
    """The source itself if all its weights fit this model and vocabulary, else the part that the task can use."""
    if isinstance(source, Source):
        return source
    fixed = differences(source, config, task)
    if not fixed and hashes(task, source.vocabulary) == hashes(task, vocabulary):
        return source
    start: Start = task.recipe.start
    if (part := task.reused(Source(source.vocabulary, source.tensors, source.file), vocabulary)) is not None:
        return part
    if (part := task.elsewhere(start.path)) is not None:
        return part
    raise UserError(
        "the model to start from differs from the recipe",
        where=f"start.folder: {start.folder}",
        found=forbidden_changes(fixed, frozenset(), "there"),
        expected="the same model and tokenizer; dropout may differ",
        todo="start from the recipe of that run: heedful train RUN/recipe.yaml start.folder=RUN --run OTHER",
    )


def differences(source: Opened, config: Any, task: AnyTask) -> dict[str, Any]:
    """The settings in which the source differs from the recipe, without those that may differ."""
    settings = {"model": config.model_dump(mode="json")}
    there = {"model": source.config.model_dump(mode="json")}
    if (tokenizer := task.recipe.model_dump(mode="json").get("tokenizer")) and "tokenizer" in source.recipe:
        settings, there = {**settings, "tokenizer": tokenizer}, {**there, "tokenizer": source.recipe["tokenizer"]}
    changed = changes(there, settings)
    return {
        key: values for key, values in changed.items() if not key.rpartition(".")[2].endswith(("dropout", "freeze"))
    }


def initialize(model: nn.Module, source: Opened | Source | None, vocabulary: Any, task: AnyTask) -> list[str]:
    """Copy the initial weights into a new model, and return notes on their origin."""
    if source is None:
        return task.begin(model, vocabulary)
    folder = task.recipe.start.folder
    if isinstance(source, Source) and (source.part or source.random):
        part = model.get_submodule(source.part)
        notes = load_part(part, source.tensors, folder, source.random, source.part or "encoder")
        return [*notes, *task.joined(model)]
    load_strictly(model, source.tensors, source.file)
    notes = [f"all weights are initialized from {folder}"] if isinstance(source, Opened) else []
    return [*notes, *task.joined(model)]
