"""Agents on CartPole: what they reach by seed, and steps a second beside plain torch loops.

    python benchmarks/control.py results --out benchmarks/results/control.json       # 3 recipes, 5 seeds: minutes
    python benchmarks/control.py speed --out benchmarks/results/control-speed.json   # a minute

`results` trains the shipped recipes in processes of their own, on one thread, and records the mean return of the 100
test episodes of the final model, and the seconds, of the clock and of the processor. --recipe and --seed train one of
them; what is in the file stays there.

`speed` compares `heedful.training.loop.fit`, as `heedful train` calls it, with loops as people write them after
CleanRL's dqn.py and a2c: environments of one class instance each, in Gymnasium's form (`steps`), a buffer of NumPy
arrays, torch.optim.Adam. `vectorized` is the same loop with Heedful's environment, whose lanes are one array. All three
take turns in one process, in rounds; a ratio is that of two neighbours in a round, and the median of the rounds counts.
Networks, lanes, batch sizes and the number of updates are the same.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from heedful.data.environments.cartpole import CartPole  # noqa: E402
from heedful.models import build  # noqa: E402
from heedful.runs.recipe import load_recipe  # noqa: E402
from heedful.runs.train import train  # noqa: E402
from heedful.tasks import task_of  # noqa: E402
from heedful.tasks.base import Evaluated  # noqa: E402
from heedful.training.loop import Counters, Step, fit  # noqa: E402

RECIPES = ("cartpole-policy", "cartpole-actor-critic", "cartpole-dqn")
SOLVED = 475.0


# ------------------------------------------------------------------ what is reached
def run_once(name: str, seed: int) -> dict[str, Any]:
    """Train a recipe on one thread; the seconds are of the training, with its evaluations and checkpoints."""
    started, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        events = list(train(load_recipe(name, [f"train.seed={seed}", "train.threads=1"]), Path(folder) / "run"))
    scores = {event.split: event for event in events if isinstance(event, Evaluated)}
    solved = [
        event.step
        for event in events
        if isinstance(event, Evaluated) and event.split == "valid" and event.scores[0].value >= SOLVED
    ]
    return {
        "recipe": name, "seed": seed, "return": scores["test"].scores[0].value,
        "first_solved": min(solved, default=None),
        "steps": scores["valid"].step, "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }  # fmt: skip


def results(out: Path, recipes: list[str], seeds: list[int]) -> None:
    """Add runs to a file, each in a process of its own."""
    known = json.loads(out.read_text())["runs"] if out.exists() else []
    for name in recipes:
        for seed in seeds:
            code = f"import control, json; print(json.dumps(control.run_once({name!r}, {seed})))"
            found = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
            )
            one = json.loads(found.stdout.splitlines()[-1])
            known = [other for other in known if (other["recipe"], other["seed"]) != (name, seed)] + [one]
            known.sort(key=lambda each: (RECIPES.index(each["recipe"]), each["seed"]))
            out.write_text(json.dumps({"torch": torch.__version__, "runs": known}, indent=1) + "\n")
            print(one, flush=True)
    for name in RECIPES:
        some = [one["return"] for one in known if one["recipe"] == name]
        if some:
            print(f"{name}: {min(some):.1f} to {max(some):.1f}, {sum(r >= SOLVED for r in some)} of {len(some)} solved")


# ------------------------------------------------------------------ plain loops
class PlainCartPole:
    """CartPole-v1 as Gymnasium has it: one environment, scalars."""

    def reset(self) -> Any:
        self.state, self.steps = np.random.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action: int) -> Any:
        x, speed, angle, turn = self.state
        force, cosine, sine = (10.0 if action == 1 else -10.0), np.cos(angle), np.sin(angle)
        push = (force + 0.05 * np.square(turn) * sine) / 1.1
        turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * np.square(cosine) / 1.1))
        moving = push - 0.05 * turning * cosine / 1.1
        self.state = np.array([x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning])
        self.steps += 1
        fallen = bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * 2 * math.pi / 360)
        return self.state.astype(np.float32), 1.0, fallen, self.steps >= 500


class OneByOne:
    """Environments in a list, as in Gymnasium's SyncVectorEnv; the observation before a reset is kept."""

    def __init__(self, count: int) -> None:
        self.environments = [PlainCartPole() for _ in range(count)]

    def reset(self) -> Any:
        return np.stack([environment.reset() for environment in self.environments])

    def step(self, actions: Any) -> Any:
        rows = [environment.step(int(action)) for environment, action in zip(self.environments, actions, strict=True)]
        final, rewards, terminated, truncated = (np.array(part) for part in zip(*rows, strict=True))
        observations = final.copy()
        for lane in np.flatnonzero(terminated | truncated):
            observations[lane] = self.environments[lane].reset()
        return observations, final, rewards.astype(np.float32), terminated, truncated


class Vectorized:
    """Heedful's CartPole in the same form: all lanes at once."""

    def __init__(self, count: int) -> None:
        self.lanes, self.count = CartPole(), count

    def reset(self) -> Any:
        self.states, observations = self.lanes.reset(np.random.randint(0, 2**31, self.count))
        return observations

    def step(self, actions: Any) -> Any:
        moves = self.lanes.step(self.states, actions)
        self.states, observations = moves.states, moves.observations
        ended = moves.terminated | moves.truncated
        if ended.any():
            observations = observations.copy()
            self.states[ended], observations[ended] = self.lanes.reset(np.random.randint(0, 2**31, ended.sum()))
        return observations, moves.observations, moves.rewards.astype(np.float32), moves.terminated, moves.truncated


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def plain_dqn(make: Callable[[int], Any], agent: Any, lanes: int, hidden: Any, updates: int) -> float:
    """Seconds of some updates of DQN with one-step returns, after the buffer's warmup."""
    network, target = mlp(4, *hidden, 2), mlp(4, *hidden, 2)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    size, place, full = agent.buffer, 0, 0
    seen, following = np.zeros((2, size, 4), np.float32)
    actions, rewards, dones = np.zeros(size, np.int64), np.zeros(size, np.float32), np.zeros(size, np.float32)
    environments = make(lanes)
    observations = environments.reset()
    started = 0.0
    for update in range(-(agent.warmup // lanes), updates):
        if update == 0:
            started = time.process_time()
        epsilon = max(0.05, 1 - max(0, update) / agent.epsilon_steps)
        with torch.no_grad():
            chosen = network(torch.from_numpy(observations)).argmax(1).numpy()
        random = np.random.rand(lanes) < epsilon
        chosen = np.where(random, np.random.randint(0, 2, lanes), chosen)
        after, final, reward, terminated, _ = environments.step(chosen)
        rows = np.arange(place, place + lanes) % size
        seen[rows], following[rows], actions[rows], rewards[rows] = observations, final, chosen, reward
        dones[rows] = terminated
        place, full, observations = (place + lanes) % size, min(size, full + lanes), after
        if update < 0:
            continue
        some = np.random.randint(0, full, agent.batch)
        x, y, a, r, d = (torch.from_numpy(part[some]) for part in (seen, following, actions, rewards, dones))
        with torch.no_grad():
            best = network(y).argmax(1, keepdim=True)
            wanted = r + 0.99 * target(y).gather(1, best).squeeze(1) * (1 - d)
        loss = F.smooth_l1_loss(network(x).gather(1, a[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        if update % 100 == 99:
            loss.item()  # the line of a log
        if update % agent.target_every == 0:
            target.load_state_dict(network.state_dict())
    return time.process_time() - started


def plain_actor_critic(make: Callable[[int], Any], agent: Any, lanes: int, hidden: Any, updates: int) -> float:
    """Seconds of some updates of advantage actor-critic with generalized advantages."""
    actor, critic = mlp(4, *hidden, 2, activation=nn.Tanh), mlp(4, *hidden, 1, activation=nn.Tanh)
    weights = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(weights, lr=2e-3)
    environments, steps = make(lanes), agent.steps
    observations = torch.from_numpy(environments.reset())
    started = time.process_time()
    for update in range(updates):
        kept = []
        for _ in range(steps):
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=actor(observations))
                action = choice.sample()
            after, final, reward, terminated, truncated = environments.step(action.numpy())
            kept.append((observations, action, *map(torch.from_numpy, (reward, final, terminated, truncated))))
            observations = torch.from_numpy(after)
        seen, actions, rewards, final, terminated, truncated = (torch.stack(part) for part in zip(*kept, strict=True))
        values = critic(seen).squeeze(-1)
        with torch.no_grad():
            later = critic(final).squeeze(-1)
            advantages, last = torch.zeros(steps, lanes), torch.zeros(lanes)
            for t in reversed(range(steps)):
                delta = rewards[t] + 0.99 * later[t] * ~terminated[t] - values[t]
                last = delta + 0.99 * agent.trace * last * ~(terminated[t] | truncated[t])
                advantages[t] = last
            returns = advantages + values
        choice = torch.distributions.Categorical(logits=actor(seen))
        loss = -(advantages * choice.log_prob(actions)).mean() + 0.5 * (returns - values).square().mean()
        loss = loss - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()
        if update % 50 == 49:
            loss.item()
    return time.process_time() - started


def ours(name: str, updates: int) -> float:
    """Seconds of as many steps of the training loop, after the first, in which a DQN fills its buffer."""
    never = ["train.evaluate_every=1000000000", "train.save_every=1000000000", "train.threads=1"]
    more = ["task.agent.steps=1"] if name == "cartpole-dqn" else []
    recipe = load_recipe(name, [f"train.budget.steps={updates + 1}", *never, *more])
    task = task_of(recipe)
    read = task.read("train")
    model = build(task.fitted(recipe.model, task.learn(read), "model"))
    device, batches = torch.device("cpu"), task.batches(read, False, False)
    carry, started = task.first_carry(model, batches, device), 0.0
    for event in fit(
        model, task.loss_of(model, False), batches, recipe.train, device, None, {}, Counters(), carry=carry
    ):
        if isinstance(event, Step) and event.step == 1:
            started = time.process_time()
    return time.process_time() - started


def speed(out: Path, rounds: int, scale: float) -> None:
    """Interleaved rounds; the seconds are those of the processor, on one thread."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"torch": torch.__version__, "rounds": rounds}
    for name, plain, updates in (
        ("cartpole-dqn", plain_dqn, int(600 * scale)),
        ("cartpole-actor-critic", plain_actor_critic, int(60 * scale)),
    ):
        recipe = load_recipe(name)
        agent, lanes = recipe.task.agent, recipe.task.lanes
        runs: dict[str, Callable[[], float]] = {
            "heedful": lambda: ours(name, updates),  # noqa: B023
            "steps": lambda: plain(OneByOne, agent, lanes, recipe.model.hidden, updates),  # noqa: B023
            "vectorized": lambda: plain(Vectorized, agent, lanes, recipe.model.hidden, updates),  # noqa: B023
        }
        runs["heedful"]()  # imports, and the first use of each operation
        times: dict[str, list[float]] = {key: [] for key in runs}
        for _ in range(rounds):
            for key, run in runs.items():
                times[key].append(run())
        played = lanes * (agent.samples(1) if name == "cartpole-actor-critic" else agent.plays)
        found[name] = {
            "updates": updates,
            "updates_per_second": {key: round(updates / statistics.median(some), 1) for key, some in times.items()},
            "environment_steps_per_second": {
                key: round(updates * played / statistics.median(some)) for key, some in times.items()
            },
            "times_as_fast_as": {
                key: round(statistics.median(b / a for a, b in zip(times["heedful"], times[key], strict=True)), 2)
                for key in ("steps", "vectorized")
            },
        }
        print(name, json.dumps(found[name]), flush=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["results", "speed"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", choices=RECIPES, action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, action="append", help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of updates")
    asked = parser.parse_args()
    if asked.what == "results":
        results(asked.out, asked.recipe or list(RECIPES), asked.seed or list(range(5)))
    else:
        speed(asked.out, asked.rounds, asked.scale)


if __name__ == "__main__":
    main()
