"""A policy network with an optional critic (Williams, 1992; Sutton et al., 2000).

B batch, O values of an observation, A actions.
"""

from __future__ import annotations

from torch import Tensor, nn

from heedful.blocks.perceptron import Perceptron
from heedful.blocks.taps import Tap
from heedful.models.policy.config import PolicyConfig


class Policy(nn.Module):
    """pi(a | s) = softmax(f(s))_a, and the value V(s) of a critic; two perceptrons that share nothing."""

    entrances = ("value",)

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.actor = Perceptron((config.inputs, *config.hidden, config.outputs), config.activation)
        self.critic = None
        if config.critic is not None:
            self.critic = Perceptron((config.inputs, *config.critic, 1), config.activation)
        self.logits, self.values = Tap(), Tap()

    def forward(self, observations: Tensor) -> Tensor:
        return self.logits(self.actor(observations))  # (B, A)

    def value(self, observations: Tensor) -> Tensor:
        """The return expected after each observation, by the critic."""
        assert self.critic is not None, "a policy without a critic knows no values"
        return self.values(self.critic(observations).squeeze(-1))  # (B,)
