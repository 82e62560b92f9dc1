"""A model is one folder and one line: what names a model elsewhere, or asks what it is instead of what it can do."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import heedful
from heedful.models import MODELS

SOURCE = Path(heedful.__file__).parent
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
FOLDERS = {model.folder or kind for kind, model in MODELS.items()} - {"heads"}  # heads stand on any encoder

MODELS_ARE_CALLED = ("model", "predictor", "encoder", "decoder")
# Where one model is what a file is about: lessons, and an estimator of that model.
ABOUT = ("lectures/", "extras/estimators/autoencoder.py")


def named(tree: ast.Module) -> Iterator[int]:
    """The lines that import from a model's folder, or name its module."""
    for node in ast.walk(tree):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and any(f"{module}.".startswith(f"heedful.models.{folder}.") for folder in FOLDERS):
            yield node.lineno


def asked(tree: ast.Module) -> Iterator[int]:
    """The lines that ask a model or a predictor whether it has something, by the name of what is asked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr"):
            about = ast.unparse(node.args[0])
            yield from [node.lineno] * any(word in about for word in MODELS_ARE_CALLED)


def kinds(tree: ast.Module) -> Iterator[int]:
    """The lines that compare a `kind` with the name of a model."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
            if words & MODELS.keys() and any(ast.unparse(side).endswith("kind") for side in sides):
                yield node.lineno


Find = Callable[[ast.Module], Iterator[int]]
HOMES = tuple(f"models/{folder}/" for folder in FOLDERS)


@pytest.mark.parametrize(
    ("find", "skip"),
    [
        (named, (*HOMES, *ABOUT)),
        (asked, ("models/__init__.py",)),
        (kinds, (*HOMES, "models/heads/config.py", "hub/")),
    ],
    ids=["named", "asked", "kinds"],
)
def test_models_are_named_only_in_their_folder_and_table(find: Find, skip: tuple[str, ...]) -> None:
    found = {name: sorted(find(tree)) for name, tree in TREES.items() if not name.startswith(skip)}
    assert {name: where for name, where in found.items() if where} == {}, "ask for a role, or for what it can do"


def test_detection_on_examples() -> None:
    assert list(named(ast.parse("from heedful.models.bert.model import Bert")))
    assert not list(named(ast.parse("from heedful.models.heads.config import HeadConfig")))
    assert list(asked(ast.parse("hasattr(self.model, 'pool')"))) and list(asked(ast.parse("getattr(predictor, x, 0)")))
    assert not list(asked(ast.parse("hasattr(os, 'fork')")))
    assert list(kinds(ast.parse("x = config.kind == 'gpt'"))) and list(kinds(ast.parse("kind in ('bert', 'gpt')")))
    assert not list(kinds(ast.parse("look.kind == 'cross'")))


@pytest.mark.parametrize("kind", MODELS)
def test_each_model_is_one_folder_and_one_table_line(kind: str) -> None:
    folder = MODELS[kind].folder or kind
    assert f"models/{folder}/config.py" in FILES
    config = importlib.import_module(f"heedful.models.{folder}.config")
    cls = getattr(config, MODELS[kind].config)
    file, name = cls.implementation.split(".")
    assert f"models/{folder}/{file}.py" in FILES
    assert any(
        isinstance(node, ast.ClassDef) and node.name == name for node in TREES[f"models/{folder}/{file}.py"].body
    )


# ------------------------------------------------------------------ private names
def defined(tree: ast.Module) -> set[str]:
    """The private names that a file defines: functions, classes, attributes of its objects, variables."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found |= {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


PACKAGES: dict[str, set[str]] = {}  # the private names of each package
for file, module in TREES.items():
    PACKAGES.setdefault(file.partition("/")[0], set()).update(defined(module))


def private(tree: ast.Module, package: str) -> Iterator[str]:
    """The private names of other packages that a file uses, as `predictor._run`, or imports."""
    others = set().union(*(names for name, names in PACKAGES.items() if name != package)) - PACKAGES.get(package, set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in others:
            yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heedful"):
            names = [alias.name for alias in node.names if alias.name in others]
            yield from (f"{node.lineno}: import {name}" for name in names)


def test_no_private_names_across_packages() -> None:
    found = {name: sorted(private(tree, name.partition("/")[0])) for name, tree in TREES.items()}
    assert {name: where for name, where in found.items() if where} == {}, "make it public, or ask for what is"
    assert list(private(ast.parse("predictor._net.start(1)"), "explore")) == ["1: predictor._net"]
    assert list(private(ast.parse("from heedful.tasks.language_model.task import _after_lines"), "cli"))
    assert not list(private(ast.parse("self._net.start(1)"), "tasks"))
