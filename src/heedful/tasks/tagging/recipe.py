"""The recipe of token tagging."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from heedful.data.formats.conll import TagsConfig, collect_labels
from heedful.data.own import OwnData
from heedful.data.tables.texts import TagTable
from heedful.errors import UserError
from heedful.models.heads.config import TaggerConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.tasks.recipe_parts import ClassWeights, ConfidencePenalty
from heedful.training.configs import TrainConfig


class TaggingTaskConfig(ClassWeights):
    """The task: predict a tag for each word, such as B-PER for the first word of a person's name."""

    kind: Literal["tagging"] = "tagging"
    confidence_penalty: ConfidencePenalty = 0.0


class TaggingRecipe(Finetuning):
    """An experiment in token tagging, such as named-entity recognition."""

    task: TaggingTaskConfig = TaggingTaskConfig()
    data: TagsConfig | TagTable | OwnData = Field(
        discriminator="kind", description="sentences and the tags of their words"
    )
    model: TaggerConfig = Field(TaggerConfig(), description="the model")
    train: TrainConfig = Field(description="training settings")

    def inferred_settings(self) -> dict[str, Any]:
        """The labels of the training data, unless the recipe lists labels itself."""
        if self.model.labels is not None:
            return {}
        labels = collect_labels(self.data.read("train").sentences)
        if len(labels) < 2:
            raise UserError(
                "all words have the same tag", where=str(self.data.file("train")), found=f"only the tag {labels[0]}"
            )
        return {"labels": labels}

    def problems(self) -> list[UserError]:
        """Errors of the folder to start from, whose encoder must have the layers that `model.features` reads."""
        problems = super().problems()
        if not problems and self.model.features.endswith("four") and (layers := self.encoder.layers) < 4:
            found = f"{self.model.features}, but the encoder has {layers} blocks"
            problems = [
                UserError("the encoder has too few layers", where="model.features", found=found, todo="write last")
            ]
        return problems
