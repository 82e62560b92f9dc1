"""An episode over time: what was observed, the actions, how they were scored, and the return so far.

T steps, O values of an observation, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.plots.style import Figure, Style, drawing, label

MOST = 7  # lines of one panel; more could not be distinguished


def episode_figure(
    observations: NDArray[np.float32],
    actions: NDArray[np.int64],
    rewards: NDArray[np.float64],
    scores: NDArray[np.float32],
    observation_names: Sequence[str],
    action_names: Sequence[str],
    scored_by: str,
    total: float,
    ending: str,
    style: Style = "light",
) -> Figure:
    """Panels above each other, over the steps: observations, scores of the actions, the actions, and the return."""
    steps = np.arange(len(actions))
    title = f"An episode of {len(actions)} steps, {ending}: return {total:g}"
    with drawing(style, 8.0, 7.2, title) as (figure, palette):
        seen, scored, acted, summed = figure.subplots(4, 1, sharex=True, height_ratios=(3, 3, 1.6, 1.6))
        _lines(seen, steps, observations, observation_names, palette.sequential)
        _lines(scored, steps, scores, action_names, palette.sequential)
        if scored_by == "probability":
            scored.set_ylim(-0.03, 1.03)
        shown = actions[:, None] == np.arange(len(action_names))  # (T, A)
        acted.imshow(
            shown.T, aspect="auto", interpolation="nearest", cmap=palette.sequential, vmin=0, vmax=1,
            extent=(-0.5, len(actions) - 0.5, len(action_names) - 0.5, -0.5),
        )  # fmt: skip
        if len(action_names) <= MOST:
            acted.set_yticks(range(len(action_names)), [label(name) for name in action_names])
        acted.grid(False)
        summed.plot(steps, rewards.cumsum(), color=palette.series[2])
        for axes, name in ((seen, "observation"), (scored, scored_by), (acted, "action"), (summed, "return so far")):
            axes.set_ylabel(name)
        summed.set_xlabel("step")
    return figure


def _lines(
    axes: Any, steps: NDArray[np.int64], values: NDArray[np.float32], names: Sequence[str], colours: Any
) -> None:
    """A line for each of few values, with a legend; many values as a heat map."""
    if len(names) > MOST:
        axes.imshow(values.T, aspect="auto", interpolation="nearest", cmap=colours)
        axes.grid(False)
        return
    for name, line in zip(names, values.T, strict=True):
        axes.plot(steps, line, label=label(name), linewidth=1.2)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
