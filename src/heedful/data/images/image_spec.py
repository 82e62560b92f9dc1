"""The image shape and class names of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heedful.config import Config, parse
from heedful.errors import UserError
from heedful.files.reading import read_file


class _ImageSpecFile(Config):
    """The file format of `ImageSpec`."""

    image: tuple[int, int, int] = Field(description="channels, rows and columns")
    names: tuple[str, ...] = Field(description="class names, by class index")


@dataclass(frozen=True)
class ImageSpec:
    """Channels, rows and columns of every image, and the class names; empty where there are no labels."""

    image: tuple[int, int, int]
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parse the JSON text of a file."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError("this is not JSON", where=where, found=str(error), todo="copy the whole folder") from error
        written = parse(_ImageSpecFile, found if isinstance(found, dict) else {}, file=Path(where))
        return cls(written.image, written.names)

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
        return json.dumps(asdict(self), indent=2) + "\n"

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
        if images.shape[1:] != self.image:
            raise UserError(
                "these images do not have the size that the model was trained on", where=where,
                found=" x ".join(map(str, images.shape[1:])) + " (channels, rows, columns)",
                expected=" x ".join(map(str, self.image)), todo="resize them first",
            )  # fmt: skip
        return images
