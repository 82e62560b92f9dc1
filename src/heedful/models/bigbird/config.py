"""The settings of BigBird, readable without torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.models.bert.config import MaskedEncoderConfig
from heedful.models.roles import EncoderConfig
from heedful.models.sizes import Activation


class BigBirdConfig(MaskedEncoderConfig):
    """The encoder of Zaheer et al. (2020), in its published base size, with the heads it is pre-trained with."""

    implementation: ClassVar = "model.BigBird"
    settled: ClassVar = ("seed",)

    kind: Literal["bigbird"] = "bigbird"
    context: int = Field(4096, ge=4, le=1_048_576, description="longest sequence, in tokens, including special ones")
    activation: Activation = Field("gelu_tanh", description="between the two feed-forward matrices")
    attention: Literal["block_sparse", "original_full"] = Field(
        "block_sparse", description="block_sparse: to some blocks, as below; original_full: to every token"
    )
    block: int = Field(64, ge=1, le=65_536, description="tokens of a block")
    window_blocks: int = Field(
        3, ge=1, le=10_001, description="blocks in the window of a block: itself and its neighbours, an odd number"
    )
    random_blocks: int = Field(3, ge=0, le=10_000, description="random blocks that a block attends to, in each head")
    random_from: Literal["seed", "first"] = Field(
        "seed",
        description="seed: random blocks are chosen by `seed`; first: each is the first block once more, as in the "
        "evaluation of Hugging Face's folders",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="chooses the random blocks, in training and in use")
    global_tokens: int = Field(
        0,
        ge=0,
        le=65_536,
        description="0 (ITC): the first and the last block are global; more (ETC): this many extra global tokens stand "
        "before the text, a multiple of the block",
    )
    pool: Activation = Field("tanh", description="activation of the pooler")
    last_mlp: bool = Field(
        False, description="whether another feed-forward layer follows the last block, as under a published answer head"
    )

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        if self.window_blocks % 2 == 0:
            found, near = self.window_blocks, self.window_blocks + 1
            raise FieldError(f"a window of {found} blocks has no middle; write window_blocks: {near}", "window_blocks")
        if self.attention == "block_sparse" and self.block > self.context:
            message = f"a block of {self.block} tokens does not fit into a context of {self.context}"
            raise FieldError(f"{message}; write block: {self.context} or less", "block")
        if self.global_tokens % self.block:
            fit = self.global_tokens + -self.global_tokens % self.block
            message = f"{self.global_tokens} global tokens are not whole blocks of {self.block}"
            raise FieldError(f"{message}; write global_tokens: {fit}", "global_tokens")
        if self.global_tokens and self.random_from == "first":
            raise FieldError(
                "extra global tokens are not in Hugging Face's folders; write random_from: seed", "random_from"
            )
        return self

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row: blocks begin with the text."""
        return False

    @classmethod
    def adopt(cls, other: EncoderConfig, published: bool) -> dict[str, Any] | None:
        """The settings of a BERT or RoBERTa: texts up to `dense_length` give the same vectors."""
        if not isinstance(other, MaskedEncoderConfig) or other.head_activation != other.activation:
            return None
        settings = {name: value for name, value in other if name in MaskedEncoderConfig.model_fields and name != "kind"}
        settings |= {"segments": max(1, other.segment_types), "pool": other.pooler_activation}
        settings["block"] = min(cls.model_fields["block"].default, other.context)
        return settings | ({"random_from": "first"} if published else {})

    @property
    def dense_length(self) -> int:
        """The longest text whose tokens all attend to each other, as published: (2 + window + 2 random) blocks."""
        return (2 + self.window_blocks + 2 * self.random_blocks) * self.block

    @property
    def unexported(self) -> str | None:
        """Why it cannot be written as ONNX: random blocks are sorted, which ONNX does not do."""
        random = self.attention == "block_sparse" and self.random_blocks and self.random_from == "seed"
        return "random blocks by a seed are not in ONNX; those of Hugging Face's folders are" if random else None

    @property
    def pooler_activation(self) -> str:
        """The activation of the pooler."""
        return self.pool

    @property
    def usual_tokenizer(self) -> str:
        """What it was published with: SentencePiece."""
        return "bigbird_unigram"

    def parameters(self, vocab: int) -> int:
        """The number of parameters: extra tokens, a last feed-forward layer, and what BERT has too."""
        last = (2 * self.width + 1) * self.hidden + 3 * self.width
        return super().parameters(vocab) + self.global_tokens * self.width + last * self.last_mlp

    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The encoder below the head of a task; the pooler of classes and the last layer for answers as published."""
        pool = self.activation if head in ("classifier", "regressor", "multi_label") else "tanh"
        return super().under_head(pools, head).model_copy(update={"pool": pool, "last_mlp": head == "answerer"})

    @classmethod
    def tiny(cls) -> Self:
        sizes = {"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 16}
        return cls.model_validate(sizes | {"block": 1, "random_blocks": 1, "random_from": "first"})


SIZES = {
    "bigbird-base": BigBirdConfig(vocab=50_358),
    "bigbird-large": BigBirdConfig(vocab=50_358, width=1024, heads=16, layers=24, hidden=4096),
}
