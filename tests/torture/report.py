"""The tested properties, how often each is tested, and the page with the results."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
FULL = os.environ.get("HEEDFUL_TORTURE") == "full"


def limit(seconds: float) -> float:
    """A limit of time: as promised where the torture has a machine for itself, and elsewhere only against hanging."""
    return seconds if FULL else 300.0


BEGIN, END = "<!-- table: written by make torture -->", "<!-- end of table -->"


class Property(NamedTuple):
    """Something that is promised: what is done to it, and how often in full and in `make test`."""

    name: str
    done: str
    full: int
    fast: int


PROPERTIES = (
    Property("killed anywhere", "SIGKILL at a random moment of a run, one to five in a run", 100, 6),
    Property("killed in a save", "SIGKILL at a random moment of a save, one to five in a run", 100, 6),
    Property("killed, saving in background", "the same with `train.save_behind`, which trains while it saves", 100, 4),
    Property("crash points", "death before and after each change to the disk in a run", 240, 10),
    Property("power loss", "a disk on which unsynced data are lost, truncated, zero or out of order", 1000, 150),
    Property("power loss, resumed", "such a disk, on which the run resumes and completes", 40, 3),
    Property("disk full", "a disk that becomes full during a save, then has space again", 20, 4),
    Property("refused", "a folder that cannot be written or created, or a disk that is too small", 10, 10),
    Property("interrupted", "SIGTERM or Ctrl-C at a random moment of training", 20, 4),
    Property("interrupted twice", "a second Ctrl-C in the middle of a long step", 10, 1),
    Property(
        "damaged file", "a file of the newest checkpoint missing, truncated, extended or with one bit flipped", 300, 10
    ),
    Property("flipped bit", "one bit flipped in any file of a checkpoint or of the final model", 1000, 200),
    Property("two at once", "a second run in the folder of a running one, which is then killed", 20, 2),
    Property("same twice", "the same command in two folders: padded and packed, 1 and 2 threads", 8, 2),
    Property("other threads", "a run that resumes with another number of threads", 2, 1),
    Property("killed with workers", "SIGKILL, five in one epoch: 0, 1 and 2 workers, padded and packed", 60, 10),
    Property("worker killed", "SIGKILL to one of two processes that prepare batches", 10, 2),
    Property("worker frozen", "SIGSTOP to one of them", 3, 0),
    Property("workers orphaned", "SIGKILL to a run with two of them, which then resumes at once", 10, 2),
    Property("rank killed", "SIGKILL to one of two processes: in a step, a save, an evaluation; DDP, FSDP2", 30, 2),
    Property("rank frozen", "SIGSTOP to one of two processes", 4, 0),
    Property("rank interrupted", "SIGTERM to one of two, SIGTERM to `torchrun`, Ctrl-C to all", 6, 1),
    Property("rank restarted", "SIGKILL to one of two processes under `torchrun --max-restarts 2`", 2, 0),
    Property("rank that cannot save", "a full disk, or too little memory in another process than the writer", 10, 1),
    Property("started by SLURM", "two processes with the variables of `srun` instead of `torchrun`", 1, 1),
    Property("other processes", "1, 2, 3 processes in turn: 13, 97, 101 pairs, accumulate 1 and 2", 18, 2),
    Property("DDP and FSDP2 in turn", "a run that switches from DDP to FSDP2 and back", 3, 1),
    Property("gradients", "of 1, 2, 4 batches in 1 and 2 processes, against one big batch", 18, 4),
    Property("not finite", "NaN or infinity in the loss, a gradient, a weight, an input, an output", 108, 9),
    Property("fp16", "gradients too large for fp16: skipped steps, and fifty of them in a row", 20, 3),
    Property("growth", "steps of one run that logs, evaluates and saves, with its memory sampled", 10_000, 500),
)


class Row:
    """The count of one property."""

    def __init__(self, about: Property) -> None:
        self.about, self.wanted = about, about.full if FULL else about.fast
        self.done = self.held = 0
        self.worst = ""
        self.failures: list[str] = []

    @property
    def open(self) -> bool:
        """Whether more trials are wanted."""
        return self.done < self.wanted

    @contextlib.contextmanager
    def trial(self, what: str, count: int = 1) -> Iterator[None]:
        """Count one trial, or a few that are judged together, and go on if it fails."""
        self.done += count
        try:
            yield
            self.held += count
        except AssertionError as error:
            self.failures.append(f"{what}: {error}")


ROWS: list[dict[str, Any]] = []


@contextlib.contextmanager
def counted(name: str) -> Iterator[Row]:
    """Count the trials of a property; too few of them are a failure too."""
    row = Row(next(about for about in PROPERTIES if about.name == name))
    began = time.monotonic()
    yield row
    seconds = round(time.monotonic() - began)
    ROWS.append({"name": name, "done": row.done, "held": row.held, "worst": row.worst, "seconds": seconds})
    shown = "\n\n".join(row.failures[:5])
    assert row.held == row.done and not row.failures, f"{row.held} of {row.done} held; the first that did not:\n{shown}"
    assert row.done >= row.wanted, f"{row.done} were tried where {row.wanted} are wanted"


def machine() -> dict[str, Any]:
    """What the figures were found on, and with which code."""
    import torch

    from heedful import __version__

    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": date.today().isoformat(),
        "heedful": f"{__version__}, commit {commit()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": names[0].partition(": ")[2] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def commit() -> str:
    """The commit of the source, and whether it was changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "src", "tests/torture") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def write() -> None:
    """Write the record and the table of the page; what was not counted now stays, with what it was found on."""
    setting = machine()
    former = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    rows = {row["name"]: row for row in [*former, *({**row, "found": setting} for row in ROWS)]}
    ordered = [rows[about.name] for about in PROPERTIES if about.name in rows]
    RECORD.write_text(json.dumps({"rows": ordered}, indent=1) + "\n")
    if PAGE.exists():
        PAGE.write_text(replaced(PAGE.read_text(), table(json.loads(RECORD.read_text()))))


def table(record: dict[str, Any]) -> str:
    """The record as the page shows it: the rows of each machine and commit together."""
    about = {found.name: found for found in PROPERTIES}
    settings: list[dict[str, Any]] = []
    for row in record["rows"]:
        settings += [row["found"]] if row["found"] not in settings else []
    lines: list[str] = []
    for setting in settings:
        lines += [
            f"Measured on {setting['date']} with Heedful {setting['heedful']}, torch {setting['torch']}, Python "
            f"{setting['python']}, {setting['system']}, {setting['cores']} cores of {setting['cpu']}:",
            "",
            "| | what was done | times | held | worst | seconds |",
            "|---|---|---:|---:|---|---:|",
            *(
                f"| {row['name']} | {about[row['name']].done} | {row['done']:,} | {row['held']:,} | {row['worst']} "
                f"| {row['seconds']:,} |"
                for row in record["rows"]
                if row["found"] == setting
            ),
            "",
        ]
    return "\n".join(lines[:-1])


def replaced(page: str, text: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
