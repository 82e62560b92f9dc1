"""Errors of the code that is checked, with the line of it that raised them."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from heedful.files.reading import is_file

OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # torch, and this library
STANDARD = sysconfig.get_path("stdlib")


class RefusedError(Exception):
    """What the model did in place of giving an output: `raised ValueError: ... (model.py, line 7)`."""


def place(error: BaseException) -> str:
    """The innermost line of the user's code, or of their packages, at which an error was raised, in parentheses."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if is_theirs(one.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def is_theirs(file: str) -> bool:
    """Whether a file is none of torch, this library or the standard library."""
    standard = file.startswith(STANDARD) and not {"site-packages", "dist-packages"} & {*Path(file).parts}
    return is_file(file) and not standard and not file.startswith(OTHERS)


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
