"""The model's own code, with the shapes of what each line makes of an input."""

from __future__ import annotations

import ast
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import heedful
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.capabilities import Reconstructs
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request
from heedful.shapes import Found, Line, follow

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Source"
ABOUT = "The model's source code, with the shapes of its tensors for your input."
PACKAGE = Path(heedful.__file__).parent
SHOWN = ("models/**/*.py", "blocks/*.py")  # the parts of the package that are followed
LONGEST = 1500  # tokens of an input: a recurrent model runs its lines anew for each
MOST = 6  # tensors that are told of a line
KEYWORD, STRING, NUMBER, COMMENT, DEFINED = range(1, 6)  # kinds of words, in colours of their own
_parsing = Lock()  # Python 3.11 loses count of how deep it is where two threads parse code (its issue 106905)
PASSES = ("images", "text", "source", "target")  # in the order that they are made in
Passes = dict[str, Line]  # what happened at one line, by pass
LETTER = re.compile(r"(?:and )?([A-Z]) ([^.]+)")


def fits(subject: Subject) -> bool:
    return subject.broken is None and (inspect.reads(subject.predictor) or isinstance(subject.predictor, Reconstructs))


def lines(explorer: Explorer, asked: Asked) -> bytes:
    """Every file whose code ran, the model's own first, with what happened at each line."""
    with _parsing:
        return followed(explorer.subject(asked.model), asked)


def followed(subject: Subject, asked: Asked) -> bytes:
    """The same, by whoever is the only one to parse code."""
    own = Path(sys.modules[type(subject.model).__module__].__file__ or "")
    seen: dict[Path, dict[int, Passes]] = {own: {}}  # the first, even where another part of the model did the reading
    with subject.lock:
        for name, run in passes(subject, asked).items():
            for path, happened in follow(run, sources()).items():
                for number, line in happened.items():
                    seen.setdefault(path, {}).setdefault(number, {})[name] = line
    arrays: dict[str, NDArray[Any]] = {}
    files = []
    for number, (path, lines) in enumerate(seen.items()):
        text = path.read_text(encoding="utf-8")
        arrays[f"words{number}"] = np.array(list(coloured(text)), dtype=np.int32).reshape(-1, 4)
        arrays[f"runs{number}"] = np.array(
            [sum(each.runs for each in lines.get(line, {}).values()) for line in range(1, text.count("\n") + 1)],
            np.int32,
        )
        files.append({"name": path.relative_to(PACKAGE).as_posix(), "text": text, **told(text, lines)})
    return pack({"files": files}, **arrays)


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    given = {"model": state["model"], "text": state.get("text", ""), "other": state.get("other")}
    return [Request("source", "lines", given)]


def sources() -> list[Path]:
    """The files that can be shown, and no others."""
    return [path for pattern in SHOWN for path in sorted(PACKAGE.glob(pattern))]


def passes(subject: Subject, asked: Asked) -> dict[str, Callable[[], object]]:
    """What has the model read an input, its attention written out: each pass by the name of what it goes over."""
    predictor = subject.predictor
    if not inspect.reads(predictor):
        return {"images": lambda: predictor.reconstruct(np.zeros((1, *predictor.canvas.image), np.float32))}
    reading = inspect.reading(predictor, asked)
    if (count := sum(map(len, reading.sides.values()))) > LONGEST:
        raise UserError(
            "this text is too long to be followed line by line", where="text", found=f"{count:,} tokens",
            expected=f"at most {LONGEST:,}", todo="give a shorter one",
        )  # fmt: skip
    pattern = f"*.{inspect.WEIGHTS}" if subject.attentions else "*"
    return {
        each.asks: partial(inspect.trace, predictor.model, replace(reading, passes=(each,)), pattern)
        for each in reading.passes
    }


def told(text: str, seen: Mapping[int, Passes]) -> dict[str, Any]:
    """The shapes that were found at each line, the sizes of the letters of its comment, and what letters stand for.

    A letter may have another size in each pass: it has that of the last one that it is in, which writes.
    """
    sizes: dict[str, dict[str, set[int]]] = {}
    for lines in seen.values():
        for name, line in lines.items():
            for letter, each in line.sizes.items():
                sizes.setdefault(letter, {}).setdefault(name, set()).update(each)
    count = len({name for lines in seen.values() for name in lines})
    meant = meanings(text)
    return {
        "shapes": {number: found for number, lines in sorted(seen.items()) if (found := shapes(lines, count))},
        "dims": {number: line.dims for number, lines in seen.items() for line in lines.values() if line.dims},
        "letters": [
            [letter, meant.get(letter, ""), sorted(each[max(each, key=PASSES.index)])]
            for letter, each in sizes.items()
            if letter.isupper()
        ],
    }


def shapes(lines: Passes, count: int) -> list[list[Any]]:
    """The tensors that a line made: name, shape, items, how often, and in which pass, where not in all of them."""
    found: dict[Found, dict[str, int]] = {}
    for name, line in lines.items():
        for one, times in line.found.items():
            found.setdefault(one, {})[name] = times
    return [
        [one.name, one.shape, one.items, sum(each.values()), next(iter(each)) if len(each) == 1 < count else ""]
        for one, each in found.items()
    ][:MOST]


def meanings(text: str) -> dict[str, str]:
    """What the letters of a file's shapes stand for, as the last paragraph of its docstring says."""
    last = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[-1]
    parts = (LETTER.match(part.strip()) for part in last.replace("\n", " ").split(","))
    return {part[1]: part[2].strip() for part in parts if part}


def coloured(text: str) -> Iterator[tuple[int, int, int, int]]:
    """The words of a file that have a colour: line, first column, last, and kind."""
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = {tokenize.STRING: STRING, tokenize.NUMBER: NUMBER, tokenize.COMMENT: COMMENT}.get(token.type)
        if token.type == tokenize.NAME:
            kind = KEYWORD if keyword.iskeyword(token.string) else DEFINED if before in ("def", "class") else None
        before = token.string
        if kind is not None:
            for number in range(token.start[0], token.end[0] + 1):
                first = token.start[1] if number == token.start[0] else 0
                last = token.end[1] if number == token.end[0] else -1  # to the end of the line
                yield number, first, last, kind


CALLS = {"lines": (Asked, lines)}
