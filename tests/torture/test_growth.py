"""A long run takes no more memory and open files than a short one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from torture.command import TINY, Command, Trial, reached
from torture.report import FULL, counted

FIRST = 1000 if FULL else 200  # the step from which growth is measured
PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 5_000_000


class Sample(NamedTuple):
    """What a process takes at a step."""

    step: int
    memory: int  # bytes
    files: int


def sample(trial: Trial, command: Command) -> Sample:
    """Look at a running command from outside."""
    memory = int(Path(f"/proc/{command.pid}/statm").read_text().split()[1]) * PAGE
    return Sample(reached(trial.run), memory, len(os.listdir(f"/proc/{command.pid}/fd")))


@pytest.mark.slow
def test_memory_and_open_files_do_not_grow(tmp_path: Path) -> None:
    with counted("growth") as row:
        last = FIRST + row.wanted
        # Lines of metrics, evaluations and saves are as dense as a run can bear; the end of a run is not measured.
        steps = (f"train.budget.steps={last + 100}", "train.accumulate=1", "train.log_every=20", "train.keep=3")
        every = ("train.evaluate_every=100", "train.save_every=50", "train.batch_tokens=256")
        trial = Trial(tmp_path, (*TINY, *steps, *every))
        command = trial.start()
        samples: list[Sample] = []
        while command.alive() and (not samples or samples[-1].step < last):
            samples.append(sample(trial, command))
            time.sleep(0.1)
        before = [found for found in samples if FIRST <= found.step < FIRST + row.wanted // 10]
        after = [found for found in samples if last - row.wanted // 10 <= found.step <= last]
        # A save has a file open for a moment, which a look may catch or not: what stays is the fewest of many looks.
        more = min(found.files for found in after) - min(found.files for found in before)
        grown = max(found.memory for found in after) - max(found.memory for found in before)
        with row.trial("a long run", row.wanted):
            assert command.wait(600).code == 0
            assert grown <= MOST, f"{grown:,} bytes more"
            assert more <= 0, f"{more} more open files"
        row.worst = f"{grown / 1e6:.1f} MB more memory, {more} more open files"
