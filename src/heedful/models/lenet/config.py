"""The settings of LeNet-5, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig, Side

LEAST = 16  # rows and columns of an image of which one pixel is left

Width = Annotated[int, Field(ge=1, le=65_536)]


class LeNetConfig(ImageEncoderConfig):
    """LeNet-5 (LeCun et al., 1998) as it is usually taught: two convolutions, each with pooling, and three layers.

    The paper's own has trained weights in its pooling, connects each filter of the second convolution to some of the
    first only, and ends in distances to fixed patterns (RBF) instead of a layer of logits.
    """

    implementation: ClassVar = "model.LeNet"

    kind: Literal["lenet"] = "lenet"
    channels: int = Field(1, ge=1, le=1024, description="channels of an image: 1 for greyscale, 3 for RGB")
    size: tuple[Side, Side] = Field((28, 28), description="rows and columns of an image")
    padding: int = Field(
        2, ge=0, le=1000, description="zeros around each image; the paper's images of 28 x 28 are padded to 32 x 32"
    )
    filters: tuple[Width, Width] = Field((6, 16), description="filters of both convolutions")
    hidden: tuple[Width, Width] = Field((120, 84), description="widths of both hidden layers")
    activation: Literal["tanh", "sigmoid", "relu"] = Field("tanh", description="activation of all layers but the last")
    pooling: Literal["average", "max"] = Field("average", description="what is kept of each 2 x 2 pixels")

    @model_validator(mode="after")
    def _image_is_large_enough(self) -> Self:
        if min(self.map_size) < 1:
            raise FieldError(
                f"nothing is left of an image of {self.size[0]} x {self.size[1]} after both convolutions: with its "
                f"padding, it needs {LEAST} x {LEAST} pixels; write padding: {-(-(LEAST - min(self.size)) // 2)}",
                "size",
            )
        refuse_too_large(self.parameters())
        return self

    @property
    def map_size(self) -> tuple[int, int]:
        """Rows and columns after the second pooling."""
        rows, columns = (((side + 2 * self.padding - 4) // 2 - 4) // 2 for side in self.size)
        return rows, columns

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns after the second pooling."""
        return self.filters[1], *self.map_size

    @property
    def map_parameters(self) -> int:
        """The number of parameters of both convolutions."""
        first, second = self.filters
        return first * (25 * self.channels + 1) + second * (25 * first + 1)

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters: 61,706 for ten classes of greyscale images."""
        (wide, narrow), (second, rows, columns) = self.hidden, self.map_shape
        hidden = wide * (second * rows * columns + 1) + narrow * (wide + 1)
        return self.map_parameters + hidden + self.outputs * (narrow + 1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(size=(20, 16), classes=3, filters=(4, 6), hidden=(13, 11))


SIZES = {
    "lenet5": LeNetConfig(classes=10),  # for MNIST's images of 28 x 28
    "lenet5-32": LeNetConfig(size=(32, 32), padding=0, classes=10),  # for images of 32 x 32, as in the paper
}
