"""A paragraph about an image, with the regions that its sentences come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from heedful.errors import UserError
from heedful.lectures.learning import seeded
from heedful.plots.style import Figure, Style
from heedful.runs.load import load, read_recipe
from heedful.tasks.paragraphs.predictor import ImageDescriber


def paragraphs(
    *,
    model: Annotated[str, Field(min_length=1, description="a run that was trained to describe images")],
    image: Annotated[int, Field(ge=0, description="which of its test images")] = 0,
    style: Style = "light",
) -> Figure:
    """A test image with its boxes and their phrases, and the sentences in the colours of their boxes."""
    describer = seeded(lambda: load(model), 0)
    if not isinstance(describer, ImageDescriber):
        raise UserError(
            "this model does not describe images by paragraphs", where="model", found=model,
            todo="train one: heedful train paragraphs",
        )  # fmt: skip
    images = read_recipe(Path(model)).data.read("test")
    if image >= len(images):
        raise UserError("there is no such test image", where="image", found=str(image), expected=f"below {len(images)}")
    rows, columns = images.pixels.shape[2:]
    boxes = [
        [top * rows, left * columns, bottom * rows, right * columns]
        for top, left, bottom, right in images.paragraphs[image].boxes
    ]
    (found,) = describer.describe([images.pixels[image]], [boxes])
    return found.plot(images.pixels[image], f"Test image {image}: {Path(model).name}", style)
