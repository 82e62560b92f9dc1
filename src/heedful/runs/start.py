"""How a run starts from a folder: all weights from a model of the same task, or what the task takes from any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UserError
from heedful.runs.load import Opened, opened
from heedful.tasks.base import AnyTask, Source
from heedful.tasks.recipe_parts import Start
from heedful.training.checkpoint.ownership import changes, refused
from heedful.training.checkpoint.weights import load_strictly

MOST_NAMED = 4  # weights that a note lists


def source_of(task: AnyTask) -> Opened | Source | None:
    """What the folder holds that a recipe starts from, if it names one: a model of the same task, or another's part."""
    start: Start | None = task.recipe.start
    if start is None:
        return None
    found = opened(start.path)
    if isinstance(found, Opened) and found.task is type(task):
        return found
    if (part := task.elsewhere(start.path)) is not None:
        return part
    raise UserError(
        "this run cannot start from that folder",
        where=f"start.folder: {start.folder}",
        found="a model of another task" if isinstance(found, Opened) else "a published model",
        expected=f"a run or a model of the task {task.recipe.task.kind}",
    )


def for_model(found: Opened | Source, config: Any, task: AnyTask) -> Opened | Source:
    """The same where all weights are for this model; else what the task takes from any other, if it does."""
    if isinstance(found, Source) or not (fixed := differences(found, config, task)):
        return found
    start: Start = task.recipe.start
    if (part := task.elsewhere(start.path)) is not None:
        return part
    raise UserError(
        "the model to start from differs from the recipe",
        where=f"start.folder: {start.folder}",
        found=refused(fixed, frozenset(), "there"),
        expected="the same model and tokenizer; dropout may be another",
        todo="give the recipe of that run: heedful train RUN/recipe.yaml start.folder=RUN --run OTHER",
    )


def differences(found: Opened, config: Any, task: AnyTask) -> dict[str, Any]:
    """The settings of a model to start from that are others than the recipe's, and may not be."""
    settings = {"model": config.model_dump(mode="json")}
    there = {"model": found.config.model_dump(mode="json")}
    if (given := task.recipe.model_dump(mode="json").get("tokenizer")) and "tokenizer" in found.recipe:
        settings, there = {**settings, "tokenizer": given}, {**there, "tokenizer": found.recipe["tokenizer"]}
    changed = changes(there, settings)
    return {
        key: values for key, values in changed.items() if not key.rpartition(".")[2].endswith(("dropout", "freeze"))
    }


def begin(model: nn.Module, found: Opened | Source | None, vocabulary: Any, task: AnyTask) -> list[str]:
    """Give a new model the weights that it starts from, and say what came from where."""
    if found is None:
        return task.begin(model, vocabulary)
    folder = task.recipe.start.folder
    if isinstance(found, Source) and found.part:
        return load_part(model.get_submodule(found.part), found.tensors, folder)
    load_strictly(model, found.tensors, found.file)
    return [f"all weights begin from {folder}"] if isinstance(found, Opened) else []


def load_part(part: nn.Module, tensors: dict[str, Tensor], folder: str) -> list[str]:
    """Give an encoder the weights of a folder, and note which are not needed, and which stay randomly initialized."""
    needed = part.state_dict()
    missing = [name for name in needed if name not in tensors]
    random = [name for name in missing if name.startswith("pooler.")]
    wrong = [f"{name}: not in the folder" for name in missing if name not in random]
    wrong += [
        f"{name}: {tuple(tensors[name].shape)} in the folder, {tuple(value.shape)} in the model"
        for name, value in needed.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if wrong:
        more = f"\nand {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise UserError(
            "the encoder of this folder is not the one that the recipe describes", where=folder,
            found="\n".join(sorted(wrong)[:10]) + more,
            todo="leave model.encoder out, so that it is as in the folder",
        )  # fmt: skip
    with torch.no_grad():
        for name, value in needed.items():
            if name in tensors:
                value.copy_(tensors[name])
    notes = []
    if unused := [name for name in tensors if name not in needed]:
        notes.append(f"not needed from {folder}: {listing(unused)}")
    if random:
        notes.append(f"{folder} has no pooler: {listing(random)} are randomly initialized")
    return notes


def listing(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
