"""Images with paragraphs: sentences, boxes, a phrase for each box, and the boxes that each sentence speaks of.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.data.embedded import Embedded
from heedful.data.formats.sources import SPLITS, Name, Split, json_lines, missing_files, no_data, string_field
from heedful.data.images.scenes import Count, Pixels, Scene, Scenes, draw
from heedful.data.images.sources import Side
from heedful.data.located import located
from heedful.errors import UserError, shown
from heedful.files.reading import exists

if TYPE_CHECKING:  # settings are checked without numpy
    from numpy.typing import NDArray

Box = tuple[float, float, float, float]  # top, left, bottom, right
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
MOST_BOXES = 1000


class Paragraph(NamedTuple):
    """What is said of an image: boxes from 0 to 1, a phrase for each, and sentences with their regions.

    Region 0 is the whole image, and the n-th box is region n; where a sentence's regions are not known, it has none.
    """

    boxes: tuple[Box, ...]
    phrases: tuple[str, ...]
    sentences: tuple[str, ...]
    regions: tuple[tuple[int, ...], ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)


@dataclass(frozen=True, eq=False)
class DescribedImages:
    """The images of one split, each with its paragraph; of drawn scenes, with their facts."""

    pixels: NDArray[Any]  # (N, C, Y, X) uint8 or float32
    paragraphs: tuple[Paragraph, ...]
    scenes: tuple[Scene, ...] = ()
    skipped: int = 0  # nothing is left out

    def __len__(self) -> int:
        return len(self.pixels)


# ------------------------------------------------------------------ drawn scenes
class SceneParagraphs(Embedded):
    """Drawn scenes of coloured shapes with true paragraphs and the boxes of their shapes; they need no download."""

    kind: Literal["scenes"] = "scenes"
    train: int = Field(8_000, ge=1, le=10_000_000, description="scenes for training")
    valid: int = Field(200, ge=1, le=1_000_000, description="scenes for validation")
    test: int = Field(500, ge=1, le=1_000_000, description="scenes for the final score")
    size: tuple[Pixels, Pixels] = Field((48, 48), description="rows and columns of an image")
    objects: tuple[Count, Count] = Field((1, 3), description="least and greatest number of shapes in a scene")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the scenes")

    @property
    def drawn(self) -> Scenes:
        """The same scenes as data for classification."""
        return Scenes(
            train=self.train, valid=self.valid, test=self.test, size=self.size, objects=self.objects, seed=self.seed
        )

    @model_validator(mode="after")
    def _check_objects(self) -> Self:
        self.drawn  # noqa: B018  which checks them
        return self

    def read(self, split: Split) -> DescribedImages:
        """The scenes of a split with their paragraphs."""
        import numpy as np

        scenes = tuple(self.drawn.described(split))
        return DescribedImages(np.stack([draw(one) for one in scenes]), tuple(map(scene_paragraph, scenes)), scenes)


def scene_paragraph(scene: Scene) -> Paragraph:
    """The paragraph of a drawn scene."""
    sentences, things = zip(*scene.sentences, strict=True)
    regions = tuple(tuple(n + 1 for n in named) or (0,) for named in things)
    boxes = tuple(relative_box(thing.box, scene.rows, scene.columns) for thing in scene.things)
    return Paragraph(boxes, tuple(map(scene.phrase, scene.things)), sentences, regions)


def relative_box(box: Sequence[float], rows: int, columns: int) -> Box:
    """A box in pixels as parts of the image's sides."""
    top, left, bottom, right = box
    return top / rows, left / columns, bottom / rows, right / columns


# ------------------------------------------------------------------ files
class ParagraphFiles(Config):
    """The paragraphs of a split, and its images."""

    paragraphs: Name = Field(description="file with a JSON object per line, plain or gzip")
    images: Name = Field(description="folder of the images")


class ParagraphJsonl(Config):
    """One JSON object per line: image, boxes (top, left, bottom, right in pixels), phrases, and the paragraph.

    The paragraph is a text, or a list of sentences. `regions`, if given, names the boxes of each sentence, counted from
    1; 0 is the whole image.
    """

    kind: Literal["jsonl"] = "jsonl"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    train: ParagraphFiles = Field(description="files for training")
    valid: ParagraphFiles = Field(description="files for validation, with other images than those for training")
    test: ParagraphFiles | None = Field(None, description="files for the final score")
    channels: Literal[1, 3] = Field(3, description="1: greyscale, 3: RGB")
    size: tuple[Side, Side] = Field((224, 224), description="rows and columns that images are resized to")
    longest: int = Field(1_000_000, ge=1, le=100_000_000, description="maximum characters per line")

    def read(self, split: Split) -> DescribedImages:
        """The images of a split, in the order of the file."""
        from heedful.data.images.image_files import read_image_file, read_image_files

        files = self._files(split)
        if files is None:
            raise no_data(split)
        for problem in self.problems([split]):
            raise problem
        path, folder = Path(self.root, files.paragraphs), Path(self.root, files.images)
        paths, paragraphs = list[Path](), list[Paragraph]()
        for where, row in json_lines(path, self.longest):
            if row is not None:
                image = folder / string_field(row, "image", where)
                paths.append(image)
                paragraphs.append(parse_paragraph(row, read_image_file(image, 1).shape[1:], where))
        if not paths:
            raise UserError("there are no paragraphs", where=str(path), expected="a JSON object per line")
        return DescribedImages(read_image_files(paths, self.channels, self.size), tuple(paragraphs))

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        named = [files for split in splits if (files := self._files(split)) is not None]
        if problems := missing_files(self.root, [Path(self.root, files.paragraphs) for files in named]):
            return problems
        return [
            UserError(
                "there is no such folder of images", where=str(folder), expected="a folder",
                todo="check the path; it is relative to data.root",
            )
            for folder in dict.fromkeys(Path(self.root, files.images) for files in named)
            if not exists(folder)
        ]  # fmt: skip

    def _files(self, split: Split) -> ParagraphFiles | None:
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]


def parse_paragraph(row: Mapping[str, object], size: tuple[int, ...], where: str) -> Paragraph:
    """The paragraph of an image of these rows and columns, from a JSON object."""
    boxes = parse_boxes(row.get("boxes"), size, where)
    phrases = _texts(row.get("phrases"), "phrases", where)
    if len(phrases) != len(boxes):
        raise UserError(
            "each box needs a phrase", where=f"{where}, phrases", found=f"{len(phrases)} phrases, {len(boxes)} boxes",
            expected='a list of as many short texts, such as "small red circle at the top left"',
        )  # fmt: skip
    said = row.get("paragraph")
    texts = SENTENCE_END.split(said.strip()) if isinstance(said, str) else _texts(said, "paragraph", where)
    sentences = tuple(text for text in texts if text)
    if not sentences:
        raise UserError(
            "this paragraph is empty", where=f"{where}, paragraph", found=shown(said),
            expected="a text, or a list of sentences", todo="write it, or remove the line",
        )  # fmt: skip
    regions = _regions(row.get("regions"), len(sentences), len(boxes), where)
    return Paragraph(boxes, phrases, sentences, regions)


def parse_boxes(found: object, size: tuple[int, ...], where: str) -> tuple[Box, ...]:
    """Boxes in pixels (top, left, bottom, right) of an image of these rows and columns, as parts of its sides."""
    rows, columns = size
    expected = "[[top, left, bottom, right], ...] in pixels"
    if not isinstance(found, list | tuple) or not 1 <= len(found) <= MOST_BOXES:
        raise UserError(
            "there are no boxes" if not found else "these are no boxes", where=f"{where}, boxes", found=shown(found),
            expected=f"{expected}, from 1 to {MOST_BOXES:,} of them",
        )  # fmt: skip
    boxes = list[Box]()
    for number, box in enumerate(found, start=1):
        numbers = (
            [float(side) for side in box if isinstance(side, int | float)] if isinstance(box, list | tuple) else []
        )
        if len(numbers) != 4 or len(box) != 4:
            raise UserError("this is no box", where=f"{where}, box {number}", found=shown(box), expected="four numbers")
        top, left, bottom, right = numbers
        if not (0 <= top < bottom <= rows and 0 <= left < right <= columns):
            outside = top < 0 or left < 0 or bottom > rows or right > columns
            raise UserError(
                "this box is outside the image" if outside else "this box is empty", where=f"{where}, box {number}",
                found=shown(box),
                expected=f"0 <= top < bottom <= {rows} and 0 <= left < right <= {columns}, the size of the image",
            )  # fmt: skip
        boxes.append(relative_box(numbers, rows, columns))
    return tuple(boxes)


def _texts(found: object, key: str, where: str) -> tuple[str, ...]:
    texts = (
        [text for text in found if isinstance(text, str) and text.strip()] if isinstance(found, list | tuple) else []
    )
    if not isinstance(found, list | tuple) or len(texts) < len(found):
        raise UserError(
            "these are no texts" if found else f"there are no {key}", where=f"{where}, {key}",
            found=shown(found), expected="a list of texts, none of them empty",
        )  # fmt: skip
    return tuple(" ".join(text.split()) for text in texts)


def _regions(found: object, sentences: int, boxes: int, where: str) -> tuple[tuple[int, ...], ...]:
    if found is None:
        return ((),) * sentences
    rows = found if isinstance(found, list | tuple) else []
    if len(rows) != sentences or not all(
        isinstance(row, list | tuple) and all(type(n) is int and 0 <= n <= boxes for n in row) for row in rows
    ):
        raise UserError(
            "these are no regions of the sentences", where=f"{where}, regions", found=shown(found),
            expected=f"a list for each of {sentences} sentences, of numbers from 0 (the image) to {boxes} (a box)",
        )  # fmt: skip
    return tuple(tuple(row) for row in rows)


def own_paragraphs(examples: Iterable[object], split: Split) -> DescribedImages:
    """(image, paragraph) pairs from Python: bytes (C, Y, X) of one size, and a mapping as a line of a JSONL file."""
    import numpy as np

    pixels, paragraphs = list[Any](), list[Paragraph]()
    for where, row in located(examples, split):
        if not isinstance(row, Sequence) or len(row) != 2 or not isinstance(row[1], Mapping):
            raise UserError(
                "invalid example for the task", where=where, found=shown(row),
                expected="(image, paragraph), the second with the keys boxes, phrases and paragraph",
            )  # fmt: skip
        image = np.asarray(row[0])
        if image.ndim != 3 or (pixels and image.shape != pixels[0].shape):
            expected = "(channels, rows, columns)" if not pixels else f"{pixels[0].shape}, as the first"
            raise UserError("this is no image", where=where, found=f"an array {image.shape}", expected=expected)
        pixels.append(image)
        paragraphs.append(parse_paragraph(row[1], image.shape[1:], where))
    if not pixels:
        raise UserError(f"there are no examples for {split}", where=f"data.{split}", expected="(image, paragraph)")
    return DescribedImages(np.stack(pixels), tuple(paragraphs))
