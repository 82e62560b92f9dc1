"""REINFORCE with a baseline (Williams, 1992): whole episodes, and the return from each of their steps.

T steps, B lanes, N steps of all episodes, O values of an observation, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.blocks.regularizers import entropy
from heedful.data.environments.episodes import LaneBatch
from heedful.data.environments.lanes import Floats, Ints, Lanes, Trajectories, episode_seeds, play, uniforms
from heedful.models.roles import Policy
from heedful.tasks.control.losses import discounted, others_mean, policy_loss
from heedful.tasks.control.playing import outputs, sampled
from heedful.tasks.control.recipe import Reinforce

CHUNK = 128  # steps for which random numbers are made at a time


def reinforce_loss(model: Policy, played: Trajectories, settings: Reinforce, discount: float) -> Loss:
    """-sum_t (G_t - b_t) log pi(a_t | s_t) of each episode, summed over episodes; the baseline b has no gradient.

    With a critic, plus its squared error. The plain loss is the mean of (G_t - b_t)^2 in each episode.
    """
    device = next(model.parameters()).device  # type: ignore[attr-defined]
    real = played.real
    returns = discounted(played.rewards, discount)  # (T, B)
    observations = torch.from_numpy(played.observations[real]).to(device)  # (N, O)
    logits = model(observations)  # (N, A)
    targets = torch.from_numpy(returns[real]).to(device, logits.dtype)  # (N,)
    loss = logits.new_zeros(())
    if settings.baseline == "value":
        values = model.value(observations)  # (N,)
        advantages = targets - values.detach()
        loss = settings.value_weight * (targets - values).square().sum()
    elif settings.baseline == "mean":
        advantages = targets - torch.from_numpy(others_mean(returns, real)[real]).to(targets)
    else:
        advantages = targets
    weights = advantages
    if settings.discount_states:
        times = np.broadcast_to(np.arange(len(real))[:, None], real.shape)[real]  # (N,)
        weights = advantages * torch.from_numpy(discount**times).to(targets)
    actions = torch.from_numpy(played.actions[real]).to(device)  # (N,)
    loss = loss + policy_loss(logits, actions, weights)
    if settings.entropy:
        loss = loss - settings.entropy * entropy(logits).sum()
    lengths = torch.from_numpy(np.broadcast_to(played.lengths, real.shape)[real]).to(targets)  # (N,)
    return Loss(loss, (advantages.square() / lengths).sum(), torch.tensor(real.shape[1], device=device))


@dataclass
class ReinforceLoss:
    """Plays an episode in each lane, and gives its loss; `recent` are the last returns and lengths."""

    model: Any
    lanes: Lanes
    settings: Reinforce
    discount: float
    seed: int
    device: torch.device
    recent: tuple[Any, Any] | None = field(default=None, init=False)

    def __call__(self, batch: LaneBatch) -> Loss:
        played = self.play(batch)
        self.recent = played.returns, played.lengths
        return reinforce_loss(self.model, played, self.settings, self.discount)

    def play(self, batch: LaneBatch) -> Trajectories:
        """The episodes of a batch, whose seeds and random actions depend on its position and the lanes alone."""
        numbers = batch.indices.numpy()
        seeds = episode_seeds(self.seed, numbers, np.full(len(numbers), batch.position))
        chunks: list[Any] = []

        def choose(observations: Floats, playing: Ints, step: int) -> Ints:
            if step == CHUNK * len(chunks):
                chunks.append(uniforms(self.seed, batch.position, numbers + (len(chunks) << 20), CHUNK))
            random = chunks[-1][playing, step % CHUNK]
            return sampled(outputs(self.model, observations, self.device), random)

        return play(self.lanes, choose, seeds)
