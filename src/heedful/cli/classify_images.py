"""The command `classify` for images: files, and folders or zip files of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from numpy.typing import NDArray

from heedful.cli.output import json_line, say
from heedful.cli.reading import batched
from heedful.data.images.image_files import ImageFile
from heedful.data.images.inputs import prepare
from heedful.data.images.sources import image_files, is_zip, zip_images
from heedful.errors import UserError, printable
from heedful.files.reading import exists, is_folder
from heedful.plots.gallery.glimpses import looked
from heedful.plots.glimpse_plots import Looked, plot_glimpses
from heedful.plots.style import require_figure, save
from heedful.tasks.image_classification.glimpses import GlimpseClassifier
from heedful.tasks.image_classification.predictor import BATCH_SIZE, ImageClassification, ImageClassifier

MOST_NAMED = 10  # unreadable images in a note
MOST_DRAWN = 16  # images in a picture


def classify_images(
    classifier: ImageClassifier,
    run: Path,
    paths: Sequence[str],
    top: int,
    as_json: bool,
    picture: Path | None = None,
) -> None:
    """Print the most probable classes of each image; unreadable images in folders are left out, and named.

    With `picture`, the path of the glimpses over the first images is drawn.
    """
    if not paths:
        raise UserError("there is no image to read", todo=f"heedful classify {run} image.png")
    if picture is not None:
        require_figure(picture, "--picture")
    drawn: list[Looked] = []
    unread: list[UserError] = []

    def readable() -> Iterator[tuple[ImageFile, NDArray[Any]]]:
        for path in paths:
            for file, in_folder in image_paths(Path(path)):
                try:
                    yield file, prepare(file, classifier.canvas)
                except UserError as error:
                    if not in_folder:
                        raise
                    unread.append(error)

    for batch in batched(readable(), BATCH_SIZE):
        results = classifier.predict([pixels for _, pixels in batch], top)
        for (path, pixels), result in zip(batch, results, strict=True):
            if picture is not None and isinstance(classifier, GlimpseClassifier) and len(drawn) < MOST_DRAWN:
                drawn.append(looked(classifier, pixels, path.stem))
            for line in [json_line({"image": str(path)} | result.to_dict())] if as_json else _lines(path, result):
                say(line)
    if picture is not None and drawn:
        save(plot_glimpses(drawn, "Where the model looked, and what it saw"), picture)
        typer.echo(f"wrote {picture}", err=True)
    if unread:
        names = "".join(f"\n  {printable(str(error.where))}: {error.message}" for error in unread[:MOST_NAMED])
        more = f"\n  and {len(unread) - MOST_NAMED} more" if len(unread) > MOST_NAMED else ""
        typer.echo(f"note: images that cannot be read, left out: {len(unread):,}{names}{more}", err=True)


def image_paths(path: Path) -> Iterator[tuple[ImageFile, bool]]:
    """The image itself, or those of a folder or zip file and its subfolders, and whether it is in one."""
    if not exists(path):
        raise UserError(
            "there is no such file", where=str(path), expected="an image, or a folder or zip file of images"
        )
    if is_folder(path):
        yield from ((file, True) for file in image_files(path)[0])
    elif is_zip(path):
        yield from ((file, True) for file in zip_images(path)[0])
    else:
        yield path, False


def _lines(path: ImageFile, result: ImageClassification) -> Iterator[str]:
    """The path, and a line for each class with its probability."""
    yield printable(str(path))
    width = max(map(len, result.probabilities))
    for label, probability in result.probabilities.items():
        yield f"  {label:<{width}}  {probability:6.1%}"
