"""Word vectors: read and write the files of word2vec (Mikolov et al., 2013) and GloVe (Pennington et al., 2014).

word2vec files start with a line of two integers, words and width, followed by text or binary data; GloVe files are
text without such a line. Lines end at a line feed only, and words are kept as bytes: real files contain words with
spaces, control characters, and words that end inside a UTF-8 sequence.

N words, D dimensions.
"""

from __future__ import annotations

import difflib
import gzip
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from heedful.data.formats.sources import Stream, file_problem, open_plain_or_gzip
from heedful.errors import UserError, shown
from heedful.files.writing import atomic_path

Format = Literal["word2vec", "word2vec-binary", "glove"]
FORMATS: tuple[Format, ...] = get_args(Format)
HEAD = 2**16  # bytes from which the format is detected
WIDTH_LINES = 100  # lines from which the width of a file without a header is inferred
MAX_WIDTH = 65_536
MAX_LINE = 2**22  # bytes
MAX_WORD = 10_000  # bytes
SUGGESTED = 50_000  # first words of a file, from which suggestions for a misspelled word are taken
INVALID = "surrogateescape"  # preserves invalid UTF-8


class Neighbour(NamedTuple):
    """A word, and its cosine similarity to the query."""

    word: str
    cosine: float


@dataclass(frozen=True)
class WordVectors:
    """Words with their vectors; most files list frequent words first."""

    words: list[str]
    matrix: NDArray[np.float32]  # (N, D)
    notes: tuple[str, ...] = ()  # about the file, for the user

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            raise ValueError(f"{len(self.words)} words cannot have a matrix of shape {self.matrix.shape}")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.rows

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        return self.matrix[self.row(word)]

    @property
    def width(self) -> int:
        """The dimension of the vectors."""
        return int(self.matrix.shape[1])

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _lengths(self) -> NDArray[np.float32]:
        lengths = np.sqrt(np.einsum("nd,nd->n", self.matrix, self.matrix))  # (N,)
        return np.where(lengths > 0, lengths, 1).astype(np.float32)

    def row(self, word: str) -> int:
        """The row of a word; an unknown word is an error with a suggestion."""
        if word in self.rows:
            return self.rows[word]
        near = (
            [word.lower()]
            if word.lower() in self.rows
            else difflib.get_close_matches(word, self.words[:SUGGESTED], n=1)
        )
        raise UserError(
            "this word has no vector", where="word", found=shown(word), expected=f"one of {len(self):,} words",
            todo=f"did you mean {near[0]}?" if near else None,
        )  # fmt: skip

    def unit(self, word: str) -> NDArray[np.float32]:
        """A word's vector, normalized to length 1."""
        row = self.row(word)
        vector: NDArray[np.float32] = self.matrix[row] / self._lengths[row]
        return vector

    def neighbours(self, of: str | NDArray[np.float32], count: int = 10, but: Collection[str] = ()) -> list[Neighbour]:
        """The words with the highest cosine similarity to a word (itself excluded) or a vector."""
        query = self.unit(of) if isinstance(of, str) else np.asarray(of, np.float32)
        if query.shape != (self.width,):
            raise ValueError(f"expected a vector of shape ({self.width},), got {query.shape}")
        cosines = (self.matrix @ query) / (self._lengths * max(float(np.linalg.norm(query)), 1e-30))  # (N,)
        cosines[[self.row(word) for word in {*but, *([of] if isinstance(of, str) else ())}]] = -np.inf
        most = min(count, int(np.isfinite(cosines).sum()))
        best = np.argpartition(-cosines, most - 1)[:most] if most else np.arange(0)
        best = best[np.lexsort((best, -cosines[best]))]
        return [Neighbour(self.words[row], float(cosines[row])) for row in best]

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """a is to b as c is to ...: the neighbours of b - a + c of unit vectors, the three words excluded."""
        return self.neighbours(self.unit(b) - self.unit(a) + self.unit(c), count, but=(a, b, c))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A vector for each text (N, D): the mean of its words' vectors, zeros where no word has one."""
        vectors = np.zeros((len(texts), self.width), np.float32)  # (N, D)
        for index, text in enumerate(texts):
            if rows := [self.rows[word] for word in text.split() if word in self.rows]:
                vectors[index] = self.matrix[rows].mean(0)
        return vectors

    def save(self, path: str | Path, format: Format | None = None) -> None:
        """Write a file atomically; `load_vectors` reads it back bit for bit.

        Without a format, .bin is word2vec's binary format and anything else its text format; .gz compresses either.
        """
        path = Path(path)
        binary = path.name.removesuffix(".gz").endswith(".bin")
        kind = format or ("word2vec-binary" if binary else "word2vec")
        self._require_writable(path, kind)
        with _atomic_file(path) as file:
            if kind != "glove":
                file.write(f"{len(self)} {self.width}\n".encode())
            for word, row in zip(self.words, self.matrix, strict=True):
                numbers = (
                    row.astype("<f4").tobytes() if kind == "word2vec-binary" else " ".join(row.astype(str)).encode()
                )
                file.write(word.encode(errors=INVALID) + b" " + numbers + b"\n")

    def _require_writable(self, path: Path, kind: Format) -> None:
        """Refuse words that cannot be separated from their vectors, and values that are not finite."""
        forbidden = " \n" if kind == "word2vec-binary" else "\n"
        for word, finite in zip(self.words, np.isfinite(self.matrix.sum(1, np.float64)).tolist(), strict=True):
            if not word or any(sign in word for sign in forbidden):
                raise UserError(
                    "this word cannot be written in this format", where=str(path), found=shown(word),
                    expected=f"words without a {'space or ' * (kind == 'word2vec-binary')}line end",
                    todo="write GloVe's format, which allows spaces: format='glove'" if " " in word else None,
                )  # fmt: skip
            if not finite:
                raise UserError("these values are not finite", where=str(path), found=f"the vector of {shown(word)}")


@contextmanager
def _atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that is renamed to `path` when it is complete."""
    try:
        with atomic_path(path) as fresh, fresh.open("xb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
                    yield cast(BinaryIO, compressed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"this file cannot be written: {error.strerror}", where=str(path)) from None


def load_vectors(
    path: str | Path, format: Format | None = None, *, only: Collection[str] | None = None, most: int | None = None
) -> WordVectors:
    """Read a file of word vectors, plain or gzip, in one pass; the format is detected if not given.

    Keeps the first `most` words, or those in `only`, or both if both are given; else all.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise UserError("unknown format", where="format", found=shown(format), expected=", ".join(FORMATS))
    with _open(path) as stream:
        head = stream.read(HEAD)
    kind = format or detect_format(head)
    with _open(path) as stream:
        found = _binary(stream, path) if kind == "word2vec-binary" else _lines(stream, path, kind, head)
        return _collect(found, path, None if only is None else frozenset(only), most)


def load_word2vec(
    filename: str | Path, vocab: Mapping[str, int], word_vecs: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Copy the vectors of a word2vec file, text or binary, into the rows of `word_vecs` given by a vocabulary."""
    vectors = load_vectors(filename, require_header(filename), only=vocab.keys())
    return _fill_rows(vectors, filename, vocab, word_vecs)


def require_header(path: str | Path) -> Format:
    """The word2vec format of a file, text or binary; a file without a header is refused."""
    with _open(Path(path)) as stream:
        kind = detect_format(stream.read(HEAD))
    if kind == "glove":
        raise UserError(
            "this file has no header with the number of words and columns", where=f"{path}:1",
            expected="a word2vec file", todo="read it with load_glove",
        )  # fmt: skip
    return kind


def load_glove(filename: str | Path, vocab: Mapping[str, int], word_vecs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Copy the vectors of a GloVe file into the rows of `word_vecs` given by a vocabulary."""
    return _fill_rows(load_vectors(filename, "glove", only=vocab.keys()), filename, vocab, word_vecs)


def _fill_rows(
    vectors: WordVectors, filename: str | Path, vocab: Mapping[str, int], word_vecs: NDArray[np.float32]
) -> NDArray[np.float32]:
    if word_vecs.ndim != 2 or word_vecs.shape[1] != vectors.width:
        raise UserError(
            "the vectors do not match the matrix", where=str(filename), found=f"{vectors.width} values per word",
            expected=f"rows of a matrix of shape {word_vecs.shape}",
        )  # fmt: skip
    for word, row in zip(vectors.words, vectors.matrix, strict=True):
        word_vecs[vocab[word]] = row
    return word_vecs


def _open(path: Path) -> AbstractContextManager[Stream]:
    """Open a file, decompressed if it is gzip."""
    if (problem := file_problem(path)) is not None:
        raise UserError(problem.message, where=str(path), expected="a file of word vectors, plain or gzip")
    return open_plain_or_gzip(path)


def detect_format(head: bytes) -> Format:
    """Detect the format from the start of a file."""
    first, _, rest = head.partition(b"\n")
    shape = _shape(first)
    if shape is None:
        return "glove"
    line, end, _ = rest.partition(b"\n")
    fields = line.rstrip(b" \r").split(b" ")
    if not end and len(head) >= HEAD:
        fields = fields[:-1]  # the last field may be incomplete
    numbers = fields[max(1, len(fields) - shape[1]) :]
    return "word2vec" if not line or (numbers and all(map(_is_number, numbers))) else "word2vec-binary"


def _shape(line: bytes) -> tuple[int, int] | None:
    """The number of words and of dimensions, if a line is a header."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 16 for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


class _Entry(NamedTuple):
    """A word of a file, its unparsed values, and its location."""

    word: bytes
    numbers: list[bytes] | bytes
    where: str


def _header(stream: Stream, path: Path) -> tuple[int, int]:
    """The first line of a word2vec file."""
    line = stream.readline(100)
    shape = _shape(line)
    if shape is None or not 1 <= shape[1] <= MAX_WIDTH:
        raise UserError(
            "this is not a word2vec header", where=f"{path}:1", found=shown(line.decode(errors=INVALID).rstrip()),
            expected=f"the number of words and of columns, at most {MAX_WIDTH:,}",
            todo="GloVe files have no header: use format='glove'",
        )  # fmt: skip
    return shape


def _lines(stream: Stream, path: Path, kind: Format, head: bytes) -> Iterator[_Entry]:
    """The words of a text file."""
    declared, width = _header(stream, path) if kind == "word2vec" else (None, _usual_width(head, path))
    number = begin = 1 if declared is not None else 0
    while line := stream.readline(MAX_LINE):
        number += 1
        where = f"{path}:{number}"
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            raise UserError("this line is too long", where=where, expected=f"at most {MAX_LINE:,} bytes")
        word, *numbers = line.rstrip(b" \r\n").rsplit(b" ", width)  # a word may contain spaces
        if len(numbers) != width or not word:
            raise UserError(
                "this line has a different number of columns", where=where,
                found=f"{_count(max(0, len(line.split()) - 1))} in {shown(line.decode(errors=INVALID).rstrip())}",
                expected=f"a word and {_count(width)}",
            )  # fmt: skip
        yield _Entry(word, numbers, where)
    if declared is not None and number - begin != declared:
        raise UserError(
            "the header has the wrong number of words", where=f"{path}:1", found=f"{number - begin:,} words",
            expected=f"{declared:,}", todo="download it again, or correct the first line",
        )  # fmt: skip


def _usual_width(head: bytes, path: Path) -> int:
    """The most common number of columns in the first lines, since a word may contain spaces."""
    some = head.split(b"\n")
    some = [line.rstrip(b" \r") for line in (some[:-1] or some)[:WIDTH_LINES]]
    width = Counter(line.count(b" ") for line in some).most_common(1)[0][0]
    if not 1 <= width <= MAX_WIDTH:
        raise UserError(
            "this is not a word with its vector", where=f"{path}:1",
            found=f"{_count(width)} in {shown(some[0].decode(errors=INVALID))}", expected="word 0.1 -0.2 ...",
        )  # fmt: skip
    return width


def _binary(stream: Stream, path: Path) -> Iterator[_Entry]:
    """The words of a binary file, with or without a line end after each vector."""
    declared, width = _header(stream, path)
    for number in range(1, declared + 1):
        where = f"{path}, word {number:,} of {declared:,}"
        word = _word(stream, where).lstrip(b"\n")
        numbers = stream.read(4 * width)
        if len(numbers) < 4 * width:
            raise UserError(
                "this file ends inside a vector", where=where,
                found=f"{len(numbers):,} bytes after {shown(word.decode(errors=INVALID))}",
                expected=f"{4 * width:,} bytes: {_count(width)}", todo="download it again: it is truncated",
            )  # fmt: skip
        yield _Entry(word, numbers, where)
    if stream.read(2).strip(b"\r\n"):
        raise UserError(
            "this file has more data than its header says", where=str(path), found="bytes after the last vector",
            expected=f"{declared:,} words", todo="download it again, or correct the first line",
        )  # fmt: skip


def _word(stream: Stream, where: str) -> bytes:
    """The bytes up to the next space."""
    word = b""
    while (ahead := stream.peek(1)) and len(word) <= MAX_WORD:
        end = ahead.find(b" ")
        word += stream.read(end if end >= 0 else len(ahead))
        if end >= 0:
            stream.read(1)
            return word
    raise UserError(
        "this file ends where a word should be" if not ahead else "there is no word at this position", where=where,
        found=f"{len(word):,} bytes without a space", expected="a word, a space, and the bytes of its vector",
        todo="download it again: it is truncated, or not a word2vec file",
    )  # fmt: skip


def _collect(entries: Iterator[_Entry], path: Path, only: frozenset[str] | None, most: int | None) -> WordVectors:
    """Collect the requested entries; of a repeated word, the first vector counts."""
    rows: dict[str, int] = {}
    data = bytearray()  # grows in place, so that vectors are in memory once
    width, duplicates, example = 0, 0, ""
    for number, entry in enumerate(entries):
        if most is not None and number >= most and only is None:
            break
        word = entry.word.decode(errors=INVALID)
        among_first = (only is None and most is None) or (most is not None and number < most)
        if not (among_first or (only is not None and word in only)):
            continue
        if word in rows:
            duplicates, example = duplicates + 1, example or f"{shown(word)} at {entry.where}"
            continue
        row = _numbers(entry)
        width = len(row)
        rows[word] = len(rows)
        data += row.tobytes()
    if not rows:
        raise UserError(
            "none of the words has a vector in this file", where=str(path),
            found=f"{len(only):,} words requested" if only is not None else "no word",
        )  # fmt: skip
    note = f"{duplicates:,} words occur more than once in {path}, and the first vector of each is used: {example}"
    matrix = np.frombuffer(data, np.float32).reshape(len(rows), width)  # (N, D)
    return WordVectors(list(rows), matrix, (note,) if duplicates else ())


def _numbers(entry: _Entry) -> NDArray[np.float32]:
    """Parse the vector of one word."""
    if isinstance(entry.numbers, bytes):
        row = np.frombuffer(entry.numbers, "<f4").astype(np.float32)
    else:
        try:
            with np.errstate(over="ignore"):
                row = np.array([float(number) for number in entry.numbers], np.float32)
        except ValueError:
            bad = next(number for number in entry.numbers if not _is_number(number))
            raise UserError(
                "this is not a number", where=entry.where, found=shown(bad.decode(errors=INVALID)),
                expected="finite numbers after the word",
            ) from None  # fmt: skip
    if not np.isfinite(row).all():
        place = int(np.flatnonzero(~np.isfinite(row))[0])
        raise UserError(
            "this number is not finite", where=entry.where,
            found=f"{row[place]} as number {place + 1} of {shown(entry.word.decode(errors=INVALID))}",
            expected="finite numbers of 32 bits",
        )  # fmt: skip
    return row


def _count(count: int) -> str:
    return f"{count:,} number{'s' * (count != 1)}"
