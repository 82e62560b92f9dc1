"""Packets: what the explorer sends to the page, a few words as JSON and many numbers as bytes.

Four bytes tell how long the JSON is, in the order of small machines; then the JSON, spaces up to a multiple of eight,
and the arrays, each from such a multiple on. The JSON names each array with its kind, shape and place.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heedful.errors import UserError

KINDS = {"uint8": "u1", "float16": "f2", "float32": "f4", "int32": "i4"}
STEP = 8


def pack(words: Mapping[str, Any], **arrays: NDArray[Any] | Tensor) -> bytes:
    """A packet of some words, anything that JSON can say, and of arrays of bytes, half or whole floats, or integers."""
    listed, parts, at = [], [], 0
    for name, array in arrays.items():
        values = np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, Tensor) else array)
        kind = KINDS.get(values.dtype.name)
        if kind is None:
            raise TypeError(f"{name} is of {values.dtype}, and a packet holds {', '.join(KINDS)}")
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        listed.append({"name": name, "kind": kind, "shape": values.shape, "at": at})
        parts.append(data + bytes(-len(data) % STEP))
        at += len(parts[-1])
    try:
        text = json.dumps({**words, "arrays": listed}, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise diverged() from None
    head = text.encode("utf-8", "replace")
    head += b" " * (-(len(head) + 4) % STEP)
    return struct.pack("<I", len(head)) + head + b"".join(parts)


def diverged() -> UserError:
    """The error of a model that has lost its numbers, as one does whose training went wrong."""
    return UserError("what this model computes is not finite", todo="look at how it was trained")


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The words and the arrays of a packet."""
    (size,) = struct.unpack_from("<I", packet)
    words: dict[str, Any] = json.loads(packet[4 : 4 + size])
    found = {}
    for one in words.pop("arrays"):
        count = int(np.prod(one["shape"], dtype=np.int64))
        values = np.frombuffer(packet, dtype="<" + one["kind"], count=count, offset=4 + size + one["at"])
        found[one["name"]] = values.reshape(one["shape"])
    return words, found
