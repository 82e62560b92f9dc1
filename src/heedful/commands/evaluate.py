"""The verb `eval`: how good a trained model is on a split of its own data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from heedful.commands.display import counting, scoreboard
from heedful.commands.loading import load_run
from heedful.data.sources import Split
from heedful.errors import printable
from heedful.experiment import plain, read_recipe, scored
from heedful.recipe import check_recipe


def eval_verb(run: Path, split: Split, beams: int | None, as_json: bool) -> None:
    """Print the scores with their signatures, and some translations."""
    translator = load_run(run)
    recipe = read_recipe(run)
    check_recipe(recipe)
    with counting(f"translating the {split} set") as tell:
        result = scored(translator, recipe, split, beams=beams, progress=tell)
    if as_json:
        told = {**plain(result), "beams": beams or translator.beams}
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(printable("\n".join(scoreboard(result, recipe.train.samples))) + "\n")
