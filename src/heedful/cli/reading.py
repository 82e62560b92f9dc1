"""Texts that a command reads: its arguments, or the lines of stdin, in order and batch by batch."""

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

LONGEST = 10_000_000  # characters of a line
TOGETHER = 1024  # texts in a batch

Item = TypeVar("Item")
Given = TypeVar("Given")


class Line(NamedTuple):
    """A text and where it came from."""

    text: str
    where: str

    @property
    def blank(self) -> bool:
        """Whether it is empty, or white space alone."""
        return not self.text.strip()


class Source:
    """The texts of a command; an error where there are none."""

    def __init__(self, texts: Sequence[str], todo: str, noun: str = "text") -> None:
        self.texts, self.todo, self.noun = texts, todo, noun
        self.piped = piped(texts)
        if not texts and not self.piped:
            raise self.no_text_error()

    def no_text_error(self) -> UserError:
        """The error of a command without a text."""
        return UserError(f"there is no {self.noun} to read", todo=f"{self.todo}, or pipe lines into it")

    def __iter__(self) -> Iterator[Line]:
        if self.piped:
            return stdin_lines(sys.stdin.buffer)
        return (Line(text, f"{self.noun} {number}") for number, text in enumerate(self.texts, 1))

    def size(self, size: int) -> int:
        """How many lines to read together: one where a person types them and waits for each."""
        return 1 if self.piped and sys.stdin.isatty() else size

    def show(
        self,
        predict: Callable[[list[Given]], Iterable[Any]],
        lines: Callable[[Given, Any], Iterable[str]],
        as_json: bool,
        *,
        parse: Callable[[Line], Given | None],
        record: Callable[[Given, Any], dict[str, Any]] = lambda given, found: {"text": given} | found.to_dict(),
        size: int | None = None,
    ) -> None:
        """Print what is predicted for each text; where `parse` gives None, an empty line, so that lines stay in order.

        What stands before a line with a mistake is printed before the mistake is reported.
        """
        count = 0
        for batch in batched(map(parse, self), self.size(size or TOGETHER)):
            count += len(batch)
            found = iter(predict([given for given in batch if given is not None]))
            for given in batch:
                if given is None:
                    say("null" if as_json else "")
                    continue
                one = next(found)
                for line in [json_line(record(given, one))] if as_json else lines(given, one):
                    say(line)
        if not count:
            raise self.no_text_error()


def text_or_none(line: Line) -> str | None:
    """The text of a line that is not blank."""
    return None if line.blank else line.text


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Items in lists of a size, the last one shorter; an error in them comes after what stands before it."""
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
    """Whether texts come from stdin: `-` is given instead of them, or none is given and stdin is not a terminal.

    The name of a file where a text belongs is refused, since the name itself would be read.
    """
    for text in texts:
        if Path(text).suffix and os.path.isfile(text):  # which is false of texts that cannot be a path
            raise UserError(
                "this is a file, and a text is expected", where=text,
                todo=f"read its lines from stdin: - < {shlex.quote(text)}; or score it by a recipe: heedful eval",
            )  # fmt: skip
    return list(texts) == ["-"] or (not texts and not sys.stdin.isatty())


def stdin_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a UTF-8 stream, as soon as they come."""
    number = 0
    while line := stream.readline(4 * LONGEST):
        number += 1
        where = f"stdin:{number}"
        if len(line) == 4 * LONGEST:
            raise UserError("this line is too long", where=where, found=f"{len(line):,} bytes", todo="split it")
        yield Line(decode_line(line if number > 1 else line.removeprefix(BOM), LONGEST * 4, where), where)
