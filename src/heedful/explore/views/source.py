"""The model's source code, with the shapes of its tensors for an input."""

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
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, input_of
from heedful.shapes import Found, Line, follow
from heedful.tasks.reconstruction.predictor import ImageAutoencoder

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Source"
ABOUT = "The model's source code, with the shapes of its tensors for your input."
PACKAGE = Path(heedful.__file__).parent
SHOWN = ("models/**/*.py", "blocks/*.py")  # the files that are traced
LONGEST = 1500  # tokens of an input: a recurrent model runs its lines for each
MOST = 6  # tensors of a line
KEYWORD, STRING, NUMBER, COMMENT, DEFINED = range(1, 6)  # kinds of highlighted words
_parsing = Lock()  # parsing in two threads fails in Python 3.11 (its issue 106905)
PASSES = ("images", "text", "source", "target")  # in their order
Passes = dict[str, Line]  # the record of one line, by pass
LETTER = re.compile(r"(?:and )?([A-Z]) ([^.]+)")


def fits(subject: Subject) -> bool:
    return subject.broken is None and (
        inspect.reads_text(subject.predictor) or isinstance(subject.predictor, ImageAutoencoder)
    )


def lines(subject: Subject, request: InputRequest) -> bytes:
    """Every file whose code ran, the model's own first, with the record of each line."""
    with _parsing:
        return traced_files(subject, request)


def traced_files(subject: Subject, request: InputRequest) -> bytes:
    """The same, in one thread at a time."""
    own = Path(sys.modules[type(subject.model).__module__].__file__ or "")
    seen: dict[Path, dict[int, Passes]] = {own: {}}  # first, even where only other parts of the model ran
    with subject.lock:
        for name, run in passes(subject, request).items():
            for path, happened in follow(run, sources()).items():
                for number, line in happened.items():
                    seen.setdefault(path, {}).setdefault(number, {})[name] = line
    arrays: dict[str, NDArray[Any]] = {}
    files = []
    for number, (path, lines) in enumerate(seen.items()):
        text = path.read_text(encoding="utf-8")
        arrays[f"words{number}"] = np.array(list(highlighted(text)), dtype=np.int32).reshape(-1, 4)
        arrays[f"runs{number}"] = np.array(
            [sum(each.runs for each in lines.get(line, {}).values()) for line in range(1, text.count("\n") + 1)],
            np.int32,
        )
        files.append({"name": path.relative_to(PACKAGE).as_posix(), "text": text, **described(text, lines)})
    return pack({"files": files}, **arrays)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    return [Call("source", "lines", input_of({"text": "", **state}))]


def sources() -> list[Path]:
    """The files that can be shown."""
    return [path for pattern in SHOWN for path in sorted(PACKAGE.glob(pattern))]


def passes(subject: Subject, request: InputRequest) -> dict[str, Callable[[], object]]:
    """The forward passes for an input by the side that each reads, with watched attention instead of fused."""
    predictor = subject.predictor
    if not inspect.reads_text(predictor):
        return {"images": lambda: predictor.reconstruct(np.zeros((1, *predictor.canvas.image), np.float32))}
    reading = inspect.reading(predictor, request)
    if (count := sum(map(len, reading.sides.values()))) > LONGEST:
        raise UserError(
            "this text is too long to be traced line by line", where="text", found=f"{count:,} tokens",
            expected=f"at most {LONGEST:,}", todo="shorten the text",
        )  # fmt: skip
    pattern = f"*.{inspect.WEIGHTS}" if subject.attentions else "*"
    return {
        each.queries: partial(inspect.trace, predictor.model, replace(reading, passes=(each,)), pattern)
        for each in reading.passes
    }


def described(text: str, seen: Mapping[int, Passes]) -> dict[str, Any]:
    """The shapes at each line, the dimensions of its shape comment, and the meaning and size of each letter.

    A letter may have another size in each pass; it has that of its last one.
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
    """The tensors of a line: name, shape, items, how often, and in which pass if not in all."""
    found: dict[Found, dict[str, int]] = {}
    for name, line in lines.items():
        for one, times in line.found.items():
            found.setdefault(one, {})[name] = times
    return [
        [one.name, one.shape, one.items, sum(each.values()), next(iter(each)) if len(each) == 1 < count else ""]
        for one, each in found.items()
    ][:MOST]


def meanings(text: str) -> dict[str, str]:
    """The meanings of a file's shape letters, from the last paragraph of its docstring."""
    last = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[-1]
    parts = (LETTER.match(part.strip()) for part in last.replace("\n", " ").split(","))
    return {part[1]: part[2].strip() for part in parts if part}


def highlighted(text: str) -> Iterator[tuple[int, int, int, int]]:
    """The highlighted words of a file: line, first column, last column, and kind."""
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


CALLS = {"lines": (InputRequest, lines)}
