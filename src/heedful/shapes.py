"""Shape comments held to their word: `x = self.norm(x)  # (B, T, D)` is compared with the tensor while the code runs.

A comment counts when it ends an assignment or a return inside a function. Letters and words stand for one size each
within a call, or for the integer variable of that name; digits for themselves; `W * T` for what its parts give.
"""

from __future__ import annotations

import ast
import io
import operator
import re
import sys
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
SHAPE = re.compile(r"#\s*\(([\w\s+*/,-]*)\)")
Place = tuple[str, int]  # a function's name and first line, as its code object tells them


@dataclass(frozen=True)
class Statement:
    """One commented statement: its lines, the dimensions it claims and the names that it assigns."""

    first: int
    last: int
    dims: tuple[str, ...]
    names: tuple[str, ...]  # none: the statement returns its tensors


@dataclass(frozen=True)
class Observation:
    """What one line claimed and what was found there."""

    line: int
    claimed: str
    found: tuple[int, ...]
    fits: bool


@dataclass
class _Call:
    """One running function: the sizes its letters have so far, and the statement that it is in."""

    sizes: dict[str, int] = field(default_factory=dict)
    inside: Statement | None = None


def statements(source: Path) -> dict[Place, list[Statement]]:
    """Every commented statement of a file, by the function that it stands in."""
    text = source.read_text(encoding="utf-8")
    comments = {
        token.start[0]: tuple(dim.strip() for dim in match[1].split(",") if dim.strip())
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and (match := SHAPE.match(token.string))
    }
    found: dict[Place, list[Statement]] = {}
    for place, node in _simple(ast.parse(text), None):
        last = node.end_lineno or node.lineno
        if place is not None and last in comments:
            names = tuple(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            found.setdefault(place, []).append(Statement(node.lineno, last, comments[last], names))
    return found


def _simple(node: ast.AST, place: Place | None) -> Iterator[tuple[Place | None, ast.Assign | ast.Return]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign | ast.Return):
            yield place, child
        elif isinstance(child, ast.FunctionDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield from _simple(child, (child.name, first))
        else:
            yield from _simple(child, place)


def check(
    source: Path, run: Callable[[], object], sizes: Mapping[str, Collection[int]] | None = None
) -> list[Observation]:
    """Run a function and compare every shape comment of the file that is reached; `sizes` says what letters may be."""
    known, seen = statements(source), dict[Observation, None]()
    calls: dict[FrameType, _Call] = {}

    def look(frame: FrameType, values: object) -> None:
        call = calls[frame]
        statement, call.inside = call.inside, None
        if statement is not None:
            for tensor in values if isinstance(values, tuple | list) else (values,):
                if isinstance(tensor, Tensor):
                    found = tuple(tensor.shape)
                    fits = _fits(statement.dims, found, frame.f_locals, call.sizes, sizes or {})
                    seen[Observation(statement.last, ", ".join(statement.dims), found, fits)] = None

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        call, line = calls[frame], frame.f_lineno
        inside = call.inside
        if event == "exception":
            call.inside = None
        elif event == "return" and inside is not None:
            look(frame, [frame.f_locals.get(name) for name in inside.names] if inside.names else value)
        elif event == "line" and not (inside and inside.first <= line <= inside.last):
            if inside is not None and inside.names:
                look(frame, [frame.f_locals.get(name) for name in inside.names])
            place = (frame.f_code.co_name, frame.f_code.co_firstlineno)
            call.inside = next((s for s in known[place] if s.first <= line <= s.last), None)
        return trace

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if code.co_filename != str(source) or (code.co_name, code.co_firstlineno) not in known:
            return None
        calls.setdefault(frame, _Call())
        return trace

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return list(seen)


def _fits(
    dims: tuple[str, ...],
    found: tuple[int, ...],
    local: Mapping[str, Any],
    bound: dict[str, int],
    allowed: Mapping[str, Collection[int]],
) -> bool:
    """Whether a shape is what its comment says; a letter met for the first time in a call takes the size it finds."""
    known = {name: value for name, value in local.items() if type(value) is int}
    fits = len(dims) == len(found)
    for dim, size in zip(dims, found, strict=False):
        if dim.isidentifier() and dim not in known:
            bound.setdefault(dim, size)
            fits &= dim not in allowed or bound[dim] in allowed[dim]
        fits &= _value(ast.parse(dim, mode="eval").body, {**bound, **known}) in (size, None)
    return fits


def _value(node: ast.AST, sizes: Mapping[str, int]) -> int | None:
    """The number that an expression over sizes gives, or None where a size in it is unknown."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        return None if left is None or right is None else SIGNS[type(node.op)](left, right)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    return sizes.get(node.id) if isinstance(node, ast.Name) else None
