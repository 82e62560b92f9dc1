"""The claims that a test file proves; in continuous integration none of these tests may be skipped.

`--claim A11` runs only the tests of a claim, or of several: `--claim A11,A12`. The functions whose names begin with
`pytest_` are pytest's hooks; `conftest.py` imports them.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a test file's syntax tree, if it names the mark at all."""
    text = path.read_text(encoding="utf-8")
    return tuple(ast.walk(ast.parse(text))) if "mark.claim" in text else ()


def claims_in(path: Path, slow: bool = True) -> Iterator[str]:
    """Every id that a test of the file is marked with, on a decorator, a parameter or the module.

    Without `slow`, tests that `make test` does not run are skipped.
    """
    every = _nodes(path)
    slow_tests = [
        node for node in every if isinstance(node, ast.FunctionDef) and "pytest.mark.slow" in _decorators(node)
    ]
    left_out = set() if slow else {id(part) for node in slow_tests for part in ast.walk(node)}
    for node in every:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.claim" and id(node) not in left_out:
            (argument,) = node.args
            assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: the id of a claim is a plain string"
            yield str(argument.value)


def _decorators(test: ast.FunctionDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in test.decorator_list]


def _must_run(report: pytest.TestReport | pytest.CollectReport, claims: Iterable[str]) -> None:
    """Turn a skipped test of a claim into a failure in continuous integration."""
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail") and (ids := sorted(set(claims))):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} proves {', '.join(ids)} and must run in continuous integration: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _must_run(report, (str(mark.args[0]) for mark in item.iter_markers("claim")))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Module):
        _must_run(report, claims_in(collector.path))
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claim", metavar="ID,...", help="run only the tests of these claims of the lectures")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (given := config.getoption("claim")) is None:
        return
    asked = {one.strip().upper() for one in given.split(",")}
    chosen = [item for item in items if asked & {str(mark.args[0]) for mark in item.iter_markers("claim")}]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
