"""Shape comments held to their word: `x = self.norm(x)  # (B, T, D)` is compared with the tensor while the code runs.

A comment counts when it ends an assignment or a return inside a function. Letters and words stand for one size each
within a call, or for the integer variable of that name; digits for themselves; `W * T` for what its parts give.
`follow` asks for no comments: it notes which lines of some files run, and the shapes of all that they assign.
"""

from __future__ import annotations

import ast
import io
import operator
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
Place = tuple[str, int]  # a function's name and first line, as in its code object


@dataclass(frozen=True)
class Statement:
    """One commented statement: its lines, the dimensions it claims and the names that it assigns."""

    first: int
    last: int
    dims: tuple[str, ...]
    names: tuple[str, ...]  # empty: the statement returns its tensors


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


def _claims(text: str) -> dict[int, tuple[str, ...]]:
    """The dimensions that shape comments name, by line."""
    return {
        token.start[0]: tuple(dim.strip() for dim in match[1].split(",") if dim.strip())
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and (match := SHAPE.match(token.string))
    }


def statements(source: Path) -> dict[Place, list[Statement]]:
    """Every commented statement of a file, by its function."""
    text = source.read_text(encoding="utf-8")
    comments = _claims(text)
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
    """Run a function and check every shape comment of the file that is reached; `sizes` restricts the letters."""
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

    _traced(run, enter)
    return list(seen)


def _traced(run: Callable[[], object], enter: Callable[[FrameType, str, Any], Any]) -> None:
    """Run a function, calling `enter` for every call in it."""
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)


def _fits(
    dims: tuple[str, ...],
    found: tuple[int, ...],
    local: Mapping[str, Any],
    bound: dict[str, int],
    allowed: Mapping[str, Collection[int]],
) -> bool:
    """Whether a shape matches its comment; a letter seen for the first time in a call takes the size found.

    If it is seen first within an expression, it takes the size that makes the expression right; there must be one.
    """
    known = {name: value for name, value in local.items() if type(value) is int}
    fits = len(dims) == len(found)
    for dim, size in zip(dims, found, strict=False):
        body = ast.parse(dim, mode="eval").body
        new = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)} - {*bound, *known}
        if len(new) == 1:
            (letter,) = new
            choices = allowed.get(letter, range(2 * size + 100))
            right = [n for n in choices if _value(body, {**bound, **known, letter: n}) == size]
            fits &= bool(right)
            bound |= {letter: right[0]} if len(right) == 1 else {}
        fits &= _value(body, {**bound, **known}) in (size, None)
    return fits


def _value(node: ast.AST, sizes: Mapping[str, int]) -> int | None:
    """The value of an expression over sizes, or None where a size in it is unknown."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        return None if left is None or right is None else SIGNS[type(node.op)](left, right)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    return sizes.get(node.id) if isinstance(node, ast.Name) else None


# ------------------------------------------------------------------ every line that runs
RETURNED = "return"  # the name of a function's return value
MOST_TOLD, MOST_DEEP = 8, 3  # tensors of a list, and lists within lists


@dataclass(frozen=True)
class Found:
    """A tensor that a line assigned, received or returned; `items` counts those of a list with one shape."""

    name: str
    shape: tuple[int, ...]
    items: int = 1


@dataclass
class Line:
    """What happened at one line: how often it ran, and which tensors were found there, how often each."""

    runs: int = 0
    found: Counter[Found] = field(default_factory=Counter)
    dims: tuple[str, ...] = ()  # as the line's comment names them

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that the letters of the comment had."""
        seen: dict[str, dict[int, None]] = {}
        for one in self.found:
            if len(one.shape) == len(self.dims):
                for dim, size in zip(self.dims, one.shape, strict=True):
                    if dim.isidentifier():
                        seen.setdefault(dim, {})[size] = None
        return {dim: tuple(each) for dim, each in seen.items()}


@dataclass(frozen=True)
class _Part:
    """A statement, or the head of a compound one: its lines, and the names that it assigns."""

    first: int
    last: int
    names: tuple[str, ...]


class _File:
    """A file that is followed: its statements and the heads of its functions by line, and its shape comments."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.claims = _claims(text)
        self.parts: dict[int, _Part] = {}
        self.heads: dict[int, _Part] = {}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                begins = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                self.heads[begins] = _Part(node.lineno, node.body[0].lineno - 1, ())
            elif isinstance(node, ast.stmt):
                body = getattr(node, "body", None)
                last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
                part = _Part(node.lineno, last, (RETURNED,) if isinstance(node, ast.Return) else _assigned(node))
                self.parts.update(dict.fromkeys(range(part.first, part.last + 1), part))
        self.lines: dict[int, Line] = {}

    def line(self, number: int) -> Line:
        return self.lines.setdefault(number, Line(dims=self.claims.get(number, ())))

    def ran(self, part: _Part) -> None:
        for number in range(part.first, part.last + 1):
            self.line(number).runs += 1

    def note(self, number: int, names: Sequence[str], values: Mapping[str, object]) -> None:
        self.line(number).found.update(one for name in names for one in _found(name, values.get(name)))


def follow(run: Callable[[], object], sources: Collection[Path]) -> dict[Path, dict[int, Line]]:
    """Run a function, and record what happened at each line of these files; lines that did not run are absent.

    What a statement assigns or returns is recorded at its last line, where its comment is; a function's arguments, at
    its first.
    """
    known = {str(path): path for path in sources}
    files: dict[str, _File] = {}
    inside: dict[FrameType, _Part] = {}

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        file, part = files[frame.f_code.co_filename], inside.get(frame)
        if event == "line" and not (part and part.first <= frame.f_lineno <= part.last):
            if part is not None and part.names != (RETURNED,):
                file.note(part.last, part.names, frame.f_locals)
            part = file.parts.get(frame.f_lineno)
            if part is None:
                inside.pop(frame, None)
            else:
                inside[frame] = part
                file.ran(part)
        elif event == "exception":
            inside.pop(frame, None)
        elif event == "return" and part is not None:
            file.note(part.last, part.names, {RETURNED: value} if part.names == (RETURNED,) else frame.f_locals)
            inside.pop(frame)  # which would keep all that the function held
        return trace

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in known or code.co_name.startswith("<"):
            return None  # a lambda or a comprehension runs within the statement of another function
        file = files.get(code.co_filename)
        if file is None:
            file = files[code.co_filename] = _File(known[code.co_filename])
        head = file.heads.get(code.co_firstlineno)
        if head is not None and frame.f_lineno == code.co_firstlineno:  # not a resumed generator
            file.ran(head)
            file.note(head.first, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], frame.f_locals)
        return trace

    _traced(run, enter)
    return {known[name]: file.lines for name, file in files.items()}


def _assigned(node: ast.stmt) -> tuple[str, ...]:
    """The names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    walked = (one for target in targets if target is not None for one in ast.walk(target))
    return tuple(one.id for one in walked if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def _found(name: str, value: object) -> list[Found]:
    """The tensors in a value, also within lists and tuples; many of one shape are reported once."""
    tensors = list(_tensors(name, value, MOST_DEEP))
    shapes = {tuple(tensor.shape) for _, tensor in tensors}
    if len(tensors) > 1 and len(shapes) == 1:
        return [Found(name, shapes.pop(), len(tensors))]
    return [Found(path, tuple(tensor.shape)) for path, tensor in tensors[:MOST_TOLD]]


def _tensors(name: str, value: object, deep: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple | list) and deep:
        fields = getattr(value, "_fields", None)
        for number, item in enumerate(value):
            yield from _tensors(f"{name}.{fields[number]}" if fields else f"{name}[{number}]", item, deep - 1)
