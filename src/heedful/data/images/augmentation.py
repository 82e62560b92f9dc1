"""The settings of image augmentation, readable without torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError

Share = Annotated[float, Field(ge=0, le=1)]
LEAST_ALPHA = 0.05  # below it, nearly all shares are 0 or 1


class Augmentation(Config):
    """Random changes of the training images; each is a function of the seed, the epoch and the image alone."""

    crop: int = Field(0, ge=0, le=1000, description="zeros around an image, of which a part of its size is cropped")
    resized_crop: tuple[Share, Share] | None = Field(
        None, description="least and greatest share of the area that is cropped and resized; null: none"
    )
    flip: Share = Field(0.0, description="probability that left and right are swapped")
    brightness: Share = Field(0.0, description="greatest change of the brightness, as a factor: 1 plus or minus this")
    contrast: Share = Field(0.0, description="greatest change of the contrast")
    saturation: Share = Field(0.0, description="greatest change of the saturation of colours")
    hue: float = Field(0.0, ge=0, le=0.5, description="greatest turn of the hue, as a share of the colour circle")
    erase: Share = Field(0.0, description="probability that a rectangle is filled with the mean colour")
    mixup: float = Field(
        0.0, ge=0, le=2, description="alpha of Beta(alpha, alpha), the share of each of two mixed images; 0: not mixed"
    )
    cutmix: float = Field(
        0.0,
        ge=0,
        le=2,
        description="alpha of the share of a rectangle of another image; 0: none; with mixup, half each",
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        if self.resized_crop is not None and not 0 < self.resized_crop[0] <= self.resized_crop[1]:
            raise FieldError("the first share must be above 0, and not above the second", "resized_crop")
        if self.resized_crop is not None and self.crop:
            raise FieldError("an image is cropped in one way; leave out crop or resized_crop", "crop")
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if 0 < alpha < LEAST_ALPHA:
                raise FieldError(f"this mixes nothing; write 0, or {LEAST_ALPHA} or more", name)
        return self
