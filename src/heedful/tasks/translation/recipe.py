"""The recipe of translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import NumberWords
from heedful.data.formats.parallel import AlignedCorpora, ParallelColumns, ParallelCorpora, ParallelNumbers
from heedful.data.formats.sources import Jsonl, ParallelFiles, Tsv
from heedful.data.own import OwnData
from heedful.data.tables.texts import TranslationTable
from heedful.decode.settings import DecodeConfig
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import (
    ConfidencePenalty,
    GenerationRecipe,
    Start,
    TokenizerConfig,
    check_generating,
)
from heedful.training.configs import TrainConfig

PairsConfig = Annotated[
    ParallelFiles
    | Tsv
    | Jsonl
    | TranslationTable
    | NumberWords
    | ParallelCorpora
    | ParallelColumns
    | ParallelNumbers
    | OwnData,
    Field(discriminator="kind"),
]
USUAL = "transformer"
if TYPE_CHECKING:
    TranslatorConfig = Any
else:
    TranslatorConfig = any_of("seq2seq", usual=USUAL)


class Likelihood(Config):
    """The references become likely: the cross-entropy of each token, with `task.label_smoothing`."""

    kind: Literal["likelihood"] = "likelihood"


class RewardObjective(Config):
    """What the objectives have in common that raise the reward of the model's own translations."""

    kind: str
    reward: Literal["bleu", "chrf", "exact_match"] = Field(
        "bleu", description="reward of a translation, from 0 to 1: smoothed sentence BLEU, sentence chrF, or equality"
    )
    likelihood: float = Field(
        0.0, ge=0, le=1000, description="weight of the cross-entropy of the references in the loss, beside the reward"
    )


class MovingAverage(Config):
    """The mean reward of recent steps."""

    kind: Literal["moving_average"] = "moving_average"
    decay: float = Field(0.9, ge=0, lt=1, description="weight of earlier steps")


class LearnedBaseline(Config):
    """A linear function of the decoder's last layer, which learns to predict the reward before each token."""

    kind: Literal["learned"] = "learned"
    rate: float = Field(0.1, gt=0, le=1, description="share of the mean error that a step removes")


class PolicyGradient(RewardObjective):
    """Sampled translations with a higher reward than a baseline become likely: REINFORCE (Williams, 1992)."""

    kind: Literal["policy_gradient"] = "policy_gradient"
    samples: int = Field(1, ge=1, le=100, description="sampled translations of each source")
    baseline: Annotated[MovingAverage | LearnedBaseline, Field(discriminator="kind")] = Field(
        MovingAverage(), description="the reward that is expected, which lowers the variance of the gradient"
    )


class SelfCritical(RewardObjective):
    """Sampled translations with a higher reward than the greedy one become likely (Rennie et al., 2017)."""

    kind: Literal["self_critical"] = "self_critical"
    samples: int = Field(1, ge=1, le=100, description="sampled translations of each source")


class MinimumRisk(RewardObjective):
    """The expected risk, 1 - reward, falls, where p is renormalized over some candidates (Shen et al., 2016)."""

    kind: Literal["minimum_risk"] = "minimum_risk"
    candidates: Literal["sampled", "beam"] = Field(
        "sampled", description="where candidates come from: sampling, or beam search"
    )
    samples: int = Field(8, ge=2, le=1000, description="candidates of each source; equal ones count once")
    alpha: float = Field(
        0.005, gt=0, le=1000, description="sharpness of the renormalized distribution, which is proportional to p^alpha"
    )
    reference: bool = Field(True, description="whether the reference is a candidate too")


ObjectiveConfig = Annotated[Likelihood | PolicyGradient | SelfCritical | MinimumRisk, Field(discriminator="kind")]


class TranslationTaskConfig(Config):
    """The task: predict the target sentence from the source sentence."""

    kind: Literal["translation"] = "translation"
    objective: ObjectiveConfig = Field(
        Likelihood(),
        exclude_if=lambda objective: isinstance(
            objective, Likelihood
        ),  # recipes and folders without it stay as they are
        description="what is trained",
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="probability spread evenly over all tokens")
    confidence_penalty: ConfidencePenalty = 0.0


class TranslationRecipe(GenerationRecipe):
    """A translation experiment: task, data, tokenizer, model, training and decoding."""

    task: TranslationTaskConfig = TranslationTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PairsConfig = Field(description="texts and their translations")
    tokenizer: TokenizerConfig = Field(description="tokenizer of both sides")
    source_tokenizer: TokenizerConfig | None = Field(
        None,
        exclude_if=lambda source: source is None,  # recipes and runs without it stay as they are
        description="tokenizer of the source, with a vocabulary of its own; null: the same as of the target",
    )
    model: TranslatorConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: DecodeConfig = DecodeConfig()

    @model_validator(mode="after")
    def _check_max_length(self) -> Self:
        longest = self.decode.max_length
        if longest is not None and longest > self.model.context:
            raise ValueError(
                f"decode.max_length is {longest}, but the model's context is {self.model.context}; "
                f"write model.context: {longest}"
            )
        return self

    @model_validator(mode="after")
    def _check_source_tokenizer(self) -> Self:
        if self.source_tokenizer is None:
            return self
        if "source_vocab" not in type(self.model).model_fields:
            raise FieldError("this model has one embedding for both sides; leave this out", "source_tokenizer")
        if isinstance(self.data, AlignedCorpora):
            raise FieldError("of several languages, each is source and target; leave this out", "source_tokenizer")
        return self

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        sampled = self.model.hard or isinstance(self.task.objective, RewardObjective)
        if self.task.confidence_penalty and sampled:
            raise FieldError(
                "only likelihood has it, without hard attention; leave it out", "task", "confidence_penalty"
            )
        if not isinstance(self.task.objective, RewardObjective):
            return self
        if self.start is None:
            raise FieldError("training on a reward goes on from a trained translator; set start.folder", "start")
        if self.model.hard:
            raise FieldError(
                "hard attention cannot be trained on a reward; write choice: soft, or task.objective.kind: likelihood",
                "model", "attention", "choice",
            )  # fmt: skip
        check_generating(self.train)
        return self
