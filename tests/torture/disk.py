"""A model of a disk after a power loss, on which only synced data are certain.

Each write to a file since its last sync may be complete, lost, truncated or zeros. Each change of a folder since its
last sync (a name created, deleted or renamed) may be there or not, independently of the others. Syncing a file does not
sync its name, and syncing a folder does not sync the contents of its files. No real file system is as bad.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from torture.child import Change


@dataclass
class File:
    """A file: the bytes that are sure, and the changes that are not."""

    sure: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut there

    def now(self) -> bytes:
        """What a reader sees while the power is on."""
        return _written(self.sure, self.pending)

    def sync(self) -> None:
        """Make all of it sure."""
        self.sure, self.pending = self.now(), []

    def after(self, loss: Loss) -> bytes:
        """What is left of it."""
        return _written(self.sure, [left for change in self.pending for left in loss.of_write(*change)])


@dataclass
class Folder:
    """A folder: the names that are sure, and the changes that are not."""

    sure: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def now(self) -> dict[str, File | Folder]:
        """What a reader sees while the power is on."""
        return _named(self.sure, self.pending)

    def sync(self) -> None:
        """Make all names in it sure."""
        self.sure, self.pending = self.now(), []

    def after(self, loss: Loss) -> dict[str, File | Folder]:
        """What is left of its names."""
        return _named(self.sure, [change for change in self.pending if loss.keeps_name()])


def _written(data: bytes, changes: list[tuple[int, bytes | None]]) -> bytes:
    for at, new in changes:
        data = data[:at].ljust(at, b"\0") + (b"" if new is None else new + data[at + len(new) :])
    return data


def _named(names: dict[str, File | Folder], changes: list[dict[str, File | Folder | None]]) -> dict[str, File | Folder]:
    found: dict[str, File | Folder | None] = {**names}
    for change in changes:
        found |= change
    return {name: node for name, node in found.items() if node is not None}


@dataclass
class Loss:
    """How a power loss treats what is not sure: how likely a name and a write are to be there."""

    names: float
    writes: float
    rng: random.Random

    def keeps_name(self) -> bool:
        """Whether a change of a name is on the disk."""
        return self.rng.random() < self.names

    def of_write(self, at: int, data: bytes | None) -> list[tuple[int, bytes | None]]:
        """What of a write is on the disk: all, nothing, a part of it, or zeros."""
        if self.rng.random() < self.writes:
            return [(at, data)]
        if data is None or not 0 < self.writes < 1:
            return []
        kept = self.rng.choice((b"", data[: self.rng.randrange(len(data))], bytes(len(data))))
        return [(at, kept)] if kept else []


class Disk:
    """All that was done to a folder, as a disk sees it."""

    def __init__(self) -> None:
        self.root = Folder()

    def do(self, change: Change) -> None:
        """Take in one change."""
        above, name = self._place(change.path)
        node = above.now().get(name) if name else self.root
        if change.name == "fsync":
            assert node is not None
            node.sync()
        elif change.name in ("write", "ftruncate"):
            assert isinstance(node, File)
            node.pending.append((change.at, change.data if change.name == "write" else None))
        elif change.name == "mkdir":
            above.pending.append({name: Folder()})
        elif change.name == "open":
            if node is None:
                above.pending.append({name: File()})
        elif change.name in ("unlink", "rmdir"):
            above.pending.append({name: None})
        elif change.name == "rename":
            to, new = self._place(change.to)
            assert to is above, "a rename from one folder to another is not modelled"
            above.pending.append({name: None, new: node})

    def _place(self, path: str) -> tuple[Folder, str]:
        """The folder that holds a path, and its name there."""
        *above, name = Path(path).parts or ("",)
        folder = self.root
        for part in above:
            found = folder.now()[part]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    def after(self, loss: Loss, place: Path) -> None:
        """Build the disk as a power loss leaves it."""
        _build(self.root, loss, place)


def _build(folder: Folder, loss: Loss, place: Path) -> None:
    place.mkdir()
    for name, node in folder.after(loss).items():
        if isinstance(node, Folder):
            _build(node, loss, place / name)
        else:
            (place / name).write_bytes(node.after(loss))
