"""Token files of documents: a large text is tokenized once, and then memory-mapped.

A folder holds the tokenizer and, for each split, three arrays: ids, sentence starts, and document
starts. A manifest with the size and SHA-256 of each file is written last, and the folder appears whole or not
at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypeVar

from pydantic import Field

from heedful.config import Config, parse
from heedful.data.formats.sources import SPLITS, Name, Split, no_data
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.data.tokenizers.encoders import load_encoder_tokenizer
from heedful.errors import UserError, shown
from heedful.files.reading import is_file, is_folder, open_file
from heedful.files.writing import atomic_path, make_folder, write_new

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_MANIFEST = 1_000_000  # bytes
PARTS = {"ids": "<i4", "sentences": "<i8", "documents": "<i8"}  # the arrays of each split, and their dtypes
NAMES = frozenset(("tokenizer.json", *(f"{split}.{part}" for split in SPLITS for part in PARTS)))
CHUNK = 1 << 24  # bytes hashed at a time


class FileEntry(Config):
    """A manifest entry of a file."""

    size: int = Field(ge=0)
    sha256: str


class Counts(Config):
    """The counts of a split."""

    tokens: int = Field(ge=1)
    sentences: int = Field(ge=1)
    documents: int = Field(ge=1)
    unknown: int = Field(ge=0)


class Manifest(Config):
    """The manifest of a folder of token files."""

    format: Literal[1]
    kind: Literal["tokens"]
    vocab: int = Field(ge=5)
    splits: dict[Split, Counts]
    files: dict[str, FileEntry]


class AnyManifest(Protocol):
    """The interface of all manifests."""

    @property
    def vocab(self) -> int: ...

    @property
    def splits(self) -> Mapping[Split, Any]: ...

    @property
    def files(self) -> dict[str, FileEntry]: ...


ManifestT = TypeVar("ManifestT", bound=Config)


class TokenFolder(Config):
    """A folder written by `heedful tokenize`, with its own tokenizer."""

    kind: Literal["tokens"] = "tokens"
    folder: Name = Field(description="the folder written by `heedful tokenize`, relative to the working directory")

    def manifest(self) -> AnyManifest:
        """Read the folder's manifest."""
        raise NotImplementedError

    @property
    def test(self) -> Any:
        """The counts of the test split, if there is one."""
        return self.manifest().splits.get("test")

    @property
    def vocab(self) -> int:
        """The vocabulary size of the tokenizer."""
        return self.manifest().vocab

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems that can be seen without reading the files."""
        try:
            files = self.manifest().files
        except UserError as error:
            return [error]
        sizes = ((Path(self.folder) / name, file.size) for name, file in files.items())
        return [found for path, size in sizes if (found := size_problem(path, size)) is not None]


class TokenFiles(TokenFolder):
    """A folder written by `heedful tokenize`, with its own tokenizer."""

    def manifest(self) -> Manifest:
        return read_manifest(Path(self.folder), Manifest, NAMES)

    def read(self, split: Split) -> TokenizedDocuments:
        """Memory-map the tokens of a split, after checking them."""
        manifest = self.manifest()
        require_split(Path(self.folder), manifest, split, PARTS)
        return TokenizedDocuments.open(Path(self.folder), split, manifest)


@dataclass(frozen=True)
class TokenizedDocuments:
    """The memory-mapped tokens of a split."""

    tokenizer: MaskTokenizer
    ids: NDArray[np.int32]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    unknown: int
    sha256: str
    skipped: int = 0

    @classmethod
    def open(cls, folder: Path, split: Split, manifest: Manifest) -> TokenizedDocuments:
        """Memory-map the files of a split, and check that they are consistent."""
        import numpy as np

        counts = manifest.splits[split]
        sizes = {"ids": counts.tokens, "sentences": counts.sentences + 1, "documents": counts.documents + 1}
        found = {part: np.memmap(folder / f"{split}.{part}", dtype=kind, mode="r") for part, kind in PARTS.items()}
        tokenizer = load_encoder_tokenizer(folder / "tokenizer.json")
        ids, sentences, documents = found.values()
        fits = all(len(found[part]) == size for part, size in sizes.items()) and tokenizer.vocab == manifest.vocab
        ends = (int(sentences[0]), int(sentences[-1]), int(documents[0]), int(documents[-1]))
        if not fits or ends != (0, len(ids), 0, len(sentences) - 1) or not 0 <= ids.min() <= ids.max() < manifest.vocab:
            raise invalid_files(folder, f"files of {split} that do not fit together")
        return cls(tokenizer, ids, sentences, documents, counts.unknown, split_hash(manifest, split, PARTS))


class DocumentWriter:
    """Writes the files of a split."""

    def __init__(self, folder: Path, split: Split, unknown: int) -> None:
        self.paths = {part: folder / f"{split}.{part}" for part in PARTS}
        self.files: dict[str, BinaryIO] = {part: path.open("xb") for part, path in self.paths.items()}
        self.hashes = {part: hashlib.sha256() for part in PARTS}
        self.tokens = self.sentences = self.documents = self.unknown = 0
        self._unknown = unknown
        self._write("sentences", [0])
        self._write("documents", [0])

    def add(self, rows: list[list[int]]) -> None:
        """Write one document, as the ids of its sentences."""
        ids = [number for row in rows for number in row]
        ends = []
        for row in rows:
            self.tokens += len(row)
            ends.append(self.tokens)
        self.sentences, self.documents = self.sentences + len(rows), self.documents + 1
        self.unknown += ids.count(self._unknown)
        self._write("ids", ids)
        self._write("sentences", ends)
        self._write("documents", [self.sentences])

    def close(self) -> dict[str, FileEntry]:
        """Sync the files to disk and return their manifest entries."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return {
            path.name: FileEntry(size=path.stat().st_size, sha256=self.hashes[part].hexdigest())
            for part, path in self.paths.items()
        }

    def _write(self, part: str, numbers: list[int]) -> None:
        import numpy as np

        data = np.array(numbers, dtype=PARTS[part]).tobytes()
        self.files[part].write(data)
        self.hashes[part].update(data)


def write_tokens(
    folder: Path,
    tokenizer: MaskTokenizer,
    splits: dict[Split, Iterable[list[list[int]]]],
    progress: Callable[[Split, int], None] = lambda split, tokens: None,
) -> Manifest:
    """Write documents, as the ids of their sentences, into a new folder; `progress` gets the tokens so far."""
    require_new(folder)
    with writing_errors(folder, "free some space, or name a folder elsewhere"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(folder) as fresh:
            make_folder(fresh)
            text = tokenizer.json.encode()
            write_new(fresh / "tokenizer.json", text)
            files = {"tokenizer.json": FileEntry(size=len(text), sha256=hashlib.sha256(text).hexdigest())}
            counts: dict[Split, Counts] = {}
            for split, documents in splits.items():
                writer = DocumentWriter(fresh, split, tokenizer.unk)
                for rows in documents:
                    writer.add(rows)
                    progress(split, writer.tokens)
                require_text(split, writer.tokens)
                files |= writer.close()
                counts[split] = Counts(
                    tokens=writer.tokens, sentences=writer.sentences, documents=writer.documents, unknown=writer.unknown
                )
            manifest = Manifest(format=1, kind="tokens", vocab=tokenizer.vocab, splits=counts, files=files)
            write_manifest(fresh, manifest)
            require_new(folder)  # again, since the folder may have been created meanwhile
    return manifest


def require_new(folder: Path) -> None:
    """Refuse a path that exists."""
    if os.path.lexists(folder):
        raise UserError("this path already exists", where=str(folder), todo="name another folder")


def require_text(split: Split, tokens: int) -> None:
    """Refuse a split without tokens."""
    if not tokens:
        raise UserError(f"there is no text for {split}", where=f"data.{split}", todo="name other files")


def write_manifest(folder: Path, manifest: Config) -> None:
    """Write the manifest, which must be the last file."""
    write_new(folder / "manifest.json", (json.dumps(manifest.model_dump(), indent=2) + "\n").encode())


@contextmanager
def writing_errors(folder: Path, todo: str) -> Iterator[None]:
    """Turn OS errors into errors that name the folder and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the token files cannot be written: {error.strerror}", where=str(folder), todo=todo
        ) from None  # fmt: skip


def read_manifest(folder: Path, kind: type[ManifestT], names: Set[str]) -> ManifestT:
    """Read a manifest, which may list only files of these names."""
    path = folder / "manifest.json"
    if not is_folder(folder):
        raise UserError(
            "there is no such folder", where="data.folder", found=shown(str(folder)),
            expected="a folder that `heedful tokenize` wrote",
        )  # fmt: skip
    try:
        with open_file(path) as file:
            text = file.read(MAX_MANIFEST + 1)
        data: Any = json.loads(text.decode()) if len(text) <= MAX_MANIFEST else None
    except FileNotFoundError:
        raise invalid_files(folder, "no manifest.json") from None
    except OSError as error:
        raise UserError(f"this file cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise invalid_files(path, f"text that is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise invalid_files(path, "no JSON object")
    # The folder may come from others: its manifest may list only files of the folder.
    listed = data.get("files")
    if strange := next((name for name in listed if name not in names), None) if isinstance(listed, dict) else None:
        raise invalid_files(path, f"a file named {shown(strange)}")
    return parse(kind, data, file=path)


def require_split(folder: Path, manifest: AnyManifest, split: Split, parts: Iterable[str]) -> None:
    """Check the files of a split against the manifest, byte by byte."""
    if split not in manifest.splits:
        raise no_data(split)
    listed = manifest.files
    for name in ("tokenizer.json", *(f"{split}.{part}" for part in parts)):
        if name not in listed:
            raise invalid_files(folder / "manifest.json", f"nothing of {name}")
        path = folder / name
        if (problem := size_problem(path, listed[name].size)) is not None:
            raise problem
        if (found := hash_file(path).sha256) != listed[name].sha256:
            raise invalid_files(path, f"contents of SHA-256 {found[:16]}..., not {listed[name].sha256[:16]}...")


def split_hash(manifest: AnyManifest, split: Split, parts: Iterable[str]) -> str:
    """A SHA-256 over the contents of a split."""
    return hashlib.sha256("".join(manifest.files[f"{split}.{part}"].sha256 for part in parts).encode()).hexdigest()


def hash_file(path: Path) -> FileEntry:
    """The size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with open_file(path) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            size += len(piece)
    return FileEntry(size=size, sha256=digest.hexdigest())


def size_problem(path: Path, size: int) -> UserError | None:
    if path.is_symlink() or not is_file(path):
        return invalid_files(path, "a link" if path.is_symlink() else "no such file")
    there = path.stat().st_size
    return invalid_files(path, f"{there:,} bytes, not {size:,}") if there != size else None


def invalid_files(path: Path, found: str) -> UserError:
    return UserError(
        "these token files are damaged or were not written by `heedful tokenize`", where=str(path), found=found,
        expected="a folder as `heedful tokenize` wrote it",
        todo="copy the whole folder again, or run `heedful tokenize` again",
    )  # fmt: skip
