"""Where a model to check comes from: a module, code of the user's own (`module:function`), or a folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from heedful.contracts.refusals import place
from heedful.errors import UserError, short, shown
from heedful.files.reading import is_file

Source = nn.Module | Callable[[], nn.Module]


def build_module(source: Source) -> tuple[nn.Module, Callable[[], nn.Module] | None]:
    """The module, and how to build another one like it, with other random weights, if that is known."""
    if isinstance(source, nn.Module):
        return unwrapped(source), None
    if not callable(source):
        raise UserError(
            "this is no model", where="model", found=type(source).__name__,
            expected="a torch.nn.Module, a function that builds one, or a path", todo="of a predictor, pass its .model",
        )  # fmt: skip

    def build() -> nn.Module:
        try:
            made = source()
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # any: it is the user's code
            raise UserError(
                "the function that builds the model raised an error", where=called(source), found=described(error),
                expected="a function without arguments, which returns the module",
            ) from error  # fmt: skip
        if not isinstance(made, nn.Module):
            raise UserError(
                "this does not build a module", where=called(source), found=shown(made), expected="a torch.nn.Module"
            )
        return unwrapped(made)

    def again() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(12345)
            return build()

    return build(), again


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of what compiles or distributes it, which says nothing about its arguments."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(module.module)
    inner = dict(module.named_children()).get("_orig_mod")  # of torch.compile
    return unwrapped(inner) if isinstance(inner, nn.Module) else module


def described(error: BaseException) -> str:
    """An error of the user's code: its type, its text and its line."""
    text = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else short(str(error), 300)
    return f"{type(error).__name__}: {text}{place(error)}"


def called(source: Source) -> str:
    """The name of a function or class, or of the class of a module."""
    return source.__qualname__ if isinstance(source, type | FunctionType) else type(source).__name__


def find_code(name: str) -> Source:
    """What `module:function`, or `file.py:function`, names: a function without arguments, a class or a module."""
    origin, _, attribute = name.rpartition(":")
    if not origin or not attribute:
        raise UserError("this names no function", where=name, expected="file.py:function or package.module:function")
    module = imported(origin)
    found: Any = module
    for part in attribute.split("."):
        if part not in vars(found):
            public = [one for one, value in vars(found).items() if callable(value) and not one.startswith("_")]
            raise UserError(
                f"there is no {part} in {origin}", where=name, expected=f"one of {short(', '.join(public), 200)}",
                todo="name a function without arguments that returns the module",
            )  # fmt: skip
        found = vars(found)[part]
    if not (callable(found) or isinstance(found, nn.Module)):
        raise UserError(
            "this is no model", where=name, found=shown(found), expected="a module, or a function that builds it"
        )
    return found


def imported(name: str) -> ModuleType:
    """A Python file, or a module that can be imported from here."""
    try:
        if not name.endswith(".py"):
            if (here := str(Path.cwd())) not in sys.path:
                sys.path.insert(0, here)
            return importlib.import_module(name)
        path = Path(name)
        if not is_file(path):
            raise UserError("no such file", where=name, expected="a Python file, or a module such as package.models")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        sys.path.insert(0, str(path.resolve().parent))
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # any: it is the user's code
        raise UserError(
            "this code cannot be imported", where=name, found=described(error),
            expected="a Python file, or a module that Python can import from here",
        ) from error  # fmt: skip
    return module
