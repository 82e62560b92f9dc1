"""The agent view: its episodes are those of the library and of the environment, and the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.environments.cartpole import CartPole
from heedful.data.environments.lanes import Environment
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import agent as view
from heedful.runs.load import read_recipe
from heedful.tasks import task_of
from heedful.tasks.control.predictor import Agent
from tolerance import near

RUNS = Path(__file__).parents[1] / "golden" / "runs"
RUN, Q_NETWORK = RUNS / "control-policy", RUNS / "control-q_network"
FORCED = [[2, 1], [3, 1], [7, 1]]


@pytest.fixture
def explorer() -> Explorer:
    return Explorer([RUN, Q_NETWORK])


def call_view(explorer: Explorer, run: Path = RUN, **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("agent", "episode", {"model": run.name, **settings}))


@pytest.mark.parametrize("run", [RUN, Q_NETWORK])
def test_episode_is_that_of_the_library(explorer: Explorer, run: Path) -> None:
    seeds = task_of(read_recipe(run)).read("test").seeds.tolist()
    words, arrays = call_view(explorer, run)
    (expected,) = Agent.load(run).play(seeds=[seeds[0]])
    assert words["seed"] == seeds[0] and [one["seed"] for one in words["choices"]] == seeds
    assert words["total"] == near(expected.total) and words["steps"] == len(expected.actions)
    assert arrays["actions"].tolist() == expected.actions.tolist()
    assert arrays["observations"] == near(expected.observations) and arrays["scores"] == near(expected.scores)
    assert arrays["values"] == near(expected.values) and arrays["rewards"] == near(expected.rewards.astype(np.float32))
    # The return from each step, by a loop over the rewards.
    sums, following = [], 0.0
    for reward in reversed(expected.rewards.tolist()):
        following = reward + read_recipe(run).task.discount * following
        sums.insert(0, following)
    assert arrays["returns"] == near(np.array(sums, np.float32))
    assert words["grid"] == ([2, 3] if run == Q_NETWORK else None) and words["cart"] == ([0, 2] if run == RUN else None)


def test_other_actions_lead_where_the_environment_says(explorer: Explorer) -> None:
    words, arrays = call_view(explorer, seed=5, forced=FORCED)
    own, own_arrays = call_view(explorer, seed=5)
    assert words["own"] == {name: own[name] for name in ("steps", "total", "ending")}
    assert arrays["own"] == near(own_arrays["observations"])
    environment, model, instead = Environment(CartPole(40)), Agent.load(RUN).model, dict(FORCED)
    seen, _ = environment.reset(seed=5)
    total = 0.0
    for step, row in enumerate(arrays["observations"]):
        assert row == near(seen)
        best = int(model(torch.from_numpy(seen)[None]).argmax())
        action = instead.get(step, best)
        assert arrays["actions"][step] == action
        seen, reward, terminated, truncated, _ = environment.step(action)
        total += reward
    assert terminated or truncated
    assert words["total"] == near(total) and words["ending"] == ("terminated" if terminated else "truncated")
    assert arrays["observations"].shape != own_arrays["observations"].shape


def test_invalid_actions_are_refused(explorer: Explorer) -> None:
    for settings in ({"forced": [[0, 2]]}, {"forced": [[0, 1], [0, 0]]}, {"seed": 2**31}, {"forced": [[1000, 0]]}):
        with pytest.raises(UserError):
            call_view(explorer, **settings)
    with pytest.raises(UserError, match="at least one step"):
        Agent.load(RUN).play(limit=0)


def test_long_episode_is_stopped() -> None:
    (whole,) = Agent.load(Q_NETWORK).play(seeds=[1006924490])
    (part,) = Agent.load(Q_NETWORK).play(seeds=[1006924490], limit=5)
    assert len(whole.actions) == 12 and len(part.actions) == 5 and part.ending == "truncated"
    assert part.actions.tolist() == whole.actions.tolist()[:5]
    assert part.total == near(float(whole.rewards[:5].sum()))


def test_calls_of_a_file(explorer: Explorer) -> None:
    subject = explorer.subject(RUN.name)
    assert "agent" in subject.views
    found = view.calls(subject, {"seed": "7", "forced": "2.1,4.0"})
    assert found[0].settings == {"model": RUN.name, "seed": 7, "forced": [(2, 1), (4, 0)]}
    assert found[1].settings == {"model": RUN.name, "seed": 7} and len(found) == 2 + 4
    with pytest.raises(UserError, match="invalid actions"):
        view.calls(subject, {"forced": "2.x"})


def test_model_folder_without_a_run(tmp_path: Path) -> None:
    Agent.load(RUN).save(tmp_path / "folder")
    words, arrays = unpack(Explorer([tmp_path / "folder"]).answer("agent", "episode", {"model": "folder"}))
    assert words["discount"] is None and "returns" not in arrays and len(words["choices"]) == 4


def test_page_plays_and_takes_other_actions(browse: Callable[..., Any]) -> None:
    browsing = browse(RUN)
    page, explorer = browsing.go("agent"), browsing.explorer

    def compare(step: int, **settings: Any) -> None:
        words, arrays = call_view(explorer, **settings)
        page.get_by_text(f"step {step + 1} of {words['steps']}: ").wait_for()
        page.locator('[data-figure][data-ready="true"]').wait_for()
        scene = page.get_by_test_id("scene")
        assert float(scene.get_attribute("data-angle")) == near(float(arrays["observations"][step, 2]))
        for action, name in enumerate(words["actions"]):
            button = page.get_by_test_id(f"action-{action}")
            assert button.inner_text().split() == [name, f"{100 * arrays['scores'][step, action]:.1f}", "%"]
            assert (button.get_attribute("aria-pressed") == "true") == (arrays["actions"][step] == action)
        value = page.get_by_test_id("observations-angle").get_attribute("data-value")
        assert float(value) == near(float(arrays["observations"][step, 2]))

    compare(call_view(explorer)[0]["steps"] - 1)
    page.get_by_test_id("step-on").click()
    compare(0)
    assert browsing.address["step"] == "0"
    page.get_by_test_id("action-1").click()  # the agent would choose the other
    page.get_by_text("1 action of yours").wait_for()
    compare(0, forced=[[0, 1]])
    page.get_by_test_id("step-on").click()
    page.get_by_test_id("action-1").click()
    page.get_by_text("2 actions of yours").wait_for()
    compare(1, forced=[[0, 1], [1, 1]])
    assert browsing.address["forced"] == "0.1,1.1"
    page.get_by_test_id("own").click()
    page.get_by_test_id("own").wait_for(state="detached")
    compare(1)
    page.get_by_test_id("seed").fill("12")
    page.get_by_test_id("seed").blur()
    page.get_by_test_id("caption").get_by_text("seed 12", exact=True).wait_for()
    compare(call_view(explorer, seed=12)[0]["steps"] - 1, seed=12)
