"""Environments as the data of a recipe, readable without torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError
from heedful.data.formats.sources import SPLITS, Split
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.data.environments.lanes import Lanes


class EnvironmentConfig(Config):
    """What all environments have: the numbers of episodes on which an agent is evaluated."""

    valid: int = Field(20, ge=1, le=100_000, description="episodes of an evaluation during training")
    test: int | None = Field(
        100, ge=1, le=100_000, description="episodes of the final score, other than those for validation; null: none"
    )

    @abstractmethod
    def lanes(self) -> Lanes:
        """The environment, for several episodes side by side."""

    def episodes(self, split: Split) -> int:
        """The number of episodes of a split; in training there is no end."""
        return {"train": 0, "valid": self.valid, "test": self.test or 0}[split]

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """The problems of the environment: none, unless it cannot be made."""
        return []


class CartPoleConfig(EnvironmentConfig):
    """CartPole: push a cart so that the pole on it stays upright; exactly CartPole-v1 of Gymnasium."""

    kind: Literal["cartpole"] = "cartpole"
    limit: int = Field(500, ge=1, le=100_000, description="steps after which an episode is truncated")

    def lanes(self) -> Lanes:
        from heedful.data.environments.cartpole import CartPole

        return CartPole(self.limit)


class GridWorldConfig(EnvironmentConfig):
    """A grid world: walk from a random cell to the goal in the last one."""

    kind: Literal["gridworld"] = "gridworld"
    rows: int = Field(4, ge=1, le=100, description="rows of the grid")
    columns: int = Field(4, ge=1, le=100, description="columns of the grid")
    cost: float = Field(0.01, ge=0, description="what a step costs; the goal has a reward of 1")
    limit: int = Field(50, ge=1, le=100_000, description="steps after which an episode is truncated")

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if self.rows * self.columns < 2:
            raise FieldError("a grid of one cell is the goal alone; write 2 or more", "columns")
        return self

    def lanes(self) -> Lanes:
        from heedful.data.environments.gridworld import GridWorld

        return GridWorld(self.rows, self.columns, self.cost, self.limit)


class GymnasiumConfig(EnvironmentConfig):
    """An environment of Gymnasium (the extra `gym`), or one that is registered there."""

    kind: Literal["gymnasium"] = "gymnasium"
    name: str = Field(min_length=1, description="its name, such as Acrobot-v1; MODULE:NAME imports a module first")
    options: dict[str, Any] = Field({}, description="settings that are passed to gymnasium.make")
    limit: int | None = Field(
        None, ge=1, le=100_000, description="steps after which an episode is truncated; null: as registered"
    )

    def lanes(self) -> Lanes:
        from heedful.data.environments.gymnasium_lanes import GymnasiumLanes

        return GymnasiumLanes(self.name, dict(self.options), self.limit)

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """None; an environment that cannot be made is an error of its own."""
        self.lanes()
        return []


AnyEnvironment = Annotated[CartPoleConfig | GridWorldConfig | GymnasiumConfig, Field(discriminator="kind")]
