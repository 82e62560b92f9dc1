"""A Transformer beside a recurrent encoder-decoder of the same size: what they share, and where they differ."""

from __future__ import annotations

from typing import NamedTuple

from heedful.models.configs import TransformerConfig


class Stage(NamedTuple):
    """One part of an encoder-decoder, in both models."""

    part: str
    recurrent: str
    transformer: str

    @property
    def differs(self) -> bool:
        return self.recurrent != self.transformer


def outline(config: TransformerConfig) -> list[Stage]:
    """The parts from input to output, for one config; three of them differ."""
    c = config
    embedding = f"one vector of {c.width} for each token"
    layers = f"{c.encoder_layers} + {c.decoder_layers}"
    return [
        Stage("embedding", embedding, embedding),
        Stage("order of tokens", "the order of the steps", f"positions: {c.positions}"),
        Stage(
            "layers",
            f"{layers} recurrent layers of {c.width}, step after step",
            f"{layers} blocks of self-attention ({c.heads} heads) and a dense layer ({c.hidden}), all places at once",
        ),
        Stage("memory", "outputs of the last encoder layer", "outputs of the last encoder layer"),
        Stage(
            "reading it", "once a step, before the first decoder layer", f"in each of {c.decoder_layers} decoder blocks"
        ),
        Stage("output", "logits over the vocabulary", "logits over the vocabulary"),
    ]
