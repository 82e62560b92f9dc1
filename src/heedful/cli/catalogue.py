"""The command `catalogue`: parts by kind, the stack that they make, and the swaps of a recipe; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from heedful.catalogue.parts import Part, kind_of, kinds, parts, parts_of, users
from heedful.catalogue.stack import STACK, boxes, names_in, record
from heedful.catalogue.swaps import Swap, Swappable, reason
from heedful.cli.output import json_line, say

WIDE = 26  # columns of a name


def catalogue_command(kind: str | None, as_json: bool) -> None:
    """Print all parts, a line each, or those of a kind in full."""
    if as_json:
        for part in parts() if kind is None else parts_of(kind):
            say(json_line(part.record()))
        return
    for line in _overview() if kind is None else _in_full(parts_of(kind)):
        say(line)


def stack_command(as_json: bool) -> None:
    """Print the stack from applications to parts, with what each box is here."""
    if as_json:
        for box in boxes():
            say(json_line(record(box)))
        return
    for row in STACK:
        for group, members in row.groups:
            if group:
                say(f"{group}")
            for box in members:
                indent = "  " if group else ""
                held = users([part.name for part in box.parts] or list(names_in(box.name)), most=6)
                say(f"{indent}{box.name:<{WIDE}} {box.here}{': ' + held if held else ''}")


def swaps_command(recipe: str, overrides: Sequence[str], kind: str | None, key: str | None, as_json: bool) -> None:
    """Print what can stand in the place of each part of a recipe, and what does not fit, and why."""
    swappable = Swappable(recipe, overrides)
    chosen = None if kind is None else {part.kind for part in parts_of(kind)} or {kind}
    found = [swap for swap in swappable.swaps(key) if chosen is None or swap.kind in chosen]
    if as_json:
        for swap in found:
            say(json_line(swap.record()))
        return
    size = swappable.parameters
    say(f"{recipe}: {'' if size is None else f'{size:,} parameters'}".rstrip(": "))
    last = ""
    for swap in found:
        if swap.key != last:
            say(f"\n{swap.key}: {swap.old}")
            last = swap.key
        say(_swap_line(swap, size))
    if any(swap.fits for swap in found):
        example = next(swap for swap in found if swap.fits)
        say(f"\nto train one: heedful train {recipe} {_quoted(example.override)} --run runs/other")


def _swap_line(swap: Swap, size: int | None) -> str:
    if swap.problem is not None:
        return f"  no  {swap.new:<{WIDE - 6}} {reason(swap.problem)}"
    change = (
        "" if size is None or swap.parameters is None or swap.parameters == size else f"{swap.parameters - size:+,}"
    )
    left = f"leaves out {', '.join(swap.left)}" if swap.left else ""
    return f"  ok  {swap.new:<{WIDE - 6}} {'; '.join(filter(None, (swap.override, change, left)))}"


def _quoted(text: str) -> str:
    return f"'{text}'" if " " in text else text


def _overview() -> Iterator[str]:
    """All parts: one line each, below the name of their kind."""
    for kind, line in kinds().items():
        members = parts_of(kind)
        yield f"{line.title}: {line.about} ({len(members)}, heedful catalogue {kind.replace('_', '-')})"
        for part in members:
            where = part.keys[0] if part.keys else part.code
            more = f", {_count(len(part.recipes))}" if part.recipes else ""
            yield f"  {part.name:<{WIDE}} {where}{more}"
        yield ""


def _in_full(members: Iterable[Part]) -> Iterator[str]:
    for number, part in enumerate(members):
        if number == 0:
            yield f"{kind_of(part.kind).title}: {kind_of(part.kind).about}"
        yield f"\n{part.name}: {part.about}"
        rows = {
            "shapes": f"{part.takes} -> {part.gives}" if part.takes else "",
            "key": ", ".join(part.keys),
            "tasks": ", ".join(part.tasks),
            "recipes": users(part.recipes, most=8),
            "code": part.code,
        }
        yield from (f"  {name:<8} {text}" for name, text in rows.items() if text)


def _count(recipes: int) -> str:
    return "1 recipe" if recipes == 1 else f"{recipes} recipes"
