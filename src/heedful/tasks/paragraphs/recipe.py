"""The recipe of paragraph captioning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.images.paragraphs import ParagraphJsonl, SceneParagraphs
from heedful.data.own import OwnData
from heedful.data.tables.pictures import ParagraphTable
from heedful.models import any_of
from heedful.tasks.recipe_parts import GenerationRecipe, Start, TokenizerConfig, check_image_batching
from heedful.training.configs import TrainConfig

ParagraphsConfig = Annotated[SceneParagraphs | ParagraphJsonl | ParagraphTable | OwnData, Field(discriminator="kind")]

if TYPE_CHECKING:
    ParagraphModel = Any
else:
    ParagraphModel = any_of("paragraph_captioner", usual="paragraph_captioner")

Weight = Annotated[float, Field(ge=0, le=1e6)]


class ParagraphTaskConfig(Config):
    """The task: describe an image and its regions in a paragraph."""

    kind: Literal["paragraphs"] = "paragraphs"
    phrases: Weight = Field(1.0, description="weight of the loss of the phrases")
    grounding: Weight = Field(1.0, description="weight of the loss of the sentences' regions, where these are known")
    stop: Weight = Field(1.0, description="weight of the loss of where a paragraph ends")


class ParagraphDecodeConfig(Config):
    """Settings of the search for words, and the length of paragraphs, in evaluation and use."""

    beams: int = Field(1, ge=1, le=1000, description="hypotheses kept at each word; 1: greedy search")
    length_penalty: float = Field(1.0, ge=-10, le=10, description="exponent of the length by which a score is divided")
    sentences: int = Field(20, ge=1, le=1000, description="most sentences of a paragraph")


class ParagraphRecipe(GenerationRecipe):
    """A paragraph captioning experiment: images with boxes, phrases and paragraphs."""

    task: ParagraphTaskConfig = ParagraphTaskConfig()
    start: Start | None = Field(
        None, description="the model to start from, or its image encoder alone; null: randomly initialized"
    )
    data: ParagraphsConfig = Field(description="images, boxes, phrases and paragraphs")
    tokenizer: TokenizerConfig = Field(description="tokenizer of phrases and sentences")
    model: ParagraphModel = Field(description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: ParagraphDecodeConfig = ParagraphDecodeConfig()

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_image_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_freeze(self) -> Self:
        if self.model.freeze != "none" and self.start is None:
            raise FieldError(
                "randomly initialized layers must be trained; set start.folder, or write freeze: none",
                "model",
                "freeze",
            )
        return self

    @property
    def images(self) -> int:
        """The number of images per batch."""
        assert self.train.batch_examples is not None
        return self.train.batch_examples
