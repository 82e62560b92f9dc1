"""Commands as processes, several at a time, until all are done or the time is up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """A command that has succeeded: its name, what it printed, and how long it took."""

    name: str
    printed: str
    seconds: float


def run_jobs(
    names: Collection[str],
    command: Callable[[str], list[str]],
    is_ready: Callable[[str, Collection[str]], bool],
    logs: Path,
    jobs: int,
    threads: int,
    minutes: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Done]:
    """Each command as it succeeds; `is_ready(name, running)` says whether one may start.

    What a command prints goes to a file in `logs`. Commands that still run at the end are killed, with their children.
    """
    waiting, running = list(names), dict[str, Any]()
    until = time.monotonic() + 60 * minutes
    logs.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), **(environment or {})}
    try:
        while (waiting or running) and time.monotonic() < until:
            ready = [name for name in waiting if is_ready(name, running)]
            for name in ready[: jobs - len(running)]:
                waiting.remove(name)
                with log_of(name, logs).open("w") as log:
                    pipes: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
                    child = subprocess.Popen(command(name), env=variables, start_new_session=True, **pipes)
                running[name] = (child, time.monotonic())
            if not running:
                print(f"not done, since what they need failed: {', '.join(waiting)}", file=sys.stderr)
                break
            for name, (child, began) in list(running.items()):
                if child.poll() is None:
                    continue
                del running[name]
                printed = log_of(name, logs).read_text(errors="replace")
                if child.returncode:
                    print(f"{name} failed: {printed.strip()[-1500:]}", file=sys.stderr, flush=True)
                else:
                    yield Done(name, printed, round(time.monotonic() - began, 1))
            time.sleep(0.2)
    finally:
        for child, _ in running.values():
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def log_of(name: str, logs: Path) -> Path:
    return logs / f"{name.replace('/', '-')}.txt"
