"""The settings of RoBERTa, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import EncoderConfig
from heedful.models.sizes import HeadScore, Normalizer, block_parameters, in_kernels, share_width

FIRST = 2  # the row of the position table that a text's first token has: row 1 is for padding, row 0 for nothing


class RobertaConfig(EncoderConfig):
    """The encoder of Liu et al. (2019), in its published base size, with the head it is pre-trained with."""

    implementation: ClassVar = "model.Roberta"

    kind: Literal["roberta"] = "roberta"
    vocab: int | None = Field(None, ge=5, le=10_000_000, description="token types; null: as many as the tokenizer has")
    width: int = Field(768, ge=1, le=65_536, description="numbers that stand for one token between blocks")
    heads: int = Field(12, ge=1, le=1024, description="attention heads in each block; they share the width evenly")
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(12, ge=1, le=1000, description="blocks on top of each other")
    hidden: int = Field(3072, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(512, ge=4, le=1_048_576, description="longest sequence, in tokens, special ones included")
    segments: Literal[1] = Field(1, description="kinds of segments: texts of a pair are not told apart")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of numbers set to zero while training")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="share of attention weights set to zero")
    activation: Literal["gelu", "gelu_tanh", "relu", "swish"] = Field(
        "gelu", description="between the two feed-forward matrices"
    )
    norm_eps: float = Field(1e-5, gt=0, le=0.1, description="added to the variance in each layer norm")
    pooler: bool = Field(False, description="whether there is a layer on the first token's vector")
    masked_words: bool = Field(True, description="whether there is the head that predicts masked words")
    next_sentence: Literal[False] = Field(False, description="no sentence is predicted")

    _heads_share_width = field_validator("heads")(share_width)

    @model_validator(mode="after")
    def _is_not_too_large(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row."""
        return in_kernels(self.score, self.normalize)

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since input and output share it."""
        dense = self.width * self.width + self.width
        embeddings = (vocab + self.context + FIRST + self.segments + 2) * self.width
        words = dense + 2 * self.width + vocab if self.masked_words else 0
        blocks = self.layers * block_parameters(self.width, self.hidden, self.heads, self.score)
        return embeddings + blocks + dense * self.pooler + words

    def under_head(self, pools: bool) -> Self:
        """The encoder below the head of a task: without a head of its own, and with a pooler only if that is read."""
        return self.model_copy(update={"pooler": pools, "masked_words": False})

    @property
    def usual_tokenizer(self) -> str:
        """What it was published with."""
        return "roberta_pairs"

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, heads=2, layers=2, hidden=20, context=16)


SIZES = {
    "roberta-base": RobertaConfig(vocab=50_265),
    "roberta-large": RobertaConfig(vocab=50_265, width=1024, heads=16, layers=24, hidden=4096),
}
