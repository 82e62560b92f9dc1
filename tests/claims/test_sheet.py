"""The sheet lists exactly the proven claims, and its page is up to date."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from claim_marks import claims_in
from heedful.lectures.claims import SECTIONS, render, sheet

ROOT = Path(__file__).parents[2]


def marked() -> Iterator[tuple[str, str]]:
    """Every id that a test is marked with, and the file of the test."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        yield from ((claim, path.relative_to(ROOT).as_posix()) for claim in claims_in(path))


def test_sheet_lists_exactly_the_marked_claims() -> None:
    places = {(claim.id, place) for claim in sheet() for place in (claim.test, *claim.also, claim.page) if place}
    assert places == set(marked())


def test_every_proven_claim_has_a_test_that_is_not_slow() -> None:
    quick = {claim for path in (ROOT / "tests").rglob("test_*.py") for claim in claims_in(path, slow=False)}
    assert {claim.id for claim in sheet()} <= quick


def test_ids_are_unique_and_in_order() -> None:
    rows = {section.letter: section.rows for section in SECTIONS}
    order = [(list(rows).index(claim.id[0]), int(claim.id[1:])) for claim in sheet()]
    assert order == sorted(set(order))
    assert all(1 <= number <= rows[list(rows)[letter]] for letter, number in order)


def test_references_to_other_rows_exist() -> None:
    ids = {claim.id for claim in sheet()}
    for claim in sheet():
        assert not claim.reading.startswith("X") or claim.reading in ids


def test_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "claims.md"
    assert page.read_text(encoding="utf-8") == render(sheet()), "write render(sheet()) to docs/claims.md"


def test_unproven_claim_shows_in_the_page() -> None:
    fewer = render(sheet()[1:])
    assert "| A1 |" not in fewer
    assert "| A | Attention | 17 | 18 |" in fewer
    with pytest.raises(KeyError):
        render([sheet()[0]._replace(id="Z1")])


MARKED = """
import pytest
pytestmark = pytest.mark.skipif(False, reason="")

@pytest.mark.claim("A1")
@pytest.mark.skipif(True, reason="no data here")
def test_by_mark(): ...

@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.claim("A2")), 2])
def test_inside(n): pytest.skip("no data here")

@pytest.fixture
def missing_fixture(): pytest.skip("no data here")

@pytest.mark.claim("A3")
def test_by_fixture(missing_fixture): ...

@pytest.mark.claim("A4")
def test_runs(): ...

@pytest.mark.claim("A5")
@pytest.mark.xfail(reason="known")
def test_expected(): assert False

@pytest.mark.skip
def test_proves_nothing(): ...
"""


@pytest.mark.parametrize(("processes", "ci"), [(0, True), pytest.param(2, True, marks=pytest.mark.slow), (0, False)])
def test_marked_tests_may_not_be_skipped_in_ci(tmp_path: Path, processes: int, ci: bool) -> None:
    hooks = "from claim_marks import pytest_make_collect_report, pytest_runtest_makereport\n"
    (tmp_path / "conftest.py").write_text(hooks)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = claim\npythonpath = {ROOT / 'tests'}\n")
    (tmp_path / "test_marked.py").write_text(MARKED)
    module = 'import pytest\npytest.importorskip("not_installed")\n@pytest.mark.claim("A6")\ndef test(): ...\n'
    (tmp_path / "test_module.py").write_text(module)
    (tmp_path / "test_other.py").write_text(module.replace('@pytest.mark.claim("A6")', ""))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST"))}
    options = ["-p", "no:cacheprovider", "--continue-on-collection-errors", "-n", str(processes)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=environment | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
    )
    refused = {claim for claim in ("A1", "A2", "A3", "A4", "A5", "A6") if f"proves {claim} and must run" in ran.stdout}
    assert refused == ({"A1", "A2", "A3", "A6"} if ci else set()), ran.stdout + ran.stderr
    assert ran.returncode == int(ci), ran.stdout + ran.stderr


def test_marks_are_found_on_decorators_parameters_and_modules(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    assert set(claims_in(tmp_path / "test_marked.py")) == {"A1", "A2", "A3", "A4", "A5"}
    (tmp_path / "test_slow.py").write_text(MARKED.replace("@pytest.mark.skipif(True", "@pytest.mark.slow\n#"))
    assert set(claims_in(tmp_path / "test_slow.py", slow=False)) == {"A2", "A3", "A4", "A5"}
