"""Commands for agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import CheckpointOption, Dark, Json, RunFolder
from heedful.training.checkpoint.choice import checkpoint_path


def play(
    run: RunFolder,
    episodes: Annotated[int, typer.Option(min=1, max=100_000, help="Episodes to play.")] = 1,
    seed: Annotated[
        int, typer.Option(min=0, max=2**30, help="Seed of the first episode; the next ones follow it.")
    ] = 0,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample actions by their probabilities; otherwise the best one is taken.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the first episode over time: .png, .svg or .pdf."),
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Print every step.")] = False,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Let an agent play episodes of its environment, and print their returns."""
    from heedful.cli.play import play_command

    play_command(
        checkpoint_path(run, checkpoint), episodes, seed, sample, picture, render, as_json, "dark" if dark else "light"
    )
