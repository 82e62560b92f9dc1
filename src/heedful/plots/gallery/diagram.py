"""The architecture of any model as a diagram, from its modules and the shapes that pass through them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from heedful.errors import UserError
from heedful.models.summary import Row
from heedful.models.tracing import summary
from heedful.plots.style import Figure, Palette, Style, drawing, label
from heedful.runs.named import find_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, TALL, GAP = 3.9, 0.74, 0.42  # inches of a box, and between two


class Box(NamedTuple):
    """A layer, or as many of the same in a row."""

    row: Row
    times: int

    @property
    def name(self) -> str:
        """That of the layer, without the number where there are several."""
        parts = self.row.name.split(".")
        return ".".join(part for part in parts if not (self.times > 1 and part.isdecimal()))


def boxes(rows: Sequence[Row]) -> list[Box]:
    """Layers with those that are alike and follow each other in one box."""

    def pattern(row: Row) -> tuple[object, ...]:
        name = ".".join("*" if part.isdecimal() else part for part in row.name.split("."))
        return name, row.kind, row.shape, row.parameters

    found = list[Box]()
    for row in rows:
        if found and pattern(found[-1].row) == pattern(row):
            found[-1] = Box(row._replace(reads=found[-1].row.reads), found[-1].times + 1)
        else:
            found.append(Box(row, 1))
    return found


def architecture(
    *,
    model: Annotated[
        str, Field(description="a recipe, a run or model folder, or a kind of model, in a tiny size")
    ] = "transformer",
    overrides: Annotated[tuple[str, ...], Field(description="settings of the recipe, such as model.width=512")] = (),
    depth: Annotated[int, Field(ge=0, le=20, description="how far modules are unfolded; 0: all of them")] = 1,
    style: Style = "light",
) -> Figure:
    """From the input at the bottom to the output on top: a box for each layer, with its output and its parameters."""
    rows = summary(find_model(model, overrides), depth)
    every = sorted(
        boxes(rows), key=lambda box: bool(box.row.shape)
    )  # what has no output, such as a vector, at the bottom
    columns = [every]
    if {"encoder", "decoder"} <= {box.row.name.split(".")[0] for box in every}:
        inner = [box for box in every if box.row.name.startswith("decoder") or box.row.reads.startswith("decoder")]
        columns = [[box for box in every if box not in inner], inner]
    if max(map(len, columns)) > 40:
        raise UserError("this diagram would be too tall", where="depth", found=str(depth), todo="choose a lower depth")
    tall = max(map(len, columns)) * (TALL + GAP)
    title = f"{Path(model).stem}: {rows.parameters:,} parameters"
    with drawing(style, (WIDE + 0.9) * len(columns), tall + 1.0, title) as (figure, palette):
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(-0.1, (WIDE + 0.9) * len(columns)), ylim=(-0.35, tall + 0.1), aspect="equal")
        for number, column in enumerate(columns):
            _column(axes, number * (WIDE + 0.9), column, palette)
        if len(columns) > 1:
            end = len(columns[0]) * (TALL + GAP) - GAP - TALL / 2
            axes.annotate(
                "", (WIDE + 0.9, TALL / 2), (WIDE - 0.4, end),
                arrowprops={"arrowstyle": "->", "color": palette.quiet, "shrinkA": 8, "shrinkB": 2},
            )  # fmt: skip
    return figure


def _column(axes: Axes, x: float, column: Sequence[Box], palette: Palette) -> None:
    from matplotlib.patches import FancyBboxPatch

    for number, box in enumerate(column):
        y = number * (TALL + GAP)
        colour = palette.shades[1][1]
        for behind in range(min(box.times, 3) - 1, -1, -1):  # a stack of the same
            axes.add_patch(
                FancyBboxPatch(
                    (x + 0.06 * behind, y + 0.06 * behind), WIDE - 0.4, TALL, boxstyle="round,pad=0,rounding_size=0.08",
                    facecolor=colour, edgecolor=palette.paper, linewidth=1.5,
                )
            )  # fmt: skip
        more = f"  × {box.times}" if box.times > 1 else ""
        axes.text(x + 0.12, y + 0.48, label(box.name, 24) + more, weight="bold", va="center")
        about = f"{box.row.kind}  {box.row.output}"
        axes.text(x + 0.12, y + 0.21, label(about, 44), va="center", fontsize="small")
        count = f"{box.times * box.row.parameters:,}"
        axes.text(x + WIDE - 0.5, y + 0.48, count, va="center", ha="right", color=palette.ink)
        before = column[number - 1] if number else None
        if before is not None and box.row.reads not in ("", before.row.name):
            source = Box(box.row._replace(name=box.row.reads), 2).name
            axes.text(
                x + 0.12, y - 0.16, f"reads {label(source, 30)}", va="center", fontsize="small", color=palette.quiet
            )
        elif before is not None and before.row.shape:
            middle, below = x + WIDE / 2 - 0.2, y - GAP + 0.06 * (min(column[number - 1].times, 3) - 1)
            axes.annotate("", (middle, y), (middle, below), arrowprops={"arrowstyle": "->", "color": palette.quiet})
