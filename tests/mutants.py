"""Breaks the code on purpose, one small fault at a time, and checks that the test named for each fault fails.

`mutants.toml` has the list: a file below `src/heedful`, a snippet that occurs once in it, what to write instead, and
the test that must fail then. Every fault is made in a copy of the tree. `make mutants` runs them all and records what
it found in `docs/mutants.json` and `docs/mutants.md`; `python tests/mutants.py WORD` does so for those whose file or
test contains the word, `--new` for those that have not been recorded, and both leave the others as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
LIST, RECORD, PAGE = TESTS / "mutants.toml", ROOT / "docs" / "mutants.json", ROOT / "docs" / "mutants.md"
SOURCE = Path("src", "heedful")
PATIENCE = 600  # seconds that a test may take
PRELOADED = ["torch", "pytest", "pydantic", "PIL.Image", "hypothesis", "sklearn.manifold", "transformers"]


@dataclass(frozen=True)
class Mutant:
    """One fault, and the test that must fail with it."""

    file: str
    find: str
    replace: str
    test: str

    @property
    def name(self) -> str:
        return f"{self.file}: {_line(self.find)} -> {_line(self.replace)}"

    def applied(self, text: str) -> str:
        """The source with the fault; the snippet must occur exactly once."""
        if (count := text.count(self.find)) != 1:
            raise ValueError(f"{self.file}: the snippet occurs {count} times instead of once: {self.find!r}")
        if _line(self.find) == _line(self.replace):
            raise ValueError(f"{self.file}: the replacement changes nothing: {self.find!r}")
        return text.replace(self.find, self.replace)


def read_list() -> list[Mutant]:
    """All faults of the list."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]


def read_record() -> dict[Mutant, str]:
    """The outcome of each fault in the last run."""
    rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    return {Mutant(**row): outcome for row in rows for outcome in [row.pop("outcome")]}


def write_record(record: dict[Mutant, str]) -> None:
    """Write the outcomes as JSON and as Markdown."""
    rows = [asdict(mutant) | {"outcome": outcome} for mutant, outcome in record.items()]
    RECORD.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only the faults whose file or test contains one of these")
    parser.add_argument("--new", action="store_true", help="run only the faults that have not been recorded yet")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time (default: all cores)")
    options = parser.parse_args()
    every = read_list()
    chosen = [one for one in every if not options.words or any(w in one.file + " " + one.test for w in options.words)]
    record, started = {one: outcome for one, outcome in read_record().items() if one in every}, time.monotonic()
    chosen = [one for one in chosen if one not in record] if options.new else chosen
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copy(Path(folder, str(number))) for number in range(options.jobs)]
        passing = passing_tests(copies[0], chosen)
        for mutant, outcome in outcomes(chosen, copies, passing):
            record[mutant] = outcome
            write_record({one: record[one] for one in every if one in record})
    bad = {one: record[one] for one in chosen if record[one] != "killed"}
    for mutant, outcome in bad.items():
        print(f"\n{mutant.name}\n    {mutant.test}\n    {outcome}")
    print(f"{len(chosen) - len(bad)} of {len(chosen)} killed in {time.monotonic() - started:.0f} s")
    return int(bool(bad))


# ------------------------------------------------------------------ running
def _copy(folder: Path) -> Path:
    """A copy of the tree whose compiled files are checked by hash: two faults may have the same size and time stamp."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    page = (path.relative_to(ROOT).as_posix() for path in (ROOT / SOURCE / "explore" / "static").rglob("*"))
    for name in {*names, *page}:
        if (ROOT / name).is_file() and not name.startswith("web/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(folder / "src")]
    subprocess.run([sys.executable, *compiled], check=True)
    return folder


def passing_tests(copy: Path, mutants: Sequence[Mutant]) -> set[str]:
    """The named tests that pass on unchanged code."""
    found: dict[str, set[str]] = {mutant.test: set() for mutant in mutants}
    for node, outcome in _pytest(copy, [*found], ["--continue-on-collection-errors"], PATIENCE * 6)[1].items():
        for name in {node, node.partition("[")[0]} & found.keys():
            found[name].add(outcome)
    return {name for name, outcomes in found.items() if outcomes == {"passed"}}


def outcomes(mutants: Sequence[Mutant], copies: Sequence[Path], passing: set[str]) -> Iterator[tuple[Mutant, str]]:
    """The outcome of each fault: killed if its test failed; otherwise it survived, is stale, or its test is broken."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> str:
        if mutant.test not in passing:
            return "the test does not pass on the code as it is"
        copy = free.get()
        path = copy / SOURCE / mutant.file
        text = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.applied(text), encoding="utf-8")
            code, reported = _pytest(copy, [mutant.test], ["-x"], PATIENCE)
            if code == pytest.ExitCode.TESTS_FAILED and "failed" in reported.values():
                return "killed"
            return "survived" if code == pytest.ExitCode.OK else f"no verdict (exit code {code})"
        except ValueError as error:
            return f"stale: {error}"
        finally:
            path.write_text(text, encoding="utf-8")
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        going = {pool.submit(one, mutant): mutant for mutant in mutants}
        for number, done in enumerate(as_completed(going), 1):
            print(f"{number:4}/{len(mutants)}  {done.result():10}  {going[done].name}"[:160], flush=True)
            yield going[done], done.result()


def _pytest(copy: Path, tests: list[str], options: list[str], patience: float) -> tuple[int, dict[str, str]]:
    """Pytest's exit code and test outcomes, from a forked process that need not import torch again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(copy, tests, options, theirs))
    process.start()
    theirs.close()
    with contextlib.closing(ours):
        if not ours.poll(patience):
            process.kill()
            process.join()
            return -1, {}
        try:
            found: tuple[int, dict[str, str]] = ours.recv()
        except EOFError:  # the process crashed
            found = (-1, {})
    process.join()
    return found


def _child(copy: Path, tests: list[str], options: list[str], answer: multiprocessing.connection.Connection) -> None:
    """Run tests in the copy without output, and send back their outcomes."""
    os.chdir(copy)
    sys.dont_write_bytecode = True  # two faults may have the same size and time stamp
    for name in [name for name in sys.modules if name.partition(".")[0] == "heedful"]:  # of an older fork server
        del sys.modules[name]
    os.environ["PYTHONPATH"] = str(copy / "src")  # for processes that a test starts
    os.environ.setdefault("HEEDFUL_DATA", str(ROOT.parent / "shared" / "data"))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silence, stream)
    outcomes: dict[str, str] = {}

    class Recorder:
        """A pytest plugin that selects tests and records their outcomes."""

        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            items[:] = [item for item in items if {item.nodeid, item.nodeid.partition("[")[0]} & set(tests)]

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or report.outcome != "passed":
                outcomes[report.nodeid] = report.outcome

    files = sorted({test.partition("::")[0] for test in tests})
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(copy)]
    answer.send((int(pytest.main([*plain, *options, *files], plugins=[Recorder()])), outcomes))
    answer.close()


# ------------------------------------------------------------------ the page
def page(record: dict[Mutant, str]) -> str:
    """The outcomes as Markdown: counts per package, then every fault with its test."""
    parts = Counter(_part(mutant) for mutant in record)
    killed = Counter(_part(mutant) for mutant, outcome in record.items() if outcome == "killed")
    lines = [
        "# Mutants",
        "",
        "Each row is one small fault in `src/heedful` and the test that fails when it is made. `make mutants` makes",
        "them one at a time in a copy of the tree, runs the test that is named with each, and writes this page. The",
        "list is `tests/mutants.toml`; `tests/test_mutants.py` keeps its snippets and tests from going stale.",
        "",
        "| part | faults | killed |",
        "|---|---:|---:|",
        *(f"| {part} | {parts[part]} | {killed[part]} |" for part in sorted(parts)),
        f"| all | {parts.total()} | {killed.total()} |",
    ]
    for part in sorted(parts):
        lines += ["", f"## {part}", "", "| file | code | fault | test | |", "|---|---|---|---|---|"]
        for mutant, outcome in sorted(record.items(), key=lambda one: (one[0].file, one[0].find)):
            if _part(mutant) == part:
                cells = (_cell(mutant.find), _cell(mutant.replace), mutant.test.removeprefix("tests/"), outcome)
                lines.append(f"| {mutant.file} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _part(mutant: Mutant) -> str:
    return mutant.file.partition("/")[0].removesuffix(".py")


def _line(code: str) -> str:
    return " ".join(code.split())


def _cell(code: str) -> str:
    return f"`` {_line(code)} ``".replace("|", "\\|") if code.strip() else "(nothing)"


if __name__ == "__main__":
    sys.exit(main())
