"""All writes to disk go through eight small functions, so that tests can make each of them fail.

Nothing is written through a link: a new file must not exist yet, a rename replaces a link of that name, and
files that are appended to and folders that are written into must not be links. The run folder itself may be a link.

Files appear complete or not at all: they are written as `name.tmp-<random>`, synced, and renamed.
Temporary files that a crash leaves are deleted by the next run that holds the folder's lock.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from heedful.errors import UserError
from heedful.files.reading import exists, is_folder

EXIT_DISK = 74  # the disk is full or cannot be written: EX_IOERR of sysexits.h
LARGE = 1 << 20  # bytes; larger pieces are not joined with others
LEFTOVER = re.compile(r".+\.tmp-[0-9a-f]{16}")


def make_folder(path: Path) -> None:
    """Create a folder; its parent must exist."""
    os.mkdir(path)


def create(path: Path) -> int:
    """Open a new file for writing; it must not exist yet."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def reopen(path: Path) -> int:
    """Open a regular file for appending and reading, creating it if it does not exist."""
    require_no_link(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def require_no_link(path: Path) -> None:
    """Refuse to write through a link."""
    if os.path.islink(path):
        raise UserError(
            "this is a link, and Heedful does not write through links", where=str(path),
            found=f"a link to {os.readlink(path)}", expected="a file or folder",
            todo="remove it; to store a run on another disk, name a folder there with --run",
        )  # fmt: skip


def ensure_folder(path: Path) -> None:
    """Create a folder if it does not exist; a link to one is refused."""
    require_no_link(path)
    if not os.path.lexists(path):
        make_folder(path)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int) -> None:
    """Wait until the file or folder is on disk (fsync)."""
    os.fsync(descriptor)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder atomically."""
    os.rename(old, new)


def unlink(path: Path) -> None:
    """Delete a file or a link."""
    os.unlink(path)


def remove_folder(path: Path) -> None:
    """Delete an empty folder."""
    os.rmdir(path)


def write_new(path: Path, *pieces: bytes | memoryview) -> None:
    """Create a file from these pieces and sync it to disk."""
    descriptor = create(path)
    try:
        for piece in _join_small(pieces):
            write(descriptor, piece)
        sync(descriptor)
    finally:
        os.close(descriptor)


def _join_small(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in fewer pieces: small ones are joined; large ones are not copied."""
    small: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > LARGE:
            yield b"".join(small)
            small, size = [], 0
        if len(piece) > LARGE:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    yield b"".join(small)


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk: a rename is durable only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def delete_tree(path: Path) -> None:
    """Delete a file, or a folder with its contents; links are not followed."""
    if is_folder(path) and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            delete_tree(entry)
        remove_folder(path)
    else:
        unlink(path)


def temporary_path(path: Path) -> Path:
    """A new temporary name beside the path."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")


def temporary_files(folder: Path) -> Iterator[Path]:
    """The temporary files in a folder and in its direct subfolders."""
    for entry in sorted(folder.iterdir()):
        if LEFTOVER.fullmatch(entry.name):
            yield entry
        elif is_folder(entry) and not entry.is_symlink():
            yield from (below for below in sorted(entry.iterdir()) if LEFTOVER.fullmatch(below.name))


def require_writable(path: Path, option: str) -> None:
    """Refuse the path of a command-line option if no file can be written there."""
    if is_folder(path):
        wrong, where = "this is a folder", path
    elif is_folder(path.parent):
        return
    elif exists(path.parent):
        wrong, where = f"{path.parent} is a file", path.parent
    else:
        todo = f"create it: mkdir -p {shlex.quote(str(path.parent))}\nor name another file with {option}"
        raise UserError("there is no such folder", where=str(path.parent), todo=todo)
    raise UserError(wrong, where=str(where), todo=f"name another file with {option}")


@contextmanager
def disk_errors(folder: Path, doing: str, needed: int = 0) -> Iterator[None]:
    """Turn an OSError into one that names the folder, the bytes needed and the bytes free."""
    try:
        yield
    except OSError as error:
        expected, todo = "a folder that can be written", "make the folder writable, then run the same command again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            todo = "free some space, then run the same command again"
        elif error.errno == errno.ENAMETOOLONG:
            expected, todo = "names of at most 255 bytes", "choose a shorter name"
        elif error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) and not os.path.isdir(folder):
            expected, todo = (
                "the folder, which no longer exists",
                "was it moved or deleted? Restore it, or name another",
            )
        raise UserError(
            f"cannot {doing}", where=str(folder), found=f"{error.strerror or error}; {bytes_free(folder)}",
            expected=f"{needed:,} bytes free" if needed else expected, todo=todo,
            exit_code=EXIT_DISK,
        ) from error  # fmt: skip


def bytes_free(folder: Path) -> str:
    """The free space on a folder's disk, in words."""
    try:
        return f"{shutil.disk_usage(folder).free:,} bytes free"
    except OSError:
        return "the free space is unknown"


def write_text_atomic(path: Path, text: str) -> None:
    """Write a text file atomically: readers see the former file or the complete new one."""
    write_atomic(path, text.encode())


def write_atomic(path: Path, data: bytes) -> None:
    """Like `write_text_atomic`, for bytes."""
    with disk_errors(path.parent, f"write {path.name}", len(data)), atomic_path(path) as fresh:
        write_new(fresh, data)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path that is renamed to `path` at the end, and deleted on an error.

    A former file is replaced; a former folder is moved aside, deleted on success, and restored on an error.
    """
    fresh, aside = temporary_path(path), temporary_path(path)
    try:
        yield fresh
        if is_folder(fresh):
            sync_folder(fresh)
            if os.path.lexists(path):
                rename(path, aside)
        rename(fresh, path)
        sync_folder(path.parent)
    except BaseException:
        # What a failing disk does not let us delete is deleted by the next run.
        with suppress(OSError):
            if os.path.lexists(aside) and not os.path.lexists(path):
                rename(aside, path)
            if os.path.lexists(fresh):
                delete_tree(fresh)
        raise
    if os.path.lexists(aside):
        delete_tree(aside)


def append_jsonl(path: Path, record: Mapping[str, object]) -> None:
    """Append a record as a line of JSON; numbers that are not finite raise an error."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    data = line.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape
    with disk_errors(path.parent, f"append to {path.name}", len(data)):
        descriptor = reopen(path)
        try:
            write(descriptor, data)
        finally:
            os.close(descriptor)
