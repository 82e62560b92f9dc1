"""The Transformer as a specification of CTranslate2."""

from __future__ import annotations

from typing import Any

from torch import nn

from heedful.models.ctranslate2 import (
    fill_attention,
    fill_embedding,
    fill_feedforward,
    fill_norm,
    fill_projection,
    options,
    scale,
    shared_reason,
)
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer


def reason(config: TransformerConfig) -> str | None:
    """Why a model with these settings cannot be written; None: it can be."""
    return shared_reason(config)


def specification(model: Transformer, vocab: int) -> Any:
    """CTranslate2's specification of a model with its weights, for the first `vocab` tokens."""
    from ctranslate2.specs import transformer_spec as parts

    c = model.config
    encoder = parts.TransformerEncoderSpec(c.encoder_layers, c.heads, **options(c))
    decoder = parts.TransformerDecoderSpec(c.decoder_layers, c.heads, **options(c))
    fill_embedding(encoder, model, model.source_embedding, c.source_vocab or vocab)
    matrix = fill_embedding(decoder, model, model.tokens, vocab)
    fill_projection(decoder.projection, model.tokens, matrix, vocab)
    for spec, norm in zip((encoder, decoder), model.norms, strict=True):
        if isinstance(norm, nn.LayerNorm):
            fill_norm(spec.layer_norm, norm)
    block: Any  # a ModuleList does not know the type of its blocks
    for spec, block in zip(encoder.layer, model.encoder, strict=True):
        fill_self_attention(spec, block, c)
        fill_feedforward(spec.ffn, block.add2.norm, block.mlp)
    for spec, block in zip(decoder.layer, model.decoder, strict=True):
        cross = block.cross
        fill_self_attention(spec, block, c)
        fill_attention(spec.attention, block.add2.norm, (cross.q,), (cross.kv,), (cross.out,), scale=scale(c))
        fill_feedforward(spec.ffn, block.add3.norm, block.mlp)
    found = parts.TransformerSpec(encoder, decoder)
    found.config.layer_norm_epsilon = block.add1.norm.eps
    return found


def fill_self_attention(spec: Any, block: Any, config: TransformerConfig) -> None:
    """Set the self-attention of a block of either side."""
    heads = block.attention
    fill_attention(spec.self_attention, block.add1.norm, (heads.q, heads.kv), (heads.out,), scale=scale(config))
