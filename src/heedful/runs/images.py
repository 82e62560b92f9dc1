"""The images that a run was trained and tested on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.files.reading import is_file
from heedful.runs.load import read_recipe
from heedful.runs.recipe import check_recipe
from heedful.training.checkpoint.choice import split_checkpoint


def test_images(run: Path) -> Images:
    """The test images of a run; the validation images if it has no test set."""
    if not is_file(split_checkpoint(run)[0] / "recipe.yaml"):
        raise UserError(
            "this folder is a model without data", where=str(run), expected="images to read",
            todo=f"name some: heedful reconstruct {shlex.quote(str(run))} IMAGE.png",
        )  # fmt: skip
    recipe: Any = read_recipe(run)
    split: Any = "valid" if recipe.data.test is None else "test"
    check_recipe(recipe, [split])
    found: Images = recipe.data.read(split)
    return Images(scale_pixels(found.pixels), found.labels, found.names)


def training_images(run: Path) -> Images:
    """The images that a run was trained on."""
    recipe: Any = read_recipe(run)
    check_recipe(recipe, ["train"])
    found: Images = recipe.data.read("train")
    return found


def training_vectors(run: Path) -> NDArray[Any]:
    """The images that a run was trained on, each as one row (N, C * Y * X)."""
    return training_images(run).vectors
