"""The episodes of a split, and what a model folder keeps of its environment."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heedful.config import Config, parse
from heedful.data.batch import TensorBatch
from heedful.data.environments.config import AnyEnvironment
from heedful.data.environments.lanes import Ints, Lanes, episode_seeds
from heedful.data.formats.sources import SPLITS, Split
from heedful.errors import UserError
from heedful.files.reading import read_file


class EnvironmentSpec(Config):
    """An environment with the names of what is observed, and of the actions."""

    environment: AnyEnvironment = Field(description="the environment")
    observations: tuple[str, ...] = Field(description="names of the values of an observation")
    actions: tuple[str, ...] = Field(description="names of the actions, by number")

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parse the JSON text of a file."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError("this is not JSON", where=where, found=str(error), todo="copy the whole folder") from error
        return parse(cls, found if isinstance(found, dict) else {}, file=Path(where))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file."""
        try:
            return cls.parse(read_file(path).decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"this file cannot be read: {error}", where=str(path)) from None

    @property
    def json(self) -> str:  # type: ignore[override]
        """The text of the file."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    @property
    def vocab(self) -> int:
        """The number of actions."""
        return len(self.actions)

    @property
    def sha256(self) -> str:
        """A hash that identifies this environment."""
        return hashlib.sha256(self.json.encode()).hexdigest()


@dataclass(frozen=True)
class Episodes:
    """The episodes of a split, each of which follows from its seed; in training, one for each lane at a time."""

    environment: AnyEnvironment
    split: Split
    count: int
    skipped: int = 0
    dropped: int = 0

    def __len__(self) -> int:
        return self.count

    @cached_property
    def lanes(self) -> Lanes:
        """The environment, for several of them side by side."""
        return self.environment.lanes()

    @property
    def spec(self) -> EnvironmentSpec:
        """The environment with its names."""
        lanes = self.lanes
        return EnvironmentSpec(
            environment=self.environment, observations=lanes.observation_names, actions=lanes.action_names
        )

    @property
    def sha256(self) -> str:
        """A hash of the environment, the split and the number of episodes."""
        return hashlib.sha256(f"{self.spec.json} {self.split} {self.count}".encode()).hexdigest()

    @property
    def seeds(self) -> Ints:
        """The seed of each episode, which depends on the split."""
        return episode_seeds(0, np.arange(self.count), np.zeros(self.count, np.int64), SPLITS.index(self.split))


@dataclass(frozen=True, slots=True)
class LaneBatch(TensorBatch):
    """What is played next: a position of training, and lanes; the rest follows from the weights and the carry."""

    position: int
    tokens: int  # samples of the loss, over all lanes of the batch
    indices: Tensor  # (B,) the lanes


class LaneBatches:
    """The endless sequence of batches: all lanes at every position; a process takes every n-th lane."""

    kind = LaneBatch
    few_shapes = False
    one_shape = False

    def __init__(self, lanes: int, samples: int) -> None:
        self.lanes, self.samples = lanes, samples

    def at(self, position: int, part: int = 0, parts: int = 1) -> LaneBatch:
        """The batch at a position, or the lanes of one part."""
        lanes = torch.arange(part, self.lanes, parts)
        return LaneBatch(position, self.samples * len(lanes) // self.lanes, lanes)

    def tokens(self, position: int) -> int:
        """The number of samples of the loss."""
        return self.samples

    def epoch_of(self, position: int) -> int:
        """The data are endless: always the first epoch."""
        return 0
