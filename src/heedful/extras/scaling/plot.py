"""The figure of a sweep: loss over size, data and compute, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heedful.extras.scaling.fits import LEVEL, Estimate, Laws, Line, Run, Variable
from heedful.plots.figures import brief, legend_below, scale_axis
from heedful.plots.style import VERMILION, Figure, Palette, Style, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES: dict[Variable, str] = {
    "N": "N, parameters without embeddings",
    "D": "D, tokens seen in training",
    "C": "C = 6 N D, floating-point operations",
}


class Predicted(NamedTuple):
    """A held-out run: its predicted and its measured loss, if known."""

    name: str
    parameters: int
    tokens: int
    prediction: Estimate | None
    run: Run | None

    def at(self, variable: Variable) -> float:
        """Its value on an axis."""
        return Run(self.name, "", self.parameters, self.tokens, 0.0).at(variable)


def plot(runs: Sequence[Run], laws: Laws, predicted: Sequence[Predicted], title: str, style: Style = "light") -> Figure:
    """Three panels with the runs, colored by size and filled if the line was fitted to them, and the fitted lines."""
    shown = [*runs, *(one.run for one in predicted if one.run)]
    sizes = {run.size: run.parameters for run in sorted(shown, key=lambda run: run.parameters)}
    with drawing(style, 11.0, 4.4, title) as (figure, palette):
        ramp = palette.sequential(np.linspace(0.4, 1.0, len(sizes)))
        colours = {size: tuple(colour) for size, colour in zip(sizes, ramp.tolist(), strict=True)}
        panels = figure.subplots(1, len(laws.lines), sharey=True, squeeze=False)[0]
        panels[0].set_ylabel("L, loss on the validation set")
        for axes, line in zip(panels, laws.lines, strict=True):
            _panel(axes, line, runs, predicted, colours, palette)
        losses = _losses(shown, laws, predicted)
        scale_axis(panels[0], "y", True, [np.array(losses)])
        panels[0].set_ylim(min(losses) / 1.02, max(losses) * 1.02)
        names = {f"{size} ({brief(count)})": colours[size] for size, count in sizes.items()}
        handles = [panels[0].plot([], [], "o", color=colour, label=name)[0] for name, colour in names.items()]
        if predicted:
            handles += panels[0].plot([], [], "o", color=VERMILION, mfc="none", mew=1.5, label="held out, not fitted")
        legend_below(figure, handles, min(8, len(handles)), length=1.0)
    return figure


def _panel(
    axes: Axes,
    line: Line,
    runs: Sequence[Run],
    predicted: Sequence[Predicted],
    colours: Mapping[str, tuple[float, ...]],
    palette: Palette,
) -> None:
    """One panel: the line with its confidence band, and all runs."""
    variable, band = line.variable, line.band
    if band is not None:
        axes.fill_between(band.x, band.low, band.high, color=VERMILION, alpha=0.16, linewidth=0)
        axes.plot(band.x, band.middle, color=VERMILION)
    for run in runs:
        fitted = run.name in line.runs
        colour, fill = colours[run.size], colours[run.size] if fitted else palette.paper
        axes.plot(run.at(variable), run.loss, "o", markersize=7 if fitted else 5, mew=1.4, color=colour, mfc=fill)
    for one in predicted:
        at, prediction = one.at(variable), one.prediction
        if prediction:
            errors = [[prediction.value - prediction.low], [prediction.high - prediction.value]]
            axes.errorbar(at, prediction.value, errors, fmt="_", color=VERMILION, capsize=4, markersize=8)
        if one.run:
            axes.plot(at, one.run.loss, "o", markersize=7, color=VERMILION, mfc=colours[one.run.size], mew=1.6)
    xs = [run.at(variable) for run in runs] + [one.at(variable) for one in predicted if one.prediction or one.run]
    scale_axis(axes, "x", True, [np.array(xs)], most=5)
    axes.set_xlabel(AXES[variable])
    axes.set_title(_law(line), fontsize="small", color=VERMILION if line.law else palette.quiet)
    axes.grid(axis="y")


def _losses(shown: Sequence[Run], laws: Laws, predicted: Sequence[Predicted]) -> list[float]:
    """The losses that the axis must show: those of all runs, and the bands and predictions near them."""
    measured = [run.loss for run in shown]
    others = [value for one in predicted if one.prediction for value in (one.prediction.low, one.prediction.high)]
    others += [value for line in laws.lines if line.band for value in (*line.band.low, *line.band.high)]
    if not measured:
        return [value for value in others if np.isfinite(value)] or [1.0, 2.0]
    spread = max(1.15, (max(measured) / min(measured)) ** 0.5)
    low, high = min(measured) / spread, max(measured) * spread
    return [*measured, *(min(high, max(low, value)) for value in others if not np.isnan(value))]


def _law(line: Line) -> str:
    law = line.law
    if law is None:
        return "too few runs for a line"
    floor = f"{law.floor.value:.2f} + " if law.floor else ""
    a = law.exponent
    return f"L = {floor}({line.variable}c/{line.variable})^{a.value:.3f}, {LEVEL:.0%}: {a.low:.3f} to {a.high:.3f}"
