"""The command `classify` for images: files, and folders of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from heedful.cli.output import json_line, say
from heedful.cli.reading import batched
from heedful.data.images.inputs import prepare
from heedful.data.images.sources import image_files
from heedful.errors import UserError, printable
from heedful.files.reading import exists, is_folder
from heedful.tasks.image_classification.predictor import BATCH_SIZE, ImageClassification, ImageClassifier

MOST_NAMED = 10  # unreadable images in a note


def classify_images(classifier: ImageClassifier, run: Path, paths: Sequence[str], top: int, as_json: bool) -> None:
    """Print the most probable classes of each image; unreadable images in folders are left out, and named."""
    if not paths:
        raise UserError("there is no image to read", todo=f"heedful classify {run} image.png")
    unread: list[UserError] = []

    def readable() -> Iterator[tuple[Path, object]]:
        for path in paths:
            for file, in_folder in _files(Path(path)):
                try:
                    yield file, prepare(file, classifier.canvas)
                except UserError as error:
                    if not in_folder:
                        raise
                    unread.append(error)

    for batch in batched(readable(), BATCH_SIZE):
        results = classifier.predict([pixels for _, pixels in batch], top)  # type: ignore[misc]
        for (path, _), result in zip(batch, results, strict=True):
            for line in [json_line({"image": str(path)} | result.to_dict())] if as_json else _lines(path, result):
                say(line)
    if unread:
        names = "".join(f"\n  {printable(str(error.where))}: {error.message}" for error in unread[:MOST_NAMED])
        more = f"\n  and {len(unread) - MOST_NAMED} more" if len(unread) > MOST_NAMED else ""
        typer.echo(f"note: images that cannot be read, left out: {len(unread):,}{names}{more}", err=True)


def _files(path: Path) -> Iterator[tuple[Path, bool]]:
    """The image itself, or those of a folder and its subfolders, and whether it is in a folder."""
    if not exists(path):
        raise UserError("there is no such file", where=str(path), expected="an image, or a folder of images")
    if is_folder(path):
        yield from ((file, True) for file in image_files(path)[0])
    else:
        yield path, False


def _lines(path: Path, result: ImageClassification) -> Iterator[str]:
    """The path, and a line for each class with its probability."""
    yield printable(str(path))
    width = max(map(len, result.probabilities))
    for label, probability in result.probabilities.items():
        yield f"  {label:<{width}}  {probability:6.1%}"
