"""Recipes to start from: for every task, from scratch or from a trained folder; without torch."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.config import config_classes, kinds_in, override, parse
from heedful.data.images.sources import ImageFolders
from heedful.data.tables.guessing import guess_columns, guess_target, row_numbers
from heedful.data.tables.reading import read_records
from heedful.data.tables.source import ColumnTable, column_problem
from heedful.data.tables.texts import FieldTable
from heedful.errors import UserError, shown
from heedful.files.reading import exists, is_file, is_folder
from heedful.files.writing import write_text_atomic
from heedful.files.yaml import load_yaml, write_yaml
from heedful.runs.init_files import file_settings
from heedful.runs.recipe import recipe_of, recipe_with, schema_text, shipped, templates
from heedful.runs.template_text import with_epochs, with_group, with_table, with_value, without_start
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
    "text_classification": "classify",
    "regression": "stsb",
    "multi_label": "label",
    "multiple_choice": "swag",
    "style_transfer": "registers",
    "tagging": "tag",
    "tabular": "table",
    "text_autoencoding": "sentences",
    "reconstruction": "autoencode",
    "image_classification": "scenes",
    "paragraphs": "paragraphs",
    "captioning": "captions",
    "control": "cartpole-policy",
    "story_answering": "stories-1",
    "answering": "answer",
}
CAPTIONERS = ("captioner", "paragraph_captioner")  # roles of models with an image encoder
FIRST = 1000  # rows from which columns are guessed


def names() -> list[str]:
    """What `init_recipe` accepts: templates, and kinds of tasks."""
    return list(dict.fromkeys([*templates(), *TASKS]))


def init_recipe(
    name: str,
    path: Path,
    *,
    start: Path | None = None,
    data: Path | None = None,
    overrides: Sequence[str] = (),
    force: bool = False,
) -> tuple[Path, Path, dict[str, Any]]:
    """Write a recipe, and the JSON Schema for completion in editors; returns both paths, and the columns of `data`.

    `start` is a folder to start from: a run of the same task, or for a task with one layer on top of an encoder, any
    folder with an encoder. `data` is a table, whose columns are guessed, a folder of images, or text; `overrides` are
    settings of it such as data.columns.label=verdict or data.encoding=cp1252.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1, cutoff=0.6)
        todo = f"did you mean {close[0]}?" if close else None
        raise UserError(f"there is no template named {name}", expected="one of " + ", ".join(names()), todo=todo)
    if overrides and data is None:
        raise UserError(
            "these are settings of your data", found=shown(overrides[0]),
            todo="name them: --data PATH; or edit the recipe after it is written",
        )  # fmt: skip
    if data is not None and not exists(data):
        raise UserError("there is no such file or folder", where="--data", found=str(data))
    recipe = path / f"{name}.yaml" if is_folder(path) else path
    if not is_folder(recipe.parent):
        raise UserError("there is no such folder", where=str(recipe.parent), todo="create it, or name another folder")
    editor = recipe.with_suffix(".schema.json")
    for file in (recipe, editor):
        if exists(file) and not force:
            raise UserError(
                "this file exists", where=str(file), todo="name another path, or write over it with --force"
            )
    text = _scratch(name, data) if start is None else _from_folder(name, start)
    found: dict[str, Any] = {}
    if data is not None:
        task = task_of_template(name)
        files = file_settings(kinds_of(task), data)
        if task == "tabular":
            text, found = _for_any_columns(text, data, overrides)
        elif files is not None:
            text = _for_files(text, str(recipe), files, overrides)
        else:
            settings, found, rows = _guessed(name, data, overrides)
            text = with_table(text, {**_image_settings(text, str(recipe)), **settings}, found, rows)
    written = recipe_of(text, str(recipe))
    if start is not None and (problems := written.problems()):
        raise problems[0]
    write_text_atomic(editor, schema_text())
    write_text_atomic(recipe, f"# yaml-language-server: $schema={editor.name}\n{text}")
    return recipe, editor, found


def task_of_template(name: str) -> str:
    """The kind of task of a template, or of a task's own name."""
    kind: str = name if name in TASKS else load_yaml(_file(name))[0]["task"]["kind"]
    return kind


def kinds_of(task: str) -> set[str]:
    """The kinds of data that a task reads."""
    return set(kinds_in(config_classes(recipe_class(task).model_fields["data"].annotation)))


def table_of(task: str) -> Any:
    """The table of a task with its usual columns; None: its examples are not rows, or have columns of any name."""
    known: list[Any] = config_classes(recipe_class(task).model_fields["data"].annotation)
    return next((cls() for cls in known if issubclass(cls, ColumnTable)), None)


def _guessed(name: str, data: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The settings of a table, the columns of it that the task reads, and the number of its rows."""
    task = task_of_template(name)
    usual = table_of(task)
    if usual is None:
        raise UserError(
            f"the task {task} does not read its examples from columns", where="--data", found=str(data),
            todo=f"heedful init {shown(name)} without --data, then edit `data` in the recipe",
        )  # fmt: skip
    settings: dict[str, Any] = _settings(data, overrides, ("data.",), "data.columns.label=verdict")["data"]
    table: Any = parse(type(usual), settings, file="data")
    given: dict[str, Any] = settings.pop("columns", {})
    rows, count = _first_rows(data, table)
    there = sorted({name for row in rows for name in row})
    for setting, column in table.columns.names.items():
        wanted = setting.split(".")[0] in given
        if wanted and (problem := column_problem(column, there, f"data.columns.{setting}", str(data))):
            raise problem
    named = {setting: column for setting, column in table.columns if setting in given and column is not None}
    found = guess_columns(table.columns, rows, str(data), named, task == "regression")
    known = dict(usual.columns)
    unread = {setting: None for setting, field in type(usual.columns).model_fields.items()
              if known[setting] is None and field.default and setting not in found}  # fmt: skip
    several = {setting: [name] if isinstance(known[setting], tuple) and isinstance(name, str) else name
               for setting, name in found.items()}  # fmt: skip
    return settings, {**unread, **several}, count


def _for_any_columns(text: str, data: Path, overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The recipe of a task that predicts a column from all others, for a table; and the name of that column."""
    given = _settings(data, overrides, ("data.", "task.predict=", "task.leave_out="), "task.predict=price")
    task: dict[str, Any] = given.get("task", {})
    rows, count = _first_rows(data, parse(FieldTable, given["data"], file="data"))
    predict = str(task.get("predict") or guess_target(rows, str(data)))
    there = sorted({name for row in rows for name in row})
    if problem := column_problem(predict, there, "task.predict", str(data)):
        raise problem
    left = [name for name in row_numbers(rows) if name != predict]
    text = with_value(text, "predict", json.dumps(predict, ensure_ascii=False))
    text = with_value(text, "leave_out", json.dumps(task.get("leave_out", left), ensure_ascii=False))
    return with_table(text, given["data"], {}, count), {"predict": predict}


def _for_files(text: str, where: str, files: dict[str, Any], overrides: Sequence[str]) -> str:
    """The recipe for a folder of images, or for running text."""
    sizes = _image_settings(text, where) if files["kind"] == "image_folder" else {}
    given = _given({**files, **sizes}, overrides, ("data.",), "data.valid=0.2")["data"]
    text = with_group(text, "data", write_yaml({"data": given}))
    if files["kind"] != "image_folder":
        return text
    settings: Any = parse(ImageFolders, given, file="data")
    for problem in settings.problems():
        raise problem
    return with_epochs(text, len(settings.listing("train").files))


def _settings(data: Path, overrides: Sequence[str], allowed: tuple[str, ...], such: str) -> dict[str, Any]:
    """The settings of a table, changed by the allowed overrides."""
    if is_folder(data):
        raise UserError("this is a folder", where=f"--data {data}", expected="a .csv, .tsv, .jsonl or .parquet file")
    return _given({"kind": "table", "train": str(data)}, overrides, allowed, such)


def _given(
    settings: Mapping[str, Any], overrides: Sequence[str], allowed: tuple[str, ...], such: str
) -> dict[str, Any]:
    """Settings of data, changed by the allowed overrides."""
    if other := next((text for text in overrides if not text.startswith(allowed)), None):
        raise UserError(
            "only settings of the data can be given here", found=shown(other), expected=f"such as {such}",
            todo="edit the recipe after it is written",
        )  # fmt: skip
    return override({"data": dict(settings)}, overrides)


def _first_rows(data: Path, table: Any) -> tuple[list[Mapping[str, object]], int]:
    """The first rows of a file, and the number of all."""
    records = list(read_records(data, table.form))
    if not records:
        raise UserError("there are no rows", where=str(data), expected="a header and at least one row")
    return [row for row, _ in records[:FIRST]], len(records)


def _image_settings(text: str, where: str) -> dict[str, Any]:
    """The channels and the size of images that the model of a recipe reads; nothing if it reads no images."""
    recipe = recipe_of(text, where)
    settings = recipe.model.model_dump(mode="json")
    settings = settings.get("encoder", settings) if recipe.model.role in CAPTIONERS else settings
    if recipe.model.role == "autoencoder":
        channels, *size = settings["input"]
        return {"channels": channels, "size": size} if size else {}
    known = "channels" in settings and "size" in settings
    return {name: settings[name] for name in ("channels", "size")} if known else {}


def _file(name: str) -> Path:
    """The file of a template, or of the shipped recipe that stands for one."""
    known = templates()
    template = name if name in known else OF_TASK[name]
    return known[template] if template in known else shipped()[template]


def _scratch(name: str, data: Path | None) -> str:
    """The text of a template, or of a copied recipe, with the kinds of data that it may have if there are none yet."""
    file = _file(name)
    text, task = file.read_text(encoding="utf-8"), load_yaml(file)[0]["task"]["kind"]
    finetuning = issubclass(recipe_class(task), Finetuning)
    if file.stem not in templates():
        kinds = sorted(kinds_of(name) - {"own"})
        about = f"# A recipe for {name}, a copy of {file.stem}"
        if data is None:
            about += f": put your own data into it. data.kind is one of\n#   {', '.join(kinds)}\n"
            about += "# heedful catalogue --swap FILE --key data    shows what each needs\n#"
        text = f"{about}\n" + (re.sub(r"\A(?:#.*\n)*", "", text) if finetuning or data else text)
    return without_start(text, name, task == "classification") if finetuning else text


def _from_folder(name: str, folder: Path) -> str:
    """A recipe that starts from a folder."""
    task, where = task_of_template(name), str(folder)
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
