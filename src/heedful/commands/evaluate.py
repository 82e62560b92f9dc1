"""The verb `eval`: how good a trained model is on a split of its own data."""

from __future__ import annotations

from pathlib import Path

from heedful.commands.display import counting, json_line, say, scoreboard
from heedful.commands.loading import load_run
from heedful.data.sources import Split
from heedful.loading import read_recipe
from heedful.recipe import check_recipe
from heedful.scoring import plain, scored


def eval_verb(run: Path, split: Split, beams: int | None, as_json: bool) -> None:
    """Print the scores with their signatures, and some translations."""
    translator = load_run(run)
    recipe = read_recipe(run)
    check_recipe(recipe)
    with counting(f"translating the {split} set") as tell:
        result = scored(translator, recipe, split, beams=beams, progress=tell)
    if as_json:
        told = {**plain(result), "beams": beams or translator.beams}
        say(json_line(told))
    else:
        say("\n".join(scoreboard(result, recipe.train.samples)))
