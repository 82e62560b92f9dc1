"""Environments of Gymnasium (the extra `gym`), and those that you register with it.

Their inner states cannot be read, so the state of a lane is its episode: the seed and the actions so far. An
environment that a checkpoint left in the middle of an episode is brought there by taking these actions again.

B lanes.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from heedful.data.environments.lanes import Floats, Ints, Moves, States
from heedful.errors import OwnCodeError, UserError, shown

EXIT_NOT_FINITE = 3
SEED, COUNT, CHECK, ACTIONS = 0, 1, 2, 3  # the columns of a state; CHECK: of the last observation
LIMIT = 100_000  # steps of an episode, whose actions are kept
Result = TypeVar("Result")


class GymnasiumLanes:
    """An environment with observations of numbers, or one of several, and with one of several actions."""

    def __init__(self, name: str, options: dict[str, Any], limit: int | None) -> None:
        self.name, self.options = name, options
        self.gym = _gymnasium(name)
        first = self._make(limit)
        found = limit or (first.spec.max_episode_steps if first.spec is not None else None)
        if found is None:
            raise UserError(
                "the episodes of this environment may never end", where="data.limit", found=f"{name} has no limit",
                todo="write data.limit: 1000, say",
            )  # fmt: skip
        self.limit = int(found)
        spaces, seen, chosen = self.gym.spaces, first.observation_space, first.action_space
        if not isinstance(chosen, spaces.Discrete):
            raise UserError(
                "agents choose one of several actions", where="data.name", found=f"{name} has the actions {chosen}",
                expected="a space Discrete(n)", todo="choose another environment, or wrap this one and register it",
            )  # fmt: skip
        self.one_of = isinstance(seen, spaces.Discrete)
        if not self.one_of and not isinstance(seen, spaces.Box):
            raise UserError(
                "agents observe numbers", where="data.name", found=f"{name} has the observations {seen}",
                expected="a space Box or Discrete", todo="wrap the environment in FlattenObservation, and register it",
            )  # fmt: skip
        self.first_observation, self.first_action = int(seen.start) if self.one_of else 0, int(chosen.start)
        count = int(seen.n) if self.one_of else int(np.prod(seen.shape))
        self.observation_names = tuple(f"value {number}" for number in range(count))
        self.action_names = tuple(f"action {number}" for number in range(int(chosen.n)))
        self._idle = [first]
        self._live: dict[bytes, list[Any]] = {}  # environments by the state that they are in

    def reset(self, seeds: Ints) -> tuple[States, Floats]:
        """Begin an episode in an idle environment for each seed."""
        states = np.zeros((len(seeds), ACTIONS + self.limit), np.int64)  # (B, S)
        states[:, SEED] = seeds
        observations = [self._begin(state) for state in states]
        return states, np.stack(observations)

    def step(self, states: States, actions: Ints) -> Moves:
        """Step the environment that is in each state, one after the other."""
        states = states.copy()
        rows = [self._step(state, action) for state, action in zip(states, actions.tolist(), strict=True)]
        observations, rewards, terminated, truncated = zip(*rows, strict=True)
        return Moves(states, np.stack(observations), np.array(rewards), np.array(terminated), np.array(truncated))

    def _begin(self, state: States) -> Floats:
        environment = self._idle.pop() if self._idle else self._make(self.limit)
        observation, _ = self._call("reset", lambda: environment.reset(seed=int(state[SEED])))
        seen = self._observation(observation)
        state[CHECK] = zlib.crc32(seen.tobytes())
        self._live.setdefault(state.tobytes(), []).append(environment)
        return seen

    def _step(self, state: States, action: int) -> tuple[Floats, float, bool, bool]:
        environment = self._found(state)
        result = self._call("step", lambda: environment.step(self.first_action + action))
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._error("step", shown(result), "(observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, _ = result
        seen, value = self._observation(observation), self._reward(reward)
        state[ACTIONS + state[COUNT]] = action
        state[COUNT], state[CHECK] = state[COUNT] + 1, zlib.crc32(seen.tobytes())
        stopped = bool(truncated) or int(state[COUNT]) >= self.limit
        if terminated or stopped:
            self._idle.append(environment)
        else:
            self._live.setdefault(state.tobytes(), []).append(environment)
        return seen, value, bool(terminated), stopped

    def _found(self, state: States) -> Any:
        """The environment in a state; in a new process, one that takes the actions of the episode again."""
        key = state.tobytes()
        if not (there := self._live.get(key)):
            again = np.zeros_like(state)
            again[SEED] = state[SEED]
            self._begin(again)
            for action in state[ACTIONS : ACTIONS + state[COUNT]].tolist():
                self._step(again, action)
            if (again != state).any():
                raise UserError(
                    "the environment did not repeat an episode, so that the run cannot resume exactly",
                    where=self.name, found=f"other observations after the same {state[COUNT]} actions",
                    expected="episodes that follow from reset(seed=...) and the actions alone",
                    todo="take random numbers from the environment's np_random, or start over in a new folder",
                )  # fmt: skip
            there = self._live[key]
        environment = there.pop()
        if not there:
            del self._live[key]
        return environment

    def _observation(self, found: Any) -> Floats:
        """An observation as numbers (O,)."""
        count = len(self.observation_names)
        if self.one_of:
            one = np.zeros(count, np.float32)
            one[int(found) - self.first_observation] = 1
            return one
        try:
            values = np.asarray(found, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise self._error("observation", shown(found), f"{count} numbers") from None
        if len(values) != count:
            raise self._error("observation", f"{len(values)} numbers", f"{count}, as its observation_space says")
        if not np.isfinite(values).all():
            raise self._error("observation", shown(values.tolist()), "finite numbers", EXIT_NOT_FINITE)
        return values

    def _reward(self, found: Any) -> float:
        try:
            value = float(found)
        except (TypeError, ValueError):
            raise self._error("reward", shown(found), "a number") from None
        if not np.isfinite(value):
            raise self._error("reward", str(value), "a finite number", EXIT_NOT_FINITE)
        return value

    def _error(self, what: str, found: str, expected: str, exit_code: int = 2) -> OwnCodeError:
        return OwnCodeError(
            f"the environment returned an invalid {'result of step' if what == 'step' else what}", where=self.name,
            found=found, expected=expected, exit_code=exit_code,
            todo="correct the environment, and run the same command again",
        )  # fmt: skip

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        """A result of the environment; what it raises is a user's error."""
        try:
            return call()
        except Exception as error:
            raise OwnCodeError(
                f"the environment failed in {what}", where=self.name, found=f"{type(error).__name__}: {error}",
                todo="correct the environment, and run the same command again",
            ) from error  # fmt: skip

    def _make(self, limit: int | None) -> Any:
        limited = {} if limit is None else {"max_episode_steps": limit}
        try:
            return self.gym.make(self.name, **limited, **self.options)
        except Exception as error:
            raise UserError(
                "Gymnasium cannot make this environment", where="data.name", found=f"{self.name}: {error}",
                expected="the name of an environment, such as Acrobot-v1",
                todo="list those that are installed: python -c 'import gymnasium; gymnasium.pprint_registry()'; one of "
                "your own is registered in a module, and named as MODULE:NAME",
            ) from error  # fmt: skip


def _gymnasium(name: str) -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ImportError:
        raise UserError(
            "this environment needs Gymnasium, which is not installed", where="data", found=f"kind: gymnasium, {name}",
            todo="pip install 'heedful[gym]'; kind: cartpole and kind: gridworld need nothing",
        ) from None  # fmt: skip
