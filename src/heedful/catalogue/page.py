"""The documentation's page of the catalogue, from the code: `python docs/catalogue.py` writes it."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.catalogue.parts import Part, kinds, parts_of, users
from heedful.catalogue.stack import STACK, names_in

NOTE = "<!-- Written by `python docs/catalogue.py` from the code. -->"


def page() -> str:
    """The page: the stack, then a table for each kind of part."""
    return "\n".join((*_head(), *_stack(), *_kinds())).rstrip("\n") + "\n"


def _head() -> Iterator[str]:
    yield from (NOTE, "", "# The catalogue", "")
    yield "Every part of the library by its kind, with what it takes and gives, the key of a recipe that selects it,"
    yield "and who uses it. `heedful catalogue` prints the same list, and a page of the explorer draws it as boxes, in"
    yield "which parts can be swapped. It is made from the code: a new model, task or setting stands here by itself."
    yield ""
    yield from ("```sh", "heedful catalogue                       # all parts, a line each")
    yield "heedful catalogue decoder               # one kind, in full"
    yield "heedful catalogue --stack               # the layers, from applications to parts"
    yield "heedful catalogue --swap numbers-rnn    # what else fits at each key of a recipe, what does not, and why"
    yield from ("```", "")
    yield "A swap is one override, `KEY=VALUE`. Settings of the old part that the new one does not have leave with it:"
    yield "the override is then the whole group, `model={kind: seq2seq, width: 96}`. What does not fit is refused"
    yield "before anything is trained."
    yield ""


def _stack() -> Iterator[str]:
    yield from ("## The stack", "", "| box | what it is here | parts |", "|---|---|---|")
    for row in STACK:
        for group, boxes in row.groups:
            for box in boxes:
                held = users([f"`{name}`" for name in [part.name for part in box.parts] or names_in(box.name)], most=5)
                name = f"{group}: {box.name}" if group else box.name
                yield f"| {name} | {box.here} | {held} |"
    yield ""


def _kinds() -> Iterator[str]:
    for kind, line in kinds().items():
        members = parts_of(kind)
        yield from (f"## {line.title}", "", f"{line.about[:1].upper()}{line.about[1:]}.", "")
        yield from ("| part | takes → gives | key | recipes |", "|---|---|---|---|")
        yield from map(_row, members)
        yield ""


def _row(part: Part) -> str:
    about = f"`{part.name}`: {_cell(part.about)}"
    key = f"`{part.keys[0]}`" if part.keys else f"`{part.code}`"
    shapes = _cell(f"{part.takes} → {part.gives}") if part.takes else ""
    return f"| {about} | {shapes} | {key} | {users(part.recipes, most=2)} |"


def _cell(text: str) -> str:
    """A text for a cell, in which Markdown has no meaning."""
    for sign in "|*_<[$":
        text = text.replace(sign, f"\\{sign}")
    return text
