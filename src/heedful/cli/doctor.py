"""The command `doctor`: the contract suite on a run, a folder, or a module of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import typer

from heedful.cli.output import json_line, say
from heedful.contracts.doctor import doctor
from heedful.errors import UserError
from heedful.files.reading import is_file
from heedful.hub.safetensors import read_safetensors

FAILED = 1  # exit code: a check failed


def doctor_command(
    model: str, settings: Sequence[str], only: Sequence[str], example: Path | None, transformers: bool, as_json: bool
) -> None:
    """Print the report; the exit code is 1 if a check failed."""
    shown = sys.stderr.isatty()

    def progress(check: str) -> None:
        typer.echo(f"\r{check + ' ...':<24}", err=True, nl=False)

    if example is not None and not is_file(example):
        raise UserError(
            "no such file", where=str(example), expected="a .safetensors file with a tensor for each argument"
        )
    tensors = read_safetensors(example)[0] if example is not None else None
    with redirect_stdout(sys.stderr):  # what the model prints is no part of the report
        report = doctor(
            model, settings, only=only, example=tensors, transformers=transformers,
            on=progress if shown else lambda check: None,
        )  # fmt: skip
    if shown:
        typer.echo(f"\r{'':<24}\r", err=True, nl=False)
    say(json_line(report.to_dict()) if as_json else str(report))
    if not report.ok:
        raise typer.Exit(FAILED)
