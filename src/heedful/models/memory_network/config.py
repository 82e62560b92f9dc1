"""The settings of memory networks and of the bag of words that they are compared with, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import StoryModelConfig

NO_WORDS = 0  # tokens of a vocabulary that is not known yet


class MemoryNetworkConfig(StoryModelConfig):
    """The end-to-end memory network (Sukhbaatar et al., 2015): each hop attends to the sentences of a story."""

    implementation: ClassVar = "model.MemoryNetwork"

    kind: Literal["memory_network"] = "memory_network"
    width: int = Field(32, ge=2, le=65_536, description="width of the vectors of words, sentences and questions")
    hops: int = Field(3, ge=1, le=100, description="how often the memory is read")
    tying: Literal["adjacent", "layer_wise"] = Field(
        "adjacent",
        description="adjacent: what a hop reads is what the next one attends to; layer_wise: all hops share their "
        "weights, as a recurrent layer does",
    )
    sentences: Literal["positions", "bag"] = Field(
        "positions", description="a sentence as the sum of its words, weighted by their positions or not"
    )
    noise: float = Field(
        0.1, ge=0, lt=1, description="in training, empty memories that are inserted at random, for each sentence"
    )

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or NO_WORDS))
        return self

    @property
    def tables(self) -> int:
        """The number of tables of word vectors, each with one for the times."""
        return self.hops + 1 if self.tying == "adjacent" else 2

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for two answers where they are not known yet."""
        question, step = (0, 0) if self.tying == "adjacent" else (vocab * self.width, self.width * self.width)
        return self.tables * (vocab + self.memory) * self.width + question + step + self.answers * self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, labels=("a", "b", "c"), memory=7, width=6, hops=2)


class BagOfWordsConfig(StoryModelConfig):
    """A baseline without attention: the sum of all words of the story, and of the question."""

    implementation: ClassVar = "bag.BagOfWords"

    kind: Literal["bag_of_words"] = "bag_of_words"
    width: int = Field(32, ge=1, le=65_536, description="width of the word vectors")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or NO_WORDS))
        return self

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for two answers where they are not known yet."""
        return 2 * vocab * self.width + self.answers * self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, labels=("a", "b", "c"), memory=7, width=6)
