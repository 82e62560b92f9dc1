"""Packets: a JSON header and arrays as bytes, which is what the explorer's server sends to its page.

Layout: the length of the JSON as a little-endian uint32; the JSON, padded with spaces to a multiple of eight bytes; the
arrays, each padded likewise. The JSON's `arrays` lists the name, dtype, shape and offset of each array.
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


def pack(header: Mapping[str, Any], **arrays: NDArray[Any] | Tensor) -> bytes:
    """A packet of anything that JSON can hold and of arrays of one of the dtypes in `KINDS`."""
    listed, parts, at = [], [], 0
    for name, array in arrays.items():
        values = np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, Tensor) else array)
        kind = KINDS.get(values.dtype.name)
        if kind is None:
            raise TypeError(f"{name} has dtype {values.dtype}, and a packet holds {', '.join(KINDS)}")
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        listed.append({"name": name, "kind": kind, "shape": values.shape, "at": at})
        parts.append(data + bytes(-len(data) % STEP))
        at += len(parts[-1])
    try:
        text = json.dumps({**header, "arrays": listed}, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise not_finite() from None
    head = text.encode("utf-8", "replace")
    head += b" " * (-(len(head) + 4) % STEP)
    return struct.pack("<I", len(head)) + head + b"".join(parts)


def not_finite() -> UserError:
    """The error of a model that computes NaN or inf."""
    return UserError("the model's outputs are not finite", todo="check its training: the loss may have diverged")


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays of a packet."""
    (size,) = struct.unpack_from("<I", packet)
    header: dict[str, Any] = json.loads(packet[4 : 4 + size])
    found = {}
    for one in header.pop("arrays"):
        count = int(np.prod(one["shape"], dtype=np.int64))
        values = np.frombuffer(packet, dtype="<" + one["kind"], count=count, offset=4 + size + one["at"])
        found[one["name"]] = values.reshape(one["shape"])
    return header, found
