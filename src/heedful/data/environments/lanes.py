"""Environments side by side: several episodes at once, each in a lane, whose whole state is arrays.

A state is a value: a checkpoint holds it, and stepping from it again gives the same. Random numbers come from counters:
those of an episode from its seed, that of an episode from the run's seed, the lane and the number of the episode.

B lanes, S values of a state, O values of an observation, T steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heedful.data.order import random_bits_at

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
States = NDArray[Any]

EPISODES, ACTIONS = 1, 2  # streams of random numbers
SEEDS = 31  # bits of the seed of an episode


class Moves(NamedTuple):
    """What a step of every lane led to; the lanes of finished episodes have to be reset."""

    states: States  # (B, S)
    observations: Floats  # (B, O)
    rewards: Doubles  # (B,)
    terminated: Bools  # (B,) the episode came to an end of its own: nothing follows
    truncated: Bools  # (B,) the episode was stopped, by its limit of steps


class Lanes(Protocol):
    """An environment in several lanes; rows of states are independent of each other."""

    @property
    def observation_names(self) -> tuple[str, ...]:
        """The names of the O values of an observation."""

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of the actions, by number."""

    def reset(self, seeds: Ints) -> tuple[States, Floats]:
        """The first states (B, S) and observations (B, O) of the episodes with these seeds (B,)."""

    def step(self, states: States, actions: Ints) -> Moves:
        """Take the actions (B,) in these states (B, S)."""


class Environment:
    """One lane with Gymnasium's interface."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._state: States | None = None

    def reset(self, seed: int = 0) -> tuple[Floats, dict[str, object]]:
        """Begin the episode with this seed; returns the first observation."""
        self._state, observations = self.lanes.reset(np.array([seed]))
        return observations[0], {}

    def step(self, action: int) -> tuple[Floats, float, bool, bool, dict[str, object]]:
        """The observation after an action, the reward, and whether the episode is terminated or truncated."""
        if self._state is None:
            raise RuntimeError("call reset before step")
        moves = self.lanes.step(self._state, np.array([action]))
        self._state = moves.states
        return moves.observations[0], float(moves.rewards[0]), bool(moves.terminated[0]), bool(moves.truncated[0]), {}


@dataclass(frozen=True)
class Trajectories:
    """Whole episodes side by side, padded with zeros to the longest."""

    observations: Floats  # (T, B, O)
    actions: Ints  # (T, B)
    rewards: Doubles  # (T, B)
    real: Bools  # (T, B) the steps that were taken
    truncated: Bools  # (B,)

    @property
    def returns(self) -> Doubles:
        """The sum of the rewards of each episode."""
        found: Doubles = self.rewards.sum(0)  # (B,)
        return found

    @property
    def lengths(self) -> Ints:
        """The number of steps of each episode."""
        return self.real.sum(0)  # (B,)


def play(
    lanes: Lanes, choose: Callable[[Floats, Ints, int], Ints], seeds: Ints, limit: int | None = None
) -> Trajectories:
    """Play the episodes with these seeds to their ends, or to a limit of steps.

    `choose` maps the observations of the lanes that still play, their numbers, and the step to actions.
    """
    count = len(seeds)
    states, observations = lanes.reset(seeds)
    playing, truncated = np.arange(count), np.zeros(count, bool)
    steps: list[tuple[Ints, Floats, Ints, Doubles]] = []
    while len(playing) and len(steps) != limit:
        actions = choose(observations, playing, len(steps))
        moves = lanes.step(states, actions)
        steps.append((playing, observations, actions, moves.rewards))
        truncated[playing] = moves.truncated & ~moves.terminated
        on = ~(moves.terminated | moves.truncated)
        states, observations, playing = moves.states[on], moves.observations[on], playing[on]
    truncated[playing] = True  # by the limit
    found = Trajectories(
        np.zeros((len(steps), count, len(lanes.observation_names)), np.float32),  # (T, B, O)
        np.zeros((len(steps), count), np.int64),  # (T, B)
        np.zeros((len(steps), count)),  # (T, B)
        np.zeros((len(steps), count), bool),  # (T, B)
        truncated,
    )
    for step, (rows, seen, actions, rewards) in enumerate(steps):
        found.observations[step, rows], found.actions[step, rows] = seen, actions
        found.rewards[step, rows], found.real[step, rows] = rewards, True
    return found


def episode_seeds(seed: int, lanes: Ints, episodes: Ints, split: int = 0) -> Ints:
    """The seed (B,) of the episode with this number (B,) in each lane (B,); every split has its own."""
    found: Ints = random_bits_at(seed, split, EPISODES, (lanes << 32) + episodes).view(np.int64) >> (64 - SEEDS)
    return found & ((1 << SEEDS) - 1)


def uniforms(seed: int, position: int, lanes: Ints, count: int) -> Doubles:
    """Random numbers from 0 to 1, exclusive, for each lane (B, count); those of a lane depend on it alone."""
    indices = (lanes[:, None] << 32) + np.arange(count)  # (B, count)
    bits = random_bits_at(seed, position, ACTIONS, indices)
    found: Doubles = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found
