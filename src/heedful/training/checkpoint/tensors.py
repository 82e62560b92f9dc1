"""Reading and writing safetensors files, with limits; nothing is ever pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from heedful.errors import EXIT_MEMORY, UserError
from heedful.files.json import read_json
from heedful.files.reading import open_file
from heedful.training.environment import memory

EXIT_NOT_FINITE = 3  # exit code for NaN or infinity
LARGEST_HEADER = 100_000_000  # bytes
MOST_TENSORS = 100_000
OTHERS = {  # first bytes of files that are often mistaken for safetensors
    b"\x80": "a pickle, which could run code",
    b"PK": "a zip archive, as torch.save writes",
    b"<": "a web page",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
}
TYPES = {  # the format's names; tensors are stored in the reverse order of these types
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
RANKS = {dtype: rank for rank, dtype in enumerate(reversed(TYPES))}


def pack(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The contents of a safetensors file, byte for byte as that library writes it: a header, then each tensor's memory.

    Contiguous CPU tensors are not copied, so they must not change while the pieces are in use. Tensors that share
    memory are written once per name.
    """
    entries: dict[str, dict[str, object]] = {}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (RANKS[item[1].dtype], item[0])):
        pieces.append(tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data)
        start, end = end, end + tensor.nbytes
        entries[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little") + header, *pieces]


def unpack(data: bytes, file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; an error names the file and the problem."""
    other = next((words for start, words in OTHERS.items() if data.startswith(start)), None)
    header = int.from_bytes(data[:8], "little")
    # A safetensors file starts with the length of its header; if that is plausible, other formats are not considered.
    if len(data) < 8 or header > len(data) - 8:
        raise _broken(file, other or f"{len(data):,} bytes, of which a header claims {header:,}", "a whole file")
    if header > LARGEST_HEADER:
        raise _broken(file, f"a header of {header:,} bytes", f"at most {LARGEST_HEADER:,}")
    _require_few(data[8 : 8 + header], file)
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError, TypeError, AssertionError) as error:
        raise _broken(file, f"{type(error).__name__}: {error}", "the safetensors format") from error


def _require_few(header: bytes, file: Path) -> None:
    """Refuse a header with millions of tensors before it is parsed, by counting its braces."""
    if header.count(b"{") - 1 - (b'"__metadata__"' in header) > MOST_TENSORS:
        raise _broken(file, f"more than {MOST_TENSORS:,} tensors", "fewer")


def require_sound(path: Path) -> None:
    """Refuse a safetensors file that is damaged or larger than memory, by reading its header only."""
    try:
        with open_file(path) as file:
            size, begin = os.fstat(file.fileno()).st_size, file.read(8)
            length = int.from_bytes(begin, "little")
            if len(begin) < 8 or length > min(size - 8, LARGEST_HEADER):
                return  # `unpack` reports it
            header = file.read(length)
    except OSError:
        return  # the reader reports it
    _require_few(header, path)
    try:
        entries = read_json(header.decode())
        end = max((entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _broken(path, f"a header that cannot be read: {error}", "the safetensors format") from None
    if end != size - 8 - length:
        raise _broken(path, f"{size - 8 - length:,} bytes of numbers", f"{end!r}, as its header says")
    there = memory(torch.device("cpu"))
    if there is not None and size > there:
        raise UserError(
            "this file is larger than the memory of this machine", where=str(path), found=f"{size:,} bytes",
            expected=f"at most {there:,}", todo="use a machine with more memory", exit_code=EXIT_MEMORY,
        )  # fmt: skip


def _broken(file: Path, found: str, expected: str) -> UserError:
    return UserError(
        "this is not a valid safetensors file",
        where=str(file),
        found=found,
        expected=expected,
        todo="copy or download the file again",
    )


def require_finite(tensors: Mapping[str, Tensor], where: str, todo: str) -> None:
    """Refuse tensors with NaN or infinity, naming the first ones and their number."""
    bad = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if bad:
        raise UserError(
            "some values are not finite",
            where=f"{where}: {bad[0]}",
            found=f"NaN or infinity in {len(bad)} of {len(tensors)} tensors: {', '.join(bad[:10])}",
            expected="finite numbers",
            todo=todo,
            exit_code=EXIT_NOT_FINITE,
        )


def _is_finite(tensor: Tensor) -> bool:
    """Whether every value is finite: minimum and maximum are NaN if any value is."""
    values = torch.stack(tensor.aminmax()) if tensor.is_floating_point() and tensor.numel() else tensor
    return bool(values.isfinite().all())
