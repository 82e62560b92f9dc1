"""Checking folders of images: classes, and files that occur twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.data.formats.sources import SPLITS, Split
from heedful.data.images.sources import ImageFolders, Listing
from heedful.data.images.zip_files import ZipMember
from heedful.data.tables.findings import Checked, Row, find
from heedful.errors import shown

MOST_NAMED = 10  # classes of a split


def check_images(data: ImageFolders, classes: bool) -> Checked:
    """The classes of each split, and images that are in two places; `classes`: they are what is predicted."""
    listed: dict[Split, Listing] = {split: data.listing(split) for split in SPLITS if getattr(data, split) is not None}
    keys = fingerprints([file for listing in listed.values() for file in listing.files])
    rows = {
        split: [
            Row((next(keys),), name, str(file), [] if name is None or classes else [name])
            for name, file in zip(_names(listing), listing.files, strict=True)
        ]
        for split, listing in listed.items()
    }
    lines = [f"{split}: {len(rows[split]):,} images of {_about(data, split, listed[split])}" for split in listed]
    labelled = classes and bool(listed["train"].classes)
    return Checked(lines, find(rows, None, labelled, what="images"))


def fingerprints(files: Sequence[Path | ZipMember]) -> Iterator[str]:
    """A text for each file, the same for files with the same contents; only files of one size are read."""
    stamps = [file.stamp() if isinstance(file, ZipMember) else (file.stat().st_size, 0) for file in files]
    sizes = Counter(size for size, _ in stamps)
    for file, (size, _) in zip(files, stamps, strict=True):
        if sizes[size] == 1:
            yield str(size)
        else:
            with file.read() if isinstance(file, ZipMember) else file.open("rb") as stream:
                yield f"{size} {hashlib.file_digest(stream, 'blake2b').hexdigest()}"


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
