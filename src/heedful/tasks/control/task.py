"""Agents that learn by reinforcement in an environment."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.data.environments.config import AnyEnvironment
from heedful.data.environments.episodes import EnvironmentSpec, Episodes, LaneBatches
from heedful.data.formats.sources import Split
from heedful.errors import UserError
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Sample, Task
from heedful.tasks.control.actor_critic import ActorCriticLoss
from heedful.tasks.control.deep_q import DeepQLoss
from heedful.tasks.control.predictor import Agent, Episode
from heedful.tasks.control.recipe import ActorCritic, ControlRecipe, DeepQ, Reinforce
from heedful.tasks.control.reinforce import ReinforceLoss
from heedful.training.metrics import Score

AnyLoss = ReinforceLoss | ActorCriticLoss | DeepQLoss


class ControlTask(Task[Episodes, EnvironmentSpec, Episodes, Agent]):
    """Choose actions in an environment, so that the sum of the rewards is large."""

    words: ClassVar = Names(
        examples="environments",
        tokens="actions",
        too_long="",
        blank="",
        learning="making the environment",
        encoding="beginning the episodes",
        testing="playing the {} episodes",
        sample=("episode", "ended", "return"),
        counted="samples",
        loss="squared error of the expected return",
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"environment.json": Codec(EnvironmentSpec.parse, EnvironmentSpec.load)}
    searches: ClassVar = False

    def __init__(self, recipe: ControlRecipe) -> None:
        super().__init__(recipe)
        self.learning: AnyLoss | None = None  # the loss of the run, which knows the last episodes

    def read(self, split: Split) -> Episodes:
        """The episodes of a split."""
        data: AnyEnvironment = self.recipe.data
        return Episodes(data, split, self.recipe.task.lanes if split == "train" else data.episodes(split))

    @staticmethod
    def collect(examples: Iterable[object], split: Split) -> Episodes:
        """Refused: an agent makes its own examples."""
        raise UserError(
            "an agent has no examples: it plays an environment", where=f"data.{split}",
            todo="register your environment with Gymnasium, and name it: data={kind: gymnasium, name: MODULE:NAME}",
        )  # fmt: skip

    def learn(self, read: Episodes) -> EnvironmentSpec:
        """The names of observations and actions."""
        return read.spec

    @staticmethod
    def fitted(config: Any, vocabulary: EnvironmentSpec, where: str) -> Any:
        """The settings of the model with the numbers of observations and actions, checked."""
        found = {"observations": len(vocabulary.observations), "actions": len(vocabulary.actions)}
        for name, count in found.items():
            if dict(config)[name] not in (None, count):
                raise UserError(
                    "the model does not fit the environment", where=f"{where}.{name}", found=str(dict(config)[name]),
                    expected=f"{count}, as the environment has", todo=f"leave {where}.{name} out",
                )  # fmt: skip
        return config.model_copy(update=found)

    def encode(self, read: Episodes, vocabulary: EnvironmentSpec) -> Episodes:
        """The same episodes, if the environment is still the one with these names."""
        if read.spec != vocabulary.model_copy(update={"environment": read.environment}):
            raise UserError(
                "the environment is not the one that the run began with", where="data",
                found=f"{len(read.spec.observations)} observations and {len(read.spec.actions)} actions",
                expected=f"{len(vocabulary.observations)} and {len(vocabulary.actions)}",
                todo="start over in a new folder",
            )  # fmt: skip
        return read

    def batches(self, encoded: Episodes, packed: bool, even: bool) -> LaneBatches:
        """All lanes at every position."""
        lanes = self.recipe.task.lanes
        return LaneBatches(lanes, self.recipe.task.agent.samples(lanes))

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The loss of the agent, which also plays."""
        return self._learning(model)

    def first_carry(self, model: Any, batches: LaneBatches, device: torch.device) -> Any:
        """The lanes before their first steps, with an empty replay buffer for a Q network."""
        learning = self._learning(model)
        return None if isinstance(learning, ReinforceLoss) else learning.first_carry(batches.lanes)

    def _learning(self, model: Any) -> AnyLoss:
        """The loss of a model, which is made once."""
        if self.learning is None or self.learning.model is not model:
            task, agent, seed = self.recipe.task, self.recipe.task.agent, self.recipe.train.seed
            lanes, device = self._lanes, next(model.parameters()).device
            if isinstance(agent, Reinforce):
                self.learning = ReinforceLoss(model, lanes, agent, task.discount, seed, device)
            elif isinstance(agent, ActorCritic):
                self.learning = ActorCriticLoss(model, lanes, agent, task.discount, seed, device)
            else:
                self.learning = DeepQLoss(model, lanes, agent, task.discount, seed, device, task.lanes)
        return self.learning

    @cached_property
    def _lanes(self) -> Any:
        return self.recipe.data.lanes()

    def threads(self, model: Any, cores: int) -> int:
        """One thread: layers are small, and environments are stepped one after the other."""
        return 1

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: EnvironmentSpec,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> Agent:
        """The agent of a trained model."""
        return Agent(model, vocabulary, device, notes)

    def loss(self, predictor: Agent, encoded: Episodes) -> float:
        """The mean squared error of the expected return at the first step of the episodes."""
        return self._played(predictor, encoded)[1]

    def evaluate(self, predictor: Agent, held_out: HeldOut[Episodes, Episodes]) -> Evaluated:
        """Return and length of the episodes, and how exploration stands in a run that is training."""
        episodes, _ = self._played(predictor, held_out.encoded)
        scores = agent_scores(episodes)
        agent, learning = self.recipe.task.agent, self.learning
        if held_out.split == "valid" and learning is not None and learning.recent is not None:
            returns, lengths = (float(np.mean(np.asarray(part))) for part in learning.recent)
            about = f"lanes:{len(learning.recent[0])}|actions:sampled"
            scores += (Score("training_return", returns, about), Score("training_length", lengths, about))
            if isinstance(agent, DeepQ):
                scores += (Score("epsilon", agent.epsilon(held_out.step - 1), f"update:{held_out.step}"),)
        rows = held_out.rows(len(episodes), self.recipe.train.samples)
        samples = [(f"seed {episodes[row].seed}", episodes[row].ending, f"{episodes[row].total:.2f}") for row in rows]
        return held_out.result(scores, samples)

    def _played(self, predictor: Agent, encoded: Episodes) -> tuple[list[Episode], float]:
        """The episodes of a split, played once for loss and scores, and the error of the first expected returns."""
        episodes = predictor.play(seeds=encoded.seeds.tolist())
        return episodes, value_error(episodes, self.recipe.task.discount)

    @property
    def metric(self) -> str:
        """The score that selects the best checkpoint."""
        found: str = self.recipe.task.metric
        return found

    def example(self, sample: Sample) -> Example | None:
        """None: an episode is no text."""
        return None

    def in_words(self, loss: float) -> str:
        """The squared error of the expected return."""
        return f"squared error of the expected return {loss:.4f}"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """A command that plays an episode."""
        name = shlex.quote(str(folder))
        return [f"heedful play {name} --picture episode.png", f"heedful eval {name}"]


def agent_scores(episodes: list[Episode]) -> tuple[Score, ...]:
    """The means of returns and lengths."""
    about = f"episodes:{len(episodes)}|actions:best"
    return (
        Score("return", float(np.mean([episode.total for episode in episodes])), about),
        Score("length", float(np.mean([len(episode.rewards) for episode in episodes])), about),
    )


def value_error(episodes: list[Episode], discount: float) -> float:
    """The mean of (G_0 - V(s_0))^2 over episodes; without a critic, V is the mean of the returns."""
    returns = np.array([(episode.rewards * discount ** np.arange(len(episode.rewards))).sum() for episode in episodes])
    known = [float(episode.values[0]) for episode in episodes if episode.values is not None]
    expected = np.array(known) if known else returns.mean()
    return float(np.square(returns - expected).mean())
