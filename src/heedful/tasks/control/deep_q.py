"""Deep Q learning (Mnih et al., 2015; double: van Hasselt et al., 2016): a replay buffer and a target network.

B lanes, N steps that are kept of each, M transitions of an update, K steps of a transition, O values of an observation,
A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.data.environments.episodes import LaneBatch
from heedful.data.environments.lanes import Doubles, Ints, Lanes, uniforms
from heedful.models.roles import QNetwork
from heedful.tasks.control.losses import best_values, double_values, q_loss, q_targets
from heedful.tasks.control.playing import Players, Playing, finished, outputs
from heedful.tasks.control.recipe import DeepQ
from heedful.training.carry import Stored

WARMUP = 1 << 40  # the position whose random numbers the warmup takes
AT_ONCE = 32  # positions for which random numbers are made at a time


class Transitions(NamedTuple):
    """What an update learns from: an action, the rewards of the next steps, and the observation after them."""

    observations: Tensor  # (M, O)
    actions: Tensor  # (M,)
    rewards: Tensor  # (M,) float32, the discounted sum
    following: Tensor  # (M, O)
    discounts: Tensor  # (M,) float32 of the value that follows; 0 where nothing does


class Kept(NamedTuple):
    """The steps in a replay buffer."""

    observations: Tensor  # (B, N, O)
    actions: Tensor  # (B, N)
    rewards: Tensor  # (B, N) float32
    following: Tensor  # (B, N, O) observed after the step, before a new episode begins
    terminated: Tensor  # (B, N) bool
    ended: Tensor  # (B, N) bool, terminated or truncated: the next step is of another episode


@dataclass(frozen=True)
class Replay:
    """The last N steps of each lane: step t is at t mod N, and the next one takes the oldest place.

    Writing is in place; writing the same step again changes nothing.
    """

    kept: Kept
    count: Tensor  # (B,) steps written so far

    @classmethod
    def empty(cls, lanes: int, size: int, observation: int) -> Replay:
        """Room for `size` steps of each lane."""
        whole, real, yes = (torch.zeros(lanes, size, dtype=kind) for kind in (torch.long, torch.float, torch.bool))
        seen = torch.zeros(lanes, size, observation)  # (B, N, O)
        return cls(Kept(seen, whole, real, seen.clone(), yes, yes.clone()), torch.zeros_like(whole[:, 0]))

    def write(self, count: int, *values: Any) -> None:
        """Write the step with this number, of all lanes."""
        for kept, value in zip(self.kept, values, strict=True):
            kept.numpy()[:, count % kept.shape[1]] = value

    def sample(self, random: Doubles, count: int, steps: int, discount: float) -> Transitions:
        """As many transitions from each lane, by random numbers from 0 to 1 (B, M / B), of `count` steps written.

        The rewards are of up to `steps` steps: fewer where the episode or the buffer ends.
        """
        kept = self.kept
        lanes, size = kept.actions.shape
        oldest = max(0, count - size)
        times = oldest + (random * (count - oldest)).astype(np.int64)  # (B, M / B)
        first, ahead = (np.arange(lanes) * size)[:, None, None], np.arange(steps)
        following = times[:, :, None] + ahead  # (B, M / B, K)
        rows = (first + following % size).reshape(-1, steps)  # (M, K)
        rewards_of, ended, terminated = (
            part.numpy().reshape(-1) for part in (kept.rewards, kept.ended, kept.terminated)
        )
        counted = following.reshape(-1, steps) < count  # (M, K) whether a step is of the sum
        counted[:, 1:] &= ~np.logical_or.accumulate(ended[rows[:, :-1]], 1)
        weights = np.full(steps, discount).cumprod()  # (K,)
        weighted = np.concatenate([[1.0], weights[:-1]]).astype(np.float32) * rewards_of[rows]  # (M, K)
        rewards = np.where(counted, weighted, 0.0).cumsum(1, np.float64)[:, -1]  # (M,)
        number = counted.sum(1) - 1  # (M,) of the last step
        last = rows[np.arange(len(rows)), number]  # (M,)
        begun, after = torch.from_numpy(rows[:, 0]), torch.from_numpy(last)
        return Transitions(
            kept.observations.flatten(0, 1).index_select(0, begun),
            kept.actions.flatten().index_select(0, begun),
            torch.from_numpy(rewards.astype(np.float32)),
            kept.following.flatten(0, 1).index_select(0, after),
            torch.from_numpy((weights[number] * ~terminated[last]).astype(np.float32)),
        )


@dataclass(frozen=True)
class DeepQCarry:
    """The lanes, and what was played in them."""

    playing: Playing
    replay: Replay


def deep_q_loss(model: QNetwork, some: Transitions, targets: str) -> Loss:
    """Huber's loss of Q(s, a) - (r + discount V(s')), summed over transitions (M,); the target has no gradient.

    The plain loss is the squared error.
    """
    with torch.no_grad():
        later = model.target_values(some.following)  # (M, A)
        best = double_values(later, model(some.following)) if targets == "double" else best_values(later)
        wanted = q_targets(some.rewards, some.discounts, best)  # (M,)
    loss, error = q_loss(model(some.observations), some.actions, wanted)
    return Loss(loss, error, torch.tensor(len(wanted), device=loss.device))


@dataclass
class DeepQLoss:
    """Plays the lanes, stores what happened, and gives the loss of random transitions; the carry is all of that."""

    model: Any
    lanes: Lanes
    settings: DeepQ
    discount: float
    seed: int
    device: torch.device
    all_lanes: int
    played: Playing | None = field(default=None, init=False)
    _random: tuple[int, Doubles] | None = field(default=None, init=False)  # of some positions: the first, and numbers

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The returns and lengths of the last episodes."""
        return None if self.played is None else finished(self.played)

    def first_carry(self, count: int) -> Stored[DeepQCarry]:
        """The lanes before the first step, and an empty buffer."""
        playing = Playing.begin(self.lanes, count, self.seed)
        replay = Replay.empty(count, self.settings.buffer // count, playing.observations.shape[1])
        return Stored(DeepQCarry(playing, replay))

    def __call__(self, batch: LaneBatch, carry: Stored[DeepQCarry]) -> tuple[Loss, Stored[DeepQCarry]]:
        settings, replay = self.settings, carry.value.replay
        players = Players(self.lanes, carry.value.playing, batch.indices.numpy(), self.seed)
        count = int(replay.count[0])
        if count == 0:
            count = self._warm_up(players, replay)
        if batch.position % settings.target_every == 0:
            self.model.update_target()
        random, epsilon = self._numbers(batch.position, players.numbers), settings.epsilon(batch.position)
        for play in range(settings.plays):
            explore, which = random[:, 2 * play], random[:, 2 * play + 1]  # each (B,)
            best = outputs(self.model, players.observations, self.device).argmax(-1)  # (B,)
            count = self._store(players, replay, count, np.where(explore < epsilon, self._any(which), best))
        chosen = replay.sample(random[:, 2 * settings.plays :], count, settings.steps, self.discount)
        some = Transitions(*(x.to(self.device) for x in chosen))
        self.played = players.playing
        loss = deep_q_loss(self.model, some, settings.targets)
        return loss, Stored(DeepQCarry(self.played, Replay(replay.kept, torch.full_like(replay.count, count))))

    def _warm_up(self, players: Players, replay: Replay) -> int:
        """Fill the buffer with random actions; returns how many steps each lane has written."""
        steps = -(-self.settings.warmup // self.all_lanes)
        random = uniforms(self.seed, WARMUP, players.numbers, steps)  # (B, steps)
        for step in range(steps):
            self._store(players, replay, step, self._any(random[:, step]))
        return steps

    def _numbers(self, position: int, lanes: Ints) -> Doubles:
        """Random numbers (B, 2 plays + M / B) of a position, which are made for some positions at a time."""
        count = 2 * self.settings.plays + self.settings.batch // self.all_lanes
        first = position - position % AT_ONCE
        if self._random is None or self._random[0] != first:
            self._random = first, uniforms(self.seed, first, lanes, AT_ONCE * count)
        at = (position - first) * count
        return self._random[1][:, at : at + count]

    def _any(self, random: Doubles) -> Ints:
        """Random actions (B,)."""
        return (random * len(self.lanes.action_names)).astype(np.int64)

    def _store(self, players: Players, replay: Replay, count: int, actions: Ints) -> int:
        """Take the actions, and store what happened; returns how many transitions each lane has written."""
        before = players.observations
        moves, ended = players.step(actions)
        replay.write(count, before, actions, moves.rewards, moves.observations, moves.terminated, ended)
        return count + 1
