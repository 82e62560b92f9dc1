"""The inputs of a request: JSON, checked and turned into what the model's predictor takes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from heedful.data.fields.learned import LearnedImage
from heedful.data.formats.sources import list_keys
from heedful.data.images.image_files import open_image
from heedful.data.images.inputs import prepare
from heedful.errors import UserError, shown
from heedful.runs.rows import FIELDS, numbers_in, row_input
from heedful.tasks.classification.numbers import MultiRegressor
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.multi_label.predictor import MultiLabelClassifier
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from heedful.tasks.tabular.predictor import TablePredictor

IMAGE = "the file as base64 text: a PNG or JPEG, for example"
MOST_PIXELS = 50_000_000  # of all images of a request


def fields_of(predictor: Any) -> tuple[str, ...]:
    """The fields of an input, as in `heedful predict`."""
    match predictor:
        case TablePredictor():
            return predictor.columns
    return FIELDS[type(predictor)]


def parse_inputs(predictor: Any, rows: Sequence[object]) -> list[Any]:
    """The inputs of a predictor from JSON rows: objects with its fields, or texts where it reads a single one."""
    fields, pixels, found = fields_of(predictor), 0, list[Any]()
    for number, row in enumerate(rows):
        one = parse_row(predictor, row, fields, f"inputs[{number}]")
        pixels += sum(image.width * image.height for image in images_in(one))
        if pixels > MOST_PIXELS:
            raise UserError("the images are too large together", where="inputs", expected=f"{MOST_PIXELS:,} pixels")
        found.append(one)
    return found


def parse_row(predictor: Any, row: object, fields: tuple[str, ...], where: str) -> Any:
    """One input."""
    if not isinstance(row, dict):
        if len(fields) > 1 or isinstance(predictor, TablePredictor):
            raise UserError(
                "this is not an input of this model", where=where, found=shown(row),
                expected="an object with " + ", ".join(fields),
            )  # fmt: skip
        row = {fields[0]: row}
    if isinstance(predictor, TablePredictor):
        return table_row(predictor, row, where)
    takes_pairs = isinstance(predictor, TextClassifier | TextRegressor | MultiRegressor | MultiLabelClassifier)
    optional = ("pair",) if takes_pairs else ()
    known = (*fields, *optional)
    if unknown := [name for name in row if name not in known]:
        raise UserError("an unknown field", where=where, found=shown(unknown[0]), expected=", ".join(known))
    names = (*fields, *(name for name in optional if name in row))
    if missing := [name for name in names if name not in row]:
        raise UserError(f"there is no field {shown(missing[0])}", where=where, found=list_keys(row))
    match names:
        case ("observation",):
            return numbers_in(row["observation"], f"{where}.observation")
        case ("image",):
            image = image_in(row["image"], f"{where}.image")
            return prepare(image, predictor.canvas) if isinstance(predictor, ImageAutoencoder) else image
        case ("image", "boxes"):
            texts = {**row, "image": ""}
            return image_in(row["image"], f"{where}.image"), row_input(texts, names, where, "")[1]
    found = row_input(row, names, where, "give it with every input")
    if found is None:
        raise UserError("the text is empty", where=where, found=shown(row))
    return found


def table_row(predictor: TablePredictor, row: Mapping[str, object], where: str) -> dict[str, object]:
    """A row of a table; images are in it, not in files of the server."""
    images = {name for name, column in predictor.tokenizer.inputs.items() if isinstance(column, LearnedImage)}
    return {key: image_in(value, f"{where}.{key}") if key in images else value for key, value in row.items()}


def image_in(value: object, where: str) -> Any:
    """An image from base64 text, or from an array."""
    if isinstance(value, list):
        return numbers_in(value, where)
    if not isinstance(value, str):
        raise UserError("this is not an image", where=where, found=shown(value), expected=IMAGE)
    text = value.partition("base64,")[2] if value.startswith("data:") else value
    try:
        contents = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise UserError("this is not an image", where=where, found=shown(value), expected=IMAGE) from None
    return open_image(contents, where)


def images_in(one: object) -> list[Any]:
    """The images of Pillow in an input."""
    parts = one if isinstance(one, tuple) else tuple(one.values()) if isinstance(one, dict) else (one,)
    return [part for part in parts if isinstance(part, Image.Image)]
