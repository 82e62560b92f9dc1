"""Folders of published image models, of transformers, timm or torchvision, by their settings alone; imports no torch.

A folder of timm names its architecture in config.json. Torchvision publishes files without settings, whose names are
those of the architectures, such as resnet50-0676ba61.pth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.sources import Resample
from heedful.errors import UserError, shown, wrong
from heedful.files.folders import has_file, read_settings
from heedful.files.reading import is_file, is_folder
from heedful.models import MODELS, kinds_of
from heedful.models.exchange import (
    ImageExchange,
    Layout,
    Preprocessing,
    PublishedConfig,
    TransformersImageExchange,
    no_format,
)
from heedful.models.roles import ImageEncoderConfig

SETTINGS = "config.json"
PROCESSOR = "preprocessor_config.json"
WEIGHTS = re.compile(r"([a-z0-9_]+?)(-owt)?(-[0-9a-f]{8})?\.(pth|pt|safetensors)")
FILTERS: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic")  # by their numbers in Pillow
MOST_PIXELS = 16_384  # of a side
WHOLE = 384  # pixels from which ConvNext's image processor does not crop
SCALE = 1 / 255


class ImageFolder(NamedTuple):
    """A folder with a published image model."""

    folder: Path
    exchange: ImageExchange
    settings: Mapping[str, Any]
    architecture: str | None = None  # its name in timm or torchvision; None: it is of transformers
    file: str | None = None  # the weights, where there are no settings

    @property
    def where(self) -> Path:
        """The file that describes the model."""
        return self.folder / (self.file or SETTINGS)

    def read_config(self) -> PublishedConfig:
        """The settings of the model, with the size of its images."""
        if self.architecture is not None:
            return PublishedConfig(architectures(self.exchange)[self.architecture], labels=self.labels)
        found = of_transformers(self.exchange).read_config(self.settings, self.where)
        size = self.preprocessing(found.config).size
        sized = size is not None and "image_size" not in self.settings
        return found._replace(config=found.config.model_copy(update={"size": size})) if sized else found

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in a folder of timm, if it has them."""
        found = self.settings.get("label_names")
        listed = isinstance(found, list) and all(isinstance(name, str) for name in found)
        return tuple(found or ()) if listed and len(set(found or ())) == len(found or ()) else ()

    def preprocessing(self, config: ImageEncoderConfig) -> Preprocessing:
        """How images are prepared; what no file says is usual for such weights."""
        if self.architecture is None and has_file(self.folder, PROCESSOR):
            return read_processor(read_settings(self.folder, PROCESSOR), self.folder / PROCESSOR, config.channels)
        timm = self.settings.get("pretrained_cfg")
        if isinstance(timm, dict):
            return read_timm(timm, self.where, config.channels)
        usual = self.exchange.USUAL["transformers" if self.architecture is None else "torchvision"]
        return usual if config.channels == 3 else Preprocessing((), (), None, "bilinear")

    def spec(self, config: ImageEncoderConfig, labels: tuple[str, ...]) -> ImageSpec:
        """The images that the model reads, and its classes."""
        mean, std, shorter, resample, _ = self.preprocessing(config)
        names = labels if len(labels) == config.classes else tuple(f"LABEL_{n}" for n in range(config.classes or 0))
        fits = shorter is not None and shorter >= max(config.size)
        return ImageSpec(config.input, names, mean, std, shorter if fits else None, resample)


def architectures(exchange: ImageExchange) -> dict[str, ImageEncoderConfig]:
    """The models that have names in timm or torchvision."""
    return {name: config for known in exchange.ARCHITECTURES.values() for name, config in known.items()}


@cache
def find_image_exchange(kind: str) -> ImageExchange | None:
    """The `weights.py` module of an image model, if it has one."""
    name = f"heedful.models.{MODELS[kind].folder or kind}.weights"
    found: Any = import_module(name) if find_spec(name) is not None else None
    return found


def of_transformers(exchange: ImageExchange) -> TransformersImageExchange:
    """The same with the settings of transformers; an error where that library has no such model."""
    if not exchange.MODEL_TYPES:
        raise no_format(exchange.TITLE)
    return cast(TransformersImageExchange, exchange)


def image_exchanges() -> dict[str, ImageExchange]:
    """The exchange modules of image models, by kind."""
    modules = {kind: find_image_exchange(kind) for kind in kinds_of("image_encoder")}
    return {kind: exchange for kind, exchange in modules.items() if exchange is not None}


def find_image_folder(path: Path) -> ImageFolder | None:
    """The published image model in a folder, or in a file of torchvision, if there is one."""
    known = image_exchanges().values()
    if is_folder(path) and has_file(path, SETTINGS):
        settings = read_settings(path, SETTINGS)
        model_type, architecture = settings.get("model_type"), settings.get("architecture")
        for exchange in known:
            if model_type in exchange.MODEL_TYPES:
                return ImageFolder(path, exchange, settings)
            if model_type is None and isinstance(architecture, str) and architecture in architectures(exchange):
                return ImageFolder(path, exchange, settings, architecture)
        if model_type is None and isinstance(architecture, str):
            names = [name for exchange in known for name in architectures(exchange)]
            raise UserError(
                "not supported: models of this architecture", where=f"{path / SETTINGS}: architecture",
                found=shown(architecture), expected="one of " + ", ".join(names),
            )  # fmt: skip
        return None
    files = sorted(path.iterdir()) if is_folder(path) else [path] if is_file(path) else []
    found = [(file, match[1]) for file in files if (match := WEIGHTS.fullmatch(file.name))]
    named = [(file, name, exchange) for file, name in found for exchange in known if name in architectures(exchange)]
    if len(named) > 1:
        raise UserError(
            "there are several models in this folder", where=str(path),
            found=", ".join(file.name for file, _, _ in named), todo="name one of the files",
        )  # fmt: skip
    return next((ImageFolder(file.parent, exchange, {}, name, file.name) for file, name, exchange in named), None)


# ------------------------------------------------------------------ preprocessing
def read_processor(settings: Mapping[str, Any], where: Path, channels: int) -> Preprocessing:
    """The settings of an image processor of transformers."""
    if (
        settings.get("do_rescale", True) is not True
        or abs(_number(settings, "rescale_factor", SCALE, where) - SCALE) > 1e-6
    ):
        raise wrong(where, "rescale_factor", settings.get("rescale_factor"), "1/255: pixels are scaled to 0..1")
    for key in ("do_pad", "do_reduce_labels"):
        if settings.get(key) not in (False, None):
            raise wrong(where, key, settings[key], "false")
    mean, std = (
        ((), ())
        if settings.get("do_normalize") is False
        else _statistics(settings, "image_mean", "image_std", where, channels)
    )
    number = settings.get("resample", 2)
    if type(number) is not int or not 0 <= number < len(FILTERS):
        raise wrong(where, "resample", number, "0 to 3: nearest, lanczos, bilinear or bicubic")
    size, shorter = _sizes(settings, where)
    return Preprocessing(mean, std, shorter, FILTERS[number], size)


def _sizes(settings: Mapping[str, Any], where: Path) -> tuple[tuple[int, int], int | None]:
    """Rows and columns of the result, and the length of the shorter side before the centre is cropped."""
    given = settings.get("size", 224)
    edge = given.get("shortest_edge") if isinstance(given, dict) else given
    if isinstance(given, dict) and edge is None:
        whole = _side(given.get("height"), "size", where), _side(given.get("width"), "size", where)
    else:
        whole = (_side(edge, "size", where),) * 2
    if settings.get("do_center_crop"):
        crop = settings.get("crop_size", 224)
        crop = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
        size = _side(crop.get("height"), "crop_size", where), _side(crop.get("width"), "crop_size", where)
        return size, min(whole)
    if (share := settings.get("crop_pct")) is not None and whole[0] < WHOLE:
        return whole, int(whole[0] / _number(settings, "crop_pct", share, where))
    return whole, None


def processor_json(spec: ImageSpec) -> dict[str, Any]:
    """The settings of an image processor of transformers that prepares images in the same way."""
    _, rows, columns = spec.image
    size = {"height": rows, "width": columns}
    found: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor" if spec.shorter is None else "BitImageProcessor",
        "do_resize": True,
        "size": size if spec.shorter is None else {"shortest_edge": spec.shorter},
        "resample": FILTERS.index(spec.resample),
        "do_rescale": True,
        "rescale_factor": SCALE,
        "do_normalize": bool(spec.mean),
    }
    found |= {"image_mean": list(spec.mean), "image_std": list(spec.std)} if spec.mean else {}
    return found if spec.shorter is None else found | {"do_center_crop": True, "crop_size": size}


def read_timm(settings: Mapping[str, Any], where: Path, channels: int) -> Preprocessing:
    """The `pretrained_cfg` of timm."""
    mean, std = _statistics(settings, "mean", "std", where, channels)
    resample = settings.get("interpolation", "bicubic")
    if resample not in FILTERS:
        raise wrong(where, "interpolation", resample, "one of " + ", ".join(FILTERS))
    if settings.get("crop_mode", "center") not in ("center", "squash"):
        raise wrong(where, "crop_mode", settings["crop_mode"], "center or squash")
    shape = settings.get("input_size", [channels, 224, 224])
    if not isinstance(shape, list) or len(shape) != 3:
        raise wrong(where, "input_size", shape, "channels, rows and columns")
    size = _side(shape[1], "input_size", where), _side(shape[2], "input_size", where)
    squashed = settings.get("crop_mode") == "squash"
    shorter = None if squashed else int(min(size) / _number(settings, "crop_pct", 0.875, where))
    return Preprocessing(mean, std, shorter, resample, size)


def timm_json(spec: ImageSpec, architecture: str) -> dict[str, Any]:
    """The config.json of a folder with an architecture of timm or torchvision."""
    _, rows, columns = spec.image
    crop = {"crop_pct": min(rows, columns) / spec.shorter, "crop_mode": "center"} if spec.shorter else {
        "crop_pct": 1.0, "crop_mode": "squash"
    }  # fmt: skip
    about = {
        "input_size": list(spec.image),
        "fixed_input_size": False,
        "interpolation": spec.resample,
        **crop,
        "mean": list(spec.mean) or [0.0] * spec.image[0],
        "std": list(spec.std) or [1.0] * spec.image[0],
        "num_classes": len(spec.names),
    }
    labels = {"label_names": list(spec.names)} if spec.names else {}
    return {"architecture": architecture, "num_classes": len(spec.names), **labels, "pretrained_cfg": about}


def named_architecture(config: ImageEncoderConfig, layout: Layout, exchange: ImageExchange) -> str:
    """The name of a model in timm or torchvision; an error where they have none of these sizes."""
    known = exchange.ARCHITECTURES.get(layout, {})
    free = {"classes", "size", "channels", "freeze", "sides"}
    free |= {key for key in type(config).model_fields if key.endswith("dropout")}
    for name, published in known.items():
        if config.model_dump(exclude=free) == published.model_dump(exclude=free):
            return name
    raise UserError(
        f"{layout} has no {exchange.TITLE} of this size", where="model",
        expected=f"one of {', '.join(known)}" if known else None,
        todo="keep this model as it is: `heedful.load` reads it",
    )  # fmt: skip


def json_text(settings: Mapping[str, Any]) -> str:
    """Settings as the text of a file."""
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _statistics(
    settings: Mapping[str, Any], mean: str, std: str, where: Path, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    found = []
    for key in (mean, std):
        values = settings.get(key)
        if not isinstance(values, list) or len(values) != channels or not all(_is_number(value) for value in values):
            raise wrong(where, key, values, f"{channels} numbers, one for each channel")
        found.append(tuple(float(value) for value in values))
    if not all(value > 0 for value in found[1]):
        raise wrong(where, std, settings[std], "numbers above 0")
    return found[0], found[1]


def _number(settings: Mapping[str, Any], key: str, usual: float, where: Path) -> float:
    found = settings.get(key, usual)
    if not _is_number(found) or not 0 < found <= 1:
        raise wrong(where, key, found, "a number above 0, at most 1")
    return float(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _side(found: object, key: str, where: Path) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST_PIXELS:
        raise wrong(where, key, found, f"a whole number of pixels, at most {MOST_PIXELS:,}")
    return found
