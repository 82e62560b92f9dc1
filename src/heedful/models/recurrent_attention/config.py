"""The settings of the recurrent attention model, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageModelConfig, Side


class RecurrentAttentionConfig(ImageModelConfig):
    """The recurrent attention model (Mnih et al., 2014): it sees an image by a few glimpses at places that it chooses.

    The first glimpse is at the centre. Training samples the places around the mean that the model gives; otherwise it
    looks at the mean itself.
    """

    implementation: ClassVar = "model.RecurrentAttention"

    kind: Literal["recurrent_attention"] = "recurrent_attention"
    channels: int = Field(1, ge=1, le=1024, description="channels of an image: 1 for greyscale, 3 for RGB")
    size: tuple[Side, Side] = Field((60, 60), description="rows and columns of an image")
    glimpses: int = Field(6, ge=2, le=100, description="glimpses at each image")
    patch: int = Field(12, ge=1, le=1024, description="rows and columns of each patch of a glimpse")
    scales: int = Field(
        3, ge=1, le=8, description="patches of a glimpse, each of twice the width and half the resolution of the last"
    )
    hidden: int = Field(128, ge=1, le=65_536, description="width of the layers of patches and places")
    width: int = Field(256, ge=1, le=65_536, description="width of the glimpse vector and of the recurrent state")
    noise: float = Field(
        0.15, gt=0, le=1, description="standard deviation of places in training; an image reaches from -1 to 1"
    )

    @model_validator(mode="after")
    def _patches_have_a_centre(self) -> Self:
        if self.scales > 1 and self.patch % 2:
            raise FieldError("patches of several scales have a common centre: patch must be even", "patch")
        refuse_too_large(self.parameters())
        return self

    @property
    def hard(self) -> bool:
        """Its places are trained by sampling."""
        return True

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters."""
        patches = self.scales * self.channels * self.patch**2
        glimpse = self.hidden * (patches + 1) + self.hidden * 3 + 2 * self.width * (self.hidden + 1)
        core = 2 * self.width * (self.width + 1)
        return glimpse + core + (2 + 1 + self.outputs) * (self.width + 1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(size=(14, 12), classes=3, glimpses=3, patch=4, scales=2, hidden=9, width=11)
