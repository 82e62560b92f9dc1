"""Errors of the code that is checked, with the line of it that raised them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from heedful.files.reading import is_file

OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # torch, and this library


class RefusedError(Exception):
    """What the model did in place of giving an output: `raised ValueError: ... (model.py, line 7)`."""


def place(error: BaseException) -> str:
    """The innermost line outside of torch and this library at which an error was raised, in parentheses."""
    frames = [
        one for one in traceback.extract_tb(error.__traceback__)
        if not one.filename.startswith(OTHERS) and is_file(one.filename)
    ]  # fmt: skip
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def refused(error: BaseException) -> RefusedError:
    """The error with the first line of a model's own one."""
    line = next(iter(str(error).strip().splitlines()), "")
    return RefusedError(f"raised {type(error).__name__}: {line}{place(error)}")


@contextmanager
def user_code() -> Iterator[None]:
    """Any error of the code that is checked, also that it ends the program, is a `RefusedError`."""
    try:
        yield
    except (MemoryError, RefusedError):
        raise
    except (Exception, SystemExit) as error:  # any: it is the user's code
        raise refused(error) from error
