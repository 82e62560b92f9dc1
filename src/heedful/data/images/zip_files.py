"""Image files in a zip file, read without unpacking it."""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path, PurePosixPath

from heedful.errors import UserError
from heedful.files.reading import open_file

MOST_BYTES = 2**29  # of one image
BOMB_BYTES, BOMB_RATIO = 2**26, 100  # a file that is larger than both, also compared with its packed size, is no image
MOST_NAMED = 10  # refused files in an error
OUTSIDE = re.compile(r"(^|[/\\])\.\.([/\\]|$)|^[/\\]|^[A-Za-z]:")  # names that lead out of a folder
UNSUPPORTED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)  # damaged, encrypted


@dataclass(frozen=True, order=True)
class ZipMember:
    """A file in a zip file."""

    archive: Path
    name: str

    def __str__(self) -> str:
        return f"{self.archive}: {self.name}"

    @property
    def stem(self) -> str:
        """Its name without folders and suffix."""
        return PurePosixPath(self.name).stem

    def read(self) -> BytesIO:
        """Its bytes; errors are `OSError`s."""
        file = _opened(self.archive, os.getpid())
        try:
            info = file.getinfo(self.name)
            if info.file_size > MOST_BYTES:
                raise OSError(f"it would have more than {MOST_BYTES:,} bytes")
            if info.file_size > max(BOMB_BYTES, BOMB_RATIO * info.compress_size):
                raise OSError(f"{info.compress_size:,} packed bytes would become {info.file_size:,}")
            return BytesIO(file.read(self.name))
        except UNSUPPORTED as error:
            raise OSError(str(error)) from error

    def stamp(self) -> tuple[int, int]:
        """Its size and checksum, as the archive has them."""
        info = _opened(self.archive, os.getpid()).getinfo(self.name)
        return info.file_size, info.CRC


def members(archive: Path) -> list[ZipMember]:
    """All files of a zip file, sorted by name, without hidden ones; none may lead elsewhere, or come twice."""
    try:
        _opened.cache_clear()  # the file may be another one now
        found = _opened(archive, os.getpid()).infolist()
    except (*UNSUPPORTED, OSError) as error:
        raise UserError(
            "this zip file cannot be read", where=str(archive), found=str(error), todo="copy it again"
        ) from None
    names = [info.filename for info in found if not info.filename.endswith("/")]
    _refuse_hostile(archive, found, names)
    shown = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))]
    return sorted(ZipMember(archive, name) for name in shown)


def _refuse_hostile(archive: Path, found: Sequence[zipfile.ZipInfo], names: Sequence[str]) -> None:
    """One error for all links, names outside of the zip file, and names that occur twice."""
    links = {info.filename for info in found if stat.S_ISLNK(info.external_attr >> 16)}
    twice = {name for name, count in Counter(names).items() if count > 1}
    problems = [
        f"{name}: {'a link' if name in links else 'twice' if name in twice else 'outside of the zip file'}"
        for name in sorted({*links, *twice, *(info.filename for info in found if OUTSIDE.search(info.filename))})
    ]
    if problems:
        more = [f"and {len(problems) - MOST_NAMED:,} more"] if len(problems) > MOST_NAMED else []
        raise UserError(
            f"this zip file has files that are never read: {len(problems):,} of {len(found):,}", where=str(archive),
            found="\n".join([*problems[:MOST_NAMED], *more]), expected="plain files, each once, by names inside of it",
            todo="make the zip file again without them, if you trust where it comes from",
        )  # fmt: skip


@lru_cache(maxsize=64)
def _opened(archive: Path, process: int) -> zipfile.ZipFile:
    """An open zip file; each process has its own, since processes would share the position in one."""
    return zipfile.ZipFile(open_file(archive))
