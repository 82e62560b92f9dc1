"""The command `export`: a run as files of other programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from heedful.cli.loading import load_run
from heedful.cli.output import print_table
from heedful.errors import printable
from heedful.export.check import Exported
from heedful.export.write import export, require_target
from heedful.hub.writing import require_new


def export_command(run: Path, target: Path, to: str, int8: bool, force: bool, as_json: bool) -> None:
    """Write the folder, and print the size, the difference and the time of each file."""
    require_target(to, int8)
    require_new(target, force, "export.json")
    predictor = load_run(run)
    written = export(predictor, target, to, int8, lambda text: typer.echo(text, err=True))
    print_table(table(written), map(asdict, written), as_json)
    typer.echo(f"wrote {printable(str(target))}", err=True)


def table(written: list[Exported]) -> list[str]:
    """A row for each file."""
    rows = [f"{'file':<20} {'bytes':>14} {'difference':>12} {'model ms':>10} {'file ms':>10}"]
    rows += [
        f"{one.file:<20} {one.bytes:>14,} {one.difference:>12.1e} {1000 * one.model_seconds:>10.2f} "
        f"{1000 * one.file_seconds:>10.2f}"
        for one in written
    ]
    return rows
