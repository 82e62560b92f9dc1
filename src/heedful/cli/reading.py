"""Texts that a command reads, from its arguments or from lines of stdin, in order and in batches."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from heedful.cli.output import json_line, say
from heedful.data.formats.sources import BOM, decode_line
from heedful.errors import UserError

MAX_LINE = 10_000_000  # characters
BATCH = 1024  # texts

Item = TypeVar("Item")
Input = TypeVar("Input")


class Line(NamedTuple):
    """A text and its location, for errors."""

    text: str
    where: str

    @property
    def blank(self) -> bool:
        """Whether it is empty or only white space."""
        return not self.text.strip()


class Source:
    """The texts of a command; without any, an error with the example `todo`."""

    def __init__(self, texts: Sequence[str], todo: str, noun: str = "text") -> None:
        self.texts, self.todo, self.noun = texts, todo, noun
        self.piped = piped(texts)
        if not texts and not self.piped:
            raise self.no_text_error()

    def no_text_error(self) -> UserError:
        """The error for a command without texts."""
        return UserError(f"there is no {self.noun} to read", todo=f"{self.todo}, or pipe lines into it")

    def __iter__(self) -> Iterator[Line]:
        if self.piped:
            return stdin_lines(sys.stdin.buffer)
        return (Line(text, f"{self.noun} {number}") for number, text in enumerate(self.texts, 1))

    def size(self, size: int) -> int:
        """The batch size: 1 for lines that are typed in a terminal, since each is answered at once."""
        return 1 if self.piped and sys.stdin.isatty() else size

    def show(
        self,
        predict: Callable[[list[Input]], Iterable[Any]],
        lines: Callable[[Input, Any], Iterable[str]],
        as_json: bool,
        *,
        parse: Callable[[Line], Input | None],
        record: Callable[[Input, Any], dict[str, Any]] = lambda text, result: {"text": text} | result.to_dict(),
        size: int | None = None,
    ) -> None:
        """Print the prediction for each text; an empty line where `parse` returns None, so that lines stay aligned.

        Predictions for the lines before an invalid one are printed before its error is raised.
        """
        count = 0
        for batch in batched(map(parse, self), self.size(size or BATCH)):
            count += len(batch)
            results = iter(predict([one for one in batch if one is not None]))
            for one in batch:
                if one is None:
                    say("null" if as_json else "")
                    continue
                result = next(results)
                for line in [json_line(record(one, result))] if as_json else lines(one, result):
                    say(line)
        if not count:
            raise self.no_text_error()


def text_or_none(line: Line) -> str | None:
    """The text of a line, or None if it is blank."""
    return None if line.blank else line.text


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items; an error in the iteration is raised after the items before it."""
    rest, batch = iter(items), list[Item]()
    try:
        for item in rest:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
    except UserError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def piped(texts: Sequence[str]) -> bool:
    """Whether texts come from stdin: the only argument is `-`, or there is none and stdin is not a terminal.

    A file name instead of a text is refused, since the name itself would be read as the text.
    """
    for text in texts:
        if Path(text).suffix and os.path.isfile(text):  # false for texts that cannot be a path
            raise UserError(
                "this is a file name, not a text", where=text,
                todo=f"read its lines from stdin: - < {shlex.quote(text)}; or evaluate a recipe: heedful eval",
            )  # fmt: skip
    return list(texts) == ["-"] or (not texts and not sys.stdin.isatty())


def stdin_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a UTF-8 stream, each as soon as it arrives."""
    number = 0
    while line := stream.readline(4 * MAX_LINE):
        number += 1
        where = f"stdin:{number}"
        if len(line) == 4 * MAX_LINE:
            raise UserError("this line is too long", where=where, found=f"{len(line):,} bytes", todo="split it")
        yield Line(decode_line(line if number > 1 else line.removeprefix(BOM), MAX_LINE * 4, where), where)
