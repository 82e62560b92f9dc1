"""Recipes to start from: for every task, from scratch or from a trained folder; without torch."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from heedful.config import config_classes, kinds_in
from heedful.errors import UserError, shown
from heedful.files.reading import exists, is_file, is_folder
from heedful.files.writing import write_text_atomic
from heedful.files.yaml import load_yaml, write_yaml
from heedful.runs.recipe import recipe_with, schema_text, shipped, templates
from heedful.tasks import TASKS, recipe_class
from heedful.tasks.finetuning.recipe import Finetuning

# The template of each task, or the shipped recipe that is copied, with data of its own to replace.
OF_TASK = {
    "translation": "translate",
    "dialogue": "trips",
    "language_model": "gpt",
    "tree_classification": "trees",
    "pretraining": "pretrain",
    "permutation_lm": "xlnet-prose",
    "classification": "classify",
    "text_classification": "sst2-conv",
    "regression": "stsb",
    "multi_label": "label",
    "multiple_choice": "swag",
    "style_transfer": "registers",
    "tagging": "tag",
    "tabular": "table",
    "text_autoencoding": "sentences",
    "reconstruction": "autoencode",
    "image_classification": "digits-lenet",
    "paragraphs": "paragraphs",
    "captioning": "captions",
    "control": "cartpole-policy",
    "story_answering": "stories-1",
    "answering": "answer",
}


def names() -> list[str]:
    """What `init_recipe` accepts: templates, and kinds of tasks."""
    return list(dict.fromkeys([*templates(), *TASKS]))


def init_recipe(name: str, path: Path, *, start: Path | None = None, force: bool = False) -> tuple[Path, Path]:
    """Write a recipe, and the JSON Schema for completion in editors; returns both paths.

    `start` is a folder to start from: a run of the same task, or for a task with one layer on top of an encoder, any
    folder with an encoder.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        todo = f"did you mean {close[0]}?" if close else None
        raise UserError(f"there is no template named {name}", expected="one of " + ", ".join(names()), todo=todo)
    recipe = path / f"{name}.yaml" if is_folder(path) else path
    editor = recipe.with_suffix(".schema.json")
    for file in (recipe, editor):
        if exists(file) and not force:
            raise UserError(
                "this file exists", where=str(file), todo="name another path, or write over it with --force"
            )
    text = _scratch(name) if start is None else _from_folder(name, start)
    write_text_atomic(editor, schema_text())
    write_text_atomic(recipe, f"# yaml-language-server: $schema={editor.name}\n{text}")
    return recipe, editor


def _file(name: str) -> Path:
    """The file of a template, or of the shipped recipe that stands for one."""
    known = templates()
    template = name if name in known else OF_TASK[name]
    return known[template] if template in known else shipped()[template]


def _scratch(name: str) -> str:
    """The text of a template, with the kinds of data that a copied recipe may have."""
    file = _file(name)
    text = file.read_text(encoding="utf-8")
    if file.stem in templates():
        return text
    kinds = sorted(kinds_in(config_classes(recipe_class(name).model_fields["data"].annotation)) - {"own"})
    about = f"# A recipe for {name}, a copy of {file.stem}: put your own data into it. data.kind is one of\n"
    return (
        f"{about}#   {', '.join(kinds)}\n# heedful catalogue --swap FILE --key data    shows what each needs\n#\n{text}"
    )


def _from_folder(name: str, folder: Path) -> str:
    """A recipe that starts from a folder."""
    task, where = load_yaml(_file(name))[0]["task"]["kind"] if name not in TASKS else name, str(folder)
    if not is_folder(folder):
        raise UserError(
            "there is no such folder", where="--from", found=where, expected="a run, or an encoder's folder"
        )
    if (settings := settings_of_run(task, folder)) is not None:
        about = f"# The recipe of {where}, which starts from its weights: change the data, the budget and the rate.\n"
        return about + write_yaml(settings)
    if not issubclass(recipe_class(task), Finetuning):
        found = _task_of_run(folder)
        raise UserError(
            f"a recipe of the task {task} starts from a run of that task", where="--from",
            found=f"{where}: {f'a run of {found}' if found else 'not a run'}", expected=f"a run of {task}",
            todo=f"heedful init {shown(name)} without --from starts from scratch",
        )  # fmt: skip
    lines = [
        f"  folder: {where}" if line.startswith("  folder:") else line
        for line in _file(name).read_text(encoding="utf-8").splitlines()
    ]
    return "\n".join(lines) + "\n"


def settings_of_run(task: str, folder: Path) -> dict[str, Any] | None:
    """The recipe of a run of this task, with that run as its start; None: the folder is something else."""
    found = _task_of_run(folder)
    if found is None or found not in (task, *TASKS[task].also.values()):
        return None
    stored = folder / "recipe.yaml"
    settings: dict[str, Any] = load_yaml(stored)[0]
    settings["start"] = {"folder": str(folder)}
    try:
        recipe_with(settings, {}, stored)
    except UserError:
        settings.pop("tokenizer", None)  # of tasks whose models bring theirs
        recipe_with(settings, {}, stored)
    return settings


def _task_of_run(folder: Path) -> str | None:
    """The kind of task that a run was trained on; None: the folder is not a run."""
    stored = folder / "recipe.yaml"
    task = load_yaml(stored)[0].get("task") if is_file(stored) else None
    return task.get("kind") if isinstance(task, dict) else None
