"""Keep freed memory in this process (glibc only), since mapping it again page by page takes longer than its use."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # as malloc.h numbers them
KEPT, LARGEST = 2**30, 2**25  # bytes kept in total, and in one block; glibc allows no larger block


def keep_memory() -> None:
    """Keep buffers as large as those of a small convolutional network."""
    _set(M_TRIM_THRESHOLD, KEPT)
    _set(M_MMAP_THRESHOLD, LARGEST)


def keep_all_memory() -> None:
    """Keep buffers of any size, in a process that needs the same ones again and again."""
    _set(M_TRIM_THRESHOLD, KEPT)
    _set(M_MMAP_MAX, 0)


def _set(option: int, value: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)
