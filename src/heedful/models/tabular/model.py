"""A model of tables with columns of different types: a vector for each column, then an MLP on all of them.

    v_c = embed_c(x_c)                   text, numbers, class or image, by the type of column c
    h = dropout(relu(W_k h + b_k))       from h = [v_1; ...; v_C], for each hidden layer
    y = W h + b                          the logits of classes, or a number

B rows, T tokens, K numbers, D width of a column's vector, E width of an encoder, M width of all of them together,
H hidden units, N outputs, C channels, Y and X rows and columns of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap
from heedful.models import build
from heedful.models.roles import ImageEncoder
from heedful.models.tabular.config import ClassInput, ImageInput, NumbersInput, TabularConfig, TextInput
from heedful.models.tabular.texts import text_embedder


class TextColumn(nn.Module):
    """ids (B, T), 0 for padding -> a linear map of the text's vector (B, D)."""

    def __init__(self, column: TextInput, config: TabularConfig) -> None:
        super().__init__()
        texts, width = text_embedder(config.text, column.vocab)
        self.texts = texts
        self.out = Linear(width, config.width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.texts(ids, ids != 0))  # (B, D)


class NumbersColumn(nn.Module):
    """Normalized numbers (B, K) -> a linear map of them (B, D)."""

    def __init__(self, column: NumbersInput, config: TabularConfig) -> None:
        super().__init__()
        self.out = Linear(column.size, config.width)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.out(numbers.to(self.out.weight.dtype))  # (B, D)


class ClassColumn(nn.Module):
    """Classes (B,) -> a row of a table (B, D); row 0, of an unknown class, starts from zeros."""

    def __init__(self, column: ClassInput, config: TabularConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(column.classes, config.width)
        with torch.no_grad():
            self.table.weight[0] = 0

    def forward(self, classes: Tensor) -> Tensor:
        return self.table(classes)  # (B, D)


class ImageColumn(nn.Module):
    """Normalized images (B, C, Y, X) -> a linear map of the encoder's feature map, averaged to a small grid (B, D)."""

    def __init__(self, column: ImageInput, config: TabularConfig) -> None:
        super().__init__()
        settings = config.image_encoder(column)
        encoder: Any = build(settings)
        encoder.keep_map()
        self.encoder: ImageEncoder = encoder
        self.grid = config.grid
        self.out = Linear(settings.map_shape[0] * config.grid**2, config.width)

    def forward(self, images: Tensor) -> Tensor:
        x = self.encoder.map(images.to(self.out.weight.dtype))
        return self.out(F.adaptive_avg_pool2d(x, self.grid).flatten(1))  # (B, D)


COLUMNS: dict[str, Any] = {
    "text": TextColumn, "numbers": NumbersColumn, "class": ClassColumn, "image": ImageColumn,
}  # fmt: skip


class TabularModel(nn.Module):
    """One tensor for each column -> outputs (B, N)."""

    def __init__(self, config: TabularConfig) -> None:
        super().__init__()
        assert config.columns is not None and config.outputs is not None, "both come from the data"
        self.config = config
        self.columns = nn.ModuleList(COLUMNS[column.kind](column, config) for column in config.columns)
        self.joined = Tap()
        widths = [len(config.columns) * config.width, *config.hidden]
        self.layers = nn.ModuleList(Linear(*both) for both in pairwise(widths))
        self.dropout = nn.Dropout(config.dropout)
        self.head = Linear(widths[-1], config.outputs)

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        vectors = [column(value) for column, value in zip(self.columns, values, strict=True)]
        x = self.joined(torch.cat(vectors, 1))  # (B, M)
        for layer in self.layers:
            x = self.dropout(F.relu(layer(x)))  # (B, H)
        return self.head(x)  # (B, N)
