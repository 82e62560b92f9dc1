"""The recipe of text style transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from heedful.config import Config, FieldError
from heedful.data.formats.tables import CsvTable, JsonlTable, TsvTable
from heedful.data.labelled.registers import Registers
from heedful.data.labelled.style_files import StyleFiles
from heedful.data.own import OwnData
from heedful.data.tables.texts import StyleTable
from heedful.data.trees.treebank import WordsConfig
from heedful.models import any_of, config_class
from heedful.tasks.classification.recipe import CharactersConfig
from heedful.tasks.recipe_parts import Recipe, Start, check_batching
from heedful.training.configs import PlayerConfig, TrainConfig
from heedful.training.optim import AdamW

USUAL = "style_transfer"
if TYPE_CHECKING:
    StyleModelConfig = Any
else:
    StyleModelConfig = any_of("style_transfer", usual=USUAL)

StylesData = Annotated[
    Registers | StyleFiles | TsvTable | CsvTable | JsonlTable | StyleTable | OwnData, Field(discriminator="kind")
]
Weight = Annotated[float, Field(ge=0, le=1000)]


class StyleTransferTaskConfig(Config):
    """The task: say the content of a text in another style, learned from texts that are not parallel."""

    kind: Literal["style_transfer"] = "style_transfer"
    cycle: Weight = Field(1.0, description="weight of the loss of getting a text back from its transfer")
    adversarial: Weight = Field(
        1.0, description="weight of the loss of looking unlike real texts of the style, to the discriminator"
    )
    ready: float = Field(
        0.7, gt=0, le=1000, description="a text is transferred once its reconstruction loss is less, in nats a token"
    )
    temperature: float = Field(1.0, gt=0, le=100, description="softmax temperature of the soft texts")
    drop: float = Field(0.1, ge=0, lt=1, description="share of words left out of a text that is to be reconstructed")
    shuffle: float = Field(3.0, ge=0, le=1000, description="number of places by which its words are moved, about")
    discriminator: PlayerConfig = Field(
        PlayerConfig(optimizer=AdamW(lr=1e-3, betas=(0.5, 0.98), weight_decay=0.0)),
        description="how the discriminator is trained; `train.optimizer` and `train.clip` are the generator's",
    )
    metric: Literal["transfer", "style", "content", "loss"] = Field(
        "transfer",
        description="the score that selects the best checkpoint; transfer: the geometric mean of style and content",
    )


class StyleTransferRecipe(Recipe):
    """A style transfer experiment."""

    predicts_classes: ClassVar = True

    task: StyleTransferTaskConfig = StyleTransferTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: StylesData = Field(description="texts and their styles")
    tokenizer: Annotated[WordsConfig | CharactersConfig, Field(discriminator="kind")] = Field(
        WordsConfig(), description="tokens: words or characters"
    )
    model: StyleModelConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("data")
    @classmethod
    def _check_pairs(cls, data: Any) -> Any:
        if isinstance(data, TsvTable | CsvTable | JsonlTable) and data.pair is not None:
            raise FieldError("a style belongs to one text; leave this out", "pair")
        return data

    @field_validator("train")
    @classmethod
    def _check_train(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.parallel == "fsdp":
            raise FieldError("players with optimizers of their own are not sharded; write parallel: ddp", "parallel")
        checked = check_batching(train.model_copy(update={"batch_examples": None}), info.data.get("model"))
        return checked.model_copy(update={"batch_examples": train.batch_examples})

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or 0)
        return size
