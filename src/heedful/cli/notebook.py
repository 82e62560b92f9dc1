"""The command `notebook`: list the notebooks, or write one; needs no torch."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from heedful.cli.output import print_table, say
from heedful.errors import UserError
from heedful.files.reading import exists
from heedful.files.writing import write_text_atomic
from heedful.lectures.notebooks import notebook, notebooks


def notebook_command(name: str | None, out: Path | None, as_json: bool) -> None:
    """List all notebooks, or write one as an `.ipynb` file; an existing file is not overwritten."""
    if name is None:
        widest = max(map(len, notebooks()))
        lines = [f"{one:<{widest}}  {title}" for one, title in notebooks().items()]
        print_table(lines, ({"notebook": one, "title": title} for one, title in notebooks().items()), as_json)
        return
    text = notebook(name)
    path = out or Path(f"{name}.ipynb")
    if path.suffix != ".ipynb":
        raise UserError("a notebook is an .ipynb file", where="--out", found=str(path))
    if exists(path):
        raise UserError("this file exists", where=str(path), todo="give another name with --out, or remove it")
    write_text_atomic(path, text)
    say(f"wrote {shlex.quote(str(path))}; open it with Jupyter: jupyter lab {shlex.quote(str(path))}")
    if find_spec("jupyterlab") is None:
        say("JupyterLab is not installed here: pip install jupyterlab, or open it in an editor that shows notebooks")
