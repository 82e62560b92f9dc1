"""The settings of the Vision Transformer, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig
from heedful.models.sizes import Activation, HeadScore, Normalizer, block_parameters, share_width


class VitConfig(ImageEncoderConfig):
    """The encoder of Dosovitskiy et al. (2021), in its published base size with patches of 16 x 16 pixels."""

    implementation: ClassVar = "model.Vit"
    any_size: ClassVar = True
    attends: ClassVar = True

    kind: Literal["vit"] = "vit"
    patch: int = Field(16, ge=1, le=1024, description="rows and columns of a patch, in pixels")
    width: int = Field(768, ge=1, le=65_536, description="width of the model")
    heads: int = Field(
        12, ge=1, le=1024, description="attention heads in each block; each has an equal part of the width"
    )
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(12, ge=1, le=1000, description="number of blocks")
    hidden: int = Field(3072, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of attention weights")
    activation: Activation = Field("gelu", description="between the two feed-forward matrices")
    norm_eps: float = Field(1e-6, gt=0, le=0.1, description="added to the variance in each layer norm")
    pool: Literal["class", "mean"] = Field(
        "class", description="what the last layer reads: the vector of a class token, or the mean of all patches"
    )
    positions: Literal["learned", "sinusoid", "none"] = Field(
        "learned", description="positions of the patches; sinusoid: fixed ones of row and column"
    )
    distillation: Literal["none", "token", "head"] = Field(
        "none",
        description="token: a second class token (DeiT); head: with a last layer of its own; the logits are averaged",
    )

    _heads_share_width = field_validator("heads")(share_width)

    @field_validator("positions")
    @classmethod
    def _check_positions(cls, positions: str, info: ValidationInfo) -> str:
        width = info.data.get("width", 4)
        if positions == "sinusoid" and width % 4:
            raise ValueError(
                f"sinusoids of row and column need a width that 4 divides; write width: {width + 4 - width % 4}"
            )
        return positions

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.size[0] % self.patch or self.size[1] % self.patch:
            rows, columns = (max(1, round(side / self.patch)) * self.patch for side in self.size)
            raise FieldError(
                f"images of {self.size[0]} x {self.size[1]} have no whole patches of {self.patch} x {self.patch}; "
                f"write size: [{rows}, {columns}], or another patch",
                "size",
            )
        if self.distillation != "none" and self.pool == "mean":
            raise FieldError("a distillation token stands beside a class token; write pool: class", "distillation")
        refuse_too_large(self.parameters())
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches."""
        return self.size[0] // self.patch, self.size[1] // self.patch

    def grids(self, size: tuple[int, int]) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        before = (size[0] // self.patch, size[1] // self.patch)
        return {"positions.table": (before, self.grid)} if self.positions == "learned" else {}

    @property
    def first(self) -> int:
        """The number of tokens before the patches."""
        return (self.pool == "class") + (self.distillation != "none")

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """The width, and the rows and columns of patches."""
        return self.width, *self.grid

    @property
    def map_parameters(self) -> int:
        """The number of parameters without the last layer."""
        patches = (self.channels * self.patch**2 + 1) * self.width
        table = (self.first + self.grid[0] * self.grid[1]) * self.width if self.positions == "learned" else 0
        blocks = self.layers * block_parameters(self.width, self.hidden, self.heads, self.score)
        return patches + self.first * self.width + table + blocks + 2 * self.width

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        heads = (self.width + 1) * self.outputs * (2 if self.distillation == "head" else 1)
        return self.map_parameters + heads

    @classmethod
    def tiny(cls) -> Self:
        small = {"channels": 1, "size": (8, 12), "classes": 3, "patch": 4}
        return cls.model_validate(small | {"width": 16, "heads": 2, "layers": 2, "hidden": 20})


def _vit(patch: int, layers: int, width: int, heads: int, side: int = 224) -> VitConfig:
    """One of the published sizes: a feed-forward layer four times as wide."""
    return VitConfig(
        size=(side, side), patch=patch, layers=layers, width=width, heads=heads, hidden=4 * width, classes=1000
    )


SIZES = {
    "vit-tiny-16": _vit(16, 12, 192, 3),  # tiny and small are DeiT's (Touvron et al., 2021)
    "vit-small-16": _vit(16, 12, 384, 6),
    "vit-base-16": _vit(16, 12, 768, 12),
    "vit-base-32": _vit(32, 12, 768, 12),
    "vit-large-16": _vit(16, 24, 1024, 16),
    "vit-huge-14": _vit(14, 32, 1280, 16),
    "deit-tiny-16": _vit(16, 12, 192, 3).model_copy(update={"distillation": "head"}),
    "deit-small-16": _vit(16, 12, 384, 6).model_copy(update={"distillation": "head"}),
    "deit-base-16": _vit(16, 12, 768, 12).model_copy(update={"distillation": "head"}),
    "vit-small": VitConfig(  # for images of 28 x 28, or 32 x 32
        channels=1, size=(28, 28), patch=4, layers=4, width=96, heads=4, hidden=192, pool="mean"
    ),
}
