"""Every change that training makes to a disk, through eight small functions, so that tests can fail each of them.

Nothing is written through a link: a new file must not exist yet, what takes a name replaces a link of that name, and
files that are appended to and folders that are written into must not be links. The run folder may be a link.

A file is complete under its own name or not there at all: it is written as `name.tmp-<random>`, synced, and renamed.
What a crash leaves behind has that suffix and is deleted by the next run that holds the folder's lock.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from heedful.errors import UserError
from heedful.files.reading import exists, is_folder

EXIT_DISK = 74  # the exit code of a disk that is full or cannot be written: EX_IOERR of sysexits.h
LARGE = 1 << 20  # bytes that are written by themselves
LEFTOVER = re.compile(r".+\.tmp-[0-9a-f]{16}")


def make_folder(path: Path) -> None:
    """Create one folder, whose parent exists."""
    os.mkdir(path)


def create(path: Path) -> int:
    """Open a file that must not exist yet, for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def reopen(path: Path) -> int:
    """Open a regular file for appending and reading, creating it if it does not exist."""
    require_no_link(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return descriptor


def require_no_link(path: Path) -> None:
    """Refuse a link where something is to be written."""
    if os.path.islink(path):
        raise UserError(
            "this is a link, and nothing is written through it", where=str(path),
            found=f"a link to {os.readlink(path)}", expected="a file or folder of the run's own",
            todo="remove it; to have a run on another disk, name a folder there with --run",
        )  # fmt: skip


def ensure_folder(path: Path) -> None:
    """See to it that a folder is there, and no link to one."""
    require_no_link(path)
    if not os.path.lexists(path):
        make_folder(path)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of the bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int) -> None:
    """Wait until the file or folder is on the disk itself."""
    os.fsync(descriptor)


def rename(old: Path, new: Path) -> None:
    """Give a file or folder its new name in one step."""
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
        for piece in _gathered(pieces):
            write(descriptor, piece)
        sync(descriptor)
    finally:
        os.close(descriptor)


def _gathered(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in fewer pieces: small ones are joined, large ones are not copied."""
    small: list[bytes | memoryview] = []
    held = 0
    for piece in pieces:
        if held + len(piece) > LARGE:
            yield b"".join(small)
            small, held = [], 0
        if len(piece) > LARGE:
            yield piece
        else:
            small.append(piece)
            held += len(piece)
    yield b"".join(small)


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk: a rename is durable only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def delete_tree(path: Path) -> None:
    """Delete a file, or a folder with all it holds, following no links."""
    if is_folder(path) and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            delete_tree(entry)
        remove_folder(path)
    else:
        unlink(path)


def temporary_path(path: Path) -> Path:
    """A fresh name beside the path, for what is incomplete or about to be deleted."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")


def temporary_files(folder: Path) -> Iterator[Path]:
    """Temporary files that a crash left in a folder and in its direct subfolders."""
    for entry in sorted(folder.iterdir()):
        if LEFTOVER.fullmatch(entry.name):
            yield entry
        elif is_folder(entry) and not entry.is_symlink():
            yield from (below for below in sorted(entry.iterdir()) if LEFTOVER.fullmatch(below.name))


def require_writable(path: Path, option: str) -> None:
    """Refuse a path, given with an option of the command line, at which no file can be written."""
    if is_folder(path):
        wrong, where = "a folder is in the way", path
    elif not is_folder(path.parent):
        wrong, where = f"{path.parent} is a file" if exists(path.parent) else "there is no such folder", path.parent
    else:
        return
    raise UserError(wrong, where=str(where), todo=f"name another file with {option}")


@contextmanager
def disk_errors(folder: Path, doing: str, needed: int = 0) -> Iterator[None]:
    """Turn the system's errors into one that names the folder, the bytes needed and the bytes free."""
    try:
        yield
    except OSError as error:
        expected, todo = "a folder that can be written", "make the folder writable, then run the same command again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            todo = "free some space, then run the same command again"
        elif error.errno == errno.ENAMETOOLONG:
            expected, todo = "names of at most 255 bytes", "give a shorter name"
        elif error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) and not os.path.isdir(folder):
            expected, todo = "the folder, which is gone", "was it moved or deleted? Put it back, or name another one"
        raise UserError(
            f"cannot {doing}", where=str(folder), found=f"{error.strerror or error}; {bytes_free(folder)}",
            expected=f"{needed:,} bytes that can be written there" if needed else expected, todo=todo,
            exit_code=EXIT_DISK,
        ) from error  # fmt: skip


def bytes_free(folder: Path) -> str:
    """The free space on a folder's disk, in words."""
    try:
        return f"{shutil.disk_usage(folder).free:,} bytes free"
    except OSError:
        return "the free space is not known"


def write_text_atomic(path: Path, text: str) -> None:
    """Write a text file so that a reader or a crash sees the former file or the new one, never a part."""
    write_atomic(path, text.encode())


def write_atomic(path: Path, data: bytes) -> None:
    """Like `write_text_atomic`, for bytes."""
    with disk_errors(path.parent, f"write {path.name}", len(data)), atomic_path(path) as fresh:
        write_new(fresh, data)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A fresh name for a file or folder, which takes that of the path once it is complete, and else is deleted.

    A former file is replaced; a former folder goes aside, comes back if this fails, and is deleted if it does not.
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
        # Tidy what we can; whatever a failing disk does not let us delete, the next start of a run deletes.
        with suppress(OSError):
            if os.path.lexists(aside) and not os.path.lexists(path):
                rename(aside, path)
            if os.path.lexists(fresh):
                delete_tree(fresh)
        raise
    if os.path.lexists(aside):
        delete_tree(aside)


def append_jsonl(path: Path, record: Mapping[str, object]) -> None:
    """Append one record as a line of JSON, flushed at once; numbers that are not finite raise an error."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    data = line.encode("utf-8", "backslashreplace")  # half a surrogate pair becomes its JSON escape
    with disk_errors(path.parent, f"add to {path.name}", len(data)):
        descriptor = reopen(path)
        try:
            write(descriptor, data)
        finally:
            os.close(descriptor)
