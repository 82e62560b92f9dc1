"""CRC-32C, the checksum of TensorFlow's files, at hundreds of megabytes per second in numpy alone.

The checksum is linear: the register after a message is the sum, in exclusive or, of what each word alone would leave.
N lanes are computed at once, each with every N-th word, and folded into one at the end.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # bits from right to left
MOST_LANES = 1 << 15
Words = NDArray[np.uint32]


def _byte(register: int) -> int:
    """The register after eight zero bits."""
    for _ in range(8):
        register = register >> 1 ^ POLYNOMIAL * (register & 1)
    return register


BYTES = [_byte(number) for number in range(256)]


def crc32c(data: memoryview | bytes) -> int:
    """The checksum of some bytes."""
    words = np.frombuffer(data, "<u4", len(data) // 4)
    register = _words(words) if len(words) else 0xFFFFFFFF
    for byte in bytes(data[4 * len(words) :]):
        register = register >> 8 ^ BYTES[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A checksum as TensorFlow stores it beside its data."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _words(words: Words) -> int:
    """The register after some words, from the usual beginning."""
    lanes = 1 << min(MOST_LANES.bit_length(), len(words).bit_length()) - 1
    first = len(words) % lanes or lanes  # words in the first row, whose leading lanes have none
    row = np.zeros(lanes, np.uint32)
    row[lanes - first :] = words[:first]
    row[lanes - first] ^= np.uint32(0xFFFFFFFF)
    for begin in range(first, len(words), lanes):
        row = _ahead(row, lanes) ^ words[begin : begin + lanes]
    while len(row) > 1:
        half = len(row) // 2
        row = _ahead(row[:half], half) ^ row[half:]
    return int(_ahead(row, 1)[0])


def _ahead(registers: Words, words: int) -> Words:
    """Registers after `words` zero words, a power of two."""
    low, high = _tables(words)
    found: Words = low[registers & 0xFFFF] ^ high[registers >> 16]
    return found


@cache
def _tables(words: int) -> tuple[Words, Words]:
    """What zero words leave of the lower and of the upper half of a register."""
    if words > 1:
        once = _tables(words // 2)
        low, high = (_ahead(table, words // 2) for table in once)
        return low, high
    bits = [1 << bit for bit in range(32)]
    for _ in range(4):
        bits = [bit >> 8 ^ BYTES[bit & 0xFF] for bit in bits]
    return _spread(bits[:16]), _spread(bits[16:])


def _spread(bits: list[int]) -> Words:
    """The sum of each choice of some bits."""
    table = np.zeros(1, np.uint32)
    for bit in bits:
        table = np.concatenate([table, table ^ np.uint32(bit)])
    return table
