"""The figures of a classifier's report: its confusion matrix, and how far its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heedful.plots.figures import heatmap
from heedful.plots.style import Figure, Style, drawing
from heedful.training.class_report import ClassReport

MOST_CLASSES = 40  # of a confusion matrix that can be read


def figures_of(report: ClassReport, style: Style = "light") -> Iterator[tuple[str, str, str, Figure]]:
    """File name, title, caption and figure of each figure."""
    if 1 < len(report.confusion) <= MOST_CLASSES:
        about = "Rows: the true classes; columns: the predicted classes; each row adds up to 1."
        yield "confusion", "Confusion matrix", about, plot_confusion(report, style)
    if report.count:
        what = report.what if report.exclusive else f"labels of {report.what}, there or not,"
        about = (
            f"Of {what} by the probability of the prediction, the share of right ones, in {len(report.bins)} "
            f"bins. On the diagonal probabilities are right; below it, too high. The expected calibration error, the "
            f"mean distance, is {100 * report.ece:.2f} %."
        )
        yield "reliability", "Calibration", about, plot_reliability(report, style)


def plot_confusion(report: ClassReport, style: Style = "light") -> Figure:
    """The share of the items of each class (rows) that are predicted as each class (columns)."""
    counts, names = np.array(report.confusion), [each.label for each in report.classes]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # (C, C)
    return heatmap(shares, names, names, "Confusion matrix", style=style)


def plot_reliability(report: ClassReport, style: Style = "light") -> Figure:
    """Accuracy over confidence, above the share of the items in each bin."""
    with drawing(style, 5.0, 5.2, "Calibration") as (figure, palette):
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        above.plot([0, 1], [0, 1], ":", color=palette.quiet)
        means, shares = [each.confidence for each in report.bins], [each.accuracy for each in report.bins]
        above.plot(means, shares, "o-", color=palette.series[0])
        above.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="share of right predictions")
        total = sum(each.count for each in report.bins)
        width = min(each.high - each.low for each in report.bins)
        lows, heights = [each.low for each in report.bins], [each.count / total for each in report.bins]
        below.bar(lows, heights, width=0.9 * width, align="edge", color=palette.series[0])
        below.set(xlabel="probability of the prediction", ylabel="share")
    return figure
