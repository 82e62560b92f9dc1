"""Waiting for what must come, for as long as a busy machine may need: no verdict depends on how fast it comes."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 120.0  # seconds after which a test is taken to hang


def until(ready: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until something is true, and fail if it never is."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
