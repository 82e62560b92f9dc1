"""The figure of a study: the value of each trial, over every setting that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from heedful.extras.tuning.results import Row, complete
from heedful.extras.tuning.space import Axis, Choice
from heedful.extras.tuning.study import Study
from heedful.plots.figures import scale_axis
from heedful.plots.style import VERMILION, Figure, Palette, Style, drawing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = 18  # characters of a value below an axis


def plot(study: Study, rows: Sequence[Row], title: str, style: Style = "light") -> Figure | None:
    """A panel for each setting, with the mean and the standard deviation of each trial; None without any value."""
    shown = complete(rows)
    if not shown:
        return None
    axes = study.space.axes or (None,)
    with drawing(style, 1.2 + 3.4 * len(axes), 4.0, title) as (figure, palette):
        panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
        panels[0].set_ylabel(f"{study.metric.name} on the validation set")
        for panel, axis in zip(panels, axes, strict=True):
            _panel(panel, axis, shown, palette)
        panels[0].margins(y=0.12)
    return figure


def _panel(panel: Axes, axis: Axis | None, rows: Sequence[Row], palette: Palette) -> None:
    """The points of a setting: its best trial in another colour, each run small."""
    if isinstance(axis, Choice):
        places = [float(axis.values.index(str(row.trial.point[axis.key]))) for row in rows]
        names = [label(value, NAME) for value in axis.values]
        panel.set_xticks(range(len(names)), names, rotation=0 if sum(map(len, names)) < 30 else 30)
        panel.margins(x=0.2)
    elif axis is None:
        places = [float(row.trial.number) for row in rows]
        panel.set_xticks([int(place) for place in places])
    else:
        places = [float(row.trial.point[axis.key]) for row in rows]
        scale_axis(panel, "x", axis.log, [np.array(places)], most=5)
    for number, (place, row) in enumerate(zip(places, rows, strict=True)):
        colour, above = (palette.series[0], 2) if number else (VERMILION, 3)
        panel.errorbar([place], [row.mean], yerr=row.deviation, fmt="o", color=colour, capsize=3, zorder=above)
        if len(row.values) > 1:
            panel.plot([place] * len(row.values), row.values, ".", color=palette.quiet, markersize=4, zorder=1)
    panel.set_xlabel(label(axis.key if axis else "trial", 40))
