"""The verb `explore`: a page in the browser that looks inside models, or one view of them as a file."""

from __future__ import annotations

import os
import shlex
import sys
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer

from heedful.cli.output import say
from heedful.errors import UserError, printable
from heedful.explore.export import Export, first_view, page_of, require_html, require_indices
from heedful.explore.server.app import application
from heedful.explore.server.guard import Policy, serve
from heedful.explore.server.page import built
from heedful.explore.server.protocol import listen
from heedful.explore.subjects import Explorer
from heedful.files.writing import write_text_atomic
from heedful.files.yaml import has_lone_surrogate
from heedful.runs.load import few_threads

PORT = 8765  # the usual one, so that a link to a view stays right
TOKEN = "HEEDFUL_TOKEN"


def explore_command(
    folders: Sequence[Path],
    host: str,
    port: int | None,
    browser: bool,
    out: Path | None,
    view: str | None,
    settings: Sequence[str],
) -> None:
    """Open the page on some folders, or write one view of the first to a file."""
    if (view is not None or settings) and out is None:
        raise UserError("a view is chosen in the page", where="--view" if view else "--set", todo="add --out FILE.html")
    if out is not None:
        require_html(out, "--out")
    chosen = os.environ.get(TOKEN) or None
    if chosen is not None and has_lone_surrogate(chosen):
        raise UserError("the token is not UTF-8 text", where=TOKEN, expected="letters and digits, 16 or more")
    policy = Policy.open(host, PORT if port is None else port, chosen)
    explorer = Explorer(folders)
    for subject in explorer.subjects.values():
        typer.echo(f"loading {printable(subject.name)} ...", err=True)
        if subject.broken is not None and not subject.views:
            raise UserError(
                f"there is nothing to look at: {subject.broken}", where=str(subject.folder),
                todo="name a run or a model; `heedful runs` lists the runs below a folder",
            )  # fmt: skip
        if subject.broken is not None:
            typer.echo(
                f"note: {printable(subject.name)}: {printable(subject.broken)}; its curves can be seen", err=True
            )
        else:
            subject.about()  # what the page asks first, so that it is there at once
    built()  # a mistake in the command comes first
    models = [subject.predictor for subject in explorer.subjects.values() if subject.broken is None]
    torch.set_num_threads(max((few_threads(one.model, one.device) for one in models), default=1))
    if out is not None:
        write(explorer, out, view, settings)
        return

    def ready(url: str) -> None:
        if policy.token != chosen:
            say(f"token  {policy.token}")
            say("       the page asks for it; set HEEDFUL_TOKEN to choose one yourself")
        say(f"open   {url}")
        say("       Ctrl-C ends it")
        if browser and sys.stdout.isatty():
            webbrowser.open(url)

    serve_somewhere(explorer, policy, port is None, ready)


def serve_somewhere(explorer: Explorer, policy: Policy, anywhere: bool, ready: Callable[[str], None]) -> None:
    """Serve at the policy's port; at a free one where that is in use and nobody asked for it."""
    serve(application(explorer), replace(policy, port=0) if anywhere and not is_free(policy) else policy, ready)


def is_free(policy: Policy) -> bool:
    """Whether nothing listens at the policy's address yet."""
    try:
        listen(policy)[0].close()
    except UserError:
        return False
    return True


def write(explorer: Explorer, out: Path, view: str | None, settings: Sequence[str]) -> None:
    """Write a view of the first subject, with everything in it that the page will ask."""
    state: dict[str, Any] = {"model": next(iter(explorer.subjects))}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign:
            raise UserError("this is not KEY=VALUE", where="--set", found=setting, expected="such as text=hello")
        state[key] = value
    export = Export(view=view or first_view(explorer), state=state)
    require_indices(explorer, export, "--set ")
    page = page_of(explorer, export)
    write_text_atomic(out, page)
    say(f"wrote {shlex.quote(str(out))}: {len(page.encode()) / 1e6:.1f} MB; it opens from the disk")
