"""Environments: dynamics against published equations and Gymnasium's, lanes, seeds, and what Gymnasium may return."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heedful.data.environments.cartpole import CartPole
from heedful.data.environments.config import CartPoleConfig, GridWorldConfig, GymnasiumConfig
from heedful.data.environments.episodes import EnvironmentSpec, Episodes, LaneBatches
from heedful.data.environments.gridworld import GridWorld
from heedful.data.environments.lanes import Environment, Lanes, episode_seeds, play, uniforms
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.training.checkpoint.folder import is_saved
from tolerance import close

# Recorded from CartPole-v1 of Gymnasium 1.4.0: the seed, the actions, the first, a middle and the last observation.
RECORDED: list[tuple[int, list[int], bool, list[list[float]]]] = [
    (
        7, [1, 1, 0, 1, 0, 0, 0, 0], False,
        [
            [0.0125095462, 0.0397213809, 0.0275685694, -0.0274792816],
            [0.0312511548, 0.428751647, 0.00296023977, -0.586087644],
            [0.0421434641, -0.351226777, -0.00895291101, 0.573493302],
        ],
    ),
    (
        123, [1] * 9, True,
        [
            [0.0182351861, -0.0446178988, -0.0279640127, -0.0315628201],
            [0.0528838523, 0.933651865, -0.0916138589, -1.55823541],
            [0.151115805, 1.71832991, -0.25533703, -2.89143538],
        ],
    ),
]  # fmt: skip


# ------------------------------------------------------------------ CartPole
@pytest.mark.parametrize(("seed", "actions", "falls", "expected"), RECORDED)
def test_cartpole_is_gymnasiums(seed: int, actions: list[int], falls: bool, expected: list[list[float]]) -> None:
    environment = Environment(CartPole())
    seen = [environment.reset(seed)[0]]
    for action in actions:
        observation, reward, terminated, truncated, _ = environment.step(action)
        seen.append(observation)
        assert (reward, truncated) == (1.0, False)
    assert terminated is falls
    for found, recorded in zip((seen[0], seen[len(seen) // 2], seen[-1]), expected, strict=True):
        assert found.dtype == np.float32
        close(found, np.array(recorded, np.float32))


@pytest.mark.claim("M12")
def test_cartpole_is_that_of_the_installed_gymnasium() -> None:
    """Twenty episodes to their ends, by the embedded environment, by Gymnasium's, and by its lanes here."""
    gymnasium = pytest.importorskip("gymnasium", reason="needs `pip install 'heedful[gym]'`")
    theirs: Any = gymnasium.make("CartPole-v1")
    for lanes in (CartPole(), GymnasiumConfig(name="CartPole-v1").lanes()):
        assert lanes.limit == 500
        ours, random = Environment(lanes), np.random.default_rng(5)
        for seed in range(20):
            found, expected = ours.reset(seed)[0], theirs.reset(seed=seed)[0]
            over, steps = False, 0
            while not over:
                close(found, expected)
                assert found.dtype == expected.dtype and found.shape == expected.shape
                tilt = expected[2] + expected[3] if seed % 2 else random.normal()  # half of them balance for a while
                action = int(tilt > 0)
                found, *rest = ours.step(action)
                expected, *others = theirs.step(action)
                assert rest[:3] == others[:3], f"episode {seed}, step {steps}"
                over, steps = bool(others[1] or others[2]), steps + 1
            close(found, expected)
            assert steps == 500 or others[1]
    theirs.close()


def test_cartpole_follows_the_equations() -> None:
    """The accelerations of Barto, Sutton and Anderson (1983) without friction, as Florian (2007) corrected them."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (50, 4)) * [2, 3, 0.2, 3]
    actions = rng.integers(0, 2, 50)
    moves = CartPole().step(np.column_stack([states, np.zeros(50)]), actions)
    for (x, speed, angle, turn), action, after in zip(states.tolist(), actions, moves.states, strict=True):
        force, (sine, cosine) = (10.0 if action else -10.0), (math.sin(angle), math.cos(angle))
        inner = (-force - 0.1 * 0.5 * turn**2 * sine) / 1.1
        turning = (9.8 * sine + cosine * inner) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moving = (force + 0.1 * 0.5 * (turn**2 * sine - turning * cosine)) / 1.1
        close(after, [x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning, 1.0])


def test_cartpole_ends_by_a_fall_at_a_border_or_at_its_limit() -> None:
    states = np.array([[0, 0, 0.2093, 0.1, 7], [0, 0, -0.2093, -0.1, 7], [2.39, 1, 0, 0, 7], [0, 0, 0, 0, 7.0]])
    moves = CartPole(limit=8).step(states, np.array([1, 0, 1, 1]))
    assert moves.terminated.tolist() == [True, True, True, False]
    assert moves.truncated.tolist() == [True] * 4  # at the limit, whether it falls or not
    assert not CartPole(limit=9).step(states, np.array([1, 0, 1, 1])).truncated.any()


def test_step_before_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        Environment(CartPole()).step(0)


# ------------------------------------------------------------------ the grid
def test_gridworld_walks_pays_and_ends() -> None:
    grid = GridWorld(2, 3, cost=0.25, limit=4)
    _, first = grid.reset(np.arange(5))
    assert first.argmax(1).tolist() == [0, 1, 2, 3, 4]  # never the goal, the last cell
    states = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 3], [1, 1, 3]])
    moves = grid.step(states, np.array([0, 1, 2, 3, 1]))
    assert moves.observations.argmax(1).tolist() == [0, 1, 3, 0, 5]
    assert moves.rewards.tolist() == [-0.25, -0.25, -0.25, -0.25, 0.75]
    assert moves.terminated.tolist() == [False] * 4 + [True]
    assert moves.truncated.tolist() == [False] * 3 + [True, True]


# ------------------------------------------------------------------ lanes and counters
@pytest.mark.parametrize("lanes", [CartPole(), GridWorld(3, 3, 0.1, 20)], ids=["cartpole", "gridworld"])
def test_a_lane_does_not_depend_on_the_others(lanes: Lanes) -> None:
    seeds, rng = np.arange(7) * 13, np.random.default_rng(1)
    states, observations = lanes.reset(seeds)
    alone = [Environment(lanes) for _ in seeds]
    for lane, environment in enumerate(alone):
        assert (environment.reset(int(seeds[lane]))[0] == observations[lane]).all()
    for _ in range(12):
        actions, before = rng.integers(0, len(lanes.action_names), len(seeds)), states.copy()
        moves = lanes.step(states, actions)
        assert (states == before).all(), "a state is a value"
        for lane, environment in enumerate(alone):
            seen, reward, terminated, truncated, _ = environment.step(int(actions[lane]))
            assert (seen == moves.observations[lane]).all() and reward == moves.rewards[lane]
            assert (terminated, truncated) == (moves.terminated[lane], moves.truncated[lane])
        states = moves.states


def test_play_keeps_every_step_of_every_episode() -> None:
    grid = GridWorld(3, 3, 0.0, 6)
    paths = {0: [1, 1, 2, 2], 4: [0, 0, 0, 0, 0, 0]}  # to the goal; against the border until the limit
    played = play(
        grid, lambda seen, playing, step: np.array([[*paths.values()][p][step] for p in playing]), np.array([0, 4])
    )
    assert played.real.sum(0).tolist() == played.lengths.tolist() == [4, 6]
    assert played.returns.tolist() == [1.0, 0.0] and played.truncated.tolist() == [False, True]
    assert played.actions[:4, 0].tolist() == paths[0] and played.actions[4:, 0].tolist() == [0, 0]
    assert played.observations[:4, 0].argmax(1).tolist() == [0, 1, 2, 5]
    assert not played.observations[4:, 0].any()


def test_random_numbers_depend_on_the_seed_the_position_and_the_lane_alone() -> None:
    lanes = np.array([0, 1, 5])
    whole = uniforms(3, 8, np.arange(6), 40)
    assert (uniforms(3, 8, lanes, 40) == whole[lanes]).all() and (uniforms(3, 8, lanes, 9) == whole[lanes, :9]).all()
    assert whole.min() >= 0 and whole.max() < 1 and abs(whole.mean() - 0.5) < 0.06
    assert len(np.unique([whole, uniforms(3, 9, np.arange(6), 40), uniforms(4, 8, np.arange(6), 40)])) == 720
    seeds = [episode_seeds(s, lanes, np.full(3, e), split) for s in (0, 1) for e in range(9) for split in range(3)]
    assert len(np.unique(seeds)) == 2 * 9 * 3 * 3 and np.min(seeds) >= 0 and np.max(seeds) < 2**31


def test_splits_have_other_episodes() -> None:
    data = CartPoleConfig(valid=30, test=40)
    valid, test = (Episodes(data, split, data.episodes(split)).seeds for split in ("valid", "test"))
    assert (len(valid), len(test)) == (30, 40) and not {*valid.tolist()} & {*test.tolist()}
    assert Episodes(data, "valid", 30).sha256 != Episodes(data, "test", 30).sha256


def test_batches_share_lanes_among_processes() -> None:
    batches = LaneBatches(6, 30)
    parts = [batches.at(4, part, 4) for part in range(4)]
    assert [part.indices.tolist() for part in parts] == [[0, 4], [1, 5], [2], [3]]
    assert sum(part.tokens for part in parts) == batches.at(4).tokens == batches.tokens(4) == 30
    assert all(part.position == 4 for part in parts) and batches.epoch_of(10**9) == 0


def test_spec_is_read_as_it_was_written() -> None:
    for config in (CartPoleConfig(limit=7), GridWorldConfig(rows=2, columns=2)):
        spec = Episodes(config, "train", 1).spec
        assert EnvironmentSpec.parse(spec.json, "environment.json") == spec
        assert spec.vocab == len(spec.actions)
    with pytest.raises(UserError, match="not JSON"):
        EnvironmentSpec.parse("{", "environment.json")
    with pytest.raises(UserError, match=r"[23] problems"):
        EnvironmentSpec.parse("{}", "environment.json")


# ------------------------------------------------------------------ Gymnasium, in the form of a few classes
class Discrete:
    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start


class Box:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Walk:
    """A walk with random steps: 6 to the right in all ends it; observed as two numbers."""

    spec = SimpleNamespace(max_episode_steps=20)
    observation_space: Any = Box((2,))
    action_space: Any = Discrete(3, start=1)
    made = 0

    def reset(self, *, seed: int) -> tuple[Any, dict[str, object]]:
        self.rng, self.place, self.steps = np.random.default_rng(seed), 0, 0
        return self.seen(), {}

    def step(self, action: int) -> Any:
        assert 1 <= action <= 3
        self.steps += 1
        self.place += action - 2 + int(self.rng.integers(0, 2))
        return self.seen(), float(self.place), self.place >= 6, self.steps >= self.spec.max_episode_steps, {}

    def seen(self) -> Any:
        return np.array([self.place, self.steps])


@pytest.fixture
def gymnasium(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    """A module with Gymnasium's names, and the environments that it knows."""
    known: dict[str, Callable[..., Any]] = {"Walk-v0": Walk}
    module: Any = ModuleType("gymnasium")

    def make(name: str, **options: Any) -> Any:
        if name not in known:
            raise KeyError(f"Environment `{name}` doesn't exist.")
        limit, environment = options.pop("max_episode_steps", None), known[name](**options)
        if limit is not None:
            environment.spec = SimpleNamespace(max_episode_steps=limit)
        return environment

    module.make, module.spaces = make, SimpleNamespace(Discrete=Discrete, Box=Box)
    monkeypatch.setitem(sys.modules, "gymnasium", module)
    return known


@pytest.mark.usefixtures("gymnasium")
def test_gymnasium_environment_continues_in_a_new_process() -> None:
    config, rng = GymnasiumConfig(name="Walk-v0"), np.random.default_rng(2)
    lanes, seeds = config.lanes(), np.array([4, 4, 9])  # two lanes in the same episode
    states, _ = lanes.reset(seeds)
    for step in range(12):
        actions = rng.integers(0, 3, 3)
        moves = lanes.step(states, actions)
        again = config.lanes().step(states, actions)  # environments that never saw these episodes
        for mine, other in zip(moves, again, strict=True):
            assert (mine == other).all(), step
        ended = moves.terminated | moves.truncated
        states = moves.states.copy()
        if ended.any():
            states[ended] = lanes.reset(seeds[ended] + step)[0]
    assert lanes.action_names == ("action 0", "action 1", "action 2") and len(lanes.observation_names) == 2


@pytest.mark.usefixtures("gymnasium")
def test_gymnasium_limit_is_that_of_the_recipe_or_as_registered() -> None:
    for limit, expected in ((None, 20), (5, 5)):
        lanes = GymnasiumConfig(name="Walk-v0", limit=limit).lanes()
        states, _ = lanes.reset(np.array([3]))
        for step in range(expected):
            moves = lanes.step(states, np.array([0]))
            assert moves.truncated[0] == (step == expected - 1)
            states = moves.states


def test_observation_of_one_of_several_is_one_hot(gymnasium: dict[str, Callable[..., Any]]) -> None:
    class Cells(Walk):
        observation_space = Discrete(9, start=2)

        def seen(self) -> Any:
            return 2 + self.steps

    gymnasium["Cells"] = Cells
    lanes = GymnasiumConfig(name="Cells").lanes()
    states, first = lanes.reset(np.array([0]))
    assert first.tolist() == [[1.0] + [0.0] * 8]
    assert lanes.step(states, np.array([0])).observations.argmax() == 1


def broken(**changes: Any) -> type[Walk]:
    return type("Broken", (Walk,), changes)


def raising(*_: Any, **__: Any) -> Any:
    raise ValueError("the motor is off")


BROKEN: dict[str, tuple[type[Walk], str, str]] = {
    "continuous": (broken(action_space=Box((1,))), "agents choose one of several actions", "Discrete"),
    "dict": (broken(observation_space=SimpleNamespace()), "agents observe numbers", "Box"),
    "endless": (broken(spec=None), "may never end", "data.limit"),
    "nan reward": (broken(step=lambda s, a: (s.seen(), math.nan, False, False, {})), "invalid reward", "finite"),
    "text reward": (broken(step=lambda s, a: (s.seen(), "much", False, False, {})), "invalid reward", "number"),
    "nan seen": (broken(seen=lambda s: [math.nan, 0]), "invalid observation", "finite"),
    "more seen": (broken(seen=lambda s: [1, 2, 3]), "invalid observation", "3 numbers"),
    "text seen": (broken(seen=lambda s: "fog"), "invalid observation", "2 numbers"),
    "old step": (broken(step=lambda s, a: (s.seen(), 1.0, False, {})), "invalid result of step", "truncated"),
    "raises": (broken(step=raising), "failed in step", "ValueError: the motor is off"),
    "raises first": (broken(reset=raising), "failed in reset", "the motor is off"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_environment_is_named(name: str, gymnasium: dict[str, Callable[..., Any]]) -> None:
    kind, message, detail = BROKEN[name]
    gymnasium["Broken"] = kind

    def one_step() -> None:
        lanes = GymnasiumConfig(name="Broken").lanes()
        states, _ = lanes.reset(np.array([0]))
        lanes.step(states, np.array([0]))

    with pytest.raises(UserError, match=message) as error:
        one_step()
    assert detail in str(error.value) and "Broken" in str(error.value) and "to do" in str(error.value)
    assert (error.value.exit_code == 3) == name.startswith("nan")


@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize(("resets", "there"), [(2, "starts over, since nothing was saved yet"), (40, "resumes from")])
def test_error_says_whether_the_run_resumes(
    resets: int, there: str, gymnasium: dict[str, Callable[..., Any]], tmp_path: Path
) -> None:
    left = iter(range(resets))

    def reset(self: Walk, seed: int) -> Any:
        if next(left, None) is None:
            raise ValueError("the motor is off")
        return Walk.reset(self, seed=seed)

    gymnasium["Broken"] = broken(reset=reset)
    (tmp_path / "recipe.yaml").write_text(
        "task: {kind: control, lanes: 2, agent: {kind: reinforce}}\ndata: {kind: gymnasium, name: Broken, valid: 2}\n"
        "model: {kind: policy, hidden: [4]}\n"
        "train: {budget: {steps: 50}, evaluate_every: 10, save_every: 5, threads: 1, device: cpu}\n"
    )
    with pytest.raises(UserError, match="failed in reset") as error:
        list(train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run"))
    assert there in str(error.value) and ("last checkpoint" in str(error.value)) == is_saved(tmp_path / "run")


def test_environment_that_does_not_repeat_an_episode_is_refused(gymnasium: dict[str, Callable[..., Any]]) -> None:
    count = iter(range(100))
    gymnasium["Restless"] = broken(seen=lambda s: [next(count), 0])
    lanes = GymnasiumConfig(name="Restless").lanes()
    states, _ = lanes.reset(np.array([0]))
    moves = lanes.step(states, np.array([0]))
    with pytest.raises(UserError, match="did not repeat an episode"):
        GymnasiumConfig(name="Restless").lanes().step(moves.states, np.array([0]))


@pytest.mark.usefixtures("gymnasium")
def test_unknown_environment_is_named() -> None:
    with pytest.raises(UserError, match="cannot make") as error:
        GymnasiumConfig(name="Wakl-v0").problems()
    assert "Wakl-v0" in str(error.value) and "registry" in str(error.value)


def test_gymnasium_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match="not installed") as error:
        GymnasiumConfig(name="Acrobot-v1").lanes()
    assert "pip install 'heedful[gym]'" in str(error.value)
    importlib.invalidate_caches()
