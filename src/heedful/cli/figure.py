"""The verb `figure`: runs a study, prints its numbers and draws its figure."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from heedful.cli.display import PAUSE
from heedful.cli.output import json_line, say
from heedful.config import Config, parse
from heedful.lectures import Progress, Table, find
from heedful.plots.style import Style, require_figure, save

ROWS = 12  # of a table on the screen

Found = TypeVar("Found")


def figure_command(
    name: str, overrides: Sequence[str], out: Path | None, as_json: bool, style: Style = "light"
) -> None:
    """Run a study to its end; what cannot work is said before it begins."""
    one = find(name)
    settings = parse(one.Settings, {}, overrides=_named(overrides, one.Settings))
    path = out or Path(f"{name}.png")
    require_figure(path, "--out")
    torch.set_num_threads(1)  # nets this small gain nothing from more, and one repeats bit for bit
    found = watched(one.study(settings))
    save(one.plot(found, style), path)
    table = found.table()
    if as_json:
        rows = [[None if isinstance(x, float) and not math.isfinite(x) else x for x in row] for row in table.rows]
        told = {"figure": name, "settings": settings.model_dump(mode="json"), "columns": table.columns, "rows": rows}
        say(json_line({**told, "picture": str(path)}))
        return
    for line in written(table):
        say(line)
    say("")
    say(f"picture  {path}")


def _named(words: Sequence[str], settings: type[Config]) -> list[str]:
    """What is to be set; where a figure looks into a model, the first word may be its folder alone."""
    first, rest = words[:1], words[1:]
    if "model" in settings.model_fields:
        first = [word if "=" in word else f"model={json.dumps(word)}" for word in first]
    return [*first, *rest]


def watched(study: Generator[Progress, None, Found]) -> Found:
    """What a study returns; on the way, its progress is shown on stderr: a bar for a person, lines in a log."""
    with _bar() if sys.stderr.isatty() else nullcontext(_lines()) as show:
        while True:
            try:
                show(next(study))
            except StopIteration as end:
                found: Found = end.value
                return found


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TaskProgressColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda now: bar.update(task, completed=now.share, description=now.doing)


def _lines() -> Callable[[Progress], None]:
    last = time.monotonic()

    def show(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            sys.stderr.write(f"{now.share:4.0%}  {now.doing}\n")
            sys.stderr.flush()

    return show


def written(table: Table) -> Iterator[str]:
    """A table in columns; of a long one, rows that are evenly apart, and the last."""
    rows = table.rows
    if len(rows) > ROWS:
        apart = math.ceil(len(rows) / (ROWS - 2))
        rows = (*rows[:-1:apart], rows[-1])
    cells = [table.columns, *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    for row in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    if len(rows) < len(table.rows):
        yield f"({len(rows)} rows of {len(table.rows)}; --json writes all)"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
