"""Tensors as the bytes of a safetensors file, and back within limits; nothing is ever pickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from heedful.errors import UserError

LARGEST_HEADER = 100_000_000  # bytes
MOST_TENSORS = 100_000
OTHERS = {  # how files that are often met under this name begin
    b"\x80": "a pickle, which could run code",
    b"PK": "a zip archive, as torch.save writes",
    b"<": "a web page",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
}


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file; tensors that share memory are written once for each name."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().to("cpu").contiguous()
        memory = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if memory in seen else value
        seen.add(memory)
    return safetensors.torch.save(plain)


def unpack(data: bytes, file: Path) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file, or an error that names the file and what is wrong in it."""
    other = next((words for start, words in OTHERS.items() if data.startswith(start)), None)
    header = int.from_bytes(data[:8], "little")
    # A safetensors file begins with the length of its header; one that could be right is not second-guessed.
    if len(data) < 8 or header > len(data) - 8:
        raise _broken(file, other or f"{len(data):,} bytes, of which a header claims {header:,}", "a whole file")
    if header > LARGEST_HEADER:
        raise _broken(file, f"a header of {header:,} bytes", f"at most {LARGEST_HEADER:,}")
    # Counted in the text first, so that a header of millions of names is refused before it is parsed.
    if data.count(b'"data_offsets"', 8, 8 + header) > MOST_TENSORS:
        raise _broken(file, f"more than {MOST_TENSORS:,} tensors", "fewer")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError, TypeError, AssertionError) as error:
        raise _broken(file, f"{type(error).__name__}: {error}", "the safetensors format") from error


def _broken(file: Path, found: str, expected: str) -> UserError:
    return UserError(
        "this is not a sound safetensors file",
        where=str(file),
        found=found,
        expected=expected,
        todo="copy or download the file again",
    )


def require_finite(tensors: Mapping[str, Tensor], where: str, todo: str) -> None:
    """Refuse tensors that hold NaN or infinity, naming the first of them and how many there are."""
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise UserError(
            "some values are not finite",
            where=f"{where}: {bad[0]}",
            found=f"NaN or infinity in {len(bad)} of {len(tensors)} tensors: {', '.join(bad[:10])}",
            expected="finite numbers",
            todo=todo,
        )
