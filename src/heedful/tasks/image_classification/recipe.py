"""The recipe of image classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import Digits
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.cluttered import ClutteredImages, VisualSearch
from heedful.data.images.scenes import Scenes
from heedful.data.images.sources import ArrayImages, CsvImages, IdxImages, ImageFolders
from heedful.data.own import OwnData
from heedful.data.tables.pictures import ImageTable
from heedful.models import any_of
from heedful.tasks.recipe_parts import Recipe, Start, Weights, check_image_batching
from heedful.training.configs import TrainConfig

LabelledImagesConfig = Annotated[
    IdxImages
    | ImageFolders
    | ArrayImages
    | CsvImages
    | ImageTable
    | Digits
    | Scenes
    | ClutteredImages
    | VisualSearch
    | OwnData,
    Field(discriminator="kind"),
]

if TYPE_CHECKING:
    ImageEncoderModel = Any
else:
    ImageEncoderModel = any_of("image_encoder", "glimpse_classifier", usual="lenet")

Deviation = Annotated[float, Field(gt=0)]


class ImageClassificationTaskConfig(Config):
    """The task: predict the class of an image."""

    kind: Literal["image_classification"] = "image_classification"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all classes")
    class_weights: Weights | None = Field(
        None,
        description="weights of the loss by class name, others 1, scaled to a mean of 1 over the training images; "
        "balanced: the same total for each class; null: none",
    )
    sampling: Literal["shuffled", "balanced"] = Field(
        "shuffled", description="shuffled: each image once an epoch; balanced: as many images of each class"
    )
    mean: tuple[float, ...] | None = Field(
        None, max_length=1024, description="mean of each channel, for pixels from 0 to 1; null: of the training images"
    )
    std: tuple[Deviation, ...] | None = Field(
        None, max_length=1024, description="standard deviation of each channel; null: of the training images"
    )
    metric: Literal["accuracy", "f1", "loss"] = Field(
        "accuracy", description="the score that selects the best checkpoint"
    )


class ImageClassificationRecipe(Recipe):
    """An image classification experiment."""

    predicts_classes: ClassVar = True

    task: ImageClassificationTaskConfig = ImageClassificationTaskConfig()
    start: Start | None = Field(
        None, description="the model to start from, whose last layer is replaced for other classes; null: none"
    )
    data: LabelledImagesConfig = Field(description="images and their labels")
    augment: Augmentation = Field(Augmentation(), description="random changes of the training images")
    model: ImageEncoderModel = Field(description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_image_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_freeze(self) -> Self:
        if self.model.freeze and self.start is None:
            raise FieldError(
                "randomly initialized layers must be trained; set start.folder, or write freeze: false",
                "model",
                "freeze",
            )
        return self

    @property
    def images(self) -> int:
        """The number of images per batch."""
        assert self.train.batch_examples is not None
        return self.train.batch_examples

    @property
    def size(self) -> int:
        """The number of parameters, for two classes where the recipe does not say how many there are."""
        size: int = self.model.parameters()
        return size
