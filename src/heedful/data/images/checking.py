"""Checking folders of images: classes, and files that occur twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.data.formats.sources import SPLITS, Split
from heedful.data.images.sources import ImageFolders, Listing
from heedful.data.images.zip_files import ZipMember
from heedful.data.tables.findings import MOST, Checked, Finding, Row, find
from heedful.errors import shown
from heedful.files.reading import is_file, open_file

MOST_NAMED = 10  # classes of a split


def check_images(data: ImageFolders, classes: bool) -> Checked:
    """The classes of each split, and images that are in two places; `classes`: they are what is predicted."""
    listed: dict[Split, Listing] = {split: data.listing(split) for split in SPLITS if getattr(data, split) is not None}
    keys = fingerprints([file for listing in listed.values() for file in listing.files])
    rows, findings = dict[Split, list[Row]](), list[Finding]()
    for split, listing in listed.items():
        files = zip(_names(listing), map(str, listing.files), strict=True)
        every = [Row((next(keys),), name, place, [] if name is None or classes else [name]) for name, place in files]
        rows[split] = [row for row in every if not row.blank]
        if bad := [row.place for row in every if row.blank]:
            text = f"{split}: {len(bad):,} of {len(every):,} images cannot be read"
            findings.append(Finding("error", "unreadable", text, len(bad), len(every), tuple(bad[:MOST])))
    lines = [f"{split}: {len(one.files):,} images of {_about(data, split, one)}" for split, one in listed.items()]
    found = find(rows, None, classes and bool(listed["train"].classes), what="images")
    return Checked(lines, findings + found)


def fingerprints(files: Sequence[Path | ZipMember]) -> Iterator[str]:
    """A text for each file, the same for files with the same contents, and blank for one that is empty or unreadable.

    Only files of one size are read.
    """
    sizes = [_size(file) for file in files]
    counts = Counter(sizes)
    for file, size in zip(files, sizes, strict=True):
        try:
            yield str(size or "") if not size or counts[size] == 1 else f"{size} {_digest(file)}"
        except OSError:
            yield ""


def _size(file: Path | ZipMember) -> int:
    """The bytes of a file; 0 if there is none."""
    try:
        return file.stamp()[0] if isinstance(file, ZipMember) else file.stat().st_size * is_file(file)
    except OSError:
        return 0


def _digest(file: Path | ZipMember) -> str:
    """A text that differs for other contents."""
    with file.read() if isinstance(file, ZipMember) else open_file(file) as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def _names(listed: Listing) -> Iterator[str | None]:
    """The class of each image."""
    yield from [None] * len(listed.loose)
    for name, files in listed.classes.items():
        yield from [name] * len(files)


def _about(data: ImageFolders, split: Split, listed: Listing) -> str:
    """Where the images of a split are, and how many there are of each class."""
    held_out = ", held out of those for training" if split in data.shares else ""
    counts = sorted(((len(files), name) for name, files in listed.classes.items()), key=lambda pair: -pair[0])
    named = ", ".join(f"{count:,} {shown(name)}" for count, name in counts[:MOST_NAMED])
    more = f" and {len(counts) - MOST_NAMED:,} classes more" if len(counts) > MOST_NAMED else ""
    return f"{data.files(split)[0]}{held_out}" + (f": {named}{more}" if counts else "")
