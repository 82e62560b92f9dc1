"""The settings of GPT and GPT-2, and their published sizes; imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import BelowHeadConfig
from heedful.models.sizes import (
    Activation,
    AnyHeadScore,
    Normalizer,
    Output,
    block_parameters,
    check_positions,
    output_parameters,
    share_width,
)

Positions = Literal["learned", "none", "sinusoid", "sinusoid_halves", "rotary", "alibi"]


class GptConfig(BelowHeadConfig):
    """The causal Transformer of Radford et al. (2018, 2019); the defaults are the smallest GPT-2."""

    implementation: ClassVar = "model.Gpt"
    fixed_context: ClassVar = True
    attends: ClassVar = True
    pooled_bias: ClassVar = False

    kind: Literal["gpt"] = "gpt"
    vocab: int | None = Field(None, ge=2, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(768, ge=1, le=65_536, description="width of the model")
    heads: int = Field(
        12, ge=1, le=1024, description="attention heads in each block; each has an equal part of the width"
    )
    score: AnyHeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(12, ge=1, le=1000, description="number of Transformer blocks")
    hidden: int | None = Field(
        None, ge=1, le=1_048_576, description="inner width of the feed-forward layers; null: four times the width"
    )
    context: int = Field(1024, ge=1, le=1_048_576, description="maximum length of a text, in tokens")
    window: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="how many of the last tokens a token attends to, itself included; null: all earlier ones",
    )
    sink: int = Field(
        0,
        ge=0,
        le=65_536,
        description="with a window, the first tokens of a text that all attend to: an attention sink",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of attention weights")
    norm: Literal["pre", "post"] = Field("pre", description="layer norm before each sublayer (GPT-2) or after it (GPT)")
    positions: Positions = Field("learned", description="how positions are encoded")
    activation: Activation = Field("gelu_tanh", description="activation of the feed-forward layers")
    norm_eps: float = Field(1e-5, gt=0, le=0.1, description="added to the variance in each layer norm")
    output: Output = "tied"

    _check_heads = field_validator("heads")(share_width)

    @field_validator("positions")
    @classmethod
    def _check_positions(cls, positions: str, info: ValidationInfo) -> str:
        return check_positions(positions, info)

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.window is not None and self.sink + self.window > self.context:
            message = f"a window of {self.window} tokens and a sink of {self.sink} do not fit into {self.context}"
            raise FieldError(f"{message} (model.context); write a smaller window, or null", "window")
        if self.window is None and self.sink:
            raise FieldError("without a window, every token attends to the first ones anyway; write sink: 0", "sink")
        return self

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def inner(self) -> int:
        """The inner width of the feed-forward layers."""
        return self.hidden or 4 * self.width

    def parameters(self, vocab: int) -> int:
        """The number of parameters; the token embedding is counted once if input and output share it."""
        blocks = self.layers * block_parameters(self.width, self.inner, self.heads, self.score)
        final_norm = 2 * self.width if self.norm == "pre" else 0
        positions = self.context if self.positions == "learned" else 0
        tokens = vocab * self.width + output_parameters(self.output, vocab, self.width)
        return tokens + positions * self.width + blocks + final_norm

    @property
    def usual_tokenizer(self) -> str:
        """The tokenizer it was published with: byte-level BPE (GPT-2), or BPE with end-of-word marks (GPT)."""
        return "byte_pairs" if self.norm == "pre" else "word_ends"

    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The model below the head of a task: without an output layer of its own."""
        return self.model_copy(update={"output": "tied"})

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, heads=2, layers=2, hidden=20, context=32, attention_dropout=0.0)


SIZES = {
    "gpt": GptConfig(vocab=40_478, context=512, norm="post"),
    "gpt2": GptConfig(vocab=50_257),
    "gpt2-medium": GptConfig(vocab=50_257, width=1024, heads=16, layers=24),
    "gpt2-large": GptConfig(vocab=50_257, width=1280, heads=20, layers=36),
    "gpt2-xl": GptConfig(vocab=50_257, width=1600, heads=25, layers=48),
    "gpt3": GptConfig(vocab=50_257, width=12_288, heads=96, layers=96, context=2048),
}
