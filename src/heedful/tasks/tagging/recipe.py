"""The recipe of words with a tag each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from heedful.config import Config, FieldError
from heedful.data.formats.conll import TagsConfig, labels_of
from heedful.data.own import OwnData
from heedful.errors import UserError
from heedful.models.heads.config import TaggerConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.training.configs import TrainConfig


class TaggingTaskConfig(Config):
    """What is learned: the tag of each word, such as whether it is in a name, and of what."""

    kind: Literal["tagging"] = "tagging"


class TaggingRecipe(Finetuning):
    """A whole experiment with sentences whose words have tags."""

    task: TaggingTaskConfig = TaggingTaskConfig()
    data: TagsConfig | OwnData = Field(discriminator="kind", description="sentences and the tags of their words")
    model: TaggerConfig = Field(TaggerConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        model: TaggerConfig | None = info.data.get("model")
        if train.batching == "packed" and model is not None and not model.packs:
            raise FieldError("an LSTM reads a row from end to end; write batching: padded", "batching")
        return train

    def learned(self) -> dict[str, Any]:
        """The tags, which are those of the training data where the recipe names none."""
        if self.model.labels is not None:
            return {}
        labels = labels_of(self.data.read("train").sentences)
        if len(labels) < 2:
            raise UserError(
                "all words have the same tag", where=str(self.data.file("train")), found=f"the tag {labels[0]} alone"
            )
        return {"labels": labels}

    def missing(self) -> list[UserError]:
        """What is wrong with the folder to start from; its encoder must have the layers that are read."""
        problems = super().missing()
        if not problems and self.model.features.endswith("four") and (layers := self.encoder.layers) < 4:
            found = f"{self.model.features}, but the encoder has {layers} blocks"
            problems = [UserError("there are too few layers", where="model.features", found=found, todo="write last")]
        return problems
