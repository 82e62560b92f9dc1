"""Image models in folders, Heedful's and published ones: every tensor accounted for, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.hub.image_folders import (
    PROCESSOR,
    SETTINGS,
    ImageFolder,
    find_image_exchange,
    json_text,
    named_architecture,
    of_transformers,
    processor_json,
    timm_json,
)
from heedful.hub.rules import LedgerLine, read_tensors, write_tensors
from heedful.models import build
from heedful.models.exchange import ImageExchange, Layout, Table

Weights = Callable[[Path], tuple[dict[str, Tensor], Path]]


class ImageModel(NamedTuple):
    """A published image model: settings, images, tensors by our names, and the ledger."""

    config: Any
    spec: ImageSpec
    tensors: dict[str, Tensor]
    ledger: tuple[LedgerLine, ...]
    notes: tuple[str, ...] = ()


def read_image_model(found: ImageFolder, weights: Weights) -> ImageModel:
    """Load a published image model; without a last layer, the number of its classes is None."""
    tensors, file = weights(found.folder / found.file if found.file else found.folder)
    names = found.exchange.canonical(tensors)
    given, published = set(names.values()), found.read_config()
    config = found.exchange.match_tensors(published.config, given)
    if found.architecture is not None:
        config = _with_sizes(config, found, names, tensors)
    table = _table(found, config, given)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()}
    ours, ledger = read_tensors(tensors, names, table, shapes, file)
    bare = f"{found.file} has no settings: images are prepared as usual for its weights"
    notes = published.notes if found.settings else (bare,)
    return ImageModel(config, found.spec(config, published.labels), ours, ledger, notes)


def _table(found: ImageFolder, config: Any, given: set[str]) -> Table:
    """The table of the layout that has most of these names."""
    tables = found.exchange.tables(config)
    if found.architecture is None:
        return tables["transformers"]
    tables.pop("transformers", None)
    return max(tables.values(), key=lambda table: sum(name in given for rule in table.rules for name in rule.theirs))


def _with_sizes(config: Any, found: ImageFolder, names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Any:
    """The config with the number of classes in the file, and the images that its settings name."""
    shapes = {name: tensors[source].shape for source, name in names.items()}
    whole = config.model_copy(update={"classes": 2})
    last = [rule for table in found.exchange.tables(whole).values() for rule in table.rules if rule.ours == "head.bias"]
    counts = [shapes[rule.theirs[0]].numel() for rule in last if rule.theirs[0] in shapes]
    size = found.preprocessing(config).size
    changes: dict[str, Any] = {"classes": counts[0] if counts else None} | ({"size": size} if size else {})
    return type(config).model_validate(config.model_dump() | changes)


def image_files(config: Any, spec: ImageSpec | None, tensors: Mapping[str, Tensor], layout: Layout) -> Files:
    """The texts and tensors of a folder in a layout, and the ledger."""
    exchange = find_image_exchange(config.kind)
    if exchange is None:
        raise UserError(
            "this model has no published format", where=f"model.kind: {config.kind}",
            todo="keep this model as it is: `heedful.load` reads it",
        )  # fmt: skip
    spec = spec or ImageSpec(config.input)
    if "head.weight" not in tensors:
        config = config.model_copy(update={"classes": None})
    texts = _texts(config, spec, exchange, layout)
    written, ledger = write_tensors(tensors, exchange.tables(config)[layout])
    if layout == "transformers" and config.classes is None:  # where no name has a prefix
        written = {name.partition(".")[2]: tensor for name, tensor in written.items()}
        ledger = tuple(replace(line, source=line.source.partition(".")[2]) for line in ledger)
    return Files(texts, written, ledger)


class Files(NamedTuple):
    """The files of a folder to write: texts by name, tensors by their published names, and the ledger."""

    texts: dict[str, str]
    tensors: dict[str, Tensor]
    ledger: tuple[LedgerLine, ...]


def _texts(config: Any, spec: ImageSpec, exchange: ImageExchange, layout: Layout) -> dict[str, str]:
    if layout == "transformers":
        settings = of_transformers(exchange).config_json(config, spec.names)
        return {SETTINGS: json_text(settings), PROCESSOR: json_text(processor_json(spec))}
    return {SETTINGS: json_text(timm_json(spec, named_architecture(config, layout, exchange)))}
