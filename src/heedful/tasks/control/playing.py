"""The lanes of a training run: environments in the middle of their episodes, and the choice of actions.

B lanes, S values of a state, O values of an observation, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.environments.lanes import Bools, Doubles, Floats, Ints, Lanes, Moves, episode_seeds


@dataclass(frozen=True)
class Playing:
    """The lanes between two steps, as a carry holds them, with the last episode that ended in each."""

    states: Tensor  # (B, S)
    observations: Tensor  # (B, O)
    episodes: Tensor  # (B,) finished so far
    returns: Tensor  # (B,) float64, of the episode that is played
    lengths: Tensor  # (B,)
    last_returns: Tensor  # (B,) float64, of the last one that was finished
    last_lengths: Tensor  # (B,)

    @classmethod
    def begin(cls, lanes: Lanes, count: int, seed: int) -> Playing:
        """The first episode of each lane."""
        whole, sums = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.double)  # (B,), (B,)
        states, observations = lanes.reset(episode_seeds(seed, np.arange(count), whole.numpy()))
        given = torch.from_numpy(states), torch.from_numpy(observations)
        return cls(*given, whole, sums, whole.clone(), sums.clone(), whole.clone())


class Players:
    """`Playing` as arrays, stepped in place of nothing: each step makes new ones."""

    def __init__(self, lanes: Lanes, playing: Playing, numbers: Ints, seed: int) -> None:
        self.lanes, self.numbers, self.seed = lanes, numbers, seed
        self.states, self.observations = playing.states.numpy(), playing.observations.numpy()
        self.episodes, self.returns, self.lengths, self.last_returns, self.last_lengths = (
            x.numpy()
            for x in (playing.episodes, playing.returns, playing.lengths, playing.last_returns, playing.last_lengths)
        )

    def step(self, actions: Ints) -> tuple[Moves, Bools]:
        """Step every lane, and begin the next episode where one ended: (B,), after the moves."""
        moves = self.lanes.step(self.states, actions)
        ended = moves.terminated | moves.truncated  # (B,)
        self.states, self.observations = moves.states, moves.observations
        self.returns, self.lengths = self.returns + moves.rewards, self.lengths + 1
        if ended.any():
            self.episodes = self.episodes + ended
            self.last_returns = np.where(ended, self.returns, self.last_returns)
            self.last_lengths = np.where(ended, self.lengths, self.last_lengths)
            self.returns, self.lengths = self.returns * ~ended, self.lengths * ~ended
            seeds = episode_seeds(self.seed, self.numbers[ended], self.episodes[ended])
            states, observations = self.lanes.reset(seeds)
            self.states, self.observations = self.states.copy(), self.observations.copy()
            self.states[ended], self.observations[ended] = states, observations
        return moves, ended

    @property
    def playing(self) -> Playing:
        """The lanes as they are now."""
        return Playing(
            *map(
                torch.from_numpy,
                (
                    self.states, self.observations, self.episodes, self.returns, self.lengths, self.last_returns,
                    self.last_lengths,
                ),
            )
        )  # fmt: skip


def finished(playing: Playing) -> tuple[Tensor, Tensor] | None:
    """The returns and lengths of the last episodes, of lanes in which one was finished; None: of no lane yet."""
    some = playing.episodes > 0
    return (playing.last_returns[some], playing.last_lengths[some]) if some.any() else None


@torch.inference_mode()
def outputs(model: Any, observations: Floats, device: torch.device) -> NDArray[np.float32]:
    """What a model gives for observations (B, O): logits or values (B, A)."""
    found: NDArray[np.float32] = model(torch.from_numpy(observations).to(device)).float().cpu().numpy()
    return found


def sampled(logits: NDArray[np.float32], numbers: Doubles) -> Ints:
    """An action (B,) of each distribution (B, A), by a random number from 0 to 1 (B,)."""
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))  # (B, A)
    sums = weights.cumsum(-1)  # (B, A)
    return (sums[:, :-1] <= (numbers * sums[:, -1])[:, None]).sum(-1)
