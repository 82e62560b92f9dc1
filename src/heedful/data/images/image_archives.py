"""Images by name, from a folder or a zip file.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heedful.data.images.image_files import ImageFile, read_image_files
from heedful.data.images.sources import image_files, zip_images
from heedful.files.reading import is_folder


class NamedImages:
    """Images that are asked for by name: a path in the folder, or a file name that occurs once in it."""

    def __init__(self, path: Path, files: Mapping[str, ImageFile]) -> None:
        self.path = path
        self.names = [PurePosixPath(place).name for place in files]  # of the files
        count = Counter(self.names)
        once = {name: file for name, file in zip(self.names, files.values(), strict=True) if count[name] == 1}
        self._files = {**files, **once}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, names: Sequence[str], channels: Literal[1, 3], size: tuple[int, int]) -> NDArray[np.uint8]:
        """The pixels (N, C, Y, X) of these images."""
        return read_image_files([self._files[name] for name in names], channels, size)


def open_images(path: Path) -> NamedImages:
    """The images of a folder or a zip file."""
    if is_folder(path):
        return NamedImages(path, {file.relative_to(path).as_posix(): file for file in image_files(path)[0]})
    return NamedImages(path, {one.name: one for one in zip_images(path)[0]})
