"""The settings of Linformer, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from heedful.models.bert.config import MaskedEncoderConfig

SLOTS = 128
Sharing = Literal["none", "headwise", "key_value", "layerwise"]


class LinformerConfig(MaskedEncoderConfig):
    """The encoder of Wang et al. (2020), in BERT's base size, with the heads that BERT is pre-trained with."""

    implementation: ClassVar = "model.Linformer"
    weighs_tokens: ClassVar = False

    kind: Literal["linformer"] = "linformer"
    slots: int = Field(
        default_factory=lambda sizes: min(SLOTS, sizes.get("context", SLOTS)),
        ge=1,
        le=65_536,
        description="keys and values of each head after the projection along the length: k; "
        f"by default {SLOTS}, or the context where that is shorter",
    )
    sharing: Sharing = Field(
        "layerwise",
        description="which projections are shared: none, headwise (by the heads of a layer), key_value (also by keys "
        "and values) or layerwise (also by all layers)",
    )

    @field_validator("slots")
    @classmethod
    def _fewer_than_positions(cls, slots: int, info: ValidationInfo) -> int:
        context = info.data.get("context")
        if context is not None and slots > context:
            raise ValueError(f"a context of {context} has no {slots} slots; write slots: {context} or fewer")
        return slots

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row: a projection belongs to one sequence."""
        return False

    @property
    def first_position(self) -> None:
        """None: the projections along the length have a column for each position, too."""
        return

    @property
    def usual_tokenizer(self) -> str:
        """That of BERT and RoBERTa, with which it was compared; its own weights were not published."""
        return "wordpiece"

    @property
    def projections(self) -> tuple[int, int, int]:
        """How many sets of projections there are, how many in each of them, and for how many heads."""
        return {
            "none": (self.layers, 2, self.heads),
            "headwise": (self.layers, 2, 1),
            "key_value": (self.layers, 1, 1),
            "layerwise": (1, 1, 1),
        }[self.sharing]

    def parameters(self, vocab: int) -> int:
        """The number of parameters: the projections, and what BERT has too."""
        sets, both, heads = self.projections
        return super().parameters(vocab) + sets * both * heads * self.slots * self.context

    @classmethod
    def tiny(cls) -> Self:
        sizes = {"vocab": 23, "width": 16, "heads": 2, "layers": 2, "hidden": 20, "context": 16, "slots": 6}
        return cls.model_validate(sizes | {"sharing": "headwise"})
