"""The settings of VGG, readable without torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig
from heedful.models.sizes import Filters, conv_parameters, refuse_too_small

Depth = Annotated[int, Field(ge=1, le=1000)]


class VggConfig(ImageEncoderConfig):
    """The ConvNet of Simonyan and Zisserman (2015) with 16 weighted layers, unless `depths` are others."""

    implementation: ClassVar = "model.Vgg"
    any_size: ClassVar = True

    kind: Literal["vgg"] = "vgg"
    depths: tuple[Depth, ...] = Field(
        (2, 2, 3, 3, 3), min_length=1, max_length=16, description="convolutions of each stage, which a max pool ends"
    )
    filters: tuple[Filters, ...] = Field(
        (64, 128, 256, 512, 512), min_length=1, max_length=16, description="filters of each convolution of a stage"
    )
    norm: Literal["none", "batch"] = Field("none", description="batch: batch norm after each convolution")
    grid: int = Field(7, ge=1, le=64, description="rows and columns that the last feature map is averaged to")
    hidden: int = Field(4096, ge=1, le=65_536, description="width of the two hidden layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout rate after each hidden layer")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if len(self.depths) != len(self.filters):
            raise FieldError(f"{len(self.depths)} stages need as many numbers, not {len(self.filters)}", "filters")
        refuse_too_small(self.size, self.map_size, "write fewer stages: each halves the image")
        refuse_too_large(self.parameters())
        return self

    @property
    def map_size(self) -> tuple[int, int]:
        """Rows and columns of the last feature map."""
        return self.size[0] >> len(self.depths), self.size[1] >> len(self.depths)

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the last feature map."""
        return self.filters[-1], *self.map_size

    @property
    def map_parameters(self) -> int:
        """The number of parameters of the convolutions."""
        widths = [self.channels, *(width for width, n in zip(self.filters, self.depths, strict=True) for _ in range(n))]
        more = 3 if self.norm == "batch" else 1  # a bias, and two numbers of the norm
        return sum(conv_parameters(before, after, 3, more) for before, after in pairwise(widths))

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        dense = (self.grid**2 * self.filters[-1] + 1) * self.hidden + (self.hidden + 1) * self.hidden
        return self.map_parameters + dense + (self.hidden + 1) * self.outputs

    @classmethod
    def tiny(cls) -> Self:
        small = {"channels": 1, "size": (8, 12), "classes": 3, "depths": (1, 2), "filters": (4, 6)}
        return cls.model_validate(small | {"norm": "batch", "grid": 2, "hidden": 16, "dropout": 0.1})


DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
SIZES = {
    **{f"vgg-{layers}": VggConfig(depths=depths, classes=1000) for layers, depths in DEPTHS.items()},
    **{f"vgg-{n}-norm": VggConfig(depths=depths, classes=1000, norm="batch") for n, depths in DEPTHS.items()},
    "vgg-small": VggConfig(  # for images of 28 x 28 and 32 x 32
        channels=1, size=(28, 28), depths=(1, 1, 2), filters=(32, 64, 128), norm="batch", grid=1, hidden=128
    ),
}
