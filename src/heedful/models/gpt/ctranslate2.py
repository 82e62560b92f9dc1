"""GPT and GPT-2 as a specification of CTranslate2."""

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
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt


def reason(config: GptConfig) -> str | None:
    """Why a model with these settings cannot be written; None: it can be."""
    if config.window is not None:
        return f"CTranslate2 attends to all earlier tokens, not to a window of {config.window:,}"
    return shared_reason(config)


def specification(model: Gpt, vocab: int) -> Any:
    """CTranslate2's specification of a model with its weights, for the first `vocab` tokens."""
    from ctranslate2.specs import transformer_spec as parts

    c = model.config
    decoder = parts.TransformerDecoderSpec(c.layers, c.heads, with_encoder_attention=False, **options(c))
    matrix = fill_embedding(decoder, model, model.tokens, vocab)
    fill_projection(decoder.projection, model.tokens, matrix, vocab)
    if isinstance(model.norm, nn.LayerNorm):
        fill_norm(decoder.layer_norm, model.norm)
    block: Any  # a ModuleList does not know the type of its blocks
    for number, (spec, block) in enumerate(zip(decoder.layer, model.blocks, strict=True), 1):
        heads = block.attention
        fill_attention(spec.self_attention, block.add1.norm, (heads.qkv,), (heads.out,), scale=scale(c, number))
        fill_feedforward(spec.ffn, block.add2.norm, block.mlp)
    found = parts.TransformerDecoderModelSpec(decoder)
    found.config.layer_norm_epsilon = c.norm_eps
    return found
