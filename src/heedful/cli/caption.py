"""The command `caption`: describe images, and draw what each word attended to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from heedful.cli.classify_images import image_paths
from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say
from heedful.cli.reading import batched
from heedful.data.images.image_files import ImageFile
from heedful.data.images.inputs import display
from heedful.errors import UserError, printable
from heedful.plots.caption_grid import caption_rows
from heedful.plots.style import Style, require_figure, save
from heedful.tasks.captioning.predictor import Caption, ImageCaptioner

BATCH = 64  # images
MOST_DRAWN = 20  # images in a picture


def caption_command(
    run: Path,
    paths: Sequence[str],
    beams: int | None,
    top: int,
    picture: Path | None,
    attention: Literal["soft", "hard"] | None,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Print the best captions of each image; draw the maps of their words."""
    if not paths:
        raise UserError("there is no image to read", todo=f"heedful caption {run} image.png")
    if beams is not None and top > beams:
        raise UserError(
            f"{beams} beams cannot give {top} captions", where="--top", todo=f"write --beams {top}, or a lower --top"
        )
    if picture is not None:
        require_figure(picture, "--picture")
    captioner = load_as(ImageCaptioner, run)
    captioner = captioner if attention is None else captioner.attending(attention)
    if picture is not None and not captioner.attends:
        raise UserError(
            "this model does not attend to the image", where="--picture", found="a captioner without attention",
            todo="leave --picture out",
        )  # fmt: skip
    drawn = list[tuple[ImageFile, Caption]]()
    for batch in batched(_files(paths), BATCH):
        results = captioner.search(batch, max(beams or captioner.settings.beams, top), top)
        for path, captions in zip(batch, results, strict=True):
            for line in _lines(path, captions, as_json):
                say(line)
            drawn += [(path, captions[0])] if len(drawn) < MOST_DRAWN else []
    if picture is not None:
        rows = [(path.name, display(path), one.words, one.maps.numpy()) for path, one in drawn if one.maps is not None]
        save(caption_rows(rows, drawn[0][1].text if len(drawn) == 1 else "", style), picture)


def _files(paths: Sequence[str]) -> Iterator[ImageFile]:
    return (file for path in paths for file, _ in image_paths(Path(path)))


def _lines(path: ImageFile, captions: Sequence[Caption], as_json: bool) -> Iterator[str]:
    """The path, and a line for each caption."""
    if as_json:
        yield from (json_line({"image": str(path)} | one.to_dict()) for one in captions)
        return
    yield printable(str(path))
    yield from (f"  {printable(one.text)}" for one in captions)
