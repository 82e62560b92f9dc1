"""What a run ran on, for env.json: versions, threads and device, without names of people, machines or folders."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from heedful import __version__

LIBRARIES = ("torch", "numpy", "safetensors", "tokenizers", "pydantic", "sacrebleu")


def environment(device: torch.device) -> dict[str, object]:
    """The facts that a difference between two runs may hang on."""
    return {
        "heedful": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
    }


def memory(device: torch.device) -> int | None:
    """The bytes of memory that a device has in all, or what the system tells of it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def processor(told: Path = Path("/proc/cpuinfo")) -> str:
    """The kind of CPU, and the widest instructions that torch uses on it: others add up in another order."""
    lines = told.read_text(errors="replace").splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
