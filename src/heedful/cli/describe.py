"""The command `describe`: a paragraph about an image and its regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say
from heedful.errors import UserError, printable, shown
from heedful.files.json import read_json
from heedful.files.reading import exists, read_file
from heedful.plots.style import Style, require_figure, save
from heedful.tasks.paragraphs.predictor import Description, ImageDescriber


class Regions(NamedTuple):
    """The boxes of an image, and their phrases, if these are given."""

    boxes: list[list[float]]
    phrases: list[str] | None


def describe_command(
    run: Path,
    paths: Sequence[str],
    boxes: Path | None,
    beams: int | None,
    picture: Path | None,
    as_json: bool,
    style: Style,
) -> None:
    """Print the paragraph of each image, with the region of each sentence, and draw the first."""
    if not paths:
        raise UserError("there is no image to read", todo=f"heedful describe {run} image.png --boxes boxes.json")
    if boxes is not None and len(paths) > 1:
        raise UserError(
            "one file of boxes is for one image", where="--boxes", found=f"{len(paths)} images",
            todo="leave it out, and put the boxes of image.png into image.json beside it",
        )  # fmt: skip
    if picture is not None:
        require_figure(picture, "--picture")
    for path in paths:
        if not exists(Path(path)):
            raise UserError("there is no such file", where=path, expected="an image")
    regions = [read_regions(boxes or Path(path).with_suffix(".json")) for path in paths]
    describer = load_as(ImageDescriber, run)
    for number, (path, (found, phrases)) in enumerate(zip(paths, regions, strict=True)):
        (result,) = describer.describe([path], [found], None if phrases is None else [phrases], beams)
        for line in [json_line({"image": path} | result.to_dict())] if as_json else _lines(path, result):
            say(line)
        if picture is not None and number == 0:
            save(result.plot(path, style=style), picture)


def read_regions(path: Path) -> Regions:
    """The boxes in a JSON file: a list of them, or an object with `boxes` and, if they are given, `phrases`."""
    expected = '[[top, left, bottom, right], ...] in pixels, or {"boxes": [...], "phrases": ["...", ...]}'
    if not exists(path):
        raise UserError(
            "there are no boxes for this image", where=str(path), expected=f"a file with {expected}",
            todo="write it, or name another one with --boxes",
        )  # fmt: skip
    try:
        found = read_json(read_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"this is not JSON: {error}", where=str(path), expected=expected) from None
    row: Mapping[str, object] = found if isinstance(found, dict) else {"boxes": found}
    boxes, phrases = row.get("boxes"), row.get("phrases")
    if not isinstance(boxes, list) or not all(isinstance(box, list) for box in boxes):
        raise UserError("these are no boxes", where=str(path), found=shown(found), expected=expected)
    if phrases is not None and not (isinstance(phrases, list) and all(isinstance(text, str) for text in phrases)):
        raise UserError("these are no phrases", where=str(path), found=shown(phrases), expected="a text for each box")
    return Regions(boxes, phrases)


def _lines(path: str, result: Description) -> Iterator[str]:
    """The phrases by number, then each sentence with the regions that it comes from."""
    yield printable(path)
    for number, phrase in enumerate(result.phrases, start=1):
        yield f"  {number}) {printable(phrase)}"
    for sentence in result.sentences:
        named = ", ".join("image" if region == 0 else str(region) for region in sentence.regions)
        yield f"  [{named}] {printable(sentence.text)}"
