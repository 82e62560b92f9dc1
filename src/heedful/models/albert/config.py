"""The settings of ALBERT, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from heedful.models.bert.config import MaskedEncoderConfig
from heedful.models.roles import PairObjective
from heedful.models.sizes import Activation


class AlbertConfig(MaskedEncoderConfig):
    """The encoder of Lan et al. (2020), in its published base size (version 2), with the heads of its pre-training."""

    implementation: ClassVar = "model.Albert"

    kind: Literal["albert"] = "albert"
    embedding: int = Field(
        128, ge=1, le=65_536, description="width of the embeddings, before a matrix projects them to that of the model"
    )
    shared_groups: int = Field(
        1, ge=1, le=1000, description="number of blocks with separate weights; consecutive layers share them"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of attention weights")
    activation: Activation = Field("gelu_tanh", description="between the two feed-forward matrices")
    next_sentence: Literal[False] = Field(False, description="always false: see sentence_order")
    sentence_order: bool = Field(
        True, description="whether there is a head that predicts whether two texts are in order, or swapped"
    )

    @field_validator("shared_groups")
    @classmethod
    def _check_groups(cls, groups: int, info: ValidationInfo) -> int:
        if groups > info.data.get("layers", groups):
            raise ValueError(f"{groups} groups need as many layers; write at most {info.data['layers']}")
        return groups

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.embedding

    @property
    def groups(self) -> int:
        """The number of blocks with separate weights."""
        return self.shared_groups

    @property
    def pairs(self) -> PairObjective | None:
        """What its head for pairs of texts predicts, if it has one."""
        return "sentence_order" if self.sentence_order else None

    @property
    def usual_tokenizer(self) -> str:
        """The tokenizer it was published with."""
        return "albert_unigram"

    def parameters(self, vocab: int) -> int:
        """The number of parameters: those of a BERT, and the matrix that projects the embeddings."""
        return super().parameters(vocab) + (self.embedding + 1) * self.width

    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The encoder below the head of a task: without heads of its own, and with a pooler only if that is read."""
        return super().under_head(pools, head).model_copy(update={"sentence_order": False})

    @classmethod
    def tiny(cls) -> Self:
        return super().tiny().model_copy(update={"embedding": 12, "dropout": 0.1, "attention_dropout": 0.1})


def _albert(layers: int, width: int, heads: int) -> AlbertConfig:
    """One of the published sizes: a feed-forward layer four times as wide."""
    return AlbertConfig(vocab=30_000, width=width, heads=heads, layers=layers, hidden=4 * width)


SIZES = {  # version 2; the heads are 64 wide, those of xlarge 128
    "albert-base": _albert(12, 768, 12),
    "albert-large": _albert(24, 1024, 16),
    "albert-xlarge": _albert(24, 2048, 16),
    "albert-xxlarge": _albert(12, 4096, 64),
}
