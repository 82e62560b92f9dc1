"""Dense layers on the pooled vector of a text, as in sentence-transformers: built, read and written.

N texts, D width of a pooled vector, E width of the vector that the last layer gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.blocks.feedforward import ACTIVATIONS, Activation
from heedful.blocks.linear import Linear
from heedful.errors import wrong
from heedful.hub.rules import LedgerLine, read_tensors, write_tensors
from heedful.hub.safetensors import WHOLE
from heedful.hub.sentence_transformers import (
    DenseActivation,
    DenseConfig,
    SentenceConfig,
    SentenceFolder,
    dense_folder,
    pooled_width,
)
from heedful.models.exchange import Rule, Table

PREFIX = "sentences."  # of the names of these tensors in our model folders
DENSE_ACTIVATIONS: dict[DenseActivation, Activation] = {
    "identity": nn.Identity(),
    "sigmoid": torch.sigmoid,
    "tanh": ACTIVATIONS["tanh"],
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
    "swish": ACTIVATIONS["swish"],
    "mish": ACTIVATIONS["mish"],
}


class Dense(Linear):
    """f(x W^T + b), also plus x, or x V^T where the sizes differ."""

    def __init__(self, width: int, config: DenseConfig) -> None:
        super().__init__(width, config.width, config.bias)
        self.activation = DENSE_ACTIVATIONS[config.activation]
        self.config, same = config, width == config.width
        self.residual = None if not config.residual else nn.Identity() if same else Linear(width, config.width, False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(super().forward(x))  # (N, E)
        return y if self.residual is None else y + self.residual(x)

    @property
    def table(self) -> Table:
        """The names of its tensors, here and in sentence-transformers."""
        theirs = {"weight": "linear.weight", "bias": "linear.bias"}
        return Table(tuple(Rule(name, (theirs.get(name, name),)) for name in self.state_dict()))


class DenseLayers(nn.Sequential):
    """The layers after each other; without any, the vectors stay as they are."""

    def __init__(self, *layers: Dense) -> None:
        super().__init__(*layers)
        self.config = tuple(layer.config for layer in layers)

    @classmethod
    def of(cls, width: int, config: SentenceConfig) -> DenseLayers:
        """The layers of an encoder of this width."""
        widths = [pooled_width(width, config.pooling), *(layer.width for layer in config.dense)]
        return cls(*map(Dense, widths, config.dense))

    def width(self, pooled: int) -> int:
        """The size of a vector, given that of a pooled one."""
        return self.config[-1].width if self.config else pooled


def read_dense(
    found: SentenceFolder, width: int, weights: Callable[[Path], tuple[dict[str, Tensor], Path]]
) -> tuple[dict[str, Tensor], tuple[LedgerLine, ...]]:
    """The tensors of the Dense layers of a folder by their names here, and their ledger."""
    tensors: dict[str, Tensor] = {}
    ledger: list[LedgerLine] = []
    with torch.device("meta"):
        layers = DenseLayers.of(width, found.settings)
    for index, (layer, (folder, inputs)) in enumerate(zip(layers, found.dense, strict=True)):
        assert isinstance(layer, Dense)
        if inputs != layer.weight.shape[1]:
            raise wrong(
                folder / "config.json", "in_features", inputs,
                f"{layer.weight.shape[1]}, the size of the vectors of the module before it",
            )  # fmt: skip
        theirs, file = weights(folder)
        shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
        ours, lines = read_tensors(theirs, {name: name for name in theirs}, layer.table, shapes, file)
        tensors |= {f"{index}.{name}": value for name, value in ours.items()}
        ledger += [_below(line, folder.name, index) for line in lines]
    return tensors, tuple(ledger)


def dense_weights(
    width: int, config: SentenceConfig, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, Tensor]], tuple[LedgerLine, ...]]:
    """The tensors of each file of a sentence-transformers folder, and the ledger."""
    files: dict[str, dict[str, Tensor]] = {}
    ledger: list[LedgerLine] = []
    with torch.device("meta"):
        layers = DenseLayers.of(width, config)
    for index, layer in enumerate(layers):
        assert isinstance(layer, Dense)
        ours = {name: tensors[f"{index}.{name}"] for name in layer.state_dict()}
        theirs, lines = write_tensors(ours, layer.table)
        files[f"{dense_folder(index)}/{WHOLE}"] = theirs
        ledger += [_below(line, dense_folder(index), index) for line in lines]
    return files, tuple(ledger)


def split_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a model folder of Heedful: those of the model, and those of Dense layers."""
    dense = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}, dense


def joined_tensors(model: Mapping[str, Tensor], dense: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The reverse of `split_tensors`."""
    return {**model, **{f"{PREFIX}{name}": value for name, value in dense.items()}}


def _below(line: LedgerLine, folder: str, index: int) -> LedgerLine:
    """A line of the ledger of one layer with the names of the whole."""
    name = None if line.name is None else f"{PREFIX}{index}.{line.name}"
    return replace(line, source=f"{folder}/{line.source}", name=name)
