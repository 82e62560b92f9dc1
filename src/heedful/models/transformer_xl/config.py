"""The settings of Transformer-XL, and its published sizes; imports no torch."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import Normalizer


class TransformerXLConfig(ModelConfig):
    """Transformer-XL (Dai et al., 2019); the defaults are the base model of WikiText-103, with an ordinary softmax."""

    implementation: ClassVar = "model.TransformerXL"
    attends: ClassVar = True

    kind: Literal["transformer_xl"] = "transformer_xl"
    vocab: int | None = Field(None, ge=2, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(410, ge=2, le=65_536, description="width of the model")
    heads: int = Field(10, ge=1, le=1024, description="attention heads in each block")
    head_width: int | None = Field(
        None, ge=1, le=65_536, description="width of each head; null: an equal part of the width"
    )
    normalize: Normalizer = "softmax"
    layers: int = Field(16, ge=1, le=1000, description="number of Transformer blocks")
    hidden: int = Field(2100, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(150, ge=2, le=1_048_576, description="tokens in a segment; texts may have any length")
    memory: int = Field(150, ge=1, le=1_048_576, description="number of earlier tokens whose hidden states are kept")
    same_length: bool = Field(
        True,
        description="each token attends to the last `memory` tokens, itself included, so that the result does not "
        "depend on the segments of a text; false: to the whole memory and its segment so far",
    )
    clamp: int | None = Field(
        None, ge=1, le=1_048_576, description="distances beyond this one count as this one; null: no limit"
    )
    share_biases: bool = Field(False, description="all layers share the biases u and v")
    norm: Literal["post", "pre"] = Field("post", description="layer norm after each sublayer, or before it")
    embed: int | None = Field(None, ge=1, le=65_536, description="width of the embeddings; null: that of the model")
    cutoffs: tuple[int, ...] = Field(
        (),
        strict=False,  # a list where the recipe has read it before
        max_length=20,
        description="adaptive softmax: the ids at which clusters of rarer tokens begin; ids must be sorted by "
        "frequency; empty: an ordinary softmax",
    )
    divisor: int = Field(
        1,
        ge=1,
        le=1024,
        description="adaptive embeddings: those of each cluster are narrower by this factor; 1: all have one width",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of attention weights")
    norm_eps: float = Field(1e-5, gt=0, le=0.1, description="added to the variance in each layer norm")

    @field_validator("width")
    @classmethod
    def _even_width(cls, width: int) -> int:
        if width % 2:
            raise ValueError(f"sinusoids of distances need an even width; write width: {width + 1}")
        return width

    @field_validator("head_width")
    @classmethod
    def _share_width(cls, head_width: int | None, info: ValidationInfo) -> int | None:
        width, heads = info.data.get("width"), info.data.get("heads")
        if head_width is None and width is not None and heads is not None and width % heads:
            raise ValueError(
                f"a width of {width} cannot be shared by {heads} heads; write head_width: {width // heads}"
            )
        return head_width

    @field_validator("cutoffs")
    @classmethod
    def _sorted_cutoffs(cls, cutoffs: tuple[int, ...]) -> tuple[int, ...]:
        if list(cutoffs) != sorted({cutoff for cutoff in cutoffs if cutoff > 0}):
            raise ValueError("cutoffs are positive and increasing, such as [20000, 40000, 200000]")
        return cutoffs

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.divisor ** len(self.cutoffs) > self.table_width:
            raise ValueError(
                f"the embeddings of the last cluster would be narrower than one: {self.table_width} / "
                f"{self.divisor}^{len(self.cutoffs)}; lower divisor, or name fewer cutoffs"
            )
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def segment(self) -> int:
        """How many tokens of a long text it reads at a time; with `same_length`, this only concerns speed."""
        return max(self.context, self.memory) if self.same_length else self.context

    @property
    def usual_tokenizer(self) -> str:
        """Whole words, sorted by frequency."""
        return "words"

    @property
    def max_memory(self) -> int:
        """As in training, or any length, where distances beyond `clamp` count as one."""
        return self.memory if self.clamp is None else 1_048_576

    @property
    def inner(self) -> int:
        """The width of all heads together."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def table_width(self) -> int:
        """The width of the embeddings of the first cluster."""
        return self.embed or self.width

    def parameters(self, vocab: int) -> int:
        """The number of parameters; input and output share the embeddings."""
        d, inner = self.width, self.inner
        attention = 5 * d * inner  # queries, keys, values, distances, output
        block = attention + 2 * d * self.hidden + self.hidden + d + 4 * d
        biases = 2 * inner * (1 if self.share_biases else self.layers)
        return self.layers * block + biases + self._embedding(vocab)

    def _embedding(self, vocab: int) -> int:
        """The number of parameters of embeddings and softmax."""
        edges = [0, *(cutoff for cutoff in self.cutoffs if cutoff < vocab), vocab]
        tails, wide = len(edges) - 2, self.table_width
        sizes = [end - begin for begin, end in pairwise(edges)]
        tables = [(vocab, wide)] if self.divisor == 1 else [(n, wide // self.divisor**i) for i, n in enumerate(sizes)]
        projected = wide != self.width or self.divisor > 1
        projections = self.width * (sum(width for _, width in tables) + wide) if projected else 0
        return sum(rows * (width + 1) for rows, width in tables) + projections + tails * (wide + 1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, heads=2, layers=2, hidden=20, context=16, memory=12)


WIKITEXT_103 = (20_000, 40_000, 200_000)
LM1B = (60_000, 100_000, 640_000)
LARGE_BYTES = TransformerXLConfig(
    vocab=204, width=1024, heads=8, layers=24, hidden=3072, context=768, memory=768, dropout=0.15,
    attention_dropout=0.15, share_biases=True,
)  # fmt: skip
BASE_BYTES = TransformerXLConfig(
    vocab=204, width=512, heads=8, layers=12, hidden=2048, context=512, memory=512, share_biases=True
)
SIZES = {
    "transformer-xl-wt103": TransformerXLConfig(vocab=267_735, cutoffs=WIKITEXT_103, share_biases=True),
    "transformer-xl-wt103-large": TransformerXLConfig(
        vocab=267_735, width=1024, heads=16, layers=18, hidden=4096, context=384, memory=384, cutoffs=WIKITEXT_103,
        divisor=4, dropout=0.2, attention_dropout=0.2,
    ),
    "transformer-xl-enwik8": BASE_BYTES,
    "transformer-xl-enwik8-large": LARGE_BYTES,
    "transformer-xl-text8": BASE_BYTES.model_copy(update={"vocab": 27}),
    "transformer-xl-text8-large": LARGE_BYTES.model_copy(update={"vocab": 27}),
    "transformer-xl-lm1b": TransformerXLConfig(
        vocab=793_471, width=1024, heads=8, layers=18, hidden=4096, context=256, memory=256, cutoffs=LM1B, divisor=4,
    ),
    "transformer-xl-lm1b-large": TransformerXLConfig(
        vocab=793_471, width=1280, heads=16, layers=24, hidden=8192, context=32, memory=32, cutoffs=LM1B, divisor=4,
        dropout=0.05, attention_dropout=0.05,
    ),
}  # fmt: skip
