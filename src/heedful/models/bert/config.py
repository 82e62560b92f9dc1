"""The settings of BERT, and those that encoders of its kind share, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import EncoderConfig
from heedful.models.sizes import (
    Activation,
    HeadScore,
    Normalizer,
    WordOutput,
    block_parameters,
    has_kernel,
    output_parameters,
    require_words,
    share_width,
)


class MaskedEncoderConfig(EncoderConfig):
    """The encoder of a Transformer that is pre-trained by predicting masked tokens, with the heads for that."""

    vocab: int | None = Field(None, ge=5, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(768, ge=1, le=65_536, description="width of the model")
    heads: int = Field(
        12, ge=1, le=1024, description="attention heads in each block; each has an equal part of the width"
    )
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(12, ge=1, le=1000, description="number of blocks")
    hidden: int = Field(3072, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(512, ge=4, le=1_048_576, description="longest sequence, in tokens, including special ones")
    segments: int = Field(2, ge=1, le=1000, description="number of segment types: a pair of texts has two")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of attention weights")
    activation: Activation = Field("gelu", description="between the two feed-forward matrices")
    norm_eps: float = Field(1e-12, gt=0, le=0.1, description="added to the variance in each layer norm")
    pooler: bool = Field(True, description="whether there is a dense layer on the first token's vector")
    masked_words: bool = Field(True, description="whether there is a head that predicts masked tokens")
    next_sentence: bool = Field(
        True, description="whether there is a head that predicts whether two texts belong together"
    )
    output: WordOutput = "tied"

    _heads_share_width = field_validator("heads")(share_width)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.pairs is not None and not self.pooler:
            raise FieldError(f"{self.pairs} reads what the pooler gives; write pooler: true", "pooler")
        require_words(self.output, self.masked_words)
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row."""
        return has_kernel(self.score, self.normalize)

    @property
    def first_position(self) -> int | None:
        """The row of the first token in the table of positions."""
        return 0

    @property
    def position_rows(self) -> int:
        """The number of rows of the position table."""
        return (self.first_position or 0) + self.context

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.width

    @property
    def groups(self) -> int:
        """The number of blocks with weights of their own."""
        return self.layers

    @property
    def head_activation(self) -> str:
        """The activation in the head that predicts masked tokens."""
        return self.activation

    @property
    def pooler_activation(self) -> str:
        """The activation of the pooler."""
        return "tanh"

    def parameters(self, vocab: int) -> int:
        """The number of parameters; where input and output share the embedding, it is counted once."""
        embeddings = (vocab + self.position_rows + self.segments + 2) * self.embedding_width
        words = (self.width + 3) * self.embedding_width + vocab if self.masked_words else 0
        words += output_parameters(self.output, vocab, self.embedding_width)
        heads = (self.width + 1) * self.width * self.pooler + words + (2 * self.width + 2) * (self.pairs is not None)
        blocks = self.groups * block_parameters(self.width, self.hidden, self.heads, self.score)
        return embeddings + blocks + heads

    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The encoder below the head of a task: without heads of its own, and with a pooler only if that is read."""
        bare = {"pooler": pools, "masked_words": False, "next_sentence": False, "output": "tied"}
        return self.model_copy(update=bare)

    @classmethod
    def tiny(cls) -> Self:
        return cls.model_validate({"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 16})


class BertConfig(MaskedEncoderConfig):
    """The encoder of Devlin et al. (2019), in its published base size, with the heads it is pre-trained with."""

    implementation: ClassVar = "model.Bert"

    kind: Literal["bert"] = "bert"

    @property
    def usual_tokenizer(self) -> str:
        """What it was published with."""
        return "wordpiece"


def _bert(layers: int, width: int) -> BertConfig:
    """One of the published sizes: heads of 64, and a feed-forward layer four times as wide."""
    return BertConfig(width=width, heads=width // 64, layers=layers, hidden=4 * width)


SIZES = {
    "bert-tiny": _bert(2, 128),  # Turc et al., 2019, published all of 2 to 12 layers with widths of 128 to 768
    "bert-mini": _bert(4, 256),
    "bert-small": _bert(4, 512),
    "bert-medium": _bert(8, 512),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    "parsbert": _bert(12, 768).model_copy(update={"vocab": 100_000}),  # Farahani et al., 2021, for Persian
    **{f"bert-{layers}-{width}": _bert(layers, width) for layers in range(2, 13, 2) for width in (128, 256, 512, 768)},
}
