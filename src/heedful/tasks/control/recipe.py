"""The recipe of agents that learn by reinforcement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError, by_kind
from heedful.data.environments.config import AnyEnvironment
from heedful.models import any_of
from heedful.tasks.recipe_parts import Recipe, Start, check_batching
from heedful.training.configs import TrainConfig

if TYPE_CHECKING:
    AgentModel = Any
else:
    AgentModel = any_of("policy", "q_network", usual="policy")

Share = Annotated[float, Field(ge=0, le=1)]


class Reinforce(Config):
    """REINFORCE: a step plays a whole episode in each lane, and makes actions before a high return more probable."""

    kind: Literal["reinforce"] = "reinforce"
    baseline: Literal["none", "mean", "value"] = Field(
        "mean",
        description="subtracted from the return. mean: of the other episodes from this step on; value: by the critic",
    )
    discount_states: bool = Field(
        False, description="weigh step t by discount^t too: the exact gradient of the discounted return"
    )
    entropy: float = Field(0.0, ge=0, description="weight of the entropy of the policy, which keeps it random")
    value_weight: float = Field(0.5, ge=0, description="weight of the critic's squared error, where there is a critic")

    def samples(self, lanes: int) -> int:
        """The samples of a step: episodes."""
        return lanes


class ActorCritic(Config):
    """Advantage actor-critic: a step plays a few steps in each lane; the critic says how good they were."""

    kind: Literal["actor_critic"] = "actor_critic"
    steps: int = Field(16, ge=1, le=100_000, description="steps that are played in each lane before an update")
    trace: Share = Field(0.95, description="lambda of generalized advantages; 0: one step and the value, 1: all steps")
    entropy: float = Field(0.01, ge=0, description="weight of the entropy of the policy, which keeps it random")
    value_weight: float = Field(0.5, ge=0, description="weight of the critic's squared error")

    def samples(self, lanes: int) -> int:
        """The samples of a step: transitions."""
        return lanes * self.steps


class DeepQ(Config):
    """DQN: lanes are played and stored in a replay buffer; the Q network learns from random transitions of it."""

    kind: Literal["dqn"] = "dqn"
    batch: int = Field(128, ge=1, le=1_000_000, description="transitions of an update, from all lanes alike")
    plays: int = Field(1, ge=1, le=10_000, description="steps that are played in each lane before an update")
    buffer: int = Field(20_000, ge=1, le=100_000_000, description="transitions that are kept, over all lanes")
    warmup: int = Field(1_000, ge=1, description="random transitions that are played first, over all lanes")
    steps: int = Field(
        1, ge=1, le=1000, description="rewards that are summed before the value of what follows (n-step returns)"
    )
    first_epsilon: Share = Field(1.0, description="probability of a random action at first")
    last_epsilon: Share = Field(0.05, description="and from update `epsilon_steps` on; it falls linearly between")
    epsilon_steps: int = Field(2_000, ge=1, description="updates in which the probability of a random action falls")
    target_every: int = Field(100, ge=1, description="updates after which the target network is copied again")
    targets: Literal["best", "double"] = Field(
        "double",
        description="best: the highest value of the target network; double: its value of the action that the learning "
        "one prefers",
    )

    def samples(self, lanes: int) -> int:
        """The samples of a step: transitions."""
        return self.batch

    def epsilon(self, position: int) -> float:
        """The probability of a random action before the update at this position, from 0."""
        share = min(1.0, position / self.epsilon_steps)
        return self.first_epsilon + (self.last_epsilon - self.first_epsilon) * share


AgentSettings = Annotated[
    Annotated[Reinforce, Tag("reinforce")] | Annotated[ActorCritic, Tag("actor_critic")] | Annotated[DeepQ, Tag("dqn")],
    by_kind("reinforce"),
]


class ControlTaskConfig(Config):
    """The task: choose actions in an environment, so that the sum of the rewards is large."""

    kind: Literal["control"] = "control"
    agent: AgentSettings = Field(Reinforce(), description="how the agent learns")
    discount: Share = Field(0.99, description="what a reward is worth a step later")
    lanes: int = Field(16, ge=1, le=100_000, description="environments that are played side by side")
    metric: Literal["return", "loss"] = Field("return", description="the score that selects the best checkpoint")

    @model_validator(mode="after")
    def _fits_the_lanes(self) -> Self:
        agent = self.agent
        if isinstance(agent, DeepQ):
            if agent.batch % self.lanes:
                raise FieldError(
                    f"every lane gives as many of the transitions; write a multiple of the {self.lanes} lanes",
                    "agent", "batch",
                )  # fmt: skip
            if agent.buffer < agent.warmup or agent.buffer < self.lanes:
                raise FieldError(
                    "the buffer must have room for the warmup, and for a transition of each lane", "agent", "buffer"
                )
        return self


class ControlRecipe(Recipe):
    """An agent that learns by reinforcement."""

    task: ControlTaskConfig = ControlTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: AnyEnvironment = Field(description="the environment")
    model: AgentModel = Field(description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_train(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.budget.epochs is not None:
            raise FieldError("an environment has no epochs; write steps, tokens or minutes", "budget", "epochs")
        if train.accumulate > 1:
            raise FieldError("write more lanes instead: task.lanes", "accumulate")
        if train.compile:
            raise FieldError("an agent's steps cannot be compiled; leave this out", "compile")
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _fits_the_model(self) -> Self:
        agent, model = self.task.agent, self.model
        wanted = "q_network" if isinstance(agent, DeepQ) else "policy"
        if model.role != wanted:
            raise FieldError(
                f"{agent.kind} trains a model of kind {wanted}; write that, or choose another agent", "model", "kind"
            )
        needs = isinstance(agent, ActorCritic) or (isinstance(agent, Reinforce) and agent.baseline == "value")
        if needs and not model.estimates:
            raise FieldError("this agent needs a critic; write critic: [64, 64], say", "model", "critic")
        if model.estimates and isinstance(agent, Reinforce) and agent.baseline != "value":
            raise FieldError("the critic would learn nothing: write baseline: value", "task", "agent", "baseline")
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the environment is made."""
        size: int = self.model.parameters()
        return size
