"""The command `explore`: explore models in the browser, or write one view as a file."""

from __future__ import annotations

import os
import shlex
import sys
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
import typer

from heedful.cli.output import say
from heedful.errors import UserError, printable
from heedful.explore.export import Export, complete_state, first_view, page_of, require_html, require_indices
from heedful.explore.lessons.answers import steps_of
from heedful.explore.lessons.lesson import Lesson
from heedful.explore.lessons.reading import find_lesson
from heedful.explore.server.app import application
from heedful.explore.server.page import built
from heedful.explore.subjects import Explorer
from heedful.files.writing import write_text_atomic
from heedful.files.yaml import has_lone_surrogate
from heedful.http.guard import Policy, serve
from heedful.http.protocol import listen
from heedful.runs.load import few_threads

PORT = 8765  # a fixed default, so that links to views stay valid
TOKEN = "HEEDFUL_TOKEN"


def explore_command(
    folders: Sequence[Path],
    host: str,
    port: int | None,
    browser: bool,
    out: Path | None,
    view: str | None,
    settings: Sequence[str],
    lesson: str | None = None,
) -> None:
    """Serve the explorer for these models, or write one view of the first to a file."""
    if out is not None:
        require_html(out, "--out")
    token = os.environ.get(TOKEN) or None
    if token is not None and has_lone_surrogate(token):
        raise UserError("the token is not UTF-8 text", where=TOKEN, expected="letters and digits, 16 or more")
    policy = Policy.open(host, PORT if port is None else port, token)
    opened = None if lesson is None else find_lesson(lesson)
    explorer = Explorer(folders, opened)
    for subject in explorer.subjects.values():
        typer.echo(f"loading {printable(subject.name)} ...", err=True)
        if subject.broken is not None and not subject.views:
            raise UserError(
                f"there is nothing to explore: {subject.broken}", where=str(subject.folder),
                todo="name a run or a model; `heedful runs` lists the runs below a folder",
            )  # fmt: skip
        if subject.broken is not None:
            typer.echo(
                f"note: {printable(subject.name)}: {printable(subject.broken)}; only its curves are shown", err=True
            )
        else:
            subject.about()  # computed now, since the page requests it first
    built()  # after the errors in the command
    models = [subject.predictor for subject in explorer.subjects.values() if subject.broken is None]
    torch.set_num_threads(max((few_threads(one.model, one.device) for one in models), default=1))
    if opened is not None:
        view, begin = lesson_start(explorer, opened)
        settings = [*begin, *settings]
    export = Export(view=view or first_view(explorer), state=state_of(explorer, settings))
    if view or settings or out:
        require_indices(explorer, export, "--set ")
        complete_state(explorer, export)  # refuses a view that does not fit
    if out is not None:
        write_view(explorer, out, export)
        return

    def ready(url: str) -> None:
        if policy.token != token:
            say(f"token  {policy.token}")
            say("       the page asks for it; set HEEDFUL_TOKEN to choose your own")
        address = f"{url}#{urlencode({'view': export.view} | export.state)}" if view or settings else url
        say(f"open   {address}")
        say("       Ctrl-C stops the server")
        if browser and sys.stdout.isatty():
            webbrowser.open(address)

    serve_on_free_port(explorer, policy, port is None, ready)


def serve_on_free_port(explorer: Explorer, policy: Policy, any_port: bool, ready: Callable[[str], None]) -> None:
    """Serve at the policy's port, or at a free one if that is in use and `any_port` is true."""
    serve(application(explorer), replace(policy, port=0) if any_port and not is_free(policy) else policy, ready)


def is_free(policy: Policy) -> bool:
    """Whether the policy's address is free."""
    try:
        listen(policy)[0].close()
    except UserError:
        return False
    return True


def lesson_start(explorer: Explorer, lesson: Lesson) -> tuple[str, list[str]]:
    """The view and the settings of a lesson's first step, for the first model that it fits."""
    fitting = [one.name for one in explorer.subjects.values() if set(lesson.views) <= set(one.views)]
    model = (fitting or list(explorer.subjects))[0]
    state = {**steps_of(explorer, lesson, model)["steps"][0]["state"], "model": model, "lesson": f"{lesson.name}/0"}
    return state.pop("view"), [f"{key}={value}" for key, value in state.items()]


def state_of(explorer: Explorer, settings: Sequence[str]) -> dict[str, Any]:
    """The state of a view: the first subject, and the settings that are given as KEY=VALUE."""
    state: dict[str, Any] = {"model": next(iter(explorer.subjects))}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign:
            raise UserError("this is not KEY=VALUE", where="--set", found=setting, expected="such as text=hello")
        state[key] = value
    return state


def write_view(explorer: Explorer, out: Path, export: Export) -> None:
    """Write a view as a self-contained page."""
    page = page_of(explorer, export)
    write_text_atomic(out, page)
    say(f"wrote {shlex.quote(str(out))}: {len(page.encode()) / 1e6:.1f} MB; open it in a browser")
