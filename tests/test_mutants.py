"""The list of faults that tests must detect is up to date; `make mutants` applies each and runs its test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mutants
from mutants import LIST, PAGE, ROOT, SOURCE, Mutant, page, read_list, read_record

MUTANTS = read_list()
PARTS = ("blocks", "models", "decode", "training", "data", "tasks", "hub", "explore", "lectures", "extras")


def test_mutants_are_unique_and_cover_the_package() -> None:
    assert len(MUTANTS) >= 150
    assert len({(one.file, one.find, one.replace) for one in MUTANTS}) == len(MUTANTS)
    assert {one.file.partition("/")[0] for one in MUTANTS} >= {*PARTS}


@pytest.mark.parametrize("file", sorted({one.file for one in MUTANTS}))
def test_each_mutant_applies_to_its_file(file: str) -> None:
    text = (ROOT / SOURCE / file).read_text(encoding="utf-8")
    for mutant in MUTANTS:
        if mutant.file == file:
            ast.parse(mutant.applied(text))


def test_each_named_test_exists() -> None:
    named: dict[str, set[str]] = {}
    for mutant in MUTANTS:
        file, _, name = mutant.test.partition("::")
        named.setdefault(file, set()).add(name.partition("[")[0])
    for file, names in named.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert names <= there, f"tests that {LIST.name} names are not in {file}"


def test_snippet_occurs_once_and_replacement_differs() -> None:
    mutant = Mutant("a.py", "x + 1", "x - 1", "tests/test_a.py::test_a")
    assert mutant.applied("y = x + 1\n") == "y = x - 1\n"
    for text in ("y = 1\n", "y = x + 1\nz = x + 1\n"):
        with pytest.raises(ValueError, match="times instead of once"):
            mutant.applied(text)
    with pytest.raises(ValueError, match="changes nothing"):
        Mutant("a.py", "x + 1", "x +  1", "").applied("y = x + 1\n")


def test_page_counts_killed_and_lists_survivors() -> None:
    killed, left = (Mutant("blocks/a.py", f"a | {n}", f"b | {n}", "tests/test_a.py::test_a") for n in (1, 2))
    text = page({killed: "killed", left: "survived"})
    assert "| blocks | 2 | 1 |" in text and "| all | 2 | 1 |" in text
    assert "| blocks/a.py | `` a \\| 1 `` | `` b \\| 1 `` | test_a.py::test_a | killed |" in text
    assert text.count("survived") == 1


def test_recorded_mutants_were_killed_and_page_is_current() -> None:
    record = read_record()
    assert [mutant.name for mutant, outcome in record.items() if outcome != "killed"] == []
    assert len(record.keys() & set(MUTANTS)) >= 150  # entries changed since then wait for the next `make mutants`
    assert PAGE.read_text(encoding="utf-8") == page(record)


def test_mutant_is_killed_only_by_a_failing_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "PRELOADED", [])
    code, tests = tmp_path / SOURCE / "sums.py", tmp_path / "tests" / "test_sums.py"
    for path, text in {
        code: "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n",
        code.parent / "__init__.py": "",
        tests: "from heedful import sums\ndef test_add(): assert sums.add(1, 2) == 3\ndef test_bad(): assert False\n",
        tmp_path / "pytest.ini": "[pytest]\npythonpath = src\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = code.read_text()
    faults = {
        "killed": ("a + b", "a * b", "test_add"),
        "survived": ("a - b", "b - a", "test_add"),
        "no verdict": ("def add(a, b):", "def add(a, b, b):", "test_add"),
        "stale": ("a / b", "b / a", "test_add"),
        "the test does not pass": ("a + b", "b - a", "test_bad"),
        "the test does not pass on": ("a + b", "b - b", "test_none"),
    }
    file = "tests/test_sums.py"
    expected = {
        Mutant("sums.py", find, new, f"{file}::{test}"): outcome for outcome, (find, new, test) in faults.items()
    }
    passing = mutants.passing_tests(tmp_path, list(expected))
    assert passing == {"tests/test_sums.py::test_add"}
    for mutant, outcome in mutants.outcomes(list(expected), [tmp_path], passing):
        assert outcome.startswith(expected[mutant]), mutant
    assert code.read_text() == before
