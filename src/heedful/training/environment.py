"""The environment of a run, for env.json: versions, threads and device, without names of people or machines."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from heedful import __version__
from heedful.files.reading import is_file

LIBRARIES = ("numpy", "safetensors", "tokenizers", "pydantic", "sacrebleu")


def environment(device: torch.device) -> dict[str, object]:
    """Versions, machine and device: what may make two runs differ."""
    return {
        "heedful": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,  # including the build
        **{name: version_of(name) for name in LIBRARIES},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
    }


def version_of(library: str) -> str:
    """The version of a library; unknown if it was copied here without its metadata."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"


def memory(device: torch.device) -> int | None:
    """The memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU model, and the instruction set that torch uses, which affects rounding."""
    lines = file.read_text(errors="replace").splitlines() if is_file(file) else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
