"""The settings of GoogLeNet, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig
from heedful.models.sizes import Filters, conv_parameters, refuse_too_small, windows

Branches = tuple[Filters, Filters, Filters, Filters, Filters, Filters]
Stage = Annotated[tuple[Branches, ...], Field(min_length=1, max_length=100)]
SIDE_GRID = 4  # rows and columns that a side classifier averages the feature map to
PUBLISHED: tuple[tuple[Branches, ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class GoogLeNetConfig(ImageEncoderConfig):
    """The ConvNet of Szegedy et al. (2015), with batch norm."""

    implementation: ClassVar = "model.GoogLeNet"
    any_size: ClassVar = True

    kind: Literal["googlenet"] = "googlenet"
    stem: Literal["large", "small"] = Field(
        "large",
        description="large: 7 x 7 with stride 2, and two max pools; small: 3 x 3 without, for images of about 32 x 32",
    )
    stem_filters: tuple[Filters, Filters, Filters] = Field(
        (64, 64, 192), description="filters of the three convolutions before the inception modules"
    )
    stages: tuple[Stage, ...] = Field(
        PUBLISHED,
        min_length=1,
        max_length=16,
        description="inception modules of each stage, with max pools between stages; the filters of a module: 1 x 1, "
        "3 x 3 after its reduction, 5 x 5 after its reduction, and after the pool",
    )
    large_kernel: Literal[3, 5] = Field(
        3, description="size of the filters in the third branch: 5 in the paper, 3 in published weights"
    )
    sides: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (3, 6), max_length=16, description="numbers of the inception modules that a side classifier reads in training"
    )
    side_weight: float = Field(0.3, ge=0, le=1, description="weight of the loss of each side classifier")
    side_filters: Filters = Field(128, description="filters of the convolution in a side classifier")
    side_hidden: Filters = Field(1024, description="width of the hidden layer in a side classifier")
    side_dropout: float = Field(0.7, ge=0, lt=1, description="dropout rate before the last layer of a side classifier")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout rate before the last layer")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if len(set(self.sides)) < len(self.sides) or max(self.sides, default=0) > len(self.modules):
            raise FieldError(f"write different numbers from 1 to {len(self.modules)}", "sides")
        refuse_too_small(self.size, self.map_size, "write fewer stages, or stem: small")
        refuse_too_large(self.parameters())
        return self

    @property
    def modules(self) -> tuple[Branches, ...]:
        """The filters of all inception modules."""
        return tuple(module for stage in self.stages for module in stage)

    @property
    def map_size(self) -> tuple[int, int]:
        """Rows and columns of the last feature map."""

        def through(side: int) -> int:
            if self.stem == "large":
                side = windows(windows(windows(side, 7, 2, 3), 3, 2, partial=True), 3, 2, partial=True)
            for stage in range(1, len(self.stages)):
                side = windows(side, pool_size(stage, len(self.stages)), 2, partial=True)
            return side

        return through(self.size[0]), through(self.size[1])

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels after each inception module."""
        return tuple(direct + three + five + pool for direct, _, three, _, five, pool in self.modules)

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the last feature map."""
        return self.widths[-1], *self.map_size

    @property
    def map_parameters(self) -> int:
        """The number of parameters of the convolutions, without side classifiers."""
        one, two, last = self.stem_filters
        count = conv_parameters(self.channels, one, 7 if self.stem == "large" else 3)
        count += conv_parameters(one, two, 1) + conv_parameters(two, last, 3)
        for channels, module in zip((last, *self.widths), self.modules, strict=False):
            direct, reduce3, three, reduce5, five, pool = module
            count += sum(conv_parameters(channels, filters, 1) for filters in (direct, reduce3, reduce5, pool))
            count += conv_parameters(reduce3, three, 3) + conv_parameters(reduce5, five, self.large_kernel)
        return count

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters with side classifiers, for two classes where they are not known yet."""
        classes, hidden = self.outputs, (SIDE_GRID**2 * self.side_filters + 1) * self.side_hidden
        sides = sum(
            conv_parameters(self.widths[number - 1], self.side_filters, 1) + hidden + (self.side_hidden + 1) * classes
            for number in self.sides
        )
        return self.map_parameters + sides + (self.widths[-1] + 1) * classes

    @classmethod
    def tiny(cls) -> Self:
        modules = (((4, 3, 5, 2, 3, 2), (5, 3, 6, 2, 4, 3)), ((6, 3, 7, 2, 3, 2),))
        small = {"channels": 1, "size": (8, 12), "classes": 3, "stem": "small", "stem_filters": (4, 5, 6)}
        return cls.model_validate(small | {"stages": modules, "sides": (1, 2), "side_filters": 3, "side_hidden": 8})


def pool_size(stage: int, stages: int) -> int:
    """The windows of the max pool before a stage; the last one's are 2 x 2, as in published weights."""
    return 2 if stage == stages - 1 > 1 else 3


SIZES = {
    "googlenet": GoogLeNetConfig(classes=1000),
    "googlenet-small": GoogLeNetConfig(  # for images of 28 x 28 and 32 x 32
        channels=1,
        size=(28, 28),
        stem="small",
        stem_filters=(16, 16, 32),
        stages=(((16, 16, 24, 8, 8, 8), (24, 24, 32, 8, 16, 8)), ((32, 24, 48, 8, 16, 16), (48, 32, 64, 8, 16, 16))),
        sides=(2,),
        side_filters=16,
        side_hidden=64,
    ),
}
