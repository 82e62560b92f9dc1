"""Beam search as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.decode.search import Paths, beam
from heedful.errors import UserError
from heedful.explore.inspect import is_language_model, is_translator
from heedful.explore.views.beam import ENDED, KEPT, Node, build_tree, path_to, ranked
from heedful.plots.style import Figure, Palette, Style, drawing, label
from heedful.runs.load import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

END = "<end>"
TEXTS = (
    *["the poor don't have any money"] * 4, *["the poor are destitute"] * 3, "the poor are poor",
    "poor people are destitute", "the destitute have nothing",
)  # fmt: skip


def table_of(texts: Sequence[str]) -> tuple[list[str], Tensor]:
    """The words of some texts, the end last, and the log-probability (V + 1, V) of each word after each or at first."""
    words = [*dict.fromkeys(word for text in texts for word in text.split()), END]
    counts = torch.zeros(len(words) + 1, len(words), dtype=torch.float64)
    for text in texts:
        before = len(words)  # the start
        for word in (*text.split(), END):
            counts[before, words.index(word)] += 1
            before = words.index(word)
    counts[-2, -1] = 1  # after the end: a row without a word would have no softmax
    return words, (counts / counts.sum(1, keepdim=True)).log()


def search_tree(logs: Tensor, beams: int, top: int, limit: int, penalty: float) -> tuple[list[Node], Paths]:
    """The candidates of a beam search with a table of log-probabilities."""

    def decoder(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        return logs[tokens], state

    start, end = torch.tensor([[len(logs) - 1]]), logs.shape[1] - 1
    search = beam(decoder, (), start, torch.tensor([limit]), end, beams, top, penalty)
    return build_tree(search, penalty)


def model_tree(
    model: str, text: str, beams: int, top: int, limit: int, penalty: float
) -> tuple[list[Node], Paths, list[str]]:
    """The candidates of a beam search of a translator or a language model, and the token of each."""
    predictor: Any = load(model)
    if not is_translator(predictor) and not is_language_model(predictor):
        raise UserError(
            "this model does not generate text", where="model", found=model, expected="a translator or a language model"
        )
    search = predictor.steps(text, beams, top, penalty, min(limit, predictor.room(text)), ())
    nodes, paths = build_tree(search, penalty)
    return nodes, paths, predictor.tokenizer.pieces([node.token for node in nodes])


def beam_tree(
    *,
    model: Annotated[
        str | None, Field(description="a run that translates or generates text; null: pairs of words in `texts`")
    ] = None,
    text: Annotated[str | None, Field(description="what the model translates or continues")] = None,
    texts: Annotated[tuple[str, ...], Field(min_length=1, description="what word pairs are counted in")] = TEXTS,
    beams: Annotated[int, Field(ge=1, le=6, description="k: hypotheses that are kept in each step")] = 2,
    top: Annotated[int, Field(ge=1, le=6, description="t: hypotheses that are returned")] = 2,
    limit: Annotated[int, Field(ge=1, le=20, description="steps")] = 7,
    penalty: Annotated[float, Field(ge=0, le=2, description="scores are log p / length^penalty")] = 1.0,
    style: Style = "light",
) -> Figure:
    """The tree of a search with a model, or with the probabilities of word pairs; log-probabilities are summed."""
    if top > beams:
        raise UserError("a search returns at most k hypotheses", where="top", found=str(top), expected=f"<= {beams}")
    if (model is None) != (text is None):
        given, missing = ("model", "text") if text is None else ("text", "model")
        raise UserError(f"{given} needs {missing}", where=missing, todo='as in model=runs/demo text="twenty-one"')
    if model is not None and text is not None:
        nodes, paths, words = model_tree(model, text, beams, top, limit, penalty)
    else:
        every, logs = table_of(texts)
        nodes, paths = search_tree(logs, beams, top, limit, penalty)
        words = [every[node.token] for node in nodes]
    returned = ranked(nodes, paths)[:top]
    pairs = [(node.token, node.parent) for node in nodes]
    best = {step for one in returned for step in path_to(pairs, one["node"])}
    rows = [[number for number, node in enumerate(nodes) if node.step == step] for step in range(nodes[-1].step + 1)]
    at = {
        number: (step + 1.0, -row + (len(line) - 1) / 2)
        for step, line in enumerate(rows)
        for row, number in enumerate(line)
    }
    at[-1] = (0.0, 0.0)
    title = f"Beam search with {beams} beams; the best {top} are returned"
    title += "" if text is None else f": {label(text, 60)}"
    with drawing(style, 1.75 * (len(rows) + 1), 1.6 + 0.95 * max(map(len, rows)), title) as (figure, palette):
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(-0.4, len(rows) + 0.5), ylim=(-max(map(len, rows)) / 2 - 0.4, max(map(len, rows)) / 2 + 0.4))
        axes.text(0, 0, "start", ha="center", va="center", bbox=_box(palette, palette.quiet, full=True))
        for number, node in enumerate(nodes):
            _edge(axes, at[node.parent], at[number], number in best, node, palette)
            colour = (
                palette.series[0] if node.fate == KEPT else palette.series[2] if node.fate == ENDED else palette.quiet
            )
            axes.text(
                *at[number], f"{label(words[number], 12)}\n{node.log:.2f}", ha="center", va="center",
                fontsize="small", weight="bold" if number in best else "normal",
                bbox=_box(palette, colour, node.fate in (KEPT, ENDED)),
            )  # fmt: skip
        lines = [
            "returned: "
            + " ".join(words[step] for step in path_to(pairs, one["node"]))
            + f"  (score {one['score']:.2f})"
            for one in returned
        ]
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="medium")
        kinds = (
            ("kept", palette.series[0], True),
            ("finished", palette.series[2], True),
            ("pruned", palette.quiet, False),
        )
        handles = [
            axes.plot([], [], "s", color=colour, mfc=colour if full else palette.paper, label=name, markersize=9)[0]
            for name, colour, full in kinds
        ]
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
    return figure


def _box(palette: Palette, colour: str, full: bool = False) -> dict[str, Any]:
    line = {"linewidth": 2.2, "linestyle": "-"} if full else {"linewidth": 1.0, "linestyle": ":"}
    return {"boxstyle": "round,pad=0.3", "facecolor": palette.paper, "edgecolor": colour, **line}


def _edge(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], best: bool, node: Node, palette: Palette
) -> None:
    axes.plot(  # ends below the boxes
        [start[0] + 0.1, end[0] - 0.1], [start[1], end[1]], color=palette.ink if best else palette.quiet,
        linewidth=2.2 if best else 1.2, linestyle="-" if node.fate in (KEPT, ENDED) else ":", zorder=0,
    )  # fmt: skip
