"""What a run keeps besides its weights, over all artifacts of its task: reading, writing, and what they are tied by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.files.reading import exists
from heedful.files.writing import write_text_atomic
from heedful.tasks.base import AnyTask

FIRST = "tokenizer"  # what manifests call the first artifact of a task, whatever its file


def load_artifacts(task: AnyTask | type[AnyTask], folder: Path) -> Any:
    """The vocabulary that the files of a folder make."""
    return task.vocabulary_of({name: codec.load(folder / name) for name, codec in task.artifacts.items()})


def open_artifacts(task: AnyTask | type[AnyTask], texts: Mapping[str, str], folder: Path) -> Any:
    """The same from the files' texts; errors name the folder."""
    return task.vocabulary_of(
        {name: codec.open(texts[name], str(folder / name)) for name, codec in task.artifacts.items()}
    )


def artifact_texts(task: AnyTask, vocabulary: Any) -> dict[str, str]:
    """The texts of the files that keep a vocabulary."""
    return {name: artifact.json for name, artifact in task.artifacts_of(vocabulary).items()}


def write_artifacts(task: AnyTask, folder: Path, vocabulary: Any) -> None:
    """Write the files that keep a vocabulary."""
    for name, text in artifact_texts(task, vocabulary).items():
        write_text_atomic(folder / name, text)


def are_kept(task: AnyTask, folder: Path) -> bool:
    """Whether a folder has all artifacts of a task."""
    return all(exists(folder / name) for name in task.artifacts)


def hashes(task: AnyTask, vocabulary: Any) -> dict[str, str]:
    """What ties a checkpoint to its artifacts: the SHA-256 of each, by what manifests call it."""
    found = task.artifacts_of(vocabulary)
    return {called: artifact.sha256 for called, artifact in zip(names(task), found.values(), strict=True)}


def places(task: AnyTask, folder: Path) -> dict[str, str]:
    """Where each lies, by the same names."""
    return {called: str(folder / name) for called, name in zip(names(task), task.artifacts, strict=True)}


def names(task: AnyTask) -> list[str]:
    """What manifests call the artifacts of a task."""
    return [FIRST, *list(task.artifacts)[1:]]
