"""The command `play`: an agent plays episodes of its environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say
from heedful.plots.style import Style, require_figure, save
from heedful.tasks.control.predictor import Agent, Episode


def play_command(
    run: Path,
    episodes: int,
    seed: int,
    sample: bool,
    picture: Path | None,
    render: bool,
    as_json: bool,
    style: Style,
) -> None:
    """Print the return of each episode, and draw the first."""
    if picture is not None:
        require_figure(picture, "--picture")
    agent = load_as(Agent, run)
    played = agent.play(episodes, seed, sample=sample)
    for episode in played:
        for line in [json_line(episode.to_dict())] if as_json else _lines(episode, render):
            say(line)
    if not as_json and len(played) > 1:
        returns = np.array([episode.total for episode in played])
        say(f"mean return {returns.mean():.2f}, from {returns.min():g} to {returns.max():g}")
    if picture is not None:
        save(played[0].plot(style), picture)


def _lines(episode: Episode, render: bool) -> Iterator[str]:
    """The return, and with `render` every step: what was observed, the action with its score, and the reward."""
    if render:
        yield "step  action        " + "  ".join(episode.observation_names) + "  reward"
        for step, action in enumerate(episode.actions.tolist()):
            seen = " ".join(f"{value:+.3f}" for value in episode.observations[step].tolist())
            chosen = f"{episode.action_names[action]} {episode.scores[step, action]:.3f}"
            yield f"{step:4}  {chosen:<12}  {seen}  {episode.rewards[step]:g}"
    count = len(episode.actions)
    yield f"seed {episode.seed}: return {episode.total:.2f} in {count} step{'s' * (count != 1)}, {episode.ending}"
