"""The settings of AlexNet, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig
from heedful.models.sizes import Filters, conv_parameters, refuse_too_small, windows


class AlexNetConfig(ImageEncoderConfig):
    """The ConvNet of Krizhevsky et al. (2012), in the form with one tower (Krizhevsky, 2014)."""

    implementation: ClassVar = "model.AlexNet"
    any_size: ClassVar = True

    kind: Literal["alexnet"] = "alexnet"
    filters: tuple[Filters, Filters, Filters, Filters, Filters] = Field(
        (64, 192, 384, 256, 256), description="filters of each of the five convolutions"
    )
    kernel: int = Field(11, ge=1, le=64, description="size of the first filters, in pixels")
    stride: int = Field(4, ge=1, le=64, description="stride of the first filters")
    padding: int = Field(2, ge=0, le=32, description="zeros around the image")
    grid: int = Field(6, ge=1, le=64, description="rows and columns that the last feature map is averaged to")
    hidden: int = Field(4096, ge=1, le=65_536, description="width of the two hidden layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout rate before each hidden layer")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        refuse_too_small(self.size, self.map_size, "write a smaller kernel and stride, such as kernel: 3 and stride: 1")
        refuse_too_large(self.parameters())
        return self

    @property
    def map_size(self) -> tuple[int, int]:
        """Rows and columns of the last feature map."""

        def through(side: int) -> int:
            side = windows(side, self.kernel, self.stride, self.padding)
            for _ in range(3):
                side = windows(side, 3, 2)
            return side

        return through(self.size[0]), through(self.size[1])

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the last feature map."""
        return self.filters[-1], *self.map_size

    @property
    def map_parameters(self) -> int:
        """The number of parameters of the convolutions."""
        one, two, three, four, five = self.filters
        sizes = ((self.channels, one, self.kernel), (one, two, 5), (two, three, 3), (three, four, 3), (four, five, 3))
        return sum(conv_parameters(*size, per_filter=1) for size in sizes)

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        dense = (self.grid**2 * self.filters[-1] + 1) * self.hidden + (self.hidden + 1) * self.hidden
        return self.map_parameters + dense + (self.hidden + 1) * self.outputs

    @classmethod
    def tiny(cls) -> Self:
        small = {"channels": 1, "size": (16, 20), "classes": 3, "kernel": 3, "stride": 1, "padding": 1}
        return cls.model_validate(small | {"filters": (4, 6, 8, 6, 5), "grid": 2, "hidden": 24, "dropout": 0.1})


SIZES = {
    "alexnet": AlexNetConfig(classes=1000),
    "alexnet-small": AlexNetConfig(  # for images of 28 x 28 and 32 x 32
        channels=1, size=(28, 28), filters=(32, 64, 96, 64, 64), kernel=3, stride=1, padding=1, grid=2, hidden=256
    ),
}
