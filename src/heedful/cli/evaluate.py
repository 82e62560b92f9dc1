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
from heedful.errors import UserError
from heedful.files.reading import is_file
from heedful.runs.evaluate import plain, scored
from heedful.runs.load import read_recipe
from heedful.runs.recipe import check_recipe
from heedful.tasks import task_of
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.language_model.recipe import LanguageModelRecipe
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.choice import split_checkpoint


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
    if other := next((word for word in overrides if not word.startswith("data.")), None):
        raise UserError("only the data can be changed", where=other, expected="such as data.test=new.csv")
    predictor = load_run(run)
    if memory is not None and not isinstance(predictor, TextGenerator):
        raise UserError("only a language model has a memory of tokens", where="--memory", todo="leave it out")
    if isinstance(predictor, TextGenerator):
        predictor.settings = predictor.settings.but(memory=memory)
    recipe = read_recipe(run, [from_here(word) for word in overrides])
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


def from_here(word: str) -> str:
    """A setting KEY=FILE with a file of this folder by its whole path, whatever the recipe's `data.root`."""
    key, _, value = word.partition("=")
    return f"{key}={json.dumps(str(Path(value).absolute()))}" if value and is_file(value) else word


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
