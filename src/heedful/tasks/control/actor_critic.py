"""Advantage actor-critic (Mnih et al., 2016) with generalized advantages (Schulman et al., 2016).

T steps, B lanes, O values of an observation, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.blocks.regularizers import entropy
from heedful.data.environments.episodes import LaneBatch
from heedful.data.environments.lanes import Bools, Doubles, Floats, Ints, Lanes, uniforms
from heedful.models.roles import Policy
from heedful.tasks.control.losses import generalized_advantages, policy_loss
from heedful.tasks.control.playing import Players, Playing, finished, outputs, sampled
from heedful.tasks.control.recipe import ActorCritic
from heedful.training.carry import Stored


@dataclass(frozen=True)
class Rollout:
    """A few steps of every lane, possibly over the ends of episodes."""

    observations: Floats  # (T, B, O)
    actions: Ints  # (T, B)
    rewards: Doubles  # (T, B)
    following: Floats  # (T, B, O) observed after each step, before a new episode begins
    terminated: Bools  # (T, B)
    ended: Bools  # (T, B) terminated or truncated


def actor_critic_loss(model: Policy, rollout: Rollout, settings: ActorCritic, discount: float) -> Loss:
    """-sum A log pi + value_weight sum (A + V - V)^2 - entropy sum H, over all transitions; A has no gradient.

    The target of the critic is the advantage plus the value that it was computed with. The plain loss is the critic's
    squared error.
    """
    device = next(model.parameters()).device  # type: ignore[attr-defined]
    shape = rollout.actions.shape
    observations, following = (
        torch.from_numpy(x).to(device).flatten(0, 1) for x in (rollout.observations, rollout.following)
    )  # (T * B, O)
    logits, values = model(observations), model.value(observations)  # (T * B, A), (T * B,)
    with torch.no_grad():
        after = model.value(following)  # (T * B,)
    known, later = (x.detach().double().cpu().numpy().reshape(shape) for x in (values, after))
    advantages = generalized_advantages(
        rollout.rewards, known, later, rollout.terminated, rollout.ended, discount, settings.trace
    )
    targets = torch.from_numpy((advantages + known).reshape(-1)).to(values)  # (T * B,)
    weights = torch.from_numpy(advantages.reshape(-1)).to(values)  # (T * B,)
    errors = (targets - values).square().sum()
    loss = policy_loss(logits, torch.from_numpy(rollout.actions.reshape(-1)).to(device), weights)
    loss = loss + settings.value_weight * errors - settings.entropy * entropy(logits).sum()
    return Loss(loss, errors.detach(), torch.tensor(len(values), device=device))


@dataclass
class ActorCriticLoss:
    """Plays a few steps in each lane, and gives their loss; the carry is the lanes."""

    model: Any
    lanes: Lanes
    settings: ActorCritic
    discount: float
    seed: int
    device: torch.device
    played: Playing | None = field(default=None, init=False)

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        """The returns and lengths of the last episodes."""
        return None if self.played is None else finished(self.played)

    def first_carry(self, count: int) -> Stored[Playing]:
        """The lanes before the first step."""
        return Stored(Playing.begin(self.lanes, count, self.seed))

    def __call__(self, batch: LaneBatch, carry: Stored[Playing]) -> tuple[Loss, Stored[Playing]]:
        players = Players(self.lanes, carry.value, batch.indices.numpy(), self.seed)
        rollout = self.play(batch, players)
        self.played = players.playing
        return actor_critic_loss(self.model, rollout, self.settings, self.discount), Stored(self.played)

    def play(self, batch: LaneBatch, players: Players) -> Rollout:
        """The next steps of each lane, by actions that depend on the position and the lanes alone."""
        random = uniforms(self.seed, batch.position, players.numbers, self.settings.steps)  # (B, T)
        steps = []
        for step in range(self.settings.steps):
            observations = players.observations
            actions = sampled(outputs(self.model, observations, self.device), random[:, step])
            moves, ended = players.step(actions)
            steps.append((observations, actions, moves.rewards, moves.observations, moves.terminated, ended))
        return Rollout(*map(np.stack, zip(*steps, strict=True)))
