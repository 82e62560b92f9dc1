"""What the images of a run are like: their sides, and the names of their classes."""

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


class _Written(Config):
    """The same as a file has it."""

    image: tuple[int, int, int] = Field(description="channels, rows and columns")
    names: tuple[str, ...] = Field(description="of the classes, in the order of their numbers")


@dataclass(frozen=True)
class Canvas:
    """Channels, rows and columns of every image, and the names of the classes, none where there are no labels."""

    image: tuple[int, int, int]
    names: tuple[str, ...] = ()

    @classmethod
    def opened(cls, text: str, where: str) -> Self:
        """What a file's text says."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError("this is not JSON", where=where, found=str(error), todo="copy the whole folder") from error
        written = parse(_Written, found if isinstance(found, dict) else {}, file=Path(where))
        return cls(written.image, written.names)

    @classmethod
    def load(cls, path: Path) -> Self:
        """What a file says."""
        try:
            return cls.opened(read_file(path).decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"this file cannot be read: {error}", where=str(path)) from None

    @property
    def json(self) -> str:
        """What is written to a file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @property
    def vocab(self) -> int:
        """How many numbers an image has."""
        return int(np.prod(self.image))

    @property
    def sha256(self) -> str:
        """A name for exactly this."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def require(self, images: NDArray[Any], where: str = "the images") -> NDArray[Any]:
        """Images, if they are such as the model was trained on."""
        if images.shape[1:] != self.image:
            raise UserError(
                "these images are not of the size that the model was trained on",
                where=where,
                found=" x ".join(map(str, images.shape[1:])) + " (channels, rows, columns)",
                expected=" x ".join(map(str, self.image)),
                todo="scale them to that size first",
            )
        return images
