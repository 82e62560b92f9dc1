"""A view as one file of HTML that needs nothing but itself: the page, and the answers to all that it will ask."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import zlib
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.inspect import Given
from heedful.explore.server.page import built
from heedful.explore.subjects import Explorer, asked
from heedful.explore.views import Request, find
from heedful.files import writing as files

MOST_ASKED = 2000  # questions that a file answers
MOST_TOLD = 100  # questions that a page tells of
MOST_BYTES = 256_000_000  # of answers, before they are packed


class Question(Config):
    """A question that a page has asked."""

    view: str = Field(max_length=100)
    call: str = Field(max_length=100)
    asked: dict[str, Any]


class Wish(Config):
    """A view to be written to a file: its state, and what the page asked so far to show it."""

    view: str = Field(max_length=100)
    state: dict[str, str | bool | int | float | None] = Field({}, max_length=100)
    questions: tuple[Question, ...] = Field((), max_length=MOST_TOLD)


def page_of(explorer: Explorer, wish: Wish, seconds: float = math.inf) -> str:
    """The page with everything in it, if that is done in time; what reads it can reach nothing else."""
    end = time.monotonic() + seconds
    view, state = find(wish.view), whole_state(explorer, wish)
    questions = [Request(one.view, one.call, one.asked) for one in wish.questions]
    try:
        questions += view.wanted(explorer, state)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"the view {wish.view} has no such state", where="state", found=shown(state)) from None
    each = {json.dumps(one, sort_keys=True): one for one in questions}
    if len(each) > MOST_ASKED:
        raise UserError("this view is too large for a file", found=f"{len(each):,} parts", expected=f"{MOST_ASKED:,}")
    answers, size = [], 0
    for one in each.values():
        if time.monotonic() > end:
            raise UserError("this view takes too long for a file", todo="give a shorter text")
        packet = explorer.answer(one.view, one.call, one.asked)
        size += len(packet)
        if size > MOST_BYTES:
            raise UserError("this view is too large for a file", todo="give a shorter text")
        answers.append({"view": one.view, "call": one.call, "asked": one.asked, "packet": packed(packet)})
    held = {"about": explorer.about(), "view": wish.view, "state": state, "answers": answers}
    return whole(f"{view.TITLE}: {state['model']}", json.dumps(held))


def whole_state(explorer: Explorer, wish: Wish) -> dict[str, Any]:
    """The state of a view with what it leaves out: the first model that the view makes sense of, and its sample."""
    given = {name: value for name, value in wish.state.items() if value is not None}
    subjects = [explorer.subject(str(given["model"]))] if "model" in given else list(explorer.subjects.values())
    fitting = [subject for subject in subjects if wish.view in subject.views]
    if not fitting:
        raise UserError(
            "this view does not fit this model", where="view", found=wish.view,
            expected=", ".join(name for subject in subjects for name in subject.views) or None,
        )  # fmt: skip
    first = fitting[0]
    sample = first.sample if first.broken is None and "text" not in given else {}
    return {"model": first.name, **{name: text for name, text in sample.items() if text is not None}, **given}


# What a state names by numbers from 0 on, and of what; in the page, a number that is too large means the last one.
PLACES = {"layer": "layer", "aligned": "layer", "head": "head", "alignhead": "head", "token": "token", "place": "token"}
NUMBERED = re.compile("(?:(?:ask|see)-)?([0-9]{1,9})")
EVERY = "all"  # tokens
LOOKING = ("heads", "grid", "alignment", "steps", "fill", "ablation")  # views of one kind of attention


def require_places(explorer: Explorer, wish: Wish, said: str = "") -> None:
    """Refuse a state that names a place which is not there; `said` stands before the name of what is refused."""
    find(wish.view)
    named = {name: str(value) for name, value in wish.state.items() if name in PLACES and value not in (None, EVERY)}
    for name, value in named.items():
        if (number := NUMBERED.fullmatch(value)) is None:
            raise UserError(
                f"{shown(value)} is not a whole number", where=f"{said}{name}", expected=f"such as {name}=0"
            )
        count = counts(explorer, wish).get(PLACES[name])
        if count is not None and int(number[1]) >= count:
            raise UserError(
                f"there is no such {PLACES[name]}", where=f"{said}{name}", found=value, expected=f"0 to {count - 1}"
            )


def counts(explorer: Explorer, wish: Wish) -> dict[str, int]:
    """How many layers, heads and tokens there are in what a state shows, where it is one kind of attention."""
    state = whole_state(explorer, wish)
    if wish.view not in LOOKING:
        return {}
    trace = explorer.subject(state["model"]).trace(Given(text=state["text"], other=state.get("other")))
    fitting = [look for look in trace.looks if look.kind == "cross" or wish.view != "alignment"]
    look = next((look for look in fitting if look.name == state.get("look")), fitting[0])
    tokens = max(len(trace.reading.sides[side]) for side in (look.asks, look.sees))
    return {"layer": len(look.taps), "head": look.heads, "token": tokens}


def packed(data: bytes) -> str:
    """Bytes as a page can hold them."""
    return b64encode(zlib.compress(data, 6)).decode()


def whole(title: str, held: str) -> str:
    """The page's own script and style with what they are to show, and a rule that they may reach nothing else."""
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
    """How a rule names the one script or style that it lets pass."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def require_html(out: Path, where: str) -> None:
    """Refuse at once a name at which no page can be written."""
    files.require_writable(out, where)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(
            "a view is written as a page", where=where, found=str(out), expected="a name that ends in .html",
            todo="for SVG or PNG, open the page and use its buttons",
        )  # fmt: skip


class Shown:
    """A view of a model, for a notebook: it shows itself, and `save` writes it to a file."""

    def __init__(self, html: str, height: int) -> None:
        self.html, self.height = html, height

    def save(self, path: str | Path) -> Path:
        """Write the page to a file that ends in .html; it opens from the disk, without a server."""
        file = Path(path)
        require_html(file, "path")
        files.write_text_atomic(file, self.html)
        return file

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts allow-downloads" width="100%"'
        return f'<iframe {frame} height="{self.height}" frameborder="0" srcdoc="{escape(self.html)}"></iframe>'


def show(*folders: str | Path, view: str | None = None, height: int = 640, **state: object) -> Shown:
    """A view of trained models, in a notebook or in a file, else the first that the first of them has.

    `state` is what the page's address says, as text="...".
    """
    explorer = Explorer([Path(folder) for folder in folders])
    view = view or first_view(explorer)
    lists = {name: ",".join(map(str, value)) for name, value in state.items() if isinstance(value, list | tuple)}
    told = json.dumps({"view": view, "state": {**state, **lists}}, default=str).encode()
    wish = asked(Wish, told)
    require_places(explorer, wish)
    return Shown(page_of(explorer, wish), height)


def first_view(explorer: Explorer) -> str:
    """The view that is shown where nobody says."""
    first = next(iter(explorer.subjects.values()))
    if not first.views:
        raise UserError(f"there is nothing to look at: {first.broken}", where=str(first.folder))
    return first.views[0]
