"""Examples from a module of the user's own, which a recipe names: imported when training or evaluation reads them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from heedful.data.formats.sources import Split
from heedful.errors import UserError, shown


@runtime_checkable
class Indexed(Protocol):
    """Examples by number, as a map-style dataset of torch has them."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int) -> object:
        """One of them."""


def module_problems(path: str) -> list[UserError]:
    """An error if there is no such module; nothing of it is run."""
    name = path.partition(":")[0].partition(".")[0]
    if PathFinder.find_spec(name, [str(Path.cwd()), *sys.path]) is not None:
        return []
    return [
        UserError(
            "there is no such module", where="data.path", found=shown(path),
            expected="a file such as mydata.py in the working directory, or an installed package",
            todo="run the command in the folder of the file",
        )
    ]  # fmt: skip


def module_examples(path: str, split: Split) -> Iterable[object]:
    """The examples of a split, from the class or function that a path names: mydata:Reviews."""
    module, _, name = path.partition(":")
    for problem in module_problems(path):
        raise problem
    try:
        with importable(Path.cwd()):
            found = vars(importlib.import_module(module)).get(name)
            if not callable(found):
                raise UserError(
                    f"there is no class or function {name}", where="data.path", found=shown(path),
                    expected="a class or function that is called with train, valid or test",
                )  # fmt: skip
            examples = cast(Callable[[str], Any], found)(split)
            return [examples[number] for number in range(len(examples))] if isinstance(examples, Indexed) else examples
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{path} failed: {type(error).__name__}: {error}", where=f"data.path, for {split}",
            todo=f"try it alone: python -c 'import {module}; {module}.{name}({split!r})'",
        ) from error  # fmt: skip


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Import modules from a folder too."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
