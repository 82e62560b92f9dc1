"""The progress of a command over many rows: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from heedful.cli.display import duration

PAUSE = 10.0  # seconds between two lines in a log

Advance = Callable[[int, bool], None]


class Rate:
    """The speed of a command and its remaining time; rows that were finished before count as done, not as fast."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.clock, self.began = total, clock, clock()
        self.done = self.computed = 0

    def advance(self, count: int, resumed: bool) -> None:
        """Count rows, which are computed or were already."""
        self.done += count
        self.computed += 0 if resumed else count

    @property
    def text(self) -> str:
        """The rows done, the rows per second, and the time left."""
        elapsed, words = self.clock() - self.began, f"{self.done:,} of {self.total:,} rows"
        if not self.computed or elapsed <= 0:
            return words
        speed = self.computed / elapsed
        shown = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
        return f"{words}  {shown} rows/s  {duration((self.total - self.done) / speed)} left"


@contextmanager
def row_progress(total: int) -> Iterator[Advance]:
    """A function to call with a number of rows, and whether they were finished before."""
    rate = Rate(total)
    if not sys.stderr.isatty():
        last = rate.began

        def log(count: int, resumed: bool) -> None:
            nonlocal last
            rate.advance(count, resumed)
            if rate.clock() - last >= PAUSE and rate.done < total:
                last = rate.clock()
                sys.stderr.write(f"{rate.text}\n")
                sys.stderr.flush()

        yield log
        return
    columns = (SpinnerColumn(), BarColumn(32), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows", total=total, facts="")

        def show(count: int, resumed: bool) -> None:
            rate.advance(count, resumed)
            bar.update(task, completed=rate.done, facts=rate.text)

        yield show
