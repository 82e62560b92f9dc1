"""The images that a run was trained and tested on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.files.reading import is_file
from heedful.runs.load import read_recipe
from heedful.runs.recipe import check_recipe
from heedful.training.checkpoint.choice import split_checkpoint


class ImageSplit(Protocol):
    """The images of a split, with what is known of them."""

    @property
    def pixels(self) -> NDArray[Any]: ...  # (N, C, Y, X) uint8 or float32

    def __len__(self) -> int: ...


def test_images(run: Path) -> Images:
    """The test images of a run; the validation images if it has no test set."""
    found: Any = test_split(run)
    return Images(scale_pixels(found.pixels), found.labels, found.names)


def test_split(run: Path) -> ImageSplit:
    """The test images of a run as they are stored, with all that is known of them."""
    if not is_file(split_checkpoint(run)[0] / "recipe.yaml"):
        raise UserError(
            "this folder is a model without data", where=str(run), expected="images to read",
            todo=f"name some: heedful reconstruct {shlex.quote(str(run))} IMAGE.png",
        )  # fmt: skip
    recipe: Any = read_recipe(run)
    split: Any = "valid" if recipe.data.test is None else "test"
    check_recipe(recipe, [split])
    found: ImageSplit = recipe.data.read(split)
    return found


def training_images(run: Path) -> Images:
    """The images that a run was trained on."""
    recipe: Any = read_recipe(run)
    check_recipe(recipe, ["train"])
    found: Images = recipe.data.read("train")
    return found


def training_vectors(run: Path) -> NDArray[Any]:
    """The images that a run was trained on, each as one row (N, C * Y * X)."""
    return training_images(run).vectors
