"""Waiting for a condition for as long as a busy machine may need, so that no test depends on speed."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 120.0  # seconds after which a test is taken to hang


def until(ready: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until a condition holds; fail if it never does."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"still false after {seconds:.0f} s"
        time.sleep(0.01)
