"""The settings of ResNet, readable without torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig
from heedful.models.sizes import Filters, conv_parameters

Depth = Annotated[int, Field(ge=1, le=1000)]
BOTTLENECK = 4  # the 3 x 3 convolution of a bottleneck has a quarter of the filters


class ResNetConfig(ImageEncoderConfig):
    """The ConvNet of He et al. (2016) with 50 weighted layers, unless `block`, `depths` and `widths` are others."""

    implementation: ClassVar = "model.ResNet"
    any_size: ClassVar = True

    kind: Literal["resnet"] = "resnet"
    block: Literal["basic", "bottleneck"] = Field(
        "bottleneck", description="basic: two 3 x 3 convolutions; bottleneck: 1 x 1, 3 x 3 and 1 x 1"
    )
    depths: tuple[Depth, ...] = Field((3, 4, 6, 3), min_length=1, max_length=16, description="blocks of each stage")
    widths: tuple[Filters, ...] = Field(
        (256, 512, 1024, 2048), min_length=1, max_length=16, description="channels after each stage"
    )
    stem: Literal["large", "small"] = Field(
        "large",
        description="large: 7 x 7 with stride 2, and a max pool; small: 3 x 3, for images of about 32 x 32",
    )
    stem_width: Filters = Field(64, description="filters of the first convolution")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if len(self.depths) != len(self.widths):
            raise FieldError(f"{len(self.depths)} stages need as many numbers, not {len(self.widths)}", "widths")
        if self.block == "bottleneck" and (odd := [width for width in self.widths if width % BOTTLENECK]):
            raise FieldError(
                f"a bottleneck of {odd[0]} channels has no quarter of them; write a multiple of 4", "widths"
            )
        refuse_too_large(self.parameters())
        return self

    def projects(self, stage: int) -> bool:
        """Whether the shortcut of a stage's first block has weights, since the image is halved or widened there."""
        return stage > 0 or self.stem_width != self.widths[0]

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the last feature map."""

        def through(side: int) -> int:
            halved = len(self.widths) - 1 + (2 if self.stem == "large" else 0)
            return -(-side >> halved)  # rounded up

        return self.widths[-1], through(self.size[0]), through(self.size[1])

    @property
    def map_parameters(self) -> int:
        """The number of parameters of the convolutions."""
        count = conv_parameters(self.channels, self.stem_width, 7 if self.stem == "large" else 3)
        for stage, (before, width) in enumerate(pairwise((self.stem_width, *self.widths))):
            narrow = width // BOTTLENECK
            for number in range(self.depths[stage]):
                given = width if number else before
                if self.block == "basic":
                    count += conv_parameters(given, width, 3) + conv_parameters(width, width, 3)
                else:
                    count += conv_parameters(given, narrow, 1) + conv_parameters(narrow, narrow, 3)
                    count += conv_parameters(narrow, width, 1)
            if self.projects(stage):
                count += conv_parameters(before, width, 1)
        return count

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        return self.map_parameters + (self.widths[-1] + 1) * self.outputs

    @classmethod
    def tiny(cls) -> Self:
        small = {"channels": 1, "size": (8, 12), "classes": 3, "stem_width": 4}
        return cls.model_validate(small | {"depths": (2, 1), "widths": (8, 12)})


def _basic(*depths: int) -> ResNetConfig:
    return ResNetConfig(block="basic", depths=depths, widths=(64, 128, 256, 512), classes=1000)


def _small(blocks: int) -> ResNetConfig:
    """Of 32 x 32 pixels, as for CIFAR-10 in the paper; its shortcuts between stages have weights here."""
    size = {"size": (32, 32), "stem": "small", "stem_width": 16}
    return ResNetConfig.model_validate({"block": "basic", "depths": (blocks,) * 3, "widths": (16, 32, 64)} | size)


SIZES = {
    "resnet-18": _basic(2, 2, 2, 2),
    "resnet-34": _basic(3, 4, 6, 3),
    "resnet-50": ResNetConfig(classes=1000),
    "resnet-101": ResNetConfig(depths=(3, 4, 23, 3), classes=1000),
    "resnet-152": ResNetConfig(depths=(3, 8, 36, 3), classes=1000),
    **{f"resnet-{6 * blocks + 2}-small": _small(blocks) for blocks in (1, 3, 5, 7, 9, 18)},
}
