"""The settings of the policy network, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import AgentConfig

Width = Annotated[int, Field(ge=1, le=65_536)]
Widths = Annotated[tuple[Width, ...], Field(max_length=100)]


class PolicyConfig(AgentConfig):
    """A policy network: a probability for each action; with a critic, also the return expected from here."""

    implementation: ClassVar = "model.Policy"

    kind: Literal["policy"] = "policy"
    hidden: Widths = Field((64, 64), description="widths of the hidden layers of the policy")
    critic: Widths | None = Field(None, description="widths of the hidden layers of the critic; null: no critic")
    activation: Literal["relu", "tanh", "gelu", "swish"] = Field("tanh", description="activation of the hidden layers")

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        refuse_too_large(self.parameters())
        return self

    @property
    def estimates(self) -> bool:
        """Whether it has a critic."""
        return self.critic is not None

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters."""
        critic = 0 if self.critic is None else self.perceptron(self.critic, 1)
        return self.perceptron(self.hidden, self.outputs) + critic

    @classmethod
    def tiny(cls) -> Self:
        return cls(observations=4, actions=3, hidden=(8, 8), critic=(6,))
