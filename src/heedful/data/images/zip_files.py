"""Image files in a zip file, read without unpacking it."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from heedful.errors import UserError

MOST_BYTES = 2**30  # of one image
UNSUPPORTED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)  # damaged, encrypted


@dataclass(frozen=True, order=True)
class ZipMember:
    """A file in a zip file."""

    archive: Path
    name: str

    def __str__(self) -> str:
        return f"{self.archive}: {self.name}"

    def read(self) -> BytesIO:
        """Its bytes; errors are `OSError`s."""
        file = _opened(self.archive, os.getpid())
        try:
            if file.getinfo(self.name).file_size > MOST_BYTES:
                raise OSError(f"it would have more than {MOST_BYTES:,} bytes")
            return BytesIO(file.read(self.name))
        except UNSUPPORTED as error:
            raise OSError(str(error)) from error

    def stamp(self) -> tuple[int, int]:
        """Its size and checksum, as the archive has them."""
        info = _opened(self.archive, os.getpid()).getinfo(self.name)
        return info.file_size, info.CRC


def members(archive: Path) -> list[ZipMember]:
    """All files of a zip file, sorted by name, without hidden ones."""
    try:
        _opened.cache_clear()  # the file may be another one now
        names = [name for name in _opened(archive, os.getpid()).namelist() if not name.endswith("/")]
    except (*UNSUPPORTED, OSError) as error:
        raise UserError(
            "this zip file cannot be read", where=str(archive), found=str(error), todo="copy it again"
        ) from None
    shown = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))]
    return sorted(ZipMember(archive, name) for name in shown)


@lru_cache(maxsize=64)
def _opened(archive: Path, process: int) -> zipfile.ZipFile:
    """An open zip file; each process has its own, since processes would share the position in one."""
    return zipfile.ZipFile(archive)
