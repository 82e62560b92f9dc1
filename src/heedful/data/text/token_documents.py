"""Documents as token files: a large text is tokenized once, and then read from the disk as it is needed.

A folder holds the tokenizer and, for each split, three files of numbers: ids, where sentences begin, and where
documents begin. A manifest with the size and SHA-256 of each file is written last, and the folder appears whole or not
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
from heedful.files.writing import make_folder, whole, write_new

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST_MANIFEST = 1_000_000  # bytes
PARTS = {"ids": "<i4", "sentences": "<i8", "documents": "<i8"}  # of each split, and the type of their numbers
NAMES = frozenset(("tokenizer.json", *(f"{split}.{part}" for split in SPLITS for part in PARTS)))
PIECE = 1 << 24  # bytes that are hashed at a time


class File(Config):
    """What a manifest says of a file."""

    size: int = Field(ge=0)
    sha256: str


class Counts(Config):
    """How much there is in a split."""

    tokens: int = Field(ge=1)
    sentences: int = Field(ge=1)
    documents: int = Field(ge=1)
    unknown: int = Field(ge=0)


class Manifest(Config):
    """What a folder of token files holds."""

    format: Literal[1]
    kind: Literal["tokens"]
    vocab: int = Field(ge=5)
    splits: dict[Split, Counts]
    files: dict[str, File]


class Listed(Protocol):
    """What every manifest has."""

    @property
    def vocab(self) -> int: ...

    @property
    def splits(self) -> Mapping[Split, Any]: ...

    @property
    def files(self) -> dict[str, File]: ...


Told = TypeVar("Told", bound=Config)


class TokenFolder(Config):
    """A folder that `heedful tokenize` wrote; it brings its tokenizer with it."""

    kind: Literal["tokens"] = "tokens"
    folder: Name = Field(description="the folder, seen from the current one")

    def manifest(self) -> Listed:
        """What the folder says that it holds."""
        raise NotImplementedError

    @property
    def test(self) -> Any:
        """How much there is for the final figure, if there is anything."""
        return self.manifest().splits.get("test")

    @property
    def vocab(self) -> int:
        """How many tokens its tokenizer has."""
        return self.manifest().vocab

    def missing(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """What a look at the folder, without reading its files, already shows to be wrong."""
        try:
            files = self.manifest().files
        except UserError as error:
            return [error]
        sizes = ((Path(self.folder) / name, file.size) for name, file in files.items())
        return [found for path, size in sizes if (found := wrong_size(path, size)) is not None]


class TokenFiles(TokenFolder):
    """A folder that `heedful tokenize` wrote; it brings its tokenizer with it."""

    def manifest(self) -> Manifest:
        return manifest_in(Path(self.folder), Manifest, NAMES)

    def read(self, split: Split) -> Tokens:
        """The tokens of a split, none of which is in memory yet, after a look at all of them."""
        manifest = self.manifest()
        require_split(Path(self.folder), manifest, split, PARTS)
        return Tokens.opened(Path(self.folder), split, manifest)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a split, as they lie on the disk."""

    tokenizer: MaskTokenizer
    ids: NDArray[np.int32]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    unknown: int
    sha256: str
    skipped: int = 0

    @classmethod
    def opened(cls, folder: Path, split: Split, manifest: Manifest) -> Tokens:
        """The files of a split, if they fit together."""
        import numpy as np

        counts = manifest.splits[split]
        sizes = {"ids": counts.tokens, "sentences": counts.sentences + 1, "documents": counts.documents + 1}
        found = {part: np.memmap(folder / f"{split}.{part}", dtype=kind, mode="r") for part, kind in PARTS.items()}
        tokenizer = load_encoder_tokenizer(folder / "tokenizer.json")
        ids, sentences, documents = found.values()
        fits = all(len(found[part]) == size for part, size in sizes.items()) and tokenizer.vocab == manifest.vocab
        ends = (int(sentences[0]), int(sentences[-1]), int(documents[0]), int(documents[-1]))
        if not fits or ends != (0, len(ids), 0, len(sentences) - 1) or not 0 <= ids.min() <= ids.max() < manifest.vocab:
            raise damaged(folder, f"files of {split} that do not fit together")
        return cls(tokenizer, ids, sentences, documents, counts.unknown, name_of(manifest, split, PARTS))


class Writer:
    """The files of a split while they grow."""

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

    def close(self) -> dict[str, File]:
        """See the files onto the disk, and say what they are."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return {
            path.name: File(size=path.stat().st_size, sha256=self.hashes[part].hexdigest())
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
    """Write documents, as the ids of their sentences, into a new folder; `progress` is told the tokens so far."""
    require_new(folder)
    with writing_errors(folder, "free some space, or name a folder elsewhere"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole(folder) as fresh:
            make_folder(fresh)
            text = tokenizer.json.encode()
            write_new(fresh / "tokenizer.json", text)
            files = {"tokenizer.json": File(size=len(text), sha256=hashlib.sha256(text).hexdigest())}
            counts: dict[Split, Counts] = {}
            for split, documents in splits.items():
                writer = Writer(fresh, split, tokenizer.unk)
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
            require_new(folder)  # nothing that appeared meanwhile is replaced
    return manifest


def require_new(folder: Path) -> None:
    """Refuse a name that is taken."""
    if os.path.lexists(folder):
        raise UserError("something of this name is there already", where=str(folder), todo="name another folder")


def require_text(split: Split, tokens: int) -> None:
    """Refuse a split without a token."""
    if not tokens:
        raise UserError(f"there is no text for {split}", where=f"data.{split}", todo="name other files")


def write_manifest(folder: Path, manifest: Config) -> None:
    """Write what a folder holds, as its last file."""
    write_new(folder / "manifest.json", (json.dumps(manifest.model_dump(), indent=2) + "\n").encode())


@contextmanager
def writing_errors(folder: Path, todo: str) -> Iterator[None]:
    """Say of the system's errors what was not written, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the token files cannot be written: {error.strerror}", where=str(folder), todo=todo
        ) from None  # fmt: skip


def manifest_in(folder: Path, kind: type[Told], names: Set[str]) -> Told:
    """What a folder says that it holds, which may be files of these names alone."""
    path = folder / "manifest.json"
    if not is_folder(folder):
        raise UserError(
            "there is no such folder", where="data.folder", found=shown(str(folder)),
            expected="a folder that `heedful tokenize` wrote",
        )  # fmt: skip
    try:
        with open_file(path) as file:
            text = file.read(LARGEST_MANIFEST + 1)
        data: Any = json.loads(text.decode()) if len(text) <= LARGEST_MANIFEST else None
    except FileNotFoundError:
        raise damaged(folder, "no manifest.json") from None
    except OSError as error:
        raise UserError(f"this file cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"text that is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise damaged(path, "no JSON object")
    # A manifest comes with the folder, from whoever made it: it may name the folder's own files and no others.
    listed = data.get("files")
    if strange := next((name for name in listed if name not in names), None) if isinstance(listed, dict) else None:
        raise damaged(path, f"a file named {shown(strange)}")
    return parse(kind, data, file=path)


def require_split(folder: Path, manifest: Listed, split: Split, parts: Iterable[str]) -> None:
    """Refuse files of a split that are not as the manifest says, byte by byte."""
    if split not in manifest.splits:
        raise no_data(split)
    told = manifest.files
    for name in ("tokenizer.json", *(f"{split}.{part}" for part in parts)):
        if name not in told:
            raise damaged(folder / "manifest.json", f"nothing of {name}")
        path = folder / name
        if (problem := wrong_size(path, told[name].size)) is not None:
            raise problem
        if (found := file_of(path).sha256) != told[name].sha256:
            raise damaged(path, f"contents of SHA-256 {found[:16]}..., not {told[name].sha256[:16]}...")


def name_of(manifest: Listed, split: Split, parts: Iterable[str]) -> str:
    """What tells the contents of a split from any other."""
    return hashlib.sha256("".join(manifest.files[f"{split}.{part}"].sha256 for part in parts).encode()).hexdigest()


def file_of(path: Path) -> File:
    """What there is to say of a file."""
    digest, size = hashlib.sha256(), 0
    with open_file(path) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return File(size=size, sha256=digest.hexdigest())


def wrong_size(path: Path, size: int) -> UserError | None:
    if path.is_symlink() or not is_file(path):
        return damaged(path, "a link" if path.is_symlink() else "no such file")
    there = path.stat().st_size
    return damaged(path, f"{there:,} bytes, not {size:,}") if there != size else None


def damaged(path: Path, found: str) -> UserError:
    return UserError(
        "these token files are damaged or of another make",
        where=str(path),
        found=found,
        expected="a folder as `heedful tokenize` wrote it",
        todo="copy the whole folder again, or make it anew with `heedful tokenize`",
    )
