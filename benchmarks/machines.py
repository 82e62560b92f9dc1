"""The test suite under the conditions of other machines, and its table in CONTRIBUTING.md.

    python benchmarks/machines.py                       # each condition alone, one after the other
    python benchmarks/machines.py busy+sigint+random    # several at once

Conditions: `plain`; `busy`, beside four programs that never rest; `sigint`, started by a shell that ignores SIGINT;
`random`, in random order; `core`, on one core; `avx2`, with no wider instructions; `bare`, without Chromium and Node;
`user`, not as root, which needs root to begin with.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "machines.json"
CONDITIONS = ("plain", "busy", "sigint", "random", "core", "avx2", "bare", "user")
NARROW = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
HIDDEN = ("chromium", "chromium-browser", "google-chrome", "node", "npm")


def bare_path(folder: Path) -> str:
    """A PATH of links to all programs but the browser and Node."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name not in HIDDEN and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def not_copied(folder: str, names: list[str]) -> set[str]:
    """What a copy of the tree does not need."""
    return {"node_modules", *((".venv", ".git", "runs", "site") if Path(folder) == ROOT else ())} & set(names)


def run(names: list[str], pytest: list[str]) -> dict[str, object]:
    """Run the suite under some conditions at once: what it counted, and the minutes it took."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": ""}
    environment |= NARROW if "avx2" in names else {}
    workers = "1" if "core" in names else "2"
    words = [sys.executable, "-m", "pytest", "-n", workers, "--dist", "worksteal", "-m", "not slow", *pytest]
    words += ["--random-order", f"--random-order-seed={time.time_ns() % 100000}"] if "random" in names else []
    words = ["taskset", "-c", "0", *words] if "core" in names else words
    with tempfile.TemporaryDirectory() as folder:
        if "bare" in names:
            environment |= {"PATH": bare_path(Path(folder))}
            environment.pop("CI", None)
        if "user" in names:
            nobody = pwd.getpwnam("nobody")
            home = Path(tempfile.mkdtemp(prefix="heedful-nobody-"))
            shutil.copytree(ROOT, home / "tree", ignore=not_copied)
            subprocess.run(["chown", "-R", "nobody", home], check=True)
            environment |= {"HOME": str(home), "TMPDIR": str(home)}
            words = ["setpriv", f"--reuid={nobody.pw_uid}", "--clear-groups", *words, "-p", "no:cacheprovider"]
        os.chmod(folder, 0o755)
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * ("busy" in names))]
        began = time.monotonic()
        former = signal.signal(signal.SIGINT, signal.SIG_IGN) if "sigint" in names else None
        try:
            done = subprocess.run(
                words, cwd=home / "tree" if "user" in names else ROOT, env=environment, capture_output=True, text=True
            )
        finally:
            if former is not None:
                signal.signal(signal.SIGINT, former)
            for other in others:
                other.kill()
    print(done.stdout[-6000:], done.stderr[-2000:], flush=True)
    counted = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    return {
        "conditions": names,
        "code": done.returncode,
        **counted,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def table(rows: list[dict[str, object]]) -> str:
    """The recorded runs in Markdown."""
    lines = ["| conditions | passed | failed | skipped | minutes |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        numbers = (str(row.get(kind, 0)) for kind in ("passed", "failed", "skipped", "minutes"))
        lines.append(f"| {', '.join(map(str, row['conditions']))} | {' | '.join(numbers)} |")  # type: ignore[arg-type, call-overload]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=CONDITIONS, help="conditions, joined by + where they hold at once")
    parser.add_argument("--pytest", action="append", default=[], help="a further argument of pytest")
    given = parser.parse_args()
    rows = []
    for names in (one.split("+") for one in given.runs):
        if unknown := set(names) - set(CONDITIONS):
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(CONDITIONS)}")
        rows.append(run(names, given.pytest))
        print(table(rows), flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    others = [row for row in known if row["conditions"] not in [new["conditions"] for new in rows]]
    RESULTS.write_text(json.dumps([*others, *rows], indent=2) + "\n")
    sys.exit(any(row["code"] for row in rows))


if __name__ == "__main__":
    main()
