"""The recipe of autoencoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from heedful.config import Config
from heedful.data.embedded import Digits
from heedful.data.images.sources import ArrayImages, CsvImages, IdxImages, ImageFolders
from heedful.data.own import OwnData
from heedful.data.tables.pictures import UnlabelledImageTable
from heedful.models import any_of
from heedful.tasks.recipe_parts import Recipe, Start, check_image_batching
from heedful.training.configs import TrainConfig

ImagesConfig = Annotated[
    IdxImages | ImageFolders | ArrayImages | CsvImages | UnlabelledImageTable | Digits | OwnData,
    Field(discriminator="kind"),
]

if TYPE_CHECKING:
    ImageModelConfig = Any
else:
    ImageModelConfig = any_of("autoencoder", usual="autoencoder")


class ReconstructionTaskConfig(Config):
    """The task: reconstruct an image from itself, or from a noisy copy."""

    kind: Literal["reconstruction"] = "reconstruction"
    noise: float = Field(
        0.0,
        ge=0,
        le=100,
        description="standard deviation of the noise added to each pixel, different in every epoch; 0: none",
    )
    clip: tuple[float, float] | None = Field(
        (0.0, 1.0), description="range to which noisy pixels are clipped; null: none"
    )

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            example = [clip[1], clip[0]] if clip[0] > clip[1] else [0.0, 1.0]
            raise ValueError(f"the first bound must be below the second; write clip: {example}")
        return clip


class ReconstructionRecipe(Recipe):
    """An experiment with an autoencoder of images."""

    task: ReconstructionTaskConfig = ReconstructionTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: ImagesConfig = Field(description="images, with or without labels")
    model: ImageModelConfig = Field(description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_image_batching(train, info.data.get("model"))

    @property
    def comments(self) -> list[str]:
        """The table of layers."""
        return str(self.model.summary()).splitlines()

    @property
    def images(self) -> int:
        """The number of images per batch."""
        assert self.train.batch_examples is not None
        return self.train.batch_examples

    @property
    def size(self) -> int:
        """The number of parameters."""
        size: int = self.model.parameters()
        return size
