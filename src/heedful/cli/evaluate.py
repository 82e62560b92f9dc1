"""The command `eval`: the scores of a trained model on a split of its data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from heedful.cli.display import counting, scoreboard
from heedful.cli.loading import load_run
from heedful.cli.output import json_line, say
from heedful.data.formats.sources import Split
from heedful.data.images.sources import ImageFolders
from heedful.data.tables.reading import is_table_name, kind_of
from heedful.data.tables.source import ColumnTable, Table
from heedful.errors import UserError
from heedful.files.reading import is_file, is_folder
from heedful.runs.evaluate import plain, scored
from heedful.runs.load import read_recipe
from heedful.runs.own import table_of
from heedful.runs.recipe import check_recipe
from heedful.tasks import task_of
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.language_model.recipe import LanguageModelRecipe
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.choice import split_checkpoint

KINDS = ("csv", "tsv", "jsonl")  # of data whose files are tables of one format


def eval_command(
    run: Path,
    split: Split,
    beams: int | None,
    as_json: bool,
    stride: int | None = None,
    memory: int | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Print the scores with their signatures, and some samples."""
    if other := next((word for word in overrides if not word.startswith("data.") or "=" not in word), None):
        raise UserError("only the data can be changed", where=other, expected="such as data.test=new.csv")
    predictor = load_run(run)
    if memory is not None and not isinstance(predictor, TextGenerator):
        raise UserError("only a language model has a memory of tokens", where="--memory", todo="leave it out")
    if isinstance(predictor, TextGenerator):
        predictor.settings = predictor.settings.but(memory=memory)
    recipe = in_any_format(read_recipe(run, in_this_folder(run, overrides)), split)
    require_same_rows(read_recipe(run), recipe, split)
    if stride is not None:
        recipe = with_stride(recipe, stride)
    task = task_of(recipe)
    if beams is not None and not task.searches:
        raise UserError("this model is evaluated without a beam search", where="--beams", todo="leave it out")
    if split == "test" and recipe.data.test is None:
        raise UserError(
            "this run has no test set",
            where=f"{split_checkpoint(run)[0] / 'recipe.yaml'}: data.test",
            todo=f"name one: heedful eval {shlex.quote(str(run))} data.test=FILE\n"
            f"or use the validation set: heedful eval {shlex.quote(str(run))} --split valid",
        )
    check_recipe(recipe, [split])
    with counting(task.words.testing.format(split)) as advance:
        result = scored(predictor, recipe, split, beams=beams, progress=advance)
    if as_json:
        search = {"beams": beams or predictor.settings.beams} if task.searches else {}
        say(json_line({**plain(result), **search}))
    else:
        say("\n".join(scoreboard(result, task, recipe.train.samples)))


def in_this_folder(run: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides with the whole paths of files of this folder; `data.root` follows where the run's is not here."""
    given = dict(word.partition("=")[::2] for word in overrides)
    files = {key: Path(value).absolute() for key, value in given.items() if value and is_file(value)}
    words = [f"{key}={json.dumps(str(files[key]))}" if key in files else f"{key}={given[key]}" for key in given]
    root = dict(read_recipe(run).data).get("root")
    if files and "data.root" not in given and root is not None and not is_folder(root):
        words.append(f"data.root={json.dumps(str(next(iter(files.values())).parent))}")
    return words


def require_same_rows(trained: Recipe, recipe: Recipe, split: Split) -> None:
    """Refuse to hold out others of the rows that the model was trained on."""
    if not isinstance(recipe.data, Table | ImageFolders) or split not in recipe.data.shares:
        return
    before, after = (given.data.model_dump(mode="json") for given in (trained, recipe))
    changed = [name for name in ("valid", "test", "held_out", "seed") if before.get(name) != after.get(name)]
    if changed and before.get("train") == after["train"]:
        raise UserError(
            "other rows would be held out, of which the model was trained on some", where=f"data.{changed[0]}",
            found=json.dumps(after[changed[0]]), expected=f"{json.dumps(before.get(changed[0]))}, as in training",
            todo="name a file with other rows: data.test=FILE; or leave this out",
        )  # fmt: skip


def in_any_format(recipe: Recipe, split: Split) -> Recipe:
    """The recipe whose file of a split may be a table of another format than its other files."""
    known, table = dict(recipe.data), table_of(recipe)
    name = known.get(split)
    if recipe.data.kind not in KINDS or not isinstance(table, ColumnTable) or not isinstance(name, str):
        return recipe
    if not is_table_name(name) or kind_of(Path(name)) == recipe.data.kind:
        return recipe
    columns = {setting: known[setting] for setting in dict(table.columns) if isinstance(known.get(setting), str)}
    update = {"columns": table.columns.model_copy(update=columns), "root": known["root"], "valid": name, "test": name}
    data = table.model_copy(update={**update, "train": name})
    for problem in data.problems([split]):  # in the run's own words
        problem.expected = problem.expected and problem.expected.replace("data.columns.", "data.")
        problem.todo = problem.todo and problem.todo.replace("data.columns.", "data.")
        raise problem
    return recipe.model_copy(update={"data": data})


def with_stride(recipe: Recipe, stride: int) -> Recipe:
    """The recipe with this stride between evaluation windows."""
    if not isinstance(recipe, LanguageModelRecipe) or not recipe.model.fixed_context:
        raise UserError("only a GPT is evaluated in overlapping windows", where="--stride", todo="leave it out")
    if stride > recipe.model.context:
        raise UserError(
            "tokens between the windows would be skipped", where="--stride", found=f"{stride:,}",
            expected=f"at most {recipe.model.context:,}, the model's context",
        )  # fmt: skip
    return recipe.model_copy(update={"task": recipe.task.model_copy(update={"stride": stride})})
