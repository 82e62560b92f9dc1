"""A model is one folder and one line of a table: nothing else names it, compares its kind or checks its attributes."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import heedful
from heedful.models import MODELS

SOURCE = Path(heedful.__file__).parent
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
FOLDERS = {model.folder or kind for kind, model in MODELS.items()} - {"heads"}  # heads work on any encoder

MODEL_NAMES = ("model", "predictor", "encoder", "decoder")
# Files about one model: lectures, and an estimator of that model.
ABOUT = ("lectures/", "plots/gallery/", "extras/estimators/autoencoder.py")


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each file, read by the first test that needs them, since every process collects this file."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def model_imports(tree: ast.Module) -> Iterator[int]:
    """The lines that import from a model's folder, or name its module."""
    for node in ast.walk(tree):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and any(f"{module}.".startswith(f"heedful.models.{folder}.") for folder in FOLDERS):
            yield node.lineno


def attribute_checks(tree: ast.Module) -> Iterator[int]:
    """The lines that call `hasattr` or `getattr` on a model or a predictor."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr"):
            about = ast.unparse(node.args[0])
            yield from [node.lineno] * any(word in about for word in MODEL_NAMES)


def kind_comparisons(tree: ast.Module) -> Iterator[int]:
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
        (model_imports, (*HOMES, *ABOUT)),
        (attribute_checks, ("models/__init__.py",)),
        (kind_comparisons, (*HOMES, "models/heads/config.py", "hub/")),
    ],
    ids=["imports", "attributes", "kinds"],
)
def test_models_are_named_only_in_their_folder_and_table(find: Find, skip: tuple[str, ...]) -> None:
    found = {name: sorted(find(tree)) for name, tree in trees().items() if not name.startswith(skip)}
    assert {name: where for name, where in found.items() if where} == {}, "use a role or a capability"


def test_detection_on_examples() -> None:
    assert list(model_imports(ast.parse("from heedful.models.bert.model import Bert")))
    assert not list(model_imports(ast.parse("from heedful.models.heads.config import HeadConfig")))
    assert list(attribute_checks(ast.parse("hasattr(self.model, 'pool')")))
    assert list(attribute_checks(ast.parse("getattr(predictor, x, 0)")))
    assert not list(attribute_checks(ast.parse("hasattr(os, 'fork')")))
    assert list(kind_comparisons(ast.parse("x = config.kind == 'gpt'")))
    assert list(kind_comparisons(ast.parse("kind in ('bert', 'gpt')")))
    assert not list(kind_comparisons(ast.parse("attention.kind == 'cross'")))


@pytest.mark.parametrize("kind", MODELS)
def test_each_model_is_one_folder_and_one_table_line(kind: str) -> None:
    folder = MODELS[kind].folder or kind
    assert f"models/{folder}/config.py" in FILES
    config = importlib.import_module(f"heedful.models.{folder}.config")
    cls = getattr(config, MODELS[kind].config)
    file, name = cls.implementation.split(".")
    assert f"models/{folder}/{file}.py" in FILES
    assert any(
        isinstance(node, ast.ClassDef) and node.name == name for node in trees()[f"models/{folder}/{file}.py"].body
    )


# ------------------------------------------------------------------ private names
def private_definitions(tree: ast.Module) -> Iterator[str]:
    """The private names that a file defines: functions, classes, attributes of its objects, variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@cache
def packages() -> dict[str, set[str]]:
    """The private names of each package."""
    found: dict[str, set[str]] = {}
    for file, tree in trees().items():
        private = {name for name in private_definitions(tree) if name.startswith("_") and not name.startswith("__")}
        found.setdefault(file.partition("/")[0], set()).update(private)
    return found


def private_uses(tree: ast.Module, package: str) -> Iterator[str]:
    """The private names of other packages that a file uses, as `predictor._run`, or imports."""
    own = packages().get(package, set())
    others = set().union(*(names for name, names in packages().items() if name != package)) - own
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in others:
            yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heedful"):
            names = [alias.name for alias in node.names if alias.name in others]
            yield from (f"{node.lineno}: import {name}" for name in names)


def test_no_private_names_across_packages() -> None:
    found = {name: sorted(private_uses(tree, name.partition("/")[0])) for name, tree in trees().items()}
    assert {name: where for name, where in found.items() if where} == {}, "make it public, or use a public name"
    assert list(private_uses(ast.parse("predictor._net.start(1)"), "explore")) == ["1: predictor._net"]
    assert list(private_uses(ast.parse("from heedful.tasks.language_model.task import _after_lines"), "cli"))
    assert not list(private_uses(ast.parse("self._net.start(1)"), "tasks"))
