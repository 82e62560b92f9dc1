"""The recipe of image captioning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.formats.sources import Name
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.captions import CaptionCsv, CaptionJsonl, CaptionTsv, Coco, Flickr8k, SceneCaptions
from heedful.data.own import OwnData
from heedful.data.tables.pictures import CaptionRowTable
from heedful.decode.settings import CaptionConfig
from heedful.models import any_of
from heedful.tasks.recipe_parts import (
    GenerationRecipe,
    Start,
    TokenizerConfig,
    check_generating,
    check_image_batching,
)
from heedful.training.configs import TrainConfig

CaptionsConfig = Annotated[
    Coco | Flickr8k | CaptionCsv | CaptionTsv | CaptionJsonl | CaptionRowTable | SceneCaptions | OwnData,
    Field(discriminator="kind"),
]

if TYPE_CHECKING:
    CaptionerModel = Any
else:
    CaptionerModel = any_of("captioner", usual="captioner")

Deviation = Annotated[float, Field(gt=0)]


class LikelyCaptions(Config):
    """The captions of the data become likely: the cross-entropy of each word."""

    kind: Literal["likelihood"] = "likelihood"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all tokens")


class SelfCritical(Config):
    """Sampled captions with a higher CIDEr-D than the greedy one become likely (Rennie et al., 2017)."""

    kind: Literal["self_critical"] = "self_critical"
    samples: int = Field(1, ge=1, le=100, description="sampled captions of each image")


class CaptioningTaskConfig(Config):
    """The task: describe an image by a sentence."""

    kind: Literal["captioning"] = "captioning"
    objective: Annotated[LikelyCaptions | SelfCritical, Field(discriminator="kind")] = Field(
        LikelyCaptions(), description="what is trained"
    )
    per_image: int = Field(1, ge=1, le=100, description="captions of each image in an epoch, which are taken in turn")
    mean: tuple[float, ...] | None = Field(
        None, max_length=1024, description="mean of each channel, for pixels from 0 to 1; null: of the training images"
    )
    std: tuple[Deviation, ...] | None = Field(
        None, max_length=1024, description="standard deviation of each channel; null: of the training images"
    )
    metric: Literal["cider_d", "bleu4", "rouge_l", "chrf", "loss"] = Field(
        "cider_d", description="the score that selects the best checkpoint"
    )


class CaptionStart(Start):
    """A captioner to start from; or an image encoder alone, for a new decoder."""

    folder: Name = Field(
        description="run or model folder of a captioner, or of an image classifier, also a published one: its encoder"
    )
    encoder: Name | None = Field(
        None, description="folder of an image encoder to use with the decoder of a captioner in `folder`; null: its own"
    )


class CaptioningRecipe(GenerationRecipe):
    """An image captioning experiment."""

    task: CaptioningTaskConfig = CaptioningTaskConfig()
    start: CaptionStart | None = Field(
        None, description="the captioner to start from, or the image encoder; null: randomly initialized"
    )
    data: CaptionsConfig = Field(description="images and their captions")
    augment: Augmentation = Field(Augmentation(), description="random changes of the training images")
    tokenizer: TokenizerConfig = Field(description="tokenizer of the captions")
    model: CaptionerModel = Field(description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: CaptionConfig = CaptionConfig()

    @field_validator("augment")
    @classmethod
    def _check_augment(cls, augment: Augmentation) -> Augmentation:
        for name in ("mixup", "cutmix"):
            if getattr(augment, name):
                raise FieldError("two images cannot share a caption; leave this out", name)
        return augment

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_image_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if isinstance(self.task.objective, SelfCritical):
            check_generating(self.train)
        if self.start is not None:
            return self
        if self.model.freeze != "none":
            raise FieldError(
                "randomly initialized layers must be trained; set start.folder, or write freeze: none",
                "model",
                "freeze",
            )
        if isinstance(self.task.objective, SelfCritical):
            raise FieldError("self-critical training goes on from a trained captioner; set start.folder", "start")
        return self

    @property
    def images(self) -> int:
        """The number of images per batch."""
        assert self.train.batch_examples is not None
        return self.train.batch_examples
