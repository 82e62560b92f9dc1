"""Contenders for loading JPEGs: torch's DataLoader with Pillow, and with torchvision's transforms."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler

ENDLESS = 2**40  # images
PADDING = 16  # zeros around an image, of which a part of its size is cropped


class Jpegs(Dataset[tuple[Any, int]]):
    """A folder of JPEGs by class, decoded by Pillow, resized, and changed by some function."""

    def __init__(self, folder: Path, size: tuple[int, int], change: Any) -> None:
        names = sorted(one.name for one in folder.iterdir())
        self.files = [(file, number) for number, name in enumerate(names) for file in sorted((folder / name).iterdir())]
        self.size, self.change = size, change

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        file, label = self.files[place]
        with Image.open(file) as image:
            picture = image.convert("RGB")
        if picture.size != self.size[::-1]:
            picture = picture.resize(self.size[::-1], Image.Resampling.BILINEAR)
        return self.change(picture), label


def crop_and_flip(picture: Image.Image) -> torch.Tensor:
    """A random part of the padded image, which half of the time is mirrored."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
    padded = functional.pad(pixels, (PADDING,) * 4)
    cropped = padded[:, top : top + pixels.shape[1], left : left + pixels.shape[2]]
    return cropped.flip(-1) if torch.rand(()) < 0.5 else cropped.contiguous()


def changes(size: tuple[int, int]) -> dict[str, Any]:
    """What the contenders do with an image of Pillow; torchvision's transforms where it is installed."""
    found: dict[str, Any] = {"DataLoader, Pillow": crop_and_flip}
    try:
        v2 = importlib.import_module("torchvision.transforms.v2")
    except ImportError:
        return found
    steps = [v2.PILToTensor(), v2.RandomCrop(size, padding=PADDING), v2.RandomHorizontalFlip()]
    return {**found, "DataLoader, torchvision": v2.Compose(steps)}


class Loaded:
    """The batches of a DataLoader, as training takes them: `batch` makes one of pixels and targets."""

    few_shapes = one_shape = True

    def __init__(self, data: Jpegs, count: int, workers: int, kind: type, batch: Any) -> None:
        order = RandomSampler(data, replacement=True, num_samples=ENDLESS)  # no epoch ends, which starts workers again
        self.source = iter(DataLoader(data, count, sampler=order, num_workers=workers))
        self.kind, self.batch, self.count = kind, batch, count

    def at(self, position: int, part: int = 0, parts: int = 1) -> Any:
        return self.batch(*next(self.source))

    def epoch_of(self, position: int) -> int:
        return 0

    def tokens(self, position: int) -> int:
        return self.count
