"""The environment of a run, for env.json: versions, threads and device, without names of people or machines."""

from __future__ import annotations

import ctypes
import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from heedful import __version__
from heedful.files.reading import is_file

LIBRARIES = ("numpy", "safetensors", "tokenizers", "pydantic", "sacrebleu")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
KEPT, LARGEST = 2**30, 2**25  # bytes that stay at hand in all, and in one piece; glibc takes no larger piece


def environment(device: torch.device) -> dict[str, object]:
    """Versions, machine and device: what may make two runs differ."""
    return {
        "heedful": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,  # with its build, which the package's version may leave out
        **{name: version(name) for name in LIBRARIES},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
    }


def memory(device: torch.device) -> int | None:
    """The bytes of memory of a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The kind of CPU, and the widest instructions that torch uses on it: others add up in another order."""
    lines = file.read_text(errors="replace").splitlines() if is_file(file) else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"


def keep_memory() -> None:
    """Let this process keep the memory that it frees, where the C library is glibc.

    Else large buffers go back to the system after every operation and come again page by page, which takes a step of a
    small convolutional net longer than its arithmetic.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
