"""Deep Q learning (Mnih et al., 2015; double: van Hasselt et al., 2016): a replay buffer and a target network.

B lanes, N transitions that each of them keeps, M transitions of an update, O values of an observation, A actions.
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
from heedful.tasks.control.actor_critic import finished
from heedful.tasks.control.losses import best_values, double_values, q_loss, q_targets
from heedful.tasks.control.playing import Players, Playing, outputs
from heedful.tasks.control.recipe import DeepQ
from heedful.training.carry import Stored

WARMUP = 1 << 40  # the position whose random numbers the warmup takes


class Transitions(NamedTuple):
    """Steps of environments, in any order; in a replay buffer (B, N), in an update (M,)."""

    observations: Tensor  # (..., O)
    actions: Tensor  # (...)
    rewards: Tensor  # (...) float32
    following: Tensor  # (..., O)
    terminated: Tensor  # (...) bool


@dataclass(frozen=True)
class Replay:
    """The last N transitions of each lane: transition t is at t mod N, and the next one takes the oldest place.

    Writing is in place; writing the same transition again changes nothing.
    """

    kept: Stored[Transitions]
    count: Tensor  # (B,) transitions written so far

    @classmethod
    def empty(cls, lanes: int, size: int, observation: int) -> Replay:
        """Room for `size` transitions of each lane."""
        seen = torch.zeros(lanes, size, observation)  # (B, N, O)
        kept = Transitions(
            seen,
            torch.zeros(lanes, size, dtype=torch.long),
            torch.zeros(lanes, size),
            seen.clone(),
            torch.zeros(lanes, size, dtype=torch.bool),
        )
        return cls(Stored(kept), torch.zeros(lanes, dtype=torch.long))

    def write(self, count: int, *values: Any) -> None:
        """Write the transition with this number, of all lanes."""
        for kept, value in zip(self.kept.value, values, strict=True):
            kept.numpy()[:, count % kept.shape[1]] = value

    def sample(self, random: Doubles, count: int) -> Transitions:
        """Transitions (M,): as many from each lane, by random numbers from 0 to 1 (B, M / B), of `count` written."""
        lanes, size = self.kept.value.actions.shape
        places = (random * min(count, size)).astype(np.int64) + (np.arange(lanes) * size)[:, None]  # (B, M / B)
        rows = torch.from_numpy(places.reshape(-1))
        return Transitions(*(kept.flatten(0, 1).index_select(0, rows) for kept in self.kept.value))


@dataclass(frozen=True)
class DeepQCarry:
    """The lanes, and what was played in them."""

    playing: Playing
    replay: Replay


def deep_q_loss(model: QNetwork, some: Transitions, targets: str, discount: float) -> Loss:
    """Huber's loss of Q(s, a) - (r + discount V(s')), summed over transitions (M,); the target has no gradient.

    The plain loss is the squared error.
    """
    with torch.no_grad():
        later = model.target_values(some.following)  # (M, A)
        best = double_values(later, model(some.following)) if targets == "double" else best_values(later)
        wanted = q_targets(some.rewards, some.terminated, best, discount)  # (M,)
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
    recent: tuple[Any, Any] | None = field(default=None, init=False)

    def first_carry(self, count: int) -> DeepQCarry:
        """The lanes before the first step, and an empty buffer."""
        playing = Playing.begin(self.lanes, count, self.seed)
        return DeepQCarry(playing, Replay.empty(count, self.settings.buffer // count, playing.observations.shape[1]))

    def __call__(self, batch: LaneBatch, carry: DeepQCarry) -> tuple[Loss, DeepQCarry]:
        settings, numbers, replay = self.settings, batch.indices.numpy(), carry.replay
        players = Players(self.lanes, carry.playing, numbers, self.seed)
        count = int(replay.count[0])
        if count == 0:
            steps = -(-settings.warmup // self.all_lanes)
            random = uniforms(self.seed, WARMUP, numbers, steps)  # (B, steps)
            for step in range(steps):
                count = self._store(players, replay, count, self._any(random[:, step]))
        if batch.position % settings.target_every == 0:
            self.model.update_target()
        per_lane = settings.batch // self.all_lanes
        random = uniforms(self.seed, batch.position, numbers, 2 * settings.plays + per_lane)
        epsilon = settings.epsilon(batch.position)
        for play in range(settings.plays):
            explore, which = random[:, 2 * play], random[:, 2 * play + 1]  # each (B,)
            best = outputs(self.model, players.observations, self.device).argmax(-1)  # (B,)
            count = self._store(players, replay, count, np.where(explore < epsilon, self._any(which), best))
        some = Transitions(*(x.to(self.device) for x in replay.sample(random[:, 2 * settings.plays :], count)))
        found = players.playing
        self.recent = finished(found)
        loss = deep_q_loss(self.model, some, settings.targets, self.discount)
        return loss, DeepQCarry(found, Replay(replay.kept, torch.full_like(replay.count, count)))

    def _any(self, random: Doubles) -> Ints:
        """Random actions (B,)."""
        return (random * len(self.lanes.action_names)).astype(np.int64)

    def _store(self, players: Players, replay: Replay, count: int, actions: Ints) -> int:
        """Take the actions, and store what happened; returns how many transitions each lane has written."""
        before = players.observations
        moves, _ = players.step(actions)
        replay.write(count, before, actions, moves.rewards, moves.observations, moves.terminated)
        return count + 1
