"""The settings of XLM-R, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from heedful.models.roberta.config import RobertaEncoderConfig


class XlmRobertaConfig(RobertaEncoderConfig):
    """The encoder of Conneau et al. (2020), in its published base size, with the head it is pre-trained with."""

    implementation: ClassVar = "model.XlmRoberta"

    kind: Literal["xlm_roberta"] = "xlm_roberta"

    @property
    def usual_tokenizer(self) -> str:
        """The tokenizer it was published with."""
        return "xlm_unigram"


SIZES = {
    "xlm-roberta-base": XlmRobertaConfig(vocab=250_002),
    "xlm-roberta-large": XlmRobertaConfig(vocab=250_002, width=1024, heads=16, layers=24, hidden=4096),
}
