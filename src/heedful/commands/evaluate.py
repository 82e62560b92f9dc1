"""The verb `eval`: how good a trained model is on a split of its own data."""

from __future__ import annotations

import shlex
from pathlib import Path

from heedful.commands.display import counting, json_line, say, scoreboard
from heedful.commands.loading import load_run
from heedful.data.sources import Split
from heedful.errors import UserError
from heedful.jobs import job_of
from heedful.loading import read_recipe
from heedful.recipe import check_recipe
from heedful.scoring import plain, scored


def eval_verb(run: Path, split: Split, beams: int | None, as_json: bool) -> None:
    """Print the scores with their signatures, and some samples."""
    speaker = load_run(run)
    recipe = read_recipe(run)
    job = job_of(recipe)
    if beams is not None and not job.searches:
        raise UserError("this model is judged without a search", where="--beams", todo="leave it out")
    if split == "test" and recipe.data.test is None:
        raise UserError(
            "this run has no test set",
            where=f"{run / 'recipe.yaml'}: data.test",
            todo=f"score it on the validation set: heedful eval {shlex.quote(str(run))} --split valid",
        )
    check_recipe(recipe, [split])
    with counting(job.words.testing.format(split)) as tell:
        result = scored(speaker, recipe, split, beams=beams, progress=tell)
    if as_json:
        searched = {"beams": beams or speaker.beams} if job.searches else {}
        say(json_line({**plain(result), **searched}))
    else:
        say("\n".join(scoreboard(result, job, recipe.train.samples)))
