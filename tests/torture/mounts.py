"""Small disks in memory that can be full or read-only; they need root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torture.report import FULL


@contextlib.contextmanager
def mounted(place: Path, size: int) -> Iterator[Path]:
    """A disk of `size` bytes mounted at a path for a while; without the right to mount one, the test is skipped."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        assert not FULL, f"the full torture needs small disks, as root: {done.stderr}"
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def make_read_only(place: Path) -> None:
    """Let nothing more be written to a mounted disk."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, capture_output=True)


def fill(disk: Path, leaving: int) -> Path:
    """Fill a disk but for the last bytes, and return the file that fills it."""
    filler = disk / "filler"
    room = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(room.f_bavail * room.f_frsize - leaving, 1))
    return filler
