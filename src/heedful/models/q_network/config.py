"""The settings of the Q network, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import AgentConfig

Width = Annotated[int, Field(ge=1, le=65_536)]
Widths = Annotated[tuple[Width, ...], Field(max_length=100)]


class QNetworkConfig(AgentConfig):
    """A Q network: the return expected after each action, by weights that learn and by a copy that lags behind."""

    implementation: ClassVar = "model.QNetwork"

    kind: Literal["q_network"] = "q_network"
    hidden: Widths = Field((120, 84), description="widths of the hidden layers")
    activation: Literal["relu", "tanh", "gelu", "swish"] = Field("relu", description="activation of the hidden layers")

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        refuse_too_large(self.parameters())
        return self

    @property
    def estimates(self) -> bool:
        """Its values are what it learns."""
        return True

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, those of the target network included."""
        return 2 * self.perceptron(self.hidden, self.outputs)

    @classmethod
    def tiny(cls) -> Self:
        return cls(observations=4, actions=3, hidden=(8, 8))
