"""Tables of images by the paths of their files: for classification, autoencoders, captions and paragraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from heedful.data.formats.sources import Split
from heedful.data.formats.tables import sort_labels
from heedful.data.images.paragraphs import DescribedImages, parse_paragraph
from heedful.data.images.sources import Images, Side, load_files
from heedful.data.tables.reading import Record, parsed, text_of
from heedful.data.tables.source import ColumnName, ColumnNames, ColumnTable
from heedful.errors import UserError, shown
from heedful.files.reading import is_file

if TYPE_CHECKING:  # settings are checked without numpy
    from heedful.data.images.captions import CaptionedImages


class PictureTable(ColumnTable):
    """Base of tables with the path of an image in each row."""

    cuts: ClassVar = False

    channels: Literal[1, 3] = Field(3, description="1: greyscale, 3: RGB")
    size: tuple[Side, Side] | None = Field(
        None, description="rows and columns that images are resized to; null: all have one size"
    )

    def check_row(self, row: Mapping[str, object], place: str) -> None:
        """Refuse a row whose image is not there; it is not opened."""
        self.path(row, place)

    def path(self, row: Mapping[str, object], place: str) -> Path:
        """The file of a row's image."""
        path = Path(self.root, text_of(row.get(self.columns.image)).strip())
        if not is_file(path):
            raise UserError(
                "there is no such image", where=place, found=str(path), expected="an image file",
                todo="correct the path, which is relative to data.root",
            )  # fmt: skip
        return path


class ImageColumns(ColumnNames):
    """The column of images, and that of their labels."""

    given: ClassVar = ("image",)
    wanted: ClassVar = "label"
    image: ColumnName = Field("image", description="column of the path of the image, relative to data.root")
    label: ColumnName | None = Field("label", description="column of the class; null: no classes")


class ImageTable(PictureTable):
    """Rows with the path of an image, and its class."""

    columns: ImageColumns = Field(ImageColumns(), description="the columns that are read")
    keep: Literal["auto", "memory", "files"] = Field(
        "auto",
        description="memory: images are decoded once; files: in every epoch, by `train.workers` processes; "
        "auto: files where the pixels take more than 4 GiB",
    )

    def examples(self, records: Sequence[Record], split: Split) -> Images:
        """The images; their classes are those of the training rows."""
        paths = [self.path(row, place) for row, place in records]
        stored = load_files(paths, self.channels, self.size, self.keep)
        files = tuple(map(str, paths))
        if self.columns.label is None:
            return Images(stored, files=files)
        import numpy as np

        train = records if split == "train" else self.records("train")
        names = sort_labels({self.label(row) or "" for row, _ in train})
        numbers = {name: number for number, name in enumerate(names)}
        for row, place in records:
            if not (label := self.label(row)) or label not in numbers:
                raise UserError(
                    "there are no training images of this class" if label else "a label is missing", where=place,
                    found=shown(label), expected="one of " + ", ".join(map(shown, names[:20])),
                )  # fmt: skip
        labels = [numbers[self.label(row) or ""] for row, _ in records]
        return Images(stored, np.array(labels, np.int64), names, files=files)


class UnlabelledImageTable(ImageTable):
    """Rows with the path of an image; a class, if there is one, is only for figures."""

    columns: ImageColumns = Field(ImageColumns(label=None), description="the columns that are read")


class CaptionColumns(ColumnNames):
    """The columns of images and their captions."""

    given: ClassVar = ("image",)
    image: ColumnName = Field("image", description="column of the path of the image, relative to data.root")
    caption: ColumnName = Field("caption", description="column of a caption, of which an image may have several rows")


class CaptionRowTable(PictureTable):
    """Rows with the path of an image and a caption."""

    repeats: ClassVar = True

    columns: CaptionColumns = Field(CaptionColumns(), description="the columns that are read")
    size: tuple[Side, Side] | None = Field((224, 224), description="rows and columns that images are resized to")

    def examples(self, records: Sequence[Record], split: Split) -> CaptionedImages:
        """The images in the order of their first captions."""
        from heedful.data.images.captions import CaptionedImages
        from heedful.data.images.image_files import read_image_files

        captions, paths = dict[str, list[str]](), dict[str, Path]()
        for row, place in records:
            name = text_of(row.get(self.columns.image)).strip()
            paths.setdefault(name, self.path(row, place))
            captions.setdefault(name, []).extend(self.captions(row, place))
        pixels = read_image_files(list(paths.values()), self.channels, self.size)
        return CaptionedImages(pixels, tuple(map(tuple, captions.values())), tuple(captions))

    def check_row(self, row: Mapping[str, object], place: str) -> None:
        """Refuse a row whose image is not there, or without a caption."""
        super().check_row(row, place)
        self.captions(row, place)

    def captions(self, row: Mapping[str, object], place: str) -> list[str]:
        """The caption of a row, or its captions."""
        value = row.get(self.columns.caption)
        texts = [text_of(one) for one in value] if isinstance(value, list) else [text_of(value)]
        if not texts or not all(text.strip() for text in texts):
            raise UserError("a caption is missing", where=place, found=shown(value), expected="a text")
        return texts


class ParagraphColumns(ColumnNames):
    """The columns of images, the boxes in them, and paragraphs about them."""

    given: ClassVar = ("image",)
    image: ColumnName = Field("image", description="column of the path of the image, relative to data.root")
    boxes: ColumnName = Field("boxes", description="column of lists of [top, left, bottom, right] in pixels, or JSON")
    phrases: ColumnName = Field("phrases", description="column of lists of a phrase for each box, or JSON")
    paragraph: ColumnName = Field("paragraph", description="column of the paragraph, a text or a list of sentences")


class ParagraphTable(PictureTable):
    """Rows with the path of an image, boxes with phrases, and a paragraph."""

    columns: ParagraphColumns = Field(ParagraphColumns(), description="the columns that are read")
    size: tuple[Side, Side] | None = Field((224, 224), description="rows and columns that images are resized to")

    def examples(self, records: Sequence[Record], split: Split) -> DescribedImages:
        """The images with their paragraphs, in order."""
        from heedful.data.images.image_files import read_image_file, read_image_files

        paths, found = list[Path](), list[Any]()
        for row, place in records:
            paths.append(self.path(row, place))
            parts = {key: parsed(row.get(name)) for key, name in self.columns.names.items()}
            found.append(parse_paragraph(parts, read_image_file(paths[-1], 1).shape[1:], place))
        return DescribedImages(read_image_files(paths, self.channels, self.size), tuple(found))
