"""The settings of the Tree-LSTM, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig


class TreeLSTMConfig(ModelConfig):
    """The Tree-LSTM that gives each node of a tree a class (Tai 2015), in its published constituency form."""

    implementation: ClassVar = "model.TreeLSTM"

    kind: Literal["tree_lstm"] = "tree_lstm"
    form: Literal["nary", "child_sum"] = Field(
        "nary",
        description="ordered children, with separate weights for each position; or any number of unordered children",
    )
    arity: int = Field(2, ge=1, le=64, description="maximum number of children of a node in the nary form")
    vocab: int | None = Field(None, ge=2, le=10_000_000, description="vocabulary size; null: that of the word list")
    width: int = Field(300, ge=1, le=65_536, description="width of the word vectors")
    hidden: int = Field(150, ge=1, le=65_536, description="width of the states")
    classes: int = Field(5, ge=2, le=10_000, description="number of classes")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout of the states before the classifier")
    input_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the word vectors")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def unexported(self) -> str | None:
        """Why it cannot be written as ONNX."""
        return "each tree has a form of its own, which is no fixed graph"

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        below = self.arity * (3 + self.arity) if self.form == "nary" else 4
        cell = 4 * self.hidden * (self.width + 1) + below * self.hidden * self.hidden
        return vocab * self.width + cell + self.classes * (self.hidden + 1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=6, hidden=7)
