"""A Transformer beside a recurrent encoder-decoder of the same size: what they share, and where they differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from heedful.models.seq2seq.config import RecurrentEncoder, Seq2SeqConfig
from heedful.models.seq2seq.model import InputFeeding, NoAttention, OutputJoining, Seq2Seq
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer


class Stage(NamedTuple):
    """One part of an encoder-decoder, in both models."""

    part: str
    recurrent: str
    transformer: str

    @property
    def differs(self) -> bool:
        return self.recurrent != self.transformer


READS = {  # how a recurrent decoder uses the memory
    InputFeeding: "once a step, before the first decoder layer",
    OutputJoining: "once a step, after the last decoder layer",
    NoAttention: "not at all: the decoder starts from a summary",
}


def recurrent_of(config: TransformerConfig) -> Seq2SeqConfig:
    """The recurrent model with attention that has the same vocabulary, width and numbers of layers."""
    c = config
    return Seq2SeqConfig(
        vocab=c.vocab,
        width=c.width,
        encoder=RecurrentEncoder(layers=c.encoder_layers, hidden=c.width),
        layers=c.decoder_layers,
        hidden=c.width,
        context=c.context,
    )


def outline(config: TransformerConfig) -> list[Stage]:
    """The parts of both models of one size from input to output, read off their modules."""
    with torch.device("meta"):
        left, right = recurrent_parts(Seq2Seq(recurrent_of(config))), transformer_parts(Transformer(config))
    return [Stage(part, left[part], right[part]) for part in right]


def recurrent_parts(model: Seq2Seq) -> dict[str, str]:
    """What a recurrent model has in each part."""
    stacks: list[Any] = [model.encoder.stack, model.decoder.stack]
    encoder, decoder = stacks
    layers = f"{len(encoder.layers)} + {len(decoder.layers)}"
    return {
        "embedding": _embedding(model),
        "order of tokens": "the order of the steps",
        "layers": f"{layers} recurrent layers of {decoder.layers[0].cell.h.weight.shape[1]}, step after step",
        "memory": _memory(model.begin.weight.shape[1]),
        "reading it": READS[type(model.decoder)],
        "output": _output(model),
    }


def transformer_parts(model: Transformer) -> dict[str, str]:
    """What a Transformer has in each part."""
    encoder, decoder = model.encoder, model.decoder
    block: Any = encoder[0]
    return {
        "embedding": _embedding(model),
        "order of tokens": f"positions: {model.config.positions}",
        "layers": f"{len(encoder)} + {len(decoder)} blocks of self-attention ({block.attention.heads} heads) "
        f"and a dense layer ({block.mlp.up.weight.shape[0]}), all positions at once",
        "memory": _memory(block.mlp.down.weight.shape[0]),
        "reading it": f"in each of {len(decoder)} decoder blocks",
        "output": _output(model),
    }


def _embedding(model: Transformer | Seq2Seq) -> str:
    return f"one vector of {model.tokens.weight.shape[1]} for each token"


def _memory(width: int) -> str:
    return f"outputs of the last encoder layer, {width} values each"


def _output(model: Transformer | Seq2Seq) -> str:
    return f"logits over the vocabulary of {model.tokens.weight.shape[0]}"
