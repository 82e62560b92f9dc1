"""The image shape, the class names and the preprocessing of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heedful.config import Config, parse
from heedful.data.images.sources import Resample
from heedful.errors import UserError
from heedful.files.reading import read_file


class _ImageSpecFile(Config):
    """The file format of `ImageSpec`; what came later has a default, and is left out where that holds."""

    image: tuple[int, int, int] = Field(description="channels, rows and columns")
    names: tuple[str, ...] = Field(description="class names, by class index")
    mean: tuple[float, ...] = Field((), description="mean of each channel, subtracted from pixels between 0 and 1")
    std: tuple[float, ...] = Field((), description="standard deviation of each channel, by which these are divided")
    shorter: int | None = Field(None, ge=1, description="pixels to which the shorter side is resized before cropping")
    resample: Resample = Field("lanczos", description="how pixels are interpolated")


@dataclass(frozen=True)
class ImageSpec:
    """Channels, rows and columns of every image, the class names, and how other images are prepared.

    Names are empty where there are no labels. Without `mean` and `std`, pixels are not normalized. An image of another
    size is resized to these rows and columns; with `shorter`, that side is resized to it, and the centre is cropped.
    """

    image: tuple[int, int, int]
    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    shorter: int | None = None
    resample: Resample = "lanczos"

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parse the JSON text of a file."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError("this is not JSON", where=where, found=str(error), todo="copy the whole folder") from error
        written = parse(_ImageSpecFile, found if isinstance(found, dict) else {}, file=Path(where))
        for name in ("mean", "std"):
            values = getattr(written, name)
            if len(values) not in (0, written.image[0]) or (name == "std" and not all(value > 0 for value in values)):
                raise UserError(
                    f"invalid value for {name}", where=where, found=str(list(values)),
                    expected=f"one number for each of {written.image[0]} channels" + ", above 0" * (name == "std"),
                    todo="copy the whole folder",
                )  # fmt: skip
        return cls(**dict(written))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file."""
        try:
            return cls.parse(read_file(path).decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"this file cannot be read: {error}", where=str(path)) from None

    @property
    def json(self) -> str:
        """The text of the file."""
        always = ("image", "names")
        kept = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default or field.name in always
        }
        return json.dumps(kept, indent=2) + "\n"

    @property
    def vocab(self) -> int:
        """The number of values in an image."""
        return int(np.prod(self.image))

    @property
    def sha256(self) -> str:
        """A hash that identifies this shape and these names."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def require(self, images: NDArray[Any], where: str = "the images") -> NDArray[Any]:
        """The images, if they have the shape of the training images."""
        self.require_shape(images.shape, where)
        return images

    def require_shape(self, shape: tuple[int, ...], where: str) -> None:
        """Refuse images (N, C, Y, X) of another shape than the training images."""
        if shape[1:] != self.image:
            raise UserError(
                "these images do not have the size that the model was trained on", where=where,
                found=" x ".join(map(str, shape[1:])) + " (channels, rows, columns)",
                expected=" x ".join(map(str, self.image)), todo="resize them first",
            )  # fmt: skip
