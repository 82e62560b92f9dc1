"""How a module of the user's own is called, where its signature does not say so; readable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config

Name = str | None


class CallConfig(Config):
    """How a module is called. What is null is found out from the names of its arguments and from a first call."""

    rows: Name = Field(None, description="argument that takes tokens or numbers; null: by its name, or the first one")
    mask: Name = Field(None, description="argument that takes the mask (B, T); null: by its name")
    mask_means: Literal["real", "padding"] | None = Field(
        None, description="what True (or 1) in the mask means; null: padding if the argument's name says so, else real"
    )
    lengths: Name = Field(None, description="argument that takes the lengths (B,); null: by its name")
    positions: Name = Field(None, description="argument that takes position ids (B, T); null: by its name")
    cache: Name = Field(None, description="argument that takes what the last call returned; null: by its name")
    output: str | int | None = Field(
        None, description="name or index of the output; null: logits, last_hidden_state or the first"
    )
    vocab: int | None = Field(None, ge=2, le=10_000_000, description="tokens are below it; null: rows of its embedding")
    pad: int | None = Field(None, ge=0, description="token of padding; null: that of the embedding, or 0")
    length: int = Field(12, ge=3, le=4096, description="positions of the longest row")
    shape: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=1, max_length=4,
        description="a row of numbers, such as [3, 32, 32], or with `vocab` of tokens; null: by the first layer",
    )  # fmt: skip
    sequence: bool | None = Field(
        None, description="whether the first size of `shape` counts positions, which may vary; null: if there are two"
    )
    batch_first: bool | None = Field(
        None, description="whether rows come before positions; null: as torch's layers say"
    )
    causal: bool | None = Field(
        None, description="whether no position may see later ones; null: by its name, or measured"
    )
    chunks: bool | None = Field(
        None, description="whether several tokens at once may follow a cache; null: yes in models of transformers"
    )
    padding: Literal["right", "left", "both"] | None = Field(
        None,
        description="sides on which rows are padded; null: both, but right for lengths and encoders of transformers",
    )
