"""Returns, advantages and policy gradients against loops and enumeration; the targets of Q networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.regularizers import entropy
from heedful.data.environments.gridworld import GridWorld
from heedful.data.environments.lanes import Trajectories
from heedful.models import build, config_class
from heedful.tasks.control.actor_critic import Rollout, actor_critic_loss
from heedful.tasks.control.deep_q import Replay, Transitions, deep_q_loss
from heedful.tasks.control.losses import (
    best_values,
    discounted,
    double_values,
    generalized_advantages,
    others_mean,
    policy_loss,
    q_targets,
)
from heedful.tasks.control.recipe import ActorCritic, Reinforce
from heedful.tasks.control.reinforce import reinforce_loss
from tolerance import close

DISCOUNT = 0.9


def policy(critic: bool = False, seed: int = 0) -> Any:
    """A policy for the grid, in float64, with probabilities that differ."""
    torch.manual_seed(seed)
    config = config_class("policy")(observations=4, actions=4, hidden=(5,), critic=(3,) if critic else None)
    model: Any = build(config).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    return model


def episodes(start: int, limit: int = 3) -> Iterator[tuple[list[int], list[int], list[float], bool]]:
    """Every episode from a cell: cells, actions, rewards, and whether it was truncated."""
    grid = GridWorld(2, 2, cost=0.1, limit=limit)

    def walk(state: Any, cells: list[int], actions: list[int], rewards: list[float]) -> Any:
        for action in range(4):
            moves = grid.step(state, np.array([action]))
            here = int(state[0, 0] * 2 + state[0, 1])
            path = [*cells, here], [*actions, action], [*rewards, float(moves.rewards[0])]
            if moves.terminated[0] or moves.truncated[0]:
                yield *path, not moves.terminated[0]
            else:
                yield from walk(moves.states, *path)

    yield from walk(grid.reset(np.array([start]))[0], [], [], [])


def together(some: list[tuple[list[int], list[int], list[float], bool]]) -> Trajectories:
    """Episodes as `play` returns them."""
    longest = max(len(cells) for cells, *_ in some)
    found = Trajectories(
        np.zeros((longest, len(some), 4)), np.zeros((longest, len(some)), np.int64),  # type: ignore[arg-type]
        np.zeros((longest, len(some))), np.zeros((longest, len(some)), bool), np.array([cut for *_, cut in some]),
    )  # fmt: skip
    for lane, (cells, actions, rewards, _) in enumerate(some):
        size = len(cells)
        found.observations[:size, lane] = np.eye(4)[cells]
        found.actions[:size, lane], found.rewards[:size, lane], found.real[:size, lane] = actions, rewards, True
    return found


def probability(model: Any, cells: list[int], actions: list[int]) -> Tensor:
    """The probability of an episode's actions."""
    logs = model(torch.eye(4, dtype=torch.double)[cells]).log_softmax(-1)
    return logs[range(len(cells)), actions].sum().exp()


def gradient(value: Tensor, model: Any) -> Tensor:
    """The gradient of a value with respect to the weights of the policy, not of the critic."""
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, [*model.actor.parameters()])])


def enumerated(model: Any, start: int, limit: int = 3) -> Tensor:
    """The gradient of the expected discounted return, the sum over all episodes of probability times return."""
    expected = torch.zeros((), dtype=torch.double)
    for cells, actions, rewards, _ in episodes(start, limit):
        total = sum(DISCOUNT**step * reward for step, reward in enumerate(rewards))
        expected = expected + probability(model, cells, actions) * total
    return gradient(expected, model)


# ------------------------------------------------------------------ discounting
@pytest.mark.claim("M15")
def test_discounting_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    lengths = [7, 1, 4]
    rewards = np.zeros((7, 3))
    for lane, length in enumerate(lengths):
        rewards[:length, lane] = rng.normal(size=length)
    found = discounted(rewards, DISCOUNT)
    for lane, length in enumerate(lengths):
        for step in range(length):
            wanted = sum(DISCOUNT ** (later - step) * rewards[later, lane] for later in range(step, length))
            close(found[step, lane], wanted)
        assert not found[length:, lane].any()
    assert discounted(rewards, 0.0).tolist() == rewards.tolist()
    close(discounted(rewards, 1.0)[0], rewards.sum(0))


# ------------------------------------------------------------------ the policy gradient
@pytest.mark.claim("M15")
@pytest.mark.parametrize("start", range(3))
@pytest.mark.parametrize("baseline", ["none", "value"])
def test_policy_gradient_equals_enumeration(baseline: Any, start: int) -> None:
    model = policy(critic=baseline == "value")
    settings = Reinforce(baseline=baseline, discount_states=True)
    each, chances = [], []
    for one in episodes(start):
        chance = probability(model, *one[:2]).detach()
        loss = reinforce_loss(model, together([one]), settings, DISCOUNT)
        each.append(-gradient(loss.total, model) * chance)
        chances.append(chance)
    close(sum(chances), 1.0, dtype=torch.double)
    assert len(each) > 30
    expected = torch.stack(each).sum(0)
    close(expected, enumerated(model, start))
    assert expected.abs().max() > 1e-3


@pytest.mark.claim("M15")
def test_mean_of_the_other_episodes_leaves_the_gradient_unbiased() -> None:
    model, start = policy(), 1
    mean = Reinforce(baseline="mean", discount_states=True)
    none = mean.model_copy(update={"baseline": "none"})
    pairs = [*itertools.product(episodes(start, 2), repeat=2)]
    chances = [float((probability(model, *a[:2]) * probability(model, *b[:2])).detach()) for a, b in pairs]
    spreads = []
    for settings in (mean, none):
        found = [-gradient(reinforce_loss(model, together([*pair]), settings, DISCOUNT).total, model) for pair in pairs]
        expected = sum(chance * each / 2 for chance, each in zip(chances, found, strict=True))
        close(expected, enumerated(model, start, 2))
        spreads.append(sum(c * float((x / 2 - expected).square().sum()) for c, x in zip(chances, found, strict=True)))
    assert spreads[0] != pytest.approx(spreads[1], rel=0.01), "the baseline was not used"


def test_baseline_that_knew_the_episode_itself_would_be_biased() -> None:
    """What `others_mean` avoids: the mean with the episode's own return halves the gradient of two episodes."""
    model, start = policy(), 1
    expected = 0.0 * enumerated(model, start, 2)
    for one, other in itertools.product(episodes(start, 2), repeat=2):
        played = together([one, other])
        chance = probability(model, *one[:2]) * probability(model, *other[:2])
        returns = discounted(played.rewards, DISCOUNT)
        own = (returns * played.real).sum(1, keepdims=True) / played.real.sum(1, keepdims=True)
        times = DISCOUNT ** np.arange(len(returns))[:, None]
        weights = torch.from_numpy(((returns - own) * times)[played.real])
        logits = model(torch.from_numpy(played.observations[played.real]))
        loss = policy_loss(logits, torch.from_numpy(played.actions[played.real]), weights)
        expected += -gradient(loss, model) * chance.detach() / 2
    assert (expected - enumerated(model, start, 2)).abs().max() > 1e-3


def test_mean_of_others_equals_a_loop() -> None:
    rng = np.random.default_rng(1)
    real = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 0]], bool)
    returns = rng.normal(size=(3, 3)) * real
    found = others_mean(returns, real)
    for step, lane in itertools.product(range(3), repeat=2):
        others = [returns[step, k] for k in range(3) if k != lane and real[step, k]]
        close(found[step, lane], sum(others) / len(others) if others else 0.0)


def test_entropy_and_its_gradient() -> None:
    logits = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    close(entropy(logits), torch.distributions.Categorical(logits=logits).entropy())
    close(entropy(torch.zeros(1, 4)), torch.tensor([4.0]).log())
    model, one = policy(), next(episodes(0))
    free, random = (
        reinforce_loss(model, together([one]), Reinforce(baseline="none", entropy=weight), 1.0).total
        for weight in (0.0, 0.5)
    )
    close(free - random, 0.5 * entropy(model(torch.eye(4, dtype=torch.double)[one[0]])).sum())


def test_losses_count_episodes_and_report_the_squared_error() -> None:
    model = policy(critic=True)
    some = [*episodes(0)][3:40:9]
    found = reinforce_loss(model, together(some), Reinforce(baseline="value", value_weight=0.25), DISCOUNT)
    assert int(found.count) == len(some)
    plain, total = 0.0, 0.0
    for cells, actions, rewards, _ in some:
        seen = torch.eye(4, dtype=torch.double)[cells]
        returns = torch.from_numpy(discounted(np.array(rewards)[:, None], DISCOUNT)[:, 0])
        errors = returns - model.value(seen)
        logs = model(seen).log_softmax(-1)[range(len(cells)), actions]
        plain += errors.square().mean()
        total += 0.25 * errors.square().sum() - (errors.detach() * logs).sum()
    close(found.plain, plain)
    close(found.total, total)
    assert not found.plain.requires_grad


# ------------------------------------------------------------------ actor-critic
def test_generalized_advantages_equal_the_sum_of_their_definition() -> None:
    rng = np.random.default_rng(2)
    rewards, values, following = rng.normal(size=(3, 6, 4))
    terminated = rng.random((6, 4)) < 0.2
    ended = terminated | (rng.random((6, 4)) < 0.2)
    assert (ended & ~terminated).any() and terminated.any()
    found = generalized_advantages(rewards, values, following, terminated, ended, DISCOUNT, 0.7)
    for step, lane in itertools.product(range(6), range(4)):
        total, weight = 0.0, 1.0
        for later in range(step, 6):
            after = 0.0 if terminated[later, lane] else following[later, lane]
            total += weight * (rewards[later, lane] + DISCOUNT * after - values[later, lane])
            weight *= DISCOUNT * 0.7
            if ended[later, lane]:
                break
        close(found[step, lane], total)


@pytest.mark.parametrize("trace", [0.0, 0.5, 1.0])
def test_truncated_episode_goes_on_for_its_value_and_a_terminated_one_does_not(trace: float) -> None:
    model = policy(critic=True)
    for terminated, truncated in ((True, False), (False, True), (False, False)):
        rollout = Rollout(
            np.eye(4)[[0]][:, None], np.array([[2]]), np.array([[0.5]]), np.eye(4)[[1]][:, None],
            np.array([[terminated]]), np.array([[terminated or truncated]]),
        )  # fmt: skip
        found = actor_critic_loss(model, rollout, ActorCritic(trace=trace, entropy=0.0, value_weight=2.0), DISCOUNT)
        here, there = model.value(torch.eye(4, dtype=torch.double)[:2])
        target = 0.5 + DISCOUNT * there.detach() * (not terminated)
        log = model(torch.eye(4, dtype=torch.double)[:1]).log_softmax(-1)[0, 2]
        close(found.total, 2 * (target - here) ** 2 - (target - here.detach()) * log)
        close(found.plain, (target - here) ** 2)


# ------------------------------------------------------------------ Q networks
def q_network() -> Any:
    torch.manual_seed(3)
    model: Any = build(config_class("q_network")(observations=4, actions=3, hidden=(6,))).double()
    with torch.no_grad():
        for weight in model.target.parameters():  # another network than the one that learns
            weight.copy_(torch.randn_like(weight))
    return model


def transitions(count: int) -> Transitions:
    given = torch.Generator().manual_seed(5)
    seen, following = (torch.randn(count, 4, dtype=torch.double, generator=given) for _ in range(2))
    rewards = torch.randn(count, dtype=torch.double, generator=given)
    actions = torch.randint(0, 3, (count,), generator=given)
    discounts = DISCOUNT * (torch.rand(count, dtype=torch.double, generator=given) < 0.7)  # 0: nothing follows
    return Transitions(seen, actions, rewards, following, discounts)


@pytest.mark.claim("M12")
@pytest.mark.parametrize("kind", ["best", "double"])
def test_q_loss_equals_a_loop(kind: str) -> None:
    model, some = q_network(), transitions(40)
    found = deep_q_loss(model, some, kind)
    total = plain = 0.0
    for seen, action, reward, following, discount in zip(*some, strict=True):
        judged = model.target_values(following[None])[0]
        best = judged[model(following[None])[0].argmax()] if kind == "double" else judged.max()
        target = float(reward + discount * best)
        error = float(model(seen[None])[0, action]) - target
        total += 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
        plain += error**2
    close(found.total, total)
    close(found.plain, plain)
    found.total.backward()
    assert all(weight.grad is None for weight in model.target.parameters())
    assert all(weight.grad is not None and weight.grad.any() for weight in model.online.parameters())


def test_two_kinds_of_targets_differ_where_the_networks_disagree() -> None:
    judged, online = torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[0.0, 1.0, 3.0]])
    assert best_values(judged).tolist() == [5.0] and double_values(judged, online).tolist() == [2.0]
    rewards, discounts = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])
    assert q_targets(rewards, discounts, torch.tensor([4.0, 4.0])).tolist() == [3.0, 1.0]


def test_target_network_is_a_copy_until_it_is_updated() -> None:
    model = q_network()
    seen = torch.randn(3, 4, dtype=torch.double)
    assert not torch.equal(model(seen), model.target_values(seen))
    model.update_target()
    assert torch.equal(model(seen), model.target_values(seen))
    with torch.no_grad():
        model.online.last.bias.add_(1)
    assert not torch.equal(model(seen), model.target_values(seen))


# ------------------------------------------------------------------ the replay buffer
def test_replay_keeps_the_newest_steps_of_each_lane() -> None:
    replay = Replay.empty(2, 3, 1)
    for step in range(5):
        values = np.array([step, 10 + step])
        replay.write(
            step, values[:, None], values % 3, values / 10, values[:, None] + 1, values % 2 == 1, values % 2 == 1
        )
        assert torch.equal(replay.kept.observations[:, step % 3, 0], torch.tensor(values).float())
    kept = replay.kept
    assert sorted(kept.observations[0, :, 0].tolist()) == [2, 3, 4] and kept.observations[1].min() == 12
    some = replay.sample(np.linspace(0, 0.999, 8).reshape(2, 4), 5, 1, DISCOUNT)
    assert torch.equal(some.following, some.observations + 1)
    seen = some.observations.flatten().tolist()
    assert max(seen[:4]) < 10 <= min(seen[4:])  # as many of each lane
    assert some.actions.tolist() == [int(value) % 3 for value in seen]
    close(some.discounts, torch.tensor([0.0 if value % 2 else DISCOUNT for value in seen]))
    close(some.rewards, torch.tensor(seen) / 10)
    early = Replay.empty(1, 4, 1)
    early.write(0, np.array([[7.0]]), 1, 0.5, np.array([[8.0]]), False, False)
    assert early.sample(np.array([[0.0, 0.99]]), 1, 1, DISCOUNT).observations.flatten().tolist() == [7, 7]


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_returns_of_several_steps_equal_a_loop(steps: int) -> None:
    """Sums end where an episode ends, terminated or only truncated, and at the newest step; the ring has turned."""
    rng, size, count = np.random.default_rng(4), 12, 29
    rewards = rng.normal(size=(2, count)).astype(np.float32)
    terminated = rng.random((2, count)) < 0.15
    ended = terminated | (rng.random((2, count)) < 0.15)
    replay = Replay.empty(2, size, 1)
    for t in range(count):
        here = np.full((2, 1), float(t))
        replay.write(t, here, t, rewards[:, t], here + 0.5, terminated[:, t], ended[:, t])
    random = np.tile((np.arange(size) + 0.5) / size, (2, 1))  # every step that is kept
    found = replay.sample(random, count, steps, DISCOUNT)
    for row, (lane, t) in enumerate(itertools.product(range(2), range(count - size, count))):
        total, last = 0.0, t
        for k in range(steps):
            last, total = t + k, total + DISCOUNT**k * float(rewards[lane, t + k])
            if ended[lane, last] or last == count - 1:
                break
        assert found.observations[row] == t and found.actions[row] == t and found.following[row] == last + 0.5
        close(found.rewards[row], torch.tensor(total), dtype=torch.float)
        follows = 0.0 if terminated[lane, last] else DISCOUNT ** (last - t + 1)
        close(found.discounts[row], torch.tensor(follows), dtype=torch.float)
    assert (found.discounts == 0).any() and ended.sum() > terminated.sum()
