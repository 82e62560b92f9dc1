"""Settings of word2vec. Nothing here needs torch."""

from __future__ import annotations

from pydantic import Field

from heedful.config import Config


class SkipGramConfig(Config):
    """Skip-gram with negative sampling (Mikolov et al., 2013)."""

    width: int = Field(100, ge=1, le=10_000, description="dimensions of a vector")
    window: int = Field(5, ge=1, le=100, description="context words on either side; each position uses 1 to this many")
    negatives: int = Field(5, ge=1, le=1000, description="negative samples for each pair of neighbours")
    min_count: int = Field(5, ge=1, description="rarer words are left out")
    sample: float = Field(1e-3, gt=0, description="words more frequent than this share of the text are subsampled")
    epochs: int = Field(5, ge=1, le=10_000, description="passes over the text")
    lr: float = Field(0.05, gt=0, le=10, description="initial learning rate; it decays to zero")
    lowercase: bool = Field(True, description="convert the text to lower case")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed")
