"""The artifacts of a task, such as a tokenizer: reading, writing and hashing the files beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.files.reading import exists
from heedful.files.writing import write_text_atomic
from heedful.tasks.base import AnyTask

FIRST = "tokenizer"  # key of a task's first artifact in manifests, whatever its file name


def load_artifacts(task: AnyTask | type[AnyTask], folder: Path) -> Any:
    """Load the vocabulary from the files of a folder."""
    return task.vocabulary_of({name: codec.load(folder / name) for name, codec in task.artifacts.items()})


def open_artifacts(task: AnyTask | type[AnyTask], texts: Mapping[str, str], folder: Path) -> Any:
    """Load the vocabulary from the texts of these files; errors name the folder."""
    return task.vocabulary_of(
        {name: codec.open(texts[name], str(folder / name)) for name, codec in task.artifacts.items()}
    )


def artifact_texts(task: AnyTask, vocabulary: Any) -> dict[str, str]:
    """The contents of the files of a vocabulary."""
    return {name: artifact.json for name, artifact in task.artifacts_of(vocabulary).items()}


def write_artifacts(task: AnyTask, folder: Path, vocabulary: Any) -> None:
    """Write the files of a vocabulary."""
    for name, text in artifact_texts(task, vocabulary).items():
        write_text_atomic(folder / name, text)


def are_kept(task: AnyTask, folder: Path) -> bool:
    """Whether a folder has all artifacts of a task."""
    return all(exists(folder / name) for name in task.artifacts)


def hashes(task: AnyTask, vocabulary: Any) -> dict[str, str]:
    """The SHA-256 of each artifact, by its key in manifests."""
    found = task.artifacts_of(vocabulary)
    return {called: artifact.sha256 for called, artifact in zip(names(task), found.values(), strict=True)}


def places(task: AnyTask, folder: Path) -> dict[str, str]:
    """The path of each artifact, by its key in manifests."""
    return {called: str(folder / name) for called, name in zip(names(task), task.artifacts, strict=True)}


def names(task: AnyTask) -> list[str]:
    """The keys of a task's artifacts in manifests."""
    return [FIRST, *list(task.artifacts)[1:]]
