"""SentencePiece's model files (Kudo and Richardson, 2018), read and written without the `sentencepiece` package.

A file is a protocol buffer. Only what the ids of a text depend on is read: the pieces with their scores, the
normalization table, and a few switches, of which only the usual values are supported.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heedful.data.tokenizers.tokenizer import MAX_VOCAB
from heedful.errors import UserError, shown

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = range(1, 5)  # types of pieces
KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}  # by model_type
MAX_PIECE = 10_000  # bytes
MAX_CHARSMAP = 10_000_000  # bytes
# Fields of the messages, and the values of switches that are supported.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
MODEL_TYPE, CHARSMAP = 3, 2
TRAINER_SWITCHES = {24: ("treat_whitespace_as_suffix", False), 35: ("byte_fallback", False)}
NORMALIZER_SWITCHES = {
    3: ("add_dummy_prefix", True), 4: ("remove_extra_whitespaces", True), 5: ("escape_whitespaces", True),
}  # fmt: skip


class Piece(NamedTuple):
    """A piece of the vocabulary: its text, its log-probability, and whether it is ordinary, special, ..."""

    text: str
    score: float
    kind: int = NORMAL


class SentencePieceModel(NamedTuple):
    """What a unigram model file contains."""

    pieces: tuple[Piece, ...]
    charsmap: bytes | None  # the normalization table


def parse_model(data: bytes, where: str) -> SentencePieceModel:
    """Parse a model file; files of other kinds than unigram are refused."""
    pieces: list[Piece] = []
    kind, charsmap = 1, b""
    for field, value in _fields(data, where):
        if field == PIECES:
            pieces.append(_piece(_message(value, where), where))
            if len(pieces) > MAX_VOCAB:
                raise invalid(where, f"over {MAX_VOCAB:,} pieces")
        elif field == TRAINER:
            switches = dict(_fields(_message(value, where), where))
            kind = _number(switches.get(MODEL_TYPE, 1), where)
            _require_switches(switches, TRAINER_SWITCHES, where)
        elif field == NORMALIZER:
            switches = dict(_fields(_message(value, where), where))
            charsmap = _message(switches.get(CHARSMAP, b""), where)
            _require_switches(switches, NORMALIZER_SWITCHES, where)
    if kind != 1:
        raise UserError(
            "this SentencePiece model is of another kind", where=where,
            found=f"a {KINDS[kind]} model" if kind in KINDS else f"model_type {kind}", expected="a unigram model",
            todo="choose the file of a model that was published with a unigram vocabulary",
        )  # fmt: skip
    if not pieces:
        raise invalid(where, "no pieces")
    if odd := next((piece for piece in pieces if piece.kind not in (NORMAL, UNKNOWN, CONTROL, USER_DEFINED)), None):
        raise invalid(where, f"the piece {shown(odd.text)} of type {odd.kind}")
    if len(charsmap) > MAX_CHARSMAP:
        raise invalid(where, f"a normalization table of {len(charsmap):,} bytes")
    return SentencePieceModel(tuple(pieces), charsmap or None)


def write_model(pieces: Sequence[Piece], charsmap: bytes | None, unknown: int) -> bytes:
    """The bytes of a model file; `unknown` is the id of the unknown piece."""
    found = b"".join(
        _field(PIECES, _field(1, one.text.encode()) + _key(2, 5) + struct.pack("<f", one.score) + _field(3, one.kind))
        for one in pieces
    )
    roles = {40: unknown, 41: -1, 42: -1, 43: -1}  # there is no role of its own for the start, the end, and padding
    trainer = _field(MODEL_TYPE, 1) + _field(4, len(pieces))
    trainer += b"".join(_field(field, number) for field, number in roles.items())
    trainer += _field(45, pieces[unknown].text.encode())
    switches = b"".join(_field(field, int(usual)) for field, (_, usual) in NORMALIZER_SWITCHES.items())
    return found + _field(TRAINER, trainer) + _field(NORMALIZER, _field(CHARSMAP, charsmap or b"") + switches)


def to_float32(score: float) -> float:
    """A score as the file stores it."""
    return float(struct.unpack("<f", struct.pack("<f", score))[0])


def _piece(data: bytes, where: str) -> Piece:
    found = dict(_fields(data, where))
    score, kind = found.get(2, 0.0), _number(found.get(3, NORMAL), where)
    text = _message(found.get(1, b""), where)
    if not isinstance(score, float) or not math.isfinite(score):
        raise invalid(where, f"the piece {shown(text)} with the score {shown(score)}")
    if not 0 < len(text) <= MAX_PIECE:
        raise invalid(where, f"a piece of {len(text):,} bytes")
    try:
        return Piece(text.decode(), score, kind)
    except UnicodeDecodeError:
        raise invalid(where, f"the piece {shown(text)}, which is not UTF-8") from None


def _require_switches(found: dict[int, int | float | bytes], switches: dict[int, tuple[str, bool]], where: str) -> None:
    for field, (name, usual) in switches.items():
        if bool(_number(found.get(field, int(usual)), where)) != usual:
            raise UserError(
                f"not supported: SentencePiece models with another {name}", where=where, found=str(not usual),
                expected=str(usual), todo="choose the file of a model as it was published",
            )  # fmt: skip


def _fields(data: bytes, where: str) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a message in order: numbers, float32 values, and bytes; values of 8 bytes are skipped."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at, where)
        field, wire = key >> 3, key & 7
        if wire == 0:
            number, at = _varint(data, at, where)
            yield field, number
            continue
        size, at = _varint(data, at, where) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if field == 0 or not 0 <= size <= len(data) - at:
            raise invalid(where, f"{len(data):,} bytes that are not a protocol buffer, or a part of one")
        value = data[at : at + size]
        at += size
        if wire != 1:
            yield field, value if wire == 2 else float(struct.unpack("<f", value)[0])


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    """A number in 7-bit groups, the least significant first, and the position after it."""
    found = 0
    for place, byte in enumerate(data[at : at + 10]):
        found |= (byte & 127) << (7 * place)
        if byte < 128:
            return found, at + place + 1
    raise invalid(where, f"{len(data):,} bytes that are not a protocol buffer, or a part of one")


def _message(value: int | float | bytes, where: str) -> bytes:
    if not isinstance(value, bytes):
        raise invalid(where, "a number where text is expected")
    return value


def _number(value: int | float | bytes, where: str) -> int:
    if not isinstance(value, int):
        raise invalid(where, "text where a number is expected")
    return value


def _field(field: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return _key(field, 2) + _packed(len(value)) + value
    return _key(field, 0) + _packed(value % 2**64)


def _key(field: int, wire: int) -> bytes:
    return _packed(field << 3 | wire)


def _packed(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def invalid(where: str, found: str) -> UserError:
    """The error for a file that is not a SentencePiece model."""
    return UserError(
        "this is not a SentencePiece model, or it is damaged", where=where, found=found,
        expected="the spiece.model or sentencepiece.bpe.model of a published model",
        todo="copy the file again from its model's folder",
    )  # fmt: skip
