"""A Q network with its target network (Mnih et al., 2015, "Human-level control through deep reinforcement learning").

B batch, O values of an observation, A actions.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from heedful.blocks.perceptron import Perceptron
from heedful.blocks.taps import Tap
from heedful.models.q_network.config import QNetworkConfig


class QNetwork(nn.Module):
    """Q(s, a): the discounted return after the action a in s; its targets come from a frozen copy, the target net."""

    entrances = ("target_values", "update_target")

    def __init__(self, config: QNetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.online = Perceptron((config.inputs, *config.hidden, config.outputs), config.activation)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.values = Tap()

    def forward(self, observations: Tensor) -> Tensor:
        return self.values(self.online(observations))  # (B, A)

    def value(self, observations: Tensor) -> Tensor:
        """The return expected after each observation, by the best action."""
        return self(observations).amax(-1)  # (B,)

    def target_values(self, observations: Tensor) -> Tensor:
        """Q of the target network; no gradient flows into it."""
        return self.target(observations)  # (B, A)

    @torch.no_grad()
    def update_target(self) -> None:
        """Copy the weights to the target network."""
        for old, new in zip(self.target.parameters(), self.online.parameters(), strict=True):
            old.copy_(new)
