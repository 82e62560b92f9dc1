"""The settings of XLNet, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import EncoderConfig
from heedful.models.sizes import (
    Activation,
    Normalizer,
    WordOutput,
    output_parameters,
    require_words,
    share_width,
)


class XLNetConfig(EncoderConfig):
    """The encoder of Yang et al. (2019), in its published base size, with the head it is pre-trained with."""

    implementation: ClassVar = "model.XLNet"
    compares_segments: ClassVar = True

    kind: Literal["xlnet"] = "xlnet"
    vocab: int | None = Field(None, ge=5, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(768, ge=2, le=65_536, multiple_of=2, description="width of the model")
    heads: int = Field(
        12, ge=1, le=1024, description="attention heads in each block; each has an equal part of the width"
    )
    normalize: Normalizer = "softmax"
    layers: int = Field(12, ge=1, le=1000, description="number of blocks")
    hidden: int = Field(3072, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(
        512,
        ge=4,
        le=1_048_576,
        description="longest sequence, in tokens, including special ones; no weight depends on it",
    )
    segments: Literal[2] = Field(
        2, description="texts of a pair; there may be more, as only whether two tokens are in the same one counts"
    )
    direction: Literal["both", "left"] = Field(
        "both", description="which tokens are attended to without an order: those on both sides, or up to its own"
    )
    clamp: int | None = Field(None, ge=1, le=1_048_576, description="larger distances count as this one; null: none")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate, that of attention weights included")
    activation: Activation = Field("gelu", description="between the two feed-forward matrices")
    norm_eps: float = Field(1e-12, gt=0, le=0.1, description="added to the variance in each layer norm")
    pooler: bool = Field(False, description="whether there is a dense layer on the last token's vector")
    masked_words: bool = Field(True, description="whether there is a head that predicts tokens")
    next_sentence: Literal[False] = Field(False, description="always false: there is no next-sentence prediction")
    output: WordOutput = "tied"

    _heads_share_width = field_validator("heads")(share_width)

    @model_validator(mode="after")
    def _has_a_possible_size(self) -> Self:
        require_words(self.output, self.masked_words)
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def usual_tokenizer(self) -> str:
        """The tokenizer it was published with."""
        return "xlnet_unigram"

    def parameters(self, vocab: int) -> int:
        """The number of parameters; where input and output share the embedding, it is counted once."""
        attention = 5 * self.width * self.width + 5 * self.width  # q, k, v, r, out; three biases and two segments
        mlp = 2 * self.width * self.hidden + self.hidden + self.width
        heads = (self.width + 1) * self.width * self.pooler + vocab * self.masked_words
        heads += output_parameters(self.output, vocab, self.width)
        return (vocab + 1) * self.width + self.layers * (attention + mlp + 4 * self.width) + heads

    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The encoder below the head of a task: without heads of its own, and with a pooler only if that is read."""
        return self.model_copy(update={"pooler": pools, "masked_words": False, "output": "tied"})

    @classmethod
    def tiny(cls) -> Self:
        return cls.model_validate({"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 16})


SIZES = {
    "xlnet-base": XLNetConfig(vocab=32_000),
    "xlnet-large": XLNetConfig(vocab=32_000, width=1024, heads=16, layers=24, hidden=4096),
}
