"""Images with captions: COCO's JSON, Flickr8k's token file, CSV, TSV, JSON lines, and drawn scenes.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.data.embedded import Embedded
from heedful.data.formats.sources import (
    SPLITS,
    TABS,
    Column,
    Name,
    Split,
    json_lines,
    lines,
    missing_files,
    no_data,
    open_plain_or_gzip,
    string_field,
)
from heedful.data.formats.tables import Cell, csv_cells, select_columns, tsv_cells
from heedful.data.images.scenes import Count, Pixels, Scene, Scenes, draw
from heedful.data.images.sources import Side
from heedful.errors import UserError, shown
from heedful.files.json import read_json

if TYPE_CHECKING:  # settings are checked without numpy
    from numpy.typing import NDArray

MOST_NAMED = 5  # images in an error
NUMBERED = re.compile(r"(.+)#(\d+)")  # image.jpg#0
MAX_JSON = 2**31  # bytes of COCO's file


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """The images of one split, each with its captions."""

    pixels: NDArray[Any]  # (N, C, Y, X) uint8 or float32
    captions: tuple[tuple[str, ...], ...]  # of each image, one or more
    names: tuple[str, ...]  # of the image files
    skipped: int = 0  # captions are never left out

    def __len__(self) -> int:
        return len(self.pixels)


class Row(NamedTuple):
    """A caption, the name of its image, and where it stands."""

    image: str
    caption: str
    where: str


class CaptionFiles(Config):
    """The captions of a split, and its images."""

    captions: Name = Field(description="file of captions, plain or gzip")
    images: Name = Field(description="folder or .zip file of the images")
    names: Name | None = Field(
        None, description="file with the name of an image per line, to use these alone; null: all that have captions"
    )


class CaptionSource(Config):
    """Base of files of captions: which image each belongs to."""

    kind: str
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    train: CaptionFiles = Field(description="files for training")
    valid: CaptionFiles = Field(description="files for validation, with other images than those for training")
    test: CaptionFiles | None = Field(None, description="files for the final score")
    channels: Literal[1, 3] = Field(3, description="1: greyscale, 3: RGB")
    size: tuple[Side, Side] = Field((224, 224), description="rows and columns that images are resized to")
    without: Literal["refuse", "ignore"] = Field(
        "refuse", description="what to do about images that have no caption, and captions of images not in `names`"
    )
    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Row]:
        """Every caption of a file."""

    def pictured(self, path: Path, there: Iterable[str]) -> set[str]:
        """The images that should have captions: those in the folder, unless the file of captions lists them."""
        return set(there)

    def setting(self, split: Split) -> CaptionFiles | None:
        """The files of a split, if they are given."""
        found: CaptionFiles | None = getattr(self, split)
        return found

    def read(self, split: Split) -> CaptionedImages:
        """The images of a split, in the order of their first captions."""
        from heedful.data.images.image_archives import open_images

        files = self.setting(split)
        if files is None:
            raise no_data(split)
        for problem in self.problems([split]):
            raise problem
        path = Path(self.root, files.captions)
        captions = collect_captions(self.rows(path), path)
        wanted = None
        if files.names is not None:
            listing = Path(self.root, files.names)
            wanted = {line.strip() for line in lines(listing, self.longest) if line.strip()}
            _require(sorted(wanted - captions.keys()), "no caption", listing, f"captions of them in {path}")
            captions = {name: texts for name, texts in captions.items() if name in wanted}
        images = open_images(Path(self.root, files.images))
        missing = [name for name in captions if name not in images]
        _require(missing, "not there", path, f"these images in {images.path}", "named by captions ", "is", "are")
        if wanted is None and self.without == "refuse":
            bare = sorted(self.pictured(path, images.names) - captions.keys())
            todo = "write data.without: ignore to leave them out"
            _require(bare, "no caption", images.path, f"captions of them in {path}", todo=todo)
        pixels = images.read(list(captions), self.channels, self.size)
        return CaptionedImages(pixels, tuple(map(tuple, captions.values())), tuple(captions))

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        from heedful.files.reading import exists

        named = [files for split in splits if (files := self.setting(split)) is not None]
        texts = [Path(self.root, name) for files in named for name in (files.captions, files.names) if name]
        if problems := missing_files(self.root, texts):
            return problems
        places = dict.fromkeys(Path(self.root, files.images) for files in named)
        return [
            UserError(
                "there is no such folder of images", where=str(place), expected="a folder or a .zip file",
                todo="check the path; it is relative to data.root",
            )
            for place in places
            if not exists(place)
        ]  # fmt: skip


def collect_captions(rows: Iterable[Row], path: Path) -> dict[str, list[str]]:
    """The captions of each image, in the order of the file; none may be empty."""
    found: dict[str, list[str]] = {}
    empty = list[Row]()
    for row in rows:
        found.setdefault(row.image, []).append(" ".join(row.caption.split()))
        if not row.caption.strip():
            empty.append(row)
    if empty:
        named = ", ".join(f"{row.image} ({row.where})" for row in empty[:MOST_NAMED])
        raise UserError(
            f"{len(empty):,} caption{'s are' if len(empty) > 1 else ' is'} empty", where=empty[0].where,
            found=named + (" ..." if len(empty) > MOST_NAMED else ""), expected="at least one word",
            todo="write the caption, or remove its line",
        )  # fmt: skip
    if not found:
        raise UserError("there are no captions", where=str(path), expected="at least one caption of an image")
    return found


def _require(
    names: Sequence[str],
    problem: str,
    where: Path,
    expected: str,
    what: str = "",
    one: str = "has",
    many: str = "have",
    todo: str = "add them, or remove the lines that name them",
) -> None:
    """Refuse images with a problem, by their number and the names of some."""
    if names:
        several = len(names) > 1
        raise UserError(
            f"{len(names):,} image{'s' * several} {what}{many if several else one} {problem}", where=str(where),
            found=", ".join(map(shown, names[:MOST_NAMED])) + (" ..." if len(names) > MOST_NAMED else ""),
            expected=expected, todo=todo,
        )  # fmt: skip


class Flickr8k(CaptionSource):
    """Flickr8k's token file: image.jpg#0, a tab, and a caption, several for each image."""

    kind: Literal["flickr8k"] = "flickr8k"

    def rows(self, path: Path) -> Iterator[Row]:
        """Every caption of a file."""
        for number, line in enumerate(lines(path, self.longest), start=1):
            name, tab, caption = line.partition("\t")
            match = NUMBERED.fullmatch(name.strip())
            if line.strip() and (not tab or match is None):
                raise UserError(
                    "this line has no image and caption", where=f"{path}:{number}", found=shown(line),
                    expected="image.jpg#0, a tab, and a caption",
                )  # fmt: skip
            if match is not None:
                yield Row(match[1], caption, f"{path}:{number}")


class Coco(CaptionSource):
    """COCO's captions: a JSON object with lists of `images` and of `annotations`."""

    kind: Literal["coco"] = "coco"

    def rows(self, path: Path) -> Iterator[Row]:
        """Every caption of a file."""
        names, annotations = self._parse(path)
        for number, each in enumerate(annotations):
            where = f"{path}: annotations[{number}]"
            if not isinstance(each, dict) or each.get("image_id") not in names:
                raise UserError(
                    "this caption is of no image in the file", where=where, found=shown(each),
                    expected="an image_id that is the id of one of `images`, and a caption",
                )  # fmt: skip
            yield Row(names[each["image_id"]], string_field(each, "caption", where), where)

    def pictured(self, path: Path, there: Iterable[str]) -> set[str]:
        """The images that the file lists."""
        return set(self._parse(path)[0].values())

    def _parse(self, path: Path) -> tuple[dict[object, str], list[Any]]:
        """The name of each image by its id, and the annotations."""
        with open_plain_or_gzip(path) as stream:
            data = stream.read(MAX_JSON)
        try:
            found = read_json(data.decode())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"this is not JSON: {error}", where=str(path), expected="COCO's captions") from None
        images, annotations = (found.get(key) if isinstance(found, dict) else None for key in ("images", "annotations"))
        if not isinstance(images, list) or not isinstance(annotations, list):
            raise UserError(
                "this file has no captions", where=str(path), found=shown(found)[:200],
                expected='{"images": [{"id": 1, "file_name": "a.jpg"}], '
                '"annotations": [{"image_id": 1, "caption": "a dog"}]}',
            )  # fmt: skip
        names: dict[object, str] = {}
        for number, image in enumerate(images):
            where = f"{path}: images[{number}]"
            if not isinstance(image, dict) or not isinstance(image.get("id"), int | str):
                raise UserError("this image has no id", where=where, found=shown(image), expected="an id, a file_name")
            names[image["id"]] = string_field(image, "file_name", where)
        return names, annotations


ByName = Column | Name


class CaptionTable(CaptionSource):
    """Base of tables with a column of images and one of captions."""

    header: bool = Field(True, description="whether the first line is a header")
    image: ByName = Field("image", description="column of the image's file name, by name or by index from 0")
    caption: ByName = Field("caption", description="column of the caption; an image may have several lines")

    @model_validator(mode="after")
    def _require_header_for_names(self) -> Self:
        named = [column for column in (self.image, self.caption) if isinstance(column, str)]
        if named and not self.header:
            raise ValueError(f"without a header, columns have no names; write an index instead of {shown(named[0])}")
        return self

    @abstractmethod
    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """Every non-empty line, as its number and its cells."""

    def rows(self, path: Path) -> Iterator[Row]:
        """Every caption of a file."""
        advice = TABS if isinstance(self, CaptionTsv) else "columns are separated by data.separator"
        for image, caption in select_columns(self.split(path), [self.image, self.caption], self.header, advice, path):
            yield Row(image.text.strip(), caption.text, caption.where)


class CaptionTsv(CaptionTable):
    """Tab-separated columns; there is no quoting."""

    kind: Literal["tsv"] = "tsv"

    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """The cells of each line."""
        return tsv_cells(path, self.longest)


class CaptionCsv(CaptionTable):
    """Comma-separated columns; a text in double quotes may contain commas, line ends, and doubled quotes."""

    kind: Literal["csv"] = "csv"
    separator: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="column separator")

    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """The cells of each record."""
        return csv_cells(path, self.separator, self.longest)


def json_captions(path: Path, image: str = "image", caption: str = "caption", longest: int = 100_000) -> Iterator[Row]:
    """The captions of a file of JSON lines, each an image and a caption or a list of them."""
    for where, row in json_lines(path, longest):
        if row is None:
            continue
        found = row.get(caption)
        texts = found if isinstance(found, list) else [string_field(row, caption, where)]
        for text in texts or [""]:
            if not isinstance(text, str):
                raise UserError(
                    "this caption is not a string", where=where, found=shown(text), expected="a JSON string"
                )
            yield Row(string_field(row, image, where), text, where)


class CaptionJsonl(CaptionSource):
    """One JSON object per line: an image, and a caption or a list of them."""

    kind: Literal["jsonl"] = "jsonl"
    image: Name = Field("image", description="key of the image's file name")
    caption: Name = Field("caption", description="key of the caption, or of a list of captions")

    def rows(self, path: Path) -> Iterator[Row]:
        """Every caption of a file."""
        return json_captions(path, self.image, self.caption, self.longest)


class SceneCaptions(Embedded):
    """Drawn scenes of coloured shapes with true captions in several wordings, which need no download."""

    kind: Literal["scenes"] = "scenes"
    train: int = Field(8_000, ge=1, le=10_000_000, description="scenes for training")
    valid: int = Field(500, ge=1, le=1_000_000, description="scenes for validation")
    test: int = Field(500, ge=1, le=1_000_000, description="scenes for the final score")
    size: tuple[Pixels, Pixels] = Field((48, 48), description="rows and columns of an image")
    objects: tuple[Count, Count] = Field((1, 3), description="least and greatest number of shapes in a scene")
    captions: int = Field(5, ge=1, le=5, description="captions of each scene")
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

    def scenes(self, split: Split) -> list[Scene]:
        """The scenes of a split, whose facts captions can be checked against."""
        return self.drawn.described(split)

    def read(self, split: Split) -> CaptionedImages:
        """The images of a split with their captions."""
        import numpy as np

        found = self.scenes(split)
        captions = tuple(one.captions[: self.captions] for one in found)
        names = tuple(f"scene {number}" for number in range(len(found)))
        return CaptionedImages(np.stack([draw(one) for one in found]), captions, names)
