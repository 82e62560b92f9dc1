"""The commands `pull` and `push`: a model from the Hugging Face Hub, and one to it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer

from heedful.cli.output import print_table
from heedful.errors import printable
from heedful.hub.remote import RemoteFile, hub_note, pull, push, require_free, require_hub


def pull_command(repository: str, target: Path | None, revision: str, as_json: bool) -> None:
    """Download a model into a new folder, and say what to type next."""
    require_hub(repository)
    folder = target or Path(repository.split("/")[1])
    require_free(folder)
    _say_where()
    found = pull(repository, folder, revision, _progress)
    files = [{"file": one.name, "bytes": one.size} for one in found.files]
    record = {"repository": repository, "commit": found.commit, "folder": str(folder), "files": files}
    lines = [
        f"{repository} at {found.commit}",
        f"{len(files)} files, {found.size:,} bytes, every hash as in the commit",
    ]
    print_table([*lines, f"next: heedful convert {printable(str(folder))} NEW_FOLDER"], [record], as_json)


def push_command(run: Path, repository: str, public: bool, as_json: bool) -> None:
    """Write a model as a Hugging Face folder, and upload it as one commit."""
    require_hub(repository)
    from heedful.cli.convert import require_convertible
    from heedful.hub.loading import pretrained
    from heedful.hub.writing import write

    require_convertible(run)
    model = pretrained(run)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write(folder, model)
        _say_where()
        typer.echo(f"uploading {printable(str(run))} to {repository} ...", err=True)
        pushed = push(repository, folder, not public)
    if pushed.others:
        others = printable(", ".join(pushed.others))
        typer.echo(f"note: the repository has other files of a model, which may not fit this one: {others}", err=True)
    record = {"repository": repository, "commit": pushed.commit, "private": pushed.private}
    print_table([f"{repository} at {pushed.commit}"], [record], as_json)


def _say_where() -> None:
    if (note := hub_note()) is not None:
        typer.echo(f"note: {printable(note)}", err=True)


def _progress(file: RemoteFile) -> None:
    typer.echo(f"{printable(file.name)} ({file.size:,} bytes) ...", err=True)
