"""The verb `embed`: texts in, vectors out, in the order they came and part by part."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol

import numpy as np
import typer
from torch import Tensor
from torch.nn.functional import normalize

from heedful.cli.display import counting, cut
from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say, write
from heedful.cli.reading import Source, batched
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.tasks.pretraining.predictor import Pooling, TextEncoder, cut_note

TOGETHER = 8192  # texts that are read at a time, those about as long together
MOST_COMPARED = 20  # texts of a table on the screen
SPACE = 256  # bytes before the numbers of a safetensors file


class Out(Protocol):
    """A file of vectors that grows, and whose beginning is written last, when their number is known."""

    suffix: ClassVar[str]

    def __init__(self, file: BinaryIO, width: int) -> None: ...

    def add(self, texts: Sequence[str], vectors: Tensor) -> None: ...

    def end(self) -> None: ...


class Npy(Out):
    """What `numpy.load` reads: float32 numbers, a row a text."""

    suffix: ClassVar = ".npy"

    def __init__(self, file: BinaryIO, width: int) -> None:
        self.file, self.width, self.count = file, width, 0
        self._head()

    def _head(self) -> None:
        about = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.width)}
        np.lib.format.write_array_header_1_0(self.file, about)  # leaves room for any number of rows

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        self.count += len(texts)
        self.file.write(vectors.numpy().astype("<f4").tobytes())

    def end(self) -> None:
        self.file.seek(0)
        self._head()


class Safetensors(Out):
    """A safetensors file with one tensor, `vectors`, a row a text."""

    suffix: ClassVar = ".safetensors"

    def __init__(self, file: BinaryIO, width: int) -> None:
        self.file, self.width, self.count = file, width, 0
        self.file.write(bytes(SPACE))

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        self.count += len(texts)
        self.file.write(vectors.numpy().astype("<f4").tobytes())

    def end(self) -> None:
        shape = [self.count, self.width]
        about = {"vectors": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * self.count * self.width]}}
        self.file.seek(0)
        self.file.write(struct.pack("<Q", SPACE - 8) + json.dumps(about).encode().ljust(SPACE - 8))


class Jsonl(Out):
    """A JSON object a line: the text and its vector."""

    suffix: ClassVar = ".jsonl"

    def __init__(self, file: BinaryIO, width: int) -> None:
        self.file = file

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        for line in records(texts, vectors):
            self.file.write(line.encode(errors="backslashreplace") + b"\n")

    def end(self) -> None:
        pass


KINDS: tuple[type[Out], ...] = (Npy, Safetensors, Jsonl)


def embed_verb(
    run: Path,
    texts: Sequence[str],
    layers: str,
    pooling: Pooling | None,
    out: Path | None,
    similarity: bool,
    eight_bits: bool,
) -> None:
    """Write a vector for each text, given as arguments or as lines of stdin; or compare a few."""
    source = Source(texts, f'heedful embed {run} "some text"')
    if out is not None and similarity:
        raise UserError("vectors are either written or compared", where="--similarity", todo="leave out --out")
    kind = kind_of(out) if out is not None else None
    reader = load_as(TextEncoder, run)
    reader = reader.int8() if eight_bits else reader
    given = (line.text for line in source)
    if out is not None and kind is not None:
        count = written(reader, given, layers, pooling, out, kind)
        typer.echo(f"wrote {count:,} vectors of {reader.width(layers):,} numbers to {out}", err=True)
    elif similarity:
        for line in compared(reader, list(given), layers, pooling):
            say(line)
    else:
        for some, vectors in embedded(reader, given, layers, pooling, source.size(TOGETHER)):
            for line in records(some, vectors):
                write(line)


def kind_of(path: Path) -> type[Out]:
    """What kind of file a name promises."""
    files.require_writable(path, "--out")
    found = next((kind for kind in KINDS if kind.suffix == path.suffix.lower()), None)
    if found is None:
        raise UserError(
            "the name does not say what to write", where="--out", found=str(path),
            expected="a name that ends in " + " or ".join(kind.suffix for kind in KINDS),
        )  # fmt: skip
    return found


def embedded(
    reader: TextEncoder, texts: Iterable[str], layers: str, pooling: Pooling | None, size: int = TOGETHER
) -> Iterator[tuple[list[str], Tensor]]:
    """Texts and their vectors, part by part; how many were cut is told at the end."""
    many = 0
    for some in batched(texts, size):
        encoded = reader.encoded(some)
        many += encoded.cut
        yield some, reader.embedded(encoded, layers, pooling)
    if many:
        typer.echo(f"note: {cut_note(many, reader.room)}", err=True)


def written(
    reader: TextEncoder, texts: Iterable[str], layers: str, pooling: Pooling | None, path: Path, kind: type[Out]
) -> int:
    """Write all vectors, whole or not at all, and say how many there are."""
    count = 0
    safely = files.disk_errors(path.parent, f"write {path.name}")
    with safely, files.atomic_path(path) as fresh, fresh.open("wb") as file, counting("texts read") as tell:
        out = kind(file, reader.width(layers))
        for some, vectors in embedded(reader, texts, layers, pooling):
            out.add(some, vectors)
            count += len(some)
            tell(len(some))
        out.end()
    return count


def records(texts: Sequence[str], vectors: Tensor) -> Iterator[str]:
    """A JSON object for each text."""
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        yield json_line({"text": text, "vector": [float(f"{value:.7g}") for value in vector]})


def compared(reader: TextEncoder, texts: Sequence[str], layers: str, pooling: Pooling | None) -> Iterator[str]:
    """A table of the cosine between each two texts."""
    if not 2 <= len(texts) <= MOST_COMPARED:
        raise UserError(
            "a table compares a few texts", where="--similarity", found=f"{len(texts):,}",
            expected=f"2 to {MOST_COMPARED}", todo="write the vectors to a file with --out instead",
        )  # fmt: skip
    for _, vectors in embedded(reader, texts, layers, pooling):
        unit = normalize(vectors)  # (N, D)
        for row, (text, cosines) in enumerate(zip(texts, (unit @ unit.mT).tolist(), strict=True)):
            yield f"{row + 1:>2}  " + " ".join(f"{cosine:6.3f}" for cosine in cosines) + f"  {cut(text)}"
