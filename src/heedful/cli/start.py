"""The start screen of `heedful` without a command: first commands, and the newest runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heedful.cli.runs import newest, row
from heedful.errors import printable, short

MAX_RUNS = 5
FIRST_COMMANDS = {
    "heedful demo": "train a small translator in about a minute",
    "heedful recipes": "list the recipes that come with Heedful",
    "heedful train gpt-prose": "train one of them; the same command resumes it",
    "heedful lectures": "five lectures topic by topic: what to type for each slide",
    "heedful init classify": "write a recipe for your own data",
}


def start_screen(folder: Path = Path("runs")) -> Iterator[str]:
    """The first commands to type, and the newest runs below a folder."""
    yield "Heedful: train, evaluate and explore the models of the attention era."
    yield ""
    yield "Start here"
    yield from (f"  {command:<26} {about}" for command, about in FIRST_COMMANDS.items())
    runs = newest(folder)
    if runs:
        yield ""
        yield f"Runs in {folder}" + (f", {MAX_RUNS} of {len(runs):,}" if len(runs) > MAX_RUNS else "")
        for run in runs[:MAX_RUNS]:
            cells = row(run, folder)
            yield printable(f"  {short(str(run), 40):<40} {cells.done:>5}  {cells.test or cells.valid}".rstrip())
        yield ""
        yield f"  {'heedful explore ' + str(runs[0]):<26} explore it in the browser"
        yield f"  {'heedful runs':<26} all runs, with their scores"
    yield ""
    yield "heedful --help lists all commands, heedful COMMAND --help explains one with an example."
    yield "heedful --install-completion lets the shell complete commands, recipes, settings and runs."
