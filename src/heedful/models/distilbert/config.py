"""The settings of DistilBERT, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from heedful.models.bert.config import MaskedEncoderConfig


class DistilBertConfig(MaskedEncoderConfig):
    """The encoder of Sanh et al. (2019), in its published size, with the head for masked tokens."""

    implementation: ClassVar = "model.DistilBert"

    kind: Literal["distilbert"] = "distilbert"
    layers: int = Field(6, ge=1, le=1000, description="number of blocks")
    segments: Literal[0] = Field(0, description="always 0: there are no segment embeddings")
    pooler: bool = Field(
        False,
        description="whether there is a dense layer on the first token's vector; only below a classification head",
    )
    next_sentence: Literal[False] = Field(False, description="always false: there is no next-sentence prediction")

    @property
    def pooler_activation(self) -> str:
        """The activation of the pooler, which is part of the classification head."""
        return "relu"

    @property
    def usual_tokenizer(self) -> str:
        """The tokenizer it was published with."""
        return "wordpiece"


SIZES = {"distilbert-base": DistilBertConfig(vocab=30_522)}
