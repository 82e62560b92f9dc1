"""The command `embed`: write the vectors of texts in their order, chunk by chunk."""

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

from heedful.cli.display import counting, shorten
from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say, write
from heedful.cli.reading import Source, batched
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.hub.sentence_transformers import Pooling
from heedful.tasks.pretraining.predictor import TextEncoder, truncation_note

CHUNK = 8192  # texts read at a time, then batched by length
MAX_COMPARED = 20  # texts in a table of similarities
HEADER_BYTES = 256  # of a safetensors file


class VectorFile(Protocol):
    """A file that vectors are appended to; its header is written last, when their number is known."""

    suffix: ClassVar[str]

    def __init__(self, file: BinaryIO, width: int) -> None: ...

    def add(self, texts: Sequence[str], vectors: Tensor) -> None: ...

    def finish(self) -> None: ...


class Npy(VectorFile):
    """A .npy file: a float32 array with a row per text."""

    suffix: ClassVar = ".npy"

    def __init__(self, file: BinaryIO, width: int) -> None:
        self.file, self.width, self.count = file, width, 0
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.width)}
        np.lib.format.write_array_header_1_0(self.file, header)  # leaves room for any number of rows

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        self.count += len(texts)
        self.file.write(vectors.numpy().astype("<f4").tobytes())

    def finish(self) -> None:
        self.file.seek(0)
        self._write_header()


class Safetensors(VectorFile):
    """A safetensors file with one tensor, `vectors`, a row per text."""

    suffix: ClassVar = ".safetensors"

    def __init__(self, file: BinaryIO, width: int) -> None:
        self.file, self.width, self.count = file, width, 0
        self.file.write(bytes(HEADER_BYTES))

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        self.count += len(texts)
        self.file.write(vectors.numpy().astype("<f4").tobytes())

    def finish(self) -> None:
        shape = [self.count, self.width]
        header = {"vectors": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * self.count * self.width]}}
        self.file.seek(0)
        self.file.write(struct.pack("<Q", HEADER_BYTES - 8) + json.dumps(header).encode().ljust(HEADER_BYTES - 8))


class Jsonl(VectorFile):
    """JSON lines: each text with its vector."""

    suffix: ClassVar = ".jsonl"

    def __init__(self, file: BinaryIO, width: int) -> None:
        self.file = file

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        for line in records(texts, vectors):
            self.file.write(line.encode(errors="backslashreplace") + b"\n")

    def finish(self) -> None:
        pass


KINDS: tuple[type[VectorFile], ...] = (Npy, Safetensors, Jsonl)


def embed_command(
    run: Path,
    texts: Sequence[str],
    layers: str,
    pooling: Pooling | None,
    out: Path | None,
    similarity: bool,
    eight_bits: bool,
) -> None:
    """Write a vector for each text, from arguments or stdin, or print the similarities of a few texts."""
    source = Source(texts, f'heedful embed {run} "some text"')
    if out is not None and similarity:
        raise UserError("--out and --similarity cannot be combined", todo="leave out one of them")
    kind = file_kind(out) if out is not None else None
    encoder = load_as(TextEncoder, run)
    encoder = encoder.int8() if eight_bits else encoder
    inputs = (line.text for line in source)
    if out is not None and kind is not None:
        count = write_vectors(encoder, inputs, layers, pooling, out, kind)
        typer.echo(f"wrote {count:,} vectors of dimension {encoder.width(layers, pooling):,} to {out}", err=True)
    elif similarity:
        for line in similarity_table(encoder, list(inputs), layers, pooling):
            say(line)
    else:
        for chunk, vectors in embed_chunks(encoder, inputs, layers, pooling, source.size(CHUNK)):
            for line in records(chunk, vectors):
                write(line)


def file_kind(path: Path) -> type[VectorFile]:
    """The file format for a path, by its extension."""
    files.require_writable(path, "--out")
    kind = next((kind for kind in KINDS if kind.suffix == path.suffix.lower()), None)
    if kind is None:
        raise UserError(
            "unknown file extension", where="--out", found=str(path),
            expected="a name that ends in " + " or ".join(kind.suffix for kind in KINDS),
        )  # fmt: skip
    return kind


def embed_chunks(
    encoder: TextEncoder, texts: Iterable[str], layers: str, pooling: Pooling | None, size: int = CHUNK
) -> Iterator[tuple[list[str], Tensor]]:
    """Chunks of texts with their vectors; at the end, a note with the number of truncated texts."""
    truncated = 0
    for chunk in batched(texts, size):
        encoded = encoder.tokenize(chunk)
        truncated += encoded.cut
        yield chunk, encoder.embed_tokenized(encoded, layers, pooling)
    if truncated:
        typer.echo(f"note: {truncation_note(truncated, encoder.room)}", err=True)


def write_vectors(
    encoder: TextEncoder, texts: Iterable[str], layers: str, pooling: Pooling | None, path: Path, kind: type[VectorFile]
) -> int:
    """Write all vectors atomically; returns their number."""
    count = 0
    reporting = files.disk_errors(path.parent, f"write {path.name}")
    with reporting, files.atomic_path(path) as fresh, fresh.open("wb") as file, counting("texts read") as advance:
        out = kind(file, encoder.width(layers, pooling))
        for chunk, vectors in embed_chunks(encoder, texts, layers, pooling):
            out.add(chunk, vectors)
            count += len(chunk)
            advance(len(chunk))
        out.finish()
    return count


def records(texts: Sequence[str], vectors: Tensor) -> Iterator[str]:
    """A JSON object for each text."""
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        yield json_line({"text": text, "vector": [float(f"{value:.7g}") for value in vector]})


def similarity_table(encoder: TextEncoder, texts: Sequence[str], layers: str, pooling: Pooling | None) -> Iterator[str]:
    """The cosine similarity of each pair of texts, a row per text."""
    if not 2 <= len(texts) <= MAX_COMPARED:
        raise UserError(
            "--similarity compares a few texts", where="--similarity", found=f"{len(texts):,}",
            expected=f"2 to {MAX_COMPARED}", todo="write the vectors to a file with --out instead",
        )  # fmt: skip
    for _, vectors in embed_chunks(encoder, texts, layers, pooling):
        unit = normalize(vectors)  # (N, D)
        for row, (text, cosines) in enumerate(zip(texts, (unit @ unit.mT).tolist(), strict=True)):
            yield f"{row + 1:>2}  " + " ".join(f"{cosine:6.3f}" for cosine in cosines) + f"  {shorten(text)}"
