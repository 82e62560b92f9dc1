"""The command `figure`: draws a figure and prints its numbers, or draws all of them into a folder."""

from __future__ import annotations

import json
import math
import shlex
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
from heedful.config import Config
from heedful.errors import UserError
from heedful.files.reading import exists
from heedful.files.writing import disk_errors, require_writable, write_text_atomic
from heedful.lectures import Progress, Table
from heedful.plots.gallery import draw, settings_class
from heedful.plots.gallery.index import write_gallery
from heedful.plots.style import Style, one_line, require_figure, save, style_sheet, write_sheet

ROWS = 12  # of a table on the screen
WIDE = 100  # columns of the list of settings

Found = TypeVar("Found")


def figure_command(
    name: str,
    overrides: Sequence[str],
    out: Path | None,
    as_json: bool,
    theme: Style = "light",
    sheet: Path | None = None,
) -> None:
    """Draw a figure; mistakes are reported before anything is computed."""
    words = model_first(overrides, settings_class(name))
    path = out or Path(f"{name}.png")
    require_figure(path, "--out")
    torch.set_num_threads(1)  # nets this small gain nothing from more, and one repeats bit for bit
    with style_sheet(sheet):
        drawn = watched(draw(name, overrides=words, theme=theme))
    save(drawn.figure, path)
    table = drawn.table
    if as_json:
        record: dict[str, Any] = {"figure": name, "settings": drawn.settings.model_dump(mode="json")}
        if table is not None:
            rows = [[None if isinstance(x, float) and not math.isfinite(x) else x for x in row] for row in table.rows]
            record |= {"columns": table.columns, "rows": rows}
        say(json_line({**record, "picture": str(path)}))
        return
    if table is not None:
        for line in table_lines(table):
            say(line)
        say("")
    say(f"picture  {path}")
    for line in settings_lines(drawn.settings):
        say(line)


def settings_lines(settings: Config) -> Iterator[str]:
    """The settings of a figure as they are typed, some to a line; long values are cut."""
    words = [f"{key}={one_line(_typed(value), 44)}" for key, value in settings.model_dump(mode="json").items()]
    width, lines = WIDE, list[str]()
    for word in words:
        if width + len(word) >= WIDE:
            lines.append(" " * 9)
            width = 9
        lines[-1] += word + "  "
        width += len(word) + 2
    for number, line in enumerate(lines):
        yield (line if number else "settings" + line[8:]).rstrip()


def _typed(value: Any) -> str:
    return shlex.quote(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def gallery_command(folder: Path, theme: Style, sheet: Path | None) -> None:
    """Draw all figures into a folder, with an index of their commands."""
    torch.set_num_threads(1)
    with style_sheet(sheet):
        written = watched(write_gallery(folder, theme))
    say(f"gallery  {written}")


def style_command(path: Path, theme: Style, force: bool) -> None:
    """Write a style sheet that a lecturer can change."""
    require_writable(path, "--write-style")
    if exists(path) and not force:
        raise UserError("this file exists already", where=str(path), todo="name another, or overwrite it with --force")
    with disk_errors(path.parent, f"write {path.name}"):
        write_text_atomic(path, write_sheet(theme))
    say(f"style    {path}")


def model_first(words: Sequence[str], settings: type[Config]) -> list[str]:
    """The overrides; where a figure is of a model or a run, the first word may be its folder alone.

    Where it is of a recipe, settings of groups, such as model.width=512, are the recipe's.
    """
    if "overrides" in settings.model_fields:
        nested = [word for word in words if "." in word.partition("=")[0] and "=" in word]
        words = [*(word for word in words if word not in nested), f"overrides={json.dumps(nested)}"]
    first, rest = words[:1], words[1:]
    key = next((name for name in ("model", "run") if name in settings.model_fields), None)
    if key is not None:
        first = [word if "=" in word else f"{key}={json.dumps(word)}" for word in first]
    return [*first, *rest]


def watched(study: Generator[Progress, None, Found]) -> Found:
    """What a generator returns; meanwhile, its progress is shown on stderr: a bar for a person, lines in a log."""
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


def table_lines(table: Table) -> Iterator[str]:
    """A table in columns; of a long one, rows at even distances, and the last."""
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
