"""A grid world: walk from a random cell to the goal in the last one, small enough to enumerate all episodes.

B lanes, R rows, C columns.
"""

from __future__ import annotations

import numpy as np

from heedful.data.environments.lanes import Floats, Ints, Moves, States

WALKS = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])  # up, right, down, left


class GridWorld:
    """State: row, column, and the number of steps taken. A step against the border leads nowhere."""

    action_names = ("up", "right", "down", "left")

    def __init__(self, rows: int, columns: int, cost: float, limit: int) -> None:
        self.rows, self.columns, self.cost, self.limit = rows, columns, cost, limit
        self.observation_names = tuple(f"row {row} column {column}" for row in range(rows) for column in range(columns))

    def reset(self, seeds: Ints) -> tuple[States, Floats]:
        """A random cell other than the goal."""
        cells = seeds % (self.rows * self.columns - 1)  # (B,)
        states = np.stack([cells // self.columns, cells % self.columns, 0 * cells], 1)  # (B, 3)
        return states, self._observe(states)

    def step(self, states: States, actions: Ints) -> Moves:
        """A reward of 1 at the goal, where the episode ends; minus the cost of the step."""
        last = np.array([self.rows, self.columns]) - 1
        cells = np.clip(states[:, :2] + WALKS[actions], 0, last)  # (B, 2)
        found = np.concatenate([cells, states[:, 2:] + 1], 1)  # (B, 3)
        home = (cells == last).all(1)  # (B,)
        return Moves(found, self._observe(found), home - self.cost, home, found[:, 2] >= self.limit)

    def _observe(self, states: States) -> Floats:
        """The cell as a one-hot vector (B, R * C)."""
        cells = states[:, 0] * self.columns + states[:, 1]  # (B,)
        return np.eye(self.rows * self.columns, dtype=np.float32)[cells]
