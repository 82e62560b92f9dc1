"""Generation settings: sampling and beam search.

Recipes contain the groups `DecodeConfig` and `WritingConfig`. Predictors have the same settings and those that can only
be changed per call. Command-line options are generated from the fields. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from heedful.config import Config


@dataclass(frozen=True)
class OptionSpec:
    """Help and minimum of a setting's command-line option, where they differ from the recipe's."""

    help: str | None = None
    minimum: float | None = None


class Length(Config):
    """The length of generated text."""

    length: Annotated[int, OptionSpec("Tokens to generate; else as the recipe says.")] = Field(
        200, ge=1, le=1_000_000, description="number of tokens to generate"
    )


class Sampling(Config):
    """Sampling settings."""

    temperature: Annotated[float, OptionSpec(minimum=0.01)] = Field(
        1.0, gt=0, le=100, description="sampling temperature; higher is more random"
    )
    top_k: int | None = Field(None, ge=1, description="sample from the k most probable tokens; null: from all")
    top_p: Annotated[float | None, OptionSpec(minimum=1e-6)] = Field(
        None,
        gt=0,
        le=1,
        description="sample from the smallest set of tokens with this total probability (nucleus sampling); null: "
        "from all",
    )


class DecodeConfig(Config):
    """Settings of the beam search for translations, in evaluation and use."""

    beams: Annotated[int, OptionSpec("Hypotheses of the beam search; else as the recipe says.")] = Field(
        4, ge=1, le=1000, description="hypotheses kept at each step; 1: greedy search"
    )
    length_penalty: float = Field(
        1.0,
        ge=-10,
        le=10,
        description="exponent of the length by which a score is divided; higher favours longer translations",
    )
    max_length: int | None = Field(None, ge=1, description="longest translation in tokens; null: 2 x source + 16")
    renormalize: bool = Field(
        False,
        exclude_if=lambda renormalize: not renormalize,  # recipes and folders without it stay as they are
        description="whether probabilities sum to 1 again without the tokens that are never generated, as in Marian",
    )


class CaptionConfig(Config):
    """Settings of the beam search for captions, in evaluation and use."""

    beams: Annotated[int, OptionSpec("Hypotheses of the beam search; else as the recipe says.")] = Field(
        3, ge=1, le=1000, description="hypotheses kept at each step; 1: greedy search"
    )
    length_penalty: float = Field(
        1.0,
        ge=-10,
        le=10,
        description="exponent of the length by which a score is divided; higher favours longer captions",
    )
    max_length: int | None = Field(None, ge=1, description="longest caption in tokens; null: the model's context")


class ReplyConfig(Config):
    """Settings of the beam search for replies in a dialogue, in evaluation and use."""

    beams: Annotated[int, OptionSpec("Hypotheses of the beam search; else as the recipe says.")] = Field(
        1, ge=1, le=1000, description="hypotheses kept at each step; 1: greedy search"
    )
    length_penalty: float = Field(
        1.0,
        ge=-10,
        le=10,
        description="exponent of the length by which a score is divided; higher favours longer replies",
    )
    max_length: int = Field(40, ge=1, le=1_000_000, description="longest reply in tokens")


class SentenceConfig(Config):
    """Settings of the beam search for sentences with a code, in evaluation and use."""

    beams: Annotated[int, OptionSpec("Hypotheses of the beam search; else as the recipe says.")] = Field(
        1, ge=1, le=1000, description="hypotheses kept at each step; 1: greedy search"
    )
    length_penalty: float = Field(
        1.0,
        ge=-10,
        le=10,
        description="exponent of the length by which a score is divided; higher favours longer sentences",
    )
    max_length: int | None = Field(None, ge=1, description="longest sentence in tokens; null: the model's context")


class WritingConfig(Sampling, Length):
    """Generation settings of a language model."""

    start_token: Annotated[
        bool, OptionSpec("Put the start token of documents before the text; else as the model's folder says.")
    ] = Field(True, description="put the beginning-of-document token before a prompt, as in training")
    memory: Annotated[int | None, OptionSpec("Tokens in the memory of a Transformer-XL; else as in training.")] = Field(
        None,
        ge=1,
        le=1_048_576,
        exclude_if=lambda memory: memory is None,  # recipes and folders without it stay as they are
        description="tokens in the memory of a `transformer_xl` that is evaluated or generates; null: as in training",
    )


class Generation(Sampling):
    """The settings that all generating predictors share."""

    temperature: Annotated[float, OptionSpec(minimum=0.01)] = Field(  # 0: greedy search
        1.0, ge=0, le=100, description="sampling temperature; higher is more random"
    )
    seed: int = Field(0, ge=0, description="random seed")

    @classmethod
    def of(cls, decode: Config) -> Self:
        """The settings of a recipe's group."""
        return cls(**decode.model_dump())

    def but(self, **changes: Any) -> Self:
        """A copy with some settings changed; None leaves a setting unchanged."""
        unknown = [name for name in changes if name not in type(self).model_fields]
        if unknown:
            raise TypeError(f"there is no setting {unknown[0]}; there are {', '.join(sorted(type(self).model_fields))}")
        given = {name: value for name, value in changes.items() if value is not None}
        try:
            return type(self)(**{**dict(self), **given})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = first["msg"].replace("Input ", "")
            raise ValueError(f"{first['loc'][0]} {what}, got {first['input']!r}") from None


class TranslationSettings(Generation, DecodeConfig):
    """Settings of translation: beam search or sampling."""


class CaptionSettings(Generation, CaptionConfig):
    """Settings of captioning: beam search or sampling."""


class ReplySettings(Generation, ReplyConfig):
    """Settings of replies in a dialogue: beam search or sampling."""


class TextSettings(Generation, WritingConfig):
    """Settings of text generation: sampling or beam search."""

    samples: int = Field(1, ge=1, le=1000, description="texts for each prompt; with beams, the best ones")
    beams: int = Field(
        1, ge=1, le=1000, description="beam search with this many hypotheses; prompt and text must fit the context"
    )
    length_penalty: float = Field(1.0, ge=0, le=10, description="beams compare log p / length^this")
    repetition_penalty: Annotated[float, OptionSpec(minimum=0.01)] = Field(
        1.0, gt=0, le=100, description="above 1, tokens of the text so far become less probable"
    )
    no_repeat_ngram: int | None = Field(
        None, ge=1, le=1000, description="n-grams of this many tokens never occur twice; null: they may"
    )
    min_length: int = Field(0, ge=0, le=1_000_000, description="tokens to generate before the text may end")

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are sampled."""
        return self.beams == 1 and self.temperature > 0

    @property
    def uses_history(self) -> bool:
        """Whether rules depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram is not None
