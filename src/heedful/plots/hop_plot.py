"""What each hop of a memory network attended to: a heat map of sentences and hops for each question.

K hops, S sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heedful.plots.style import Figure, Style, drawing, label

LINE, HOP, TEXT = 0.24, 0.62, 4.6  # inches of a sentence, of a hop, and of the text beside it
NAMED = 0.05  # weights that are written into their cells
LONGEST = 60  # characters of a sentence


class Answered(NamedTuple):
    """A question about a story with the answer of a model, and the weights (K, S) of its hops."""

    sentences: Sequence[str]
    question: str
    answer: str
    probability: float
    weights: Sequence[Sequence[float]]
    supports: Sequence[int] = ()  # the supporting sentences, where they are known


def plot_hops(questions: Sequence[Answered], title: str = "", style: Style = "light") -> Figure:
    """A heat map for each question: a row for each sentence, marked if it is a supporting fact, a column for a hop."""
    heights = [LINE * len(one.sentences) + 0.6 for one in questions]
    width = TEXT + HOP * max(len(one.weights) for one in questions)
    with drawing(style, width, sum(heights) + 0.4, title) as (figure, palette):
        parts = figure.subplots(len(questions), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, one in zip(parts, questions, strict=True):
            weights = np.array(one.weights).T  # (S, K)
            axes.imshow(weights, cmap=palette.sequential, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            for (sentence, hop), weight in np.ndenumerate(weights):
                if weight >= NAMED:
                    colour = palette.paper if weight > 0.5 else palette.ink
                    axes.text(hop, sentence, f"{weight:.2f}", ha="center", va="center", fontsize=8, color=colour)
            marks = ["● " if place in one.supports else "" for place in range(len(one.sentences))]
            texts = [f"{mark}{label(text, LONGEST)}" for mark, text in zip(marks, one.sentences, strict=True)]
            axes.set_yticks(range(len(texts)), texts, color=palette.ink)
            axes.set_xticks(range(weights.shape[1]), [f"hop {hop + 1}" for hop in range(weights.shape[1])])
            axes.tick_params(length=0)
            axes.spines["bottom"].set_visible(False)
            axes.set_title(f"{label(one.question, LONGEST)}  {label(one.answer)} ({one.probability:.0%})", x=0)
    return figure
