"""Inspect and open paths: regular files only, without blocking, with clear errors.

`open_file` and `read_file` raise an `OSError` that names the type of anything but a regular file.
Path checks raise a `UserError` when permission is denied.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from heedful.errors import UserError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def open_file(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading; pipes and devices are refused, and so are links with `follow=False`."""
    try:
        _require_regular(path, os.stat(path, follow_symlinks=follow))
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
        descriptor = os.open(path, flags)
    except ValueError as error:  # a name with NUL in it
        raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from error
    try:
        _require_regular(path, os.fstat(descriptor))  # it may have changed in between
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(number, f"it is {kind}, not a regular file", str(path))


def read_file(path: str | Path, most: int | None = None, *, follow: bool = True) -> bytes:
    """The bytes of a regular file, at most `most`."""
    with open_file(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, but at most {most:,} are expected", str(path))
        return file.read() if most is None else file.read(most)


def is_file(path: str | Path) -> bool:
    """Whether the path is a regular file."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: str | Path) -> bool:
    """Whether the path is a folder."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def exists(path: str | Path, *, follow: bool = True) -> bool:
    """Whether the path exists; with `follow=False`, a broken link does too."""
    return _mode(path, follow) is not None


def entries(folder: Path) -> list[Path]:
    """The entries of a folder, sorted by name."""
    try:
        return sorted(folder / name for name in os.listdir(folder))
    except OSError as error:
        raise unreachable(folder, error) from error


def _mode(path: str | Path, follow: bool = True) -> int | None:
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except ValueError:  # a name with NUL in it
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise unreachable(path, error) from error


def unreachable(path: str | Path, error: OSError) -> UserError:
    """The error for a path that cannot be accessed."""
    return UserError(
        "this path cannot be accessed", where=str(path), found=error.strerror,
        todo="change the permissions of it and of the folders above it, or name another path",
    )  # fmt: skip


def require_folder(path: str | Path, expected: str, todo: str | None = None) -> None:
    """Raise an error, unless the path is a folder."""
    if not is_folder(path):
        there = exists(path)
        raise UserError(
            "this is a file" if is_file(path) else "this is not a folder" if there else "there is no such folder",
            where=str(path), expected=expected, todo="name a folder" if there else todo,
        )  # fmt: skip
