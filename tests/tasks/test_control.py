"""Agents: whole runs that resume exactly, what they learn, and what is refused."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import heedful
from data.test_environments import Box, Discrete, Walk
from heedful.data.environments.cartpole import CartPole
from heedful.data.environments.lanes import episode_seeds
from heedful.errors import UserError
from heedful.runs.evaluate import results, scored
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Started, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.tasks.control.playing import Players, Playing
from heedful.tasks.control.predictor import Agent
from heedful.training.checkpoint.folder import newest
from heedful.training.loop import Step

SMALL = [
    "train.budget.steps=12", "train.evaluate_every=6", "train.save_every=4", "train.log_every=1", "train.device=cpu",
    "train.samples=2", "data.valid=3", "data.test=4", "task.lanes=4",
]  # fmt: skip
GRID = "data={kind: gridworld, rows: 2, columns: 3, limit: 9, valid: 3, test: 4}"
AGENTS = {
    "reinforce": ("cartpole-policy", ["model.hidden=[8]"]),
    "critic": ("cartpole-policy", ["model={hidden: [8], critic: [8]}", "task.agent.baseline=value", GRID]),
    "actor_critic": ("cartpole-actor-critic", ["model={hidden: [8], critic: [8]}", "task.agent.steps=5"]),
    "dqn": (
        "cartpole-dqn",
        [
            "model.hidden=[8]",
            "task.agent={kind: dqn, batch: 12, buffer: 60, warmup: 20, target_every: 5, epsilon_steps: 6}",
        ],
    ),
}


def recipe_of(agent: str, *overrides: str) -> Any:
    name, own = AGENTS[agent]
    return load_recipe(name, [*SMALL, *own, *overrides])


def stopped(recipe: Any, run: Path, after: int) -> None:
    """Train for a few steps, as if the process were then killed after its last checkpoint."""
    seen = itertools.count()
    list(train(recipe, run, stop=lambda: next(seen) >= after))


@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize("agent", AGENTS)
def test_resumed_run_equals_an_uninterrupted_one(agent: str, tmp_path: Path) -> None:
    recipe = recipe_of(agent)
    events = list(train(recipe, tmp_path / "whole"))
    for after in (3, 2):
        stopped(recipe, tmp_path / "broken", after)
    again = list(train(recipe, tmp_path / "broken"))
    assert next(event.step for event in again if isinstance(event, Started)) == 5
    kept = ["model/model.safetensors", "environment.json"]
    folder = "checkpoints/step-00000012"
    kept += [
        f"{folder}/{path.name}" for path in (tmp_path / "whole" / folder).iterdir() if path.suffix == ".safetensors"
    ]
    assert (f"{folder}/carry.safetensors" in kept) == (agent in ("actor_critic", "dqn"))
    for file in kept:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes(), file
    assert results(tmp_path / "whole") == results(tmp_path / "broken")
    losses, later = ([event.loss for event in some if isinstance(event, Step)] for some in (events, again))
    assert losses[-len(later) :] == later and len(set(losses)) > 6


@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize("agent", ["reinforce", "dqn"])
def test_a_step_is_a_function_of_the_checkpoint(agent: str, tmp_path: Path) -> None:
    """The same run twice; another seed plays other episodes."""
    losses = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        events = train(recipe_of(agent, f"train.seed={seed}"), tmp_path / name)
        losses.append([event.loss for event in events if isinstance(event, Step)])
    assert losses[0] == losses[1] != losses[2]


def test_lanes_begin_a_new_episode_after_each() -> None:
    """Each lane goes through its own episodes in order, and remembers the return and the length of the last."""
    lanes, numbers = CartPole(), np.array([0, 3])
    players = Players(lanes, Playing.begin(lanes, 2, seed=5), np.arange(2), seed=5)
    assert (players.observations == lanes.reset(episode_seeds(5, np.arange(2), np.zeros(2, np.int64)))[1]).all()
    players.numbers = numbers
    lengths: list[list[int]] = [[], []]
    for _ in range(60):
        moves, ended = players.step(np.array([1, 0]))
        assert (ended == (moves.terminated | moves.truncated)).all()
        for lane in np.flatnonzero(ended):
            lengths[lane].append(int(players.last_lengths[lane]))
            assert players.last_returns[lane] == lengths[lane][-1] and players.returns[lane] == 0
            seed = episode_seeds(5, numbers[lane : lane + 1], np.array([len(lengths[lane])]))
            assert (players.observations[lane] == lanes.reset(seed)[1][0]).all()
        still = ~ended
        assert (players.observations[still] == moves.observations[still]).all()
    assert all(len(some) > 3 and min(some) >= 8 and max(some) < 13 for some in lengths)
    assert players.episodes.tolist() == [len(some) for some in lengths]


# ------------------------------------------------------------------ learning
GRID_LEARNS = [
    "data={kind: gridworld, rows: 3, columns: 3, cost: 0.02, limit: 20, valid: 20, test: 30}", "task.lanes=8",
    "train.evaluate_every=100000", "train.save_every=100000", "train.samples=3", "task.discount=0.95",
]  # fmt: skip
LEARNS = {
    "reinforce": ("cartpole-policy", ["model.hidden=[24]", "train.budget.steps=60", "train.optimizer.lr=0.02"]),
    "actor_critic": (
        "cartpole-actor-critic",
        [
            "model={hidden: [24], critic: [24]}", "train.budget.steps=120", "train.optimizer.lr=0.01",
            "task.agent.steps=8",
        ],
    ),
    "dqn": (
        "cartpole-dqn",
        [
            "model.hidden=[24]", "train.budget.steps=300", "train.optimizer.lr=0.01",
            "task.agent={kind: dqn, batch: 64, buffer: 2000, warmup: 400, epsilon_steps: 100, target_every: 10}",
        ],
    ),
}  # fmt: skip


@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.claim("M12")
@pytest.mark.claim("M19")
@pytest.mark.parametrize("agent", LEARNS)
def test_agent_finds_the_shortest_paths(agent: str, tmp_path: Path) -> None:
    name, settings = LEARNS[agent]
    events = list(train(load_recipe(name, [*settings, *GRID_LEARNS]), tmp_path / "run"))
    found = load(tmp_path / "run")
    assert isinstance(found, Agent)
    for row, column in itertools.product(range(3), range(3)):
        cell = 3 * row + column
        if cell < 8:
            (episode,) = found.play(seeds=[cell])  # begins in this cell
            shortest = 4 - row - column
            assert (len(episode.actions), episode.ending) == (shortest, "terminated")
            assert episode.total == pytest.approx(1 - 0.02 * shortest)
    (test,) = [event for event in events if isinstance(event, Evaluated) and event.split == "test"]
    scores = {score.name: score.value for score in test.scores}
    assert scores["return"] == pytest.approx(1 - 0.02 * scores["length"]) and scores["length"] < 4
    assert len(test.samples) == 3 and all(ending == "terminated" for _, ending, _ in test.samples)
    assert test == scored(found, read_recipe(tmp_path / "run"), "test", test.step)


@pytest.mark.slow
@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.claim("M12")
@pytest.mark.claim("M19")
@pytest.mark.parametrize(
    ("name", "least"), [("cartpole-policy", 475), ("cartpole-actor-critic", 475), ("cartpole-dqn", 475)]
)
def test_cartpole_is_balanced(name: str, least: float, tmp_path: Path) -> None:
    """A mean return of 475 of 500 in 100 episodes is what Gymnasium calls solved."""
    events = train(load_recipe(name), tmp_path / "run")
    (test,) = [event for event in events if isinstance(event, Evaluated) and event.split == "test"]
    assert test.scores[0].value >= least and "episodes:100" in test.scores[0].signature


# ------------------------------------------------------------------ evaluation
@pytest.mark.usefixtures("no_loss_curve")
def test_evaluation_reports_how_training_stands(tmp_path: Path) -> None:
    recipe = recipe_of("dqn")
    seen = [event for event in train(recipe, tmp_path / "run") if isinstance(event, Evaluated)]
    valid, last, test = seen
    names = [[score.name for score in event.scores] for event in seen]
    assert names[0] == names[1] == ["return", "length", "training_return", "training_length", "epsilon"]
    assert names[2] == ["return", "length"]
    agent = recipe.task.agent
    assert (agent.first_epsilon, agent.last_epsilon, agent.epsilon_steps) == (1.0, 0.05, 6)
    assert valid.scores[4].value == agent.epsilon(5) == pytest.approx(1 - 0.95 * 5 / 6) and last.scores[
        4
    ].value == agent.epsilon(99)
    played = load(tmp_path / "run", Agent).play(seeds=task_seeds(recipe, "test"))
    assert test.scores[0].value == np.mean([episode.total for episode in played])
    returns = [sum(0.99**step for step in range(len(episode.actions))) for episode in played]
    expected = [(total - episode.values[0]) ** 2 for total, episode in zip(returns, played, strict=True)]  # type: ignore[index]
    assert test.loss == pytest.approx(np.mean(expected), rel=1e-5)


def task_seeds(recipe: Any, split: Any) -> list[int]:
    seeds: list[int] = task_of(recipe).read(split).seeds.tolist()
    return seeds


def test_epsilon_falls_linearly() -> None:
    agent = recipe_of("dqn").task.agent.model_copy(update={"epsilon_steps": 10})
    assert [agent.epsilon(step) for step in (0, 5, 10, 99)] == pytest.approx([1.0, 0.525, 0.05, 0.05])


# ------------------------------------------------------------------ the predictor
@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A policy, a policy with a critic, and a Q network."""
    folder = tmp_path_factory.mktemp("agents")
    for agent in ("reinforce", "critic", "dqn"):
        list(train(recipe_of(agent, "train.budget.steps=2"), folder / agent))
    return {agent: folder / agent for agent in ("reinforce", "critic", "dqn")}


def test_agent_plays_and_predicts(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, path in runs.items():
        agent = heedful.load(path, heedful.Agent)
        one, other = agent.play(2, seed=5)
        again = agent.play(1, seed=6)[0]
        assert (again.actions == other.actions).all() and again.seed == 6
        assert one.total == one.rewards.sum() and len(one.actions) == len(one.observations) == len(one.scores)
        best = agent.predict([*one.observations])
        assert [action.number for action in best] == one.actions.tolist() == one.scores.argmax(1).tolist()
        assert best[0].name == agent.environment.actions[best[0].number]
        for action, row in zip(best, one.scores, strict=True):
            assert [*action.scores.values()] == pytest.approx(row.tolist())
        if name == "dqn":
            assert one.scored_by == "expected return" and (one.values == one.scores.max(1)).all()
        else:
            assert one.scored_by == "probability" and one.scores.sum(1) == pytest.approx(1.0)
            assert (one.values is None) == (name == "reinforce")
        agent.save(tmp_path / name)
        copy = heedful.load(tmp_path / name, heedful.Agent)
        assert (copy.play(2, seed=5)[0].scores == one.scores).all()
        found = agent.evaluate([5, 6])
        assert found.scores["return"] == (one.total + other.total) / 2 and found.count == 2
        assert agent.predict([]) == [] and agent.play(0) == []


def test_sampled_actions_follow_the_probabilities(runs: dict[str, Path]) -> None:
    agent = heedful.load(runs["reinforce"], heedful.Agent)
    played = agent.play(300, sample=True)
    chosen = np.concatenate([episode.actions for episode in played])
    expected = np.concatenate([episode.scores for episode in played])
    assert len(chosen) > 3000 and (chosen == expected.argmax(1)).mean() < 0.99
    assert chosen.mean() == pytest.approx(expected[:, 1].mean(), abs=0.03)
    with pytest.raises(UserError, match="no probabilities"):
        heedful.load(runs["dqn"], heedful.Agent).play(sample=True)


@pytest.mark.parametrize("style", ["light", "print"])
def test_episode_is_drawn(runs: dict[str, Path], style: Any) -> None:
    for path in runs.values():
        (episode,) = heedful.load(path, heedful.Agent).play(1)
        seen, scored_by, acted, summed = episode.plot(style).axes
        if len(seen.lines):
            for line, values in zip(seen.lines, episode.observations.T, strict=True):
                assert line.get_ydata() == pytest.approx(values)
            for line, values in zip(scored_by.lines, episode.scores.T, strict=True):
                assert line.get_ydata() == pytest.approx(values)
        assert summed.lines[0].get_ydata()[-1] == pytest.approx(episode.total)
        assert scored_by.get_ylabel() == episode.scored_by and len(acted.images) == 1


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.agent={kind: dqn}"], "dqn trains a model of kind q_network"),
        (["model={kind: q_network, hidden: [4]}"], "reinforce trains a model of kind policy"),
        (["task.agent={kind: actor_critic}"], "this agent needs a critic"),
        (["task.agent.baseline=value"], "this agent needs a critic"),
        (["model.critic=[4]"], "the critic would learn nothing"),
        (["train.budget={epochs: 2}"], "an environment has no epochs"),
        (["train.accumulate=2"], "task.lanes"),
        (["train.compile=true"], "cannot be compiled"),
        (["train.batch_examples=3"], "leave this out"),
        (["data={kind: gridworld, rows: 1, columns: 1}"], "a grid of one cell"),
        (["task.discount=1.5"], "less than or equal to 1"),
        (["model={kind: q_network}", "task.agent={kind: dqn, batch: 30}", "task.lanes=4"], "multiple of the 4 lanes"),
        (["model={kind: q_network}", "task.agent={kind: dqn, buffer: 10}"], "room for the warmup"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("cartpole-policy", overrides)


def test_model_that_does_not_fit_the_environment_is_refused(tmp_path: Path) -> None:
    for name in ("observations", "actions"):
        with pytest.raises(UserError, match="does not fit the environment") as error:
            list(train(recipe_of("reinforce", f"model.{name}=3"), tmp_path / name))
        assert error.value.where == f"model.{name}"


def test_bad_inputs_of_an_agent_are_refused(runs: dict[str, Path]) -> None:
    agent = heedful.load(runs["reinforce"], heedful.Agent)
    for observation in ([1, 2, 3], ["a", "b", "c", "d"], [1, 2, 3, float("nan")]):
        with pytest.raises(UserError, match="these are not observations"):
            agent.predict([observation])
    with pytest.raises(UserError, match="invalid seed"):
        agent.play(seeds=[-1])
    with pytest.raises(UserError, match="not on a file"):
        agent.evaluate("seeds.txt")
    with pytest.raises(UserError, match="an agent has no examples"):
        heedful.train(recipe_of("reinforce"), "run", data=heedful.Dataset([1], [1])).__next__()


@pytest.mark.usefixtures("no_loss_curve")
def test_failing_environment_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN as a reward in the middle of a run: an error that names it, and a run that resumes to the same end."""
    fails = {"from": 100_000}

    class Line(Walk):
        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            fails["from"] -= 1
            return observation, float("nan") if fails["from"] < 0 else reward, *rest

    module: Any = ModuleType("gymnasium")
    module.make, module.spaces = lambda name, **_: Line(), SimpleNamespace(Discrete=Discrete, Box=Box)
    monkeypatch.setitem(sys.modules, "gymnasium", module)
    recipe = recipe_of("actor_critic", "data={kind: gymnasium, name: Line, valid: 2, test: 2}", "train.save_every=2")
    list(train(recipe, tmp_path / "whole"))
    fails["from"] = 100
    with pytest.raises(UserError, match="invalid reward") as error:
        list(train(recipe, tmp_path / "broken"))
    assert error.value.exit_code == 3 and "it resumes from the last checkpoint" in str(error.value)
    reached = newest(tmp_path / "broken", 1)[0][0].step
    assert 0 < reached < 12
    fails["from"] = 100_000
    list(train(recipe, tmp_path / "broken"))
    for file in ("model/model.safetensors", "checkpoints/step-00000012/carry.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes(), file
