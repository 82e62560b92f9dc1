"""The recipe of sentence autoencoders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from heedful.config import Config
from heedful.data.own import OwnData
from heedful.data.tables.texts import SentenceTable
from heedful.data.text.files import TextFiles
from heedful.data.text.sentences import GrammarSentences
from heedful.decode.settings import SentenceConfig
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import GenerationRecipe, Start, TokenizerConfig, check_batching
from heedful.training.configs import TrainConfig

SentencesConfig = Annotated[GrammarSentences | TextFiles | SentenceTable | OwnData, Field(discriminator="kind")]
USUAL = "text_vae"
if TYPE_CHECKING:
    AutoencoderModel = Any
else:
    AutoencoderModel = any_of("text_autoencoder", usual=USUAL)


class FullWeight(Config):
    """The KL divergence has its full weight from the first step on."""

    kind: Literal["none"] = "none"

    def weight(self, step: float) -> float:
        """The weight of the KL divergence after `step` steps, from 0 to 1."""
        return 1.0


class LinearAnnealing(Config):
    """The weight of the KL divergence rises from 0 to 1 in a line."""

    kind: Literal["linear"] = "linear"
    steps: int = Field(1000, ge=1, description="steps until the weight is 1")

    def weight(self, step: float) -> float:
        """The weight of the KL divergence after `step` steps, from 0 to 1."""
        return min(1.0, step / self.steps)


class LogisticAnnealing(Config):
    """The weight of the KL divergence rises from 0 to 1 in a sigmoid (Bowman et al., 2016)."""

    kind: Literal["logistic"] = "logistic"
    middle: int = Field(1000, ge=0, description="step at which the weight is 1/2")
    width: float = Field(200.0, gt=0, description="steps in which the weight rises from 1/2 to 0.73")

    def weight(self, step: float) -> float:
        """The weight of the KL divergence after `step` steps, from 0 to 1."""
        return 0.5 * (1 + math.tanh((step - self.middle) / (2 * self.width)))


class CyclicalAnnealing(Config):
    """The weight of the KL divergence rises from 0 to 1 in a line, again and again (Fu et al., 2019)."""

    kind: Literal["cyclical"] = "cyclical"
    period: int = Field(1000, ge=1, description="steps of a cycle")
    rise: float = Field(0.5, gt=0, le=1, description="share of a cycle in which the weight rises; then it is 1")

    def weight(self, step: float) -> float:
        """The weight of the KL divergence after `step` steps, from 0 to 1."""
        return min(1.0, step % self.period / (self.rise * self.period))


class TextAutoencodingTaskConfig(Config):
    """The task: encode a sentence as a code, and generate it again from the code alone."""

    kind: Literal["text_autoencoding"] = "text_autoencoding"
    word_dropout: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the decoder's input tokens that are replaced by the unknown token in training, so that "
        "it needs the code",
    )
    free_bits: float = Field(
        0.0, ge=0, description="KL divergence of each unit of a code that costs nothing, in nats; 0: all of it counts"
    )
    anneal: Annotated[
        FullWeight | LinearAnnealing | LogisticAnnealing | CyclicalAnnealing, Field(discriminator="kind")
    ] = Field(FullWeight(), description="how the weight of the KL divergence rises in training")
    importance_samples: int = Field(
        20, ge=1, le=10_000, description="sampled codes of each sentence from which the perplexity is estimated"
    )


class TextAutoencodingRecipe(GenerationRecipe):
    """An experiment with an autoencoder of sentences."""

    task: TextAutoencodingTaskConfig = TextAutoencodingTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: SentencesConfig = Field(description="sentences, one for each line")
    tokenizer: TokenizerConfig = Field(description="tokenizer of the sentences")
    model: AutoencoderModel = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: SentenceConfig = SentenceConfig()

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_batching(train, info.data.get("model"))
