"""The command `runs`: the runs below a folder, with their progress; imports no torch."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heedful.cli.output import print_table
from heedful.errors import UserError, printable
from heedful.files.reading import entries, exists, is_file, is_folder, require_folder
from heedful.files.yaml import load_yaml
from heedful.runs.events import broken_lines, read_events, values

MAX_DEPTH = 4  # levels of folders to search
STEP = re.compile(r"step-(\d{8,18})")


def runs_command(folder: Path, as_json: bool) -> None:
    """Print a table of the runs, the newest first."""
    if folder != Path("runs"):
        require_folder(folder, "a folder with runs", "name a folder with runs")
    runs = newest(folder)
    if as_json:
        print_table([], (record(run) for run in runs), as_json)
        return
    console = Console(markup=False, highlight=False, soft_wrap=False)
    if not runs:
        console.print(f"there are no runs below {folder} yet; start one with `heedful demo` or `heedful train RECIPE`")
        return
    table = Table("run", "kind", "step", "done", "valid", "test", "last change", box=None, pad_edge=False)
    for run in runs:
        table.add_row(*(Text(printable(cell)) for cell in row(run, folder)))
    if not console.is_terminal:
        console.width = 200  # no wrapping in a file or a pipe
    console.print(table)


def newest(folder: Path) -> list[Path]:
    """The runs below a folder, the most recently changed first."""
    return sorted(find(folder), key=lambda run: -last_change(run)) if is_folder(folder) else []


def find(folder: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """The run folders at or below a folder; symbolic links are not followed."""
    try:
        is_run = is_file(folder / "recipe.yaml")
        below = [path for path in entries(folder) if is_folder(path) and not path.is_symlink()] if depth else []
    except UserError as error:
        typer.echo(f"note: skipped {printable(str(folder))}: {error.found}", err=True)
        return
    if is_run:
        yield folder
        return
    for path in below:
        yield from find(path, depth - 1)


def record(run: Path) -> dict[str, Any]:
    """A run as --json prints it."""
    events = read_events(run)
    steps, scores = events.steps(), {split: events.evaluated(split)[-1:] for split in ("valid", "test")}
    return {
        "run": str(run),
        "kind": kind(run),
        "step": last_step(run),
        "progress": steps[-1].get("progress") if steps else 0.0,
        **{split: values(last[0]) if last else None for split, last in scores.items()},
        "changed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last_change(run))),
    }


class Row(NamedTuple):
    """A row of the table."""

    run: str
    kind: str
    step: str
    done: str
    valid: str
    test: str
    changed: str


def row(run: Path, folder: Path) -> Row:
    """The row of a run; cells that cannot be read are blank."""
    name = str(run.relative_to(folder)) if run != folder else run.name or str(run)
    events = read_events(run)
    if events.broken:
        typer.echo(f"note: {printable(broken_lines(run, events.broken))}", err=True)
    valid, test, steps = events.evaluated("valid"), events.evaluated("test"), events.steps()
    progress = steps[-1].get("progress") if steps else 0.0
    return Row(
        name,
        kind(run),
        f"{last_step(run):,}",
        f"{progress:.0%}" if isinstance(progress, int | float) else "",
        loss_and_scores(valid[-1]) if valid else "",
        loss_and_scores(test[-1]) if test else "",
        ago(time.time() - last_change(run)),
    )


def kind(run: Path) -> str:
    """The kinds of task, model and data of a run."""
    try:
        data = load_yaml(run / "recipe.yaml")[0]
        return " ".join(str(data[part]["kind"]) for part in ("task", "model", "data"))
    except (UserError, KeyError, TypeError):
        return "(no readable recipe)"


def last_step(run: Path) -> int:
    """The step of the newest checkpoint."""
    folder = run / "checkpoints"
    try:
        names = [path.name for path in entries(folder)] if is_folder(folder) else []
    except UserError:  # an unreadable folder
        return 0
    return max((int(match[1]) for match in map(STEP.fullmatch, names) if match), default=0)


def loss_and_scores(event: dict[str, Any]) -> str:
    """The scores of an evaluation in a line."""
    return " ".join(f"{name} {value:.1f}" for name, value in values(event).items())


def last_change(run: Path) -> float:
    """When something was last recorded in a run."""
    return max(path.stat().st_mtime for path in (run / "metrics.jsonl", run / "recipe.yaml") if exists(path))


def ago(seconds: float) -> str:
    """A time that has passed, in its largest unit."""
    for name, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {name} ago"
    return "just now"
