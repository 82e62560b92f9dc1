"""The settings of RoBERTa, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from heedful.models.bert.config import MaskedEncoderConfig

FIRST = 2  # the first token's row in the position table: row 1 is for padding, row 0 is unused


class RobertaEncoderConfig(MaskedEncoderConfig):
    """What RoBERTa and models of its kind share: no segments, and no next-sentence prediction."""

    segments: int = Field(
        1, ge=1, le=1000, description="rows of the segment table: every token has the first, also in a pair of texts"
    )
    norm_eps: float = Field(1e-5, gt=0, le=0.1, description="added to the variance in each layer norm")
    pooler: bool = Field(False, description="whether there is a dense layer on the first token's vector")
    next_sentence: Literal[False] = Field(False, description="always false: there is no next-sentence prediction")

    @property
    def segment_types(self) -> int:
        """The number of segment types that it tells apart: one, however many rows a published table has."""
        return 1

    @property
    def first_position(self) -> int:
        """The row of the first token in the table of positions."""
        return FIRST

    @property
    def head_activation(self) -> str:
        """The activation in the head that predicts masked tokens, whatever that of the blocks."""
        return "gelu"


class RobertaConfig(RobertaEncoderConfig):
    """The encoder of Liu et al. (2019), in its published base size, with the head it is pre-trained with."""

    implementation: ClassVar = "model.Roberta"

    kind: Literal["roberta"] = "roberta"

    @property
    def usual_tokenizer(self) -> str:
        """What it was published with."""
        return "roberta_pairs"


SIZES = {
    "roberta-base": RobertaConfig(vocab=50_265),
    "roberta-large": RobertaConfig(vocab=50_265, width=1024, heads=16, layers=24, hidden=4096),
}
