"""A view as a single HTML file that works offline: the page, and the answers to its calls."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import nullcontext
from html import escape
from pathlib import Path
from typing import Any

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.head_settings import HeadSettings, heads_of
from heedful.explore.inspect import TextInput
from heedful.explore.lessons.answers import held_lesson
from heedful.explore.server.page import built
from heedful.explore.subjects import Explorer, parse_request
from heedful.explore.views import Call, find, takes_heads
from heedful.files import writing as files

MAX_CALLS = 2000  # in a file
MAX_PAGE_CALLS = 100  # that a page sends along
MAX_BYTES = 256_000_000  # of answers, before compression


class PageCall(Config):
    """A call that a page has made."""

    view: str = Field(max_length=100)
    call: str = Field(max_length=100)
    asked: dict[str, Any]


class Export(Config):
    """A view to be saved as a file: its state, and the calls that the page has made so far to show it."""

    view: str = Field(max_length=100)
    state: dict[str, str | bool | int | float | None] = Field({}, max_length=100)
    questions: tuple[PageCall, ...] = Field((), max_length=MAX_PAGE_CALLS)


def page_of(explorer: Explorer, export: Export, seconds: float = math.inf) -> str:
    """The page with all answers in it, if that takes no longer than `seconds`."""
    end = time.monotonic() + seconds
    view, state = find(export.view), complete_state(explorer, export)
    calls = [Call(one.view, one.call, one.asked) for one in export.questions]
    lesson = None
    try:
        if "lesson" in state:
            name = str(state["lesson"]).rpartition("/")[0] or str(state["lesson"])
            lesson, more = held_lesson(explorer, name, state["model"])
            calls += more
        else:
            calls += calls_of(explorer, export.view, state)
            if "compare" in state:
                second = complete_state(explorer, Export(view=export.view, state=second_pane(state)))
                calls += calls_of(explorer, export.view, second)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"invalid state for the view {export.view}", where="state", found=shown(state)) from None
    each = {json.dumps(one, sort_keys=True): one for one in calls}
    if len(each) > MAX_CALLS:
        raise UserError("this view is too large for a file", found=f"{len(each):,} parts", expected=f"{MAX_CALLS:,}")
    answers, size = [], 0
    for one in each.values():
        if time.monotonic() > end:
            raise UserError("this view takes too long for a file", todo="shorten the text")
        packet = explorer.answer(*one)
        size += len(packet)
        if size > MAX_BYTES:
            raise UserError("this view is too large for a file", todo="shorten the text")
        data = b64encode(zlib.compress(packet, 6)).decode()
        answers.append({"view": one.view, "call": one.call, "asked": one.settings, "packet": data})
    everything = {"about": explorer.about(), "view": export.view, "state": state, "answers": answers, "lesson": lesson}
    title = view.TITLE if lesson is None else lesson["lesson"]["title"]
    return html_of(f"{title}: {state['model']}", json.dumps(everything))


def calls_of(explorer: Explorer, view: str, state: Mapping[str, Any]) -> list[Call]:
    """The calls of a view; those of B - A, too, where the state is one of a comparison."""
    subject = explorer.subject(str(state["model"]))
    names = [view, "heads"] if "compare" in state and view in ATTENTION and view != "heads" else [view]
    with subject.heads_set(HeadSettings.model_validate(heads_of(state))) if takes_heads(find(view)) else nullcontext():
        return [call for name in names for call in find(name).calls(subject, state)]


def second_pane(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of B in a comparison: that of A, with its own names in their place; an empty one is left out."""
    shared = {name: value for name, value in state.items() if not name.startswith(OWN)}
    own = {name.removeprefix(OWN): value for name, value in state.items() if name.startswith(OWN)}
    return {name: value for name, value in (shared | own).items() if value != "" or name == "text"}


def complete_state(explorer: Explorer, export: Export) -> dict[str, Any]:
    """The state of a view with its defaults: the first model that the view fits, and its sample."""
    given = {name: value for name, value in export.state.items() if value is not None}
    subjects = [explorer.subject(str(given["model"]))] if "model" in given else list(explorer.subjects.values())
    fitting = [subject for subject in subjects if export.view in subject.views]
    if not fitting:
        raise UserError(
            "this view does not fit this model", where="view", found=export.view,
            expected=", ".join(name for subject in subjects for name in subject.views) or None,
        )  # fmt: skip
    first = fitting[0]
    sample = first.sample if first.broken is None and "text" not in given else {}
    return {"model": first.name, **{name: text for name, text in sample.items() if text is not None}, **given}


# The indices in a state, which count from 0; in the page, an index that is too large means the last one.
INDICES = {
    "layer": "layer",
    "aligned": "layer",
    "head": "head",
    "alignhead": "head",
    "token": "token",
    "place": "token",
}
NUMBERED = re.compile("(?:(?:ask|see)-)?([0-9]{1,9})")
EVERY = "all"  # tokens
OWN = "b."  # before the names of B in a comparison
ATTENTION = ("heads", "grid", "alignment", "steps", "fill", "ablation")  # views of one kind of attention


def require_indices(explorer: Explorer, export: Export, prefix: str = "") -> None:
    """Refuse a state with an index out of range; the error names it with a prefix."""
    find(export.view)
    state = export.state.items()
    for name, value in ((name, str(value)) for name, value in state if name in INDICES and value not in (None, EVERY)):
        if (number := NUMBERED.fullmatch(value)) is None:
            raise UserError(f"{shown(value)} is not an integer", where=f"{prefix}{name}", expected=f"such as {name}=0")
        what = INDICES[name]
        count = counts(explorer, export).get(what)
        if count is not None and int(number[1]) >= count:
            expected = f"0 to {count - 1}, counted from 0"
            raise UserError(f"there is no such {what}", where=f"{prefix}{name}", found=value, expected=expected)


def counts(explorer: Explorer, export: Export) -> dict[str, int]:
    """The number of layers, heads and tokens of a state, where its view shows one kind of attention."""
    state = complete_state(explorer, export)
    if export.view not in ATTENTION:
        return {}
    trace = explorer.subject(state["model"]).trace(TextInput(text=state["text"], other=state.get("other")))
    fitting = [one for one in trace.attentions if one.kind == "cross" or export.view != "alignment"]
    attention = next((one for one in fitting if one.name == state.get("look")), fitting[0])
    tokens = max(len(trace.reading.sides[side]) for side in (attention.queries, attention.keys))
    return {"layer": len(attention.taps), "head": attention.heads, "token": tokens}


def html_of(title: str, held: str) -> str:
    """The page with its script, style and data inline, and a policy that forbids everything else."""
    files = built()
    script = files["assets/app.js"].decode().replace("</script", "<\\/script")
    style = files["assets/app.css"].decode()
    policy = f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; img-src data: blob:"
    policy += "; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)} (Heedful)</title>\n'
        f'<style>{style}</style>\n</head>\n<body>\n<div id="app"></div>\n'
        f'<script id="held" type="application/json">{held.replace("<", chr(92) + "u003c")}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def digest(text: str) -> str:
    """The hash by which the policy allows an inline script or style."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def require_html(out: Path, where: str) -> None:
    """Refuse a path at which no page can be written."""
    files.require_writable(out, where)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(
            "a view is saved as HTML", where=where, found=str(out), expected="a name that ends in .html",
            todo="for SVG or PNG, use the buttons of the page",
        )  # fmt: skip


class ViewPage:
    """A view of a model for a notebook, which displays it; `save` writes it to a file."""

    def __init__(self, html: str, height: int) -> None:
        self.html, self.height = html, height

    def save(self, path: str | Path) -> Path:
        """Write the page to a file that ends in .html, which opens without a server."""
        file = Path(path)
        require_html(file, "path")
        files.write_text_atomic(file, self.html)
        return file

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts allow-downloads" width="100%"'
        return f'<iframe {frame} height="{self.height}" frameborder="0" srcdoc="{escape(self.html)}"></iframe>'


def show(*folders: str | Path, view: str | None = None, height: int = 640, **state: object) -> ViewPage:
    """A view of trained models, for a notebook or a file; by default the first view of the first model.

    `state` holds the names of the page's address, such as text="...".
    """
    explorer = Explorer([Path(folder) for folder in folders])
    view = view or first_view(explorer)
    lists = {name: ",".join(map(str, value)) for name, value in state.items() if isinstance(value, list | tuple)}
    settings = json.dumps({"view": view, "state": {**state, **lists}}, default=str).encode()
    export = parse_request(Export, settings)
    require_indices(explorer, export)
    return ViewPage(page_of(explorer, export), height)


def first_view(explorer: Explorer) -> str:
    """The default view."""
    first = next(iter(explorer.subjects.values()))
    if not first.views:
        raise UserError(f"this model has no views: {first.broken}", where=str(first.folder))
    return first.views[0]
