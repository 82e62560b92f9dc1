"""Generation settings: how a model searches for what it writes, or samples it.

Recipes hold the groups `DecodeConfig` and `WritingConfig`; predictors hold the same with all that may be changed from
call to call; the options of the command line are made from the fields. Nothing here needs torch.
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
    """How long a text gets."""

    length: Annotated[int, OptionSpec("Tokens to generate; else as the recipe says.")] = Field(
        200, ge=1, le=1_000_000, description="number of tokens to generate"
    )


class Sampling(Config):
    """How a token is sampled."""

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
    """How translations are searched for when the model is evaluated or used."""

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


class WritingConfig(Sampling, Length):
    """Generation settings of a language model, which samples each token."""

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
    """All settings that predictors share."""

    temperature: Annotated[float, OptionSpec(minimum=0.01)] = Field(  # 0: the likeliest token each time
        1.0, ge=0, le=100, description="sampling temperature; higher is more random"
    )
    seed: int = Field(0, ge=0, description="random seed")

    @classmethod
    def of(cls, decode: Config) -> Self:
        """The settings that a recipe's group says."""
        return cls(**decode.model_dump())

    def but(self, **changes: Any) -> Self:
        """The same with some settings changed; None leaves one as it is."""
        unknown = [name for name in changes if name not in type(self).model_fields]
        if unknown:
            raise TypeError(f"there is no setting {unknown[0]}; there are {', '.join(sorted(type(self).model_fields))}")
        said = {name: value for name, value in changes.items() if value is not None}
        try:
            return type(self)(**{**dict(self), **said})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = first["msg"].replace("Input ", "")
            raise ValueError(f"{first['loc'][0]} {what}, got {first['input']!r}") from None


class TranslationSettings(Generation, DecodeConfig):
    """How texts are translated: searched for by beams, or sampled."""


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
    def drawn(self) -> bool:
        """Whether tokens are sampled."""
        return self.beams == 1 and self.temperature > 0

    @property
    def looks_back(self) -> bool:
        """Whether it matters what stands in the text already."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram is not None
