"""A trained agent: the actions that it chooses, and the episodes that it plays.

B episodes, T steps, O values of an observation, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from heedful.data.environments.episodes import EnvironmentSpec
from heedful.data.environments.lanes import Floats, Ints, Lanes, play, uniforms
from heedful.errors import UserError, shown
from heedful.tasks.control.playing import outputs, sampled
from heedful.tasks.predictor import Evaluation, Predictor, Result

if TYPE_CHECKING:
    from heedful.plots.style import Figure, Style

MOST_SEED = 2**31  # the seeds of episodes are below it


@dataclass(frozen=True, repr=False)
class Action(Result):
    """An action: its number, its name, and the score of every action: a probability, or the expected return."""

    number: int
    name: str
    scores: dict[str, float]


@dataclass(frozen=True, repr=False)
class Episode(Result):
    """A played episode: what was observed before each action, the actions, and the rewards after them."""

    seed: int
    total: float  # the return: the sum of all rewards
    ending: str  # terminated or truncated
    observations: Floats = field(repr=False)  # (T, O)
    actions: Ints = field(repr=False)  # (T,)
    rewards: NDArray[np.float64] = field(repr=False)  # (T,)
    scores: Floats = field(repr=False)  # (T, A) probabilities, or expected returns
    values: Floats | None = field(repr=False)  # (T,) the expected return, if the agent estimates it
    observation_names: tuple[str, ...] = field(repr=False)
    action_names: tuple[str, ...] = field(repr=False)
    scored_by: str = field(repr=False)  # probability or expected return

    def plot(self, style: Style = "light") -> Figure:
        """A figure of the episode: observations, actions and their scores over time."""
        from heedful.plots.episode_plot import episode_figure

        return episode_figure(
            self.observations, self.actions, self.rewards, self.scores, self.observation_names, self.action_names,
            self.scored_by, self.total, self.ending, style,
        )  # fmt: skip


@dataclass
class Agent(Predictor[ArrayLike, Action, int]):
    """Chooses the best action for an observation, and plays episodes of its environment."""

    task: ClassVar = "control"

    model: nn.Module
    tokenizer: EnvironmentSpec  # the environment that it was trained in
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def environment(self) -> EnvironmentSpec:
        """The environment that it was trained in, with the names of observations and actions."""
        return self.tokenizer

    @cached_property
    def lanes(self) -> Lanes:
        """The environment, for several episodes side by side."""
        return self.environment.environment.lanes()

    @property
    def is_policy(self) -> bool:
        """Whether its scores of actions are probabilities; otherwise they are expected returns."""
        role: str = self._net.config.role
        return role == "policy"

    def predict(self, inputs: Sequence[ArrayLike]) -> list[Action]:
        """The best action for each observation (O,)."""
        if not len(inputs):
            return []
        scores = self._scores(self._outputs(self._observations(inputs)))
        names = self.environment.actions
        best = scores.argmax(-1).tolist()
        return [
            Action(number, names[number], dict(zip(names, row, strict=True)))
            for number, row in zip(best, scores.tolist(), strict=True)
        ]

    def play(
        self,
        episodes: int = 1,
        seed: int = 0,
        *,
        seeds: Sequence[int] | None = None,
        sample: bool = False,
        forced: Mapping[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Episode]:
        """Play episodes with the seeds `seed`, `seed` + 1, ..., or with `seeds`.

        The best action is taken; `sample`: one by its probability, where the agent is a policy. `forced` maps steps to
        the actions that are taken there instead; an episode is truncated after `limit` steps.
        """
        given = list(range(seed, seed + episodes)) if seeds is None else list(seeds)
        if not all(type(one) is int and 0 <= one < MOST_SEED for one in given):
            raise UserError(
                "invalid seed of an episode", found=shown(given), expected=f"whole numbers below {MOST_SEED}"
            )
        if sample and not self.is_policy:
            raise UserError("a Q network has no probabilities to sample actions by", todo="leave sample out")
        instead, names = dict(forced or {}), self.environment.actions
        if not all(type(one) is int and 0 <= one < len(names) for one in instead.values()):
            raise UserError(
                "there is no such action", where="forced", found=shown(instead),
                expected=", ".join(f"{number}: {name}" for number, name in enumerate(names)),
            )  # fmt: skip
        if limit is not None and limit < 1:
            raise UserError("an episode has at least one step", where="limit", found=shown(limit))
        if not given:
            return []
        kept = list[tuple[Ints, Floats]]()  # the lanes that still play, and the outputs for them
        count = np.array(given)

        def choose(observations: Floats, playing: Ints, step: int) -> Ints:
            found = self._outputs(observations)
            kept.append((playing, found))
            if step in instead:
                return np.full(len(playing), instead[step])
            return sampled(found, uniforms(0, step, count[playing], 1)[:, 0]) if sample else found.argmax(-1)

        played = play(self.lanes, choose, count, limit)
        scores = np.zeros((*played.actions.shape, len(names)), np.float32)  # (T, B, A)
        for step, (playing, found) in enumerate(kept):
            scores[step, playing] = self._scores(found)
        values = self._values(played.observations, scores)
        return [
            Episode(
                one, float(played.returns[row]), "truncated" if played.truncated[row] else "terminated",
                played.observations[:length, row], played.actions[:length, row], played.rewards[:length, row],
                scores[:length, row], None if values is None else values[:length, row],
                self.environment.observations, self.environment.actions,
                "probability" if self.is_policy else "expected return",
            )
            for row, (one, length) in enumerate(zip(given, played.lengths.tolist(), strict=True))
        ]  # fmt: skip

    def _evaluate(self, data: Path | Sequence[int]) -> Evaluation:
        """Mean return and length of the episodes with these seeds."""
        if isinstance(data, Path):
            raise UserError(
                "an agent is evaluated on episodes, not on a file", where=str(data),
                todo="pass the seeds of episodes: agent.evaluate(range(100))",
            )  # fmt: skip
        from heedful.tasks.control.task import agent_scores

        return Evaluation.of(agent_scores(self.play(seeds=list(data))), None, len(data))

    def _outputs(self, observations: Floats) -> Floats:
        return outputs(self.model, observations, self.device)  # (B, A)

    def _scores(self, found: Floats) -> Floats:
        """Probabilities from logits (B, A); values stay as they are."""
        if not self.is_policy:
            return found
        weights = np.exp(found - found.max(-1, keepdims=True))  # (B, A)
        return weights / weights.sum(-1, keepdims=True)

    def _values(self, observations: Floats, scores: Floats) -> Floats | None:
        """The return (T, B) that is expected at each step, if the model estimates it."""
        if not self.is_policy:
            return scores.max(-1)
        return outputs(self._net.value, observations, self.device) if self._net.config.estimates else None

    def _observations(self, inputs: Sequence[ArrayLike]) -> Floats:
        """Observations as an array (B, O), checked."""
        count = len(self.environment.observations)
        try:
            found = np.stack([np.asarray(row, dtype=np.float32).reshape(-1) for row in inputs])
        except (TypeError, ValueError):
            raise UserError(
                "these are not observations", found=shown(inputs), expected=f"a list of vectors of {count} numbers"
            ) from None
        if found.shape[1] != count or not np.isfinite(found).all():
            names = ", ".join(self.environment.observations[:8])
            raise UserError(
                "these are not observations of this agent's environment", found=f"vectors of {found.shape[1]} numbers",
                expected=f"{count} finite numbers each: {names}{', ...' if count > 8 else ''}",
            )  # fmt: skip
        return found
