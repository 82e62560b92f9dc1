"""An episode of an agent, step by step, and what would have followed from other actions.

T steps, U steps of the agent's own episode, O values of an observation, A actions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from heedful.data.environments.episodes import Episodes
from heedful.data.formats.sources import Split
from heedful.errors import UserError
from heedful.explore.once import OncePerModel
from heedful.explore.packets import not_finite, pack
from heedful.explore.samples import task_in
from heedful.explore.views import Call, ModelRequest
from heedful.tasks.control.losses import discounted
from heedful.tasks.control.predictor import MOST_SEED, Agent, Episode

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Agent"
ABOUT = "An episode of an agent, step by step, and what would have followed from other actions."

SHOWN = 8  # episodes to choose from
MOST = 1000  # steps that are shown
MOST_FORCED = 50
CART = ("position", "angle")  # of a pole on a cart, which can be drawn
CELL = re.compile(r"row (\d+) column (\d+)")  # of a grid

Step = Annotated[int, Field(ge=0, lt=MOST)]
Action = Annotated[int, Field(ge=0, lt=10_000)]


class EpisodeRequest(ModelRequest):
    """An episode by its seed, and the actions that are taken at some steps in place of the agent's."""

    seed: int | None = Field(None, ge=0, lt=MOST_SEED)  # None: the first that is shown
    forced: tuple[tuple[Step, Action], ...] = Field((), max_length=MOST_FORCED)


class Arena:
    """The environment of an agent, and the episodes to choose from: those on which it is tested."""

    def __init__(self, subject: Subject) -> None:
        self.agent: Agent = subject.predictor
        task = task_in(subject.folder) if subject.is_run else None
        self.discount: float | None = None if task is None else task.recipe.task.discount

    @cached_property
    def choices(self) -> list[Episode]:
        """The first episodes of the test, or of validation where there is none."""
        data = self.agent.environment.environment
        split: Split = "test" if data.episodes("test") else "valid"
        episodes = Episodes(data, split, min(SHOWN, data.episodes(split)))
        return self.agent.play(seeds=episodes.seeds.tolist(), limit=MOST)


arenas = OncePerModel(Arena)


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, Agent)


def episode(subject: Subject, request: EpisodeRequest) -> bytes:
    """An episode: observations (T, O), actions, rewards, scores (T, A) and values (T,), and the agent's own (U)."""
    arena = arenas.of(subject)
    forced = dict(request.forced)
    if len(forced) < len(request.forced):
        raise UserError("a step has one action", where="forced", todo="name each step once")
    with subject.lock:
        seed = arena.choices[0].seed if request.seed is None else request.seed
        own = next((one for one in arena.choices if one.seed == seed), None) or play(arena.agent, seed)
        found = play(arena.agent, seed, forced) if forced else own
        choices = arena.choices
    names = list(found.observation_names)
    arrays = {
        "observations": found.observations, "actions": found.actions.astype(np.int32), "scores": found.scores,
        "rewards": found.rewards.astype(np.float32), "own": own.observations,
    }  # fmt: skip
    if found.values is not None:
        arrays["values"] = found.values.astype(np.float32)
        if arena.discount is not None:
            arrays["returns"] = discounted(found.rewards, arena.discount).astype(np.float32)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise not_finite()
    return pack(
        {
            "seed": seed,
            "steps": len(found.actions), "total": found.total, "ending": found.ending,
            "own": {"steps": len(own.actions), "total": own.total, "ending": own.ending},
            "forced": sorted(forced.items()),
            "observations": names, "actions": found.action_names, "scored_by": found.scored_by,
            "discount": arena.discount,
            "cart": [names.index(one) for one in CART] if set(CART) <= set(names) else None,
            "grid": grid_of(names),
            "choices": [{"seed": one.seed, "total": one.total, "steps": len(one.actions)} for one in choices],
        },
        **arrays,
    )  # fmt: skip


def play(agent: Agent, seed: int, forced: Mapping[int, int] | None = None) -> Episode:
    """An episode with this seed."""
    return agent.play(seeds=[seed], forced=forced, limit=MOST)[0]


def grid_of(names: Sequence[str]) -> tuple[int, int] | None:
    """The rows and columns of a grid whose cells are the values of an observation; None: it is no grid."""
    cells = [CELL.fullmatch(name) for name in names]
    last = cells[-1] if cells else None
    return None if last is None or None in cells else (int(last[1]) + 1, int(last[2]) + 1)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The episode of a state, without its other actions too, and the others to choose from."""
    arena = arenas.of(subject)
    with subject.lock:
        seeds = [one.seed for one in arena.choices]
    stated = str(state.get("seed"))
    seed = {"seed": min(int(stated), MOST_SEED - 1)} if stated.isascii() and stated.isdecimal() else {}
    others: list[dict[str, Any]] = [seed, *({"seed": one} for one in seeds)]
    forced = parse_forced(str(state.get("forced", "")))
    asked = [{**seed, "forced": forced}, *others] if forced else others
    return [Call("agent", "episode", {"model": subject.name, **one}) for one in asked]


def parse_forced(text: str) -> list[tuple[int, int]]:
    """Steps with their actions, from text such as 12.1,40.0."""
    try:
        return [(int(step), int(action)) for step, action in (one.split(".") for one in text.split(",") if one)]
    except ValueError:
        raise UserError("invalid actions", where="forced", expected="steps and actions such as 12.1,40.0") from None


CALLS = {"episode": (EpisodeRequest, episode)}
