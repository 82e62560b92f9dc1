"""What the models that CTranslate2 runs have in common: layers by the names of its specifications.

A model's `ctranslate2.py` has `reason`, why a model with these settings cannot be written, and `specification`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

ACTIVATIONS = {
    "relu": "RELU", "gelu_tanh": "GELUTanh", "swish": "SWISH", "gelu": "GELU", "quick_gelu": "GELUSigmoid",
    "tanh": "Tanh",
}  # fmt: skip
POSITIONS = ("learned", "sinusoid", "sinusoid_halves", "none", "rotary")


class Writable(Protocol):
    """The module `ctranslate2.py` of a model."""

    def reason(self, config: Any) -> str | None:
        """Why a model with these settings cannot be written; None: it can be."""

    def specification(self, model: Any, vocab: int) -> Any:
        """CTranslate2's specification of a model with its weights, for the first `vocab` tokens."""


def shared_reason(config: Any) -> str | None:
    """A setting that CTranslate2 has no layer for, in words."""
    if config.activation not in ACTIVATIONS:
        return f"CTranslate2 has no activation {config.activation}"
    if config.normalize != "softmax":
        return f"CTranslate2 normalizes scores by softmax alone, not by {config.normalize}"
    if config.score not in ("scaled_dot", "dot", "depth_scaled_dot"):
        return f"CTranslate2 has no attention score {config.score}"
    if config.positions not in POSITIONS:
        return f"CTranslate2 is not written with positions {config.positions}"
    return None


def options(config: Any) -> dict[str, Any]:
    """What the specifications of an encoder and a decoder are made with."""
    from ctranslate2.specs.common_spec import Activation

    rotary = {"rotary_dim": 0, "rotary_interleave": False} if config.positions == "rotary" else {}
    return {"pre_norm": config.norm == "pre", "activation": Activation[ACTIVATIONS[config.activation]], **rotary}


def fill_embedding(spec: Any, model: Any, tokens: Any, vocab: int) -> Tensor:
    """Set the vectors of tokens and positions of an encoder or a decoder, and return the matrix of the logits."""
    config = model.config
    inner = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    inner.weight = weight(tokens.table[:vocab])
    spec.scale_embeddings = tokens.scale != 1
    if config.positions == "none":
        spec.position_encodings.encodings = torch.zeros(config.context, config.width)
    elif config.positions != "rotary":
        spec.position_encodings.encodings = weight(model.positions.table)
    # One tensor where the two are one, so that the file has it once.
    return inner.weight if tokens.table is tokens.weight else weight(tokens.weight[:vocab])


def fill_projection(spec: Any, tokens: Any, matrix: Tensor, vocab: int) -> None:
    """Set the layer of the logits."""
    spec.weight = matrix
    if tokens.bias is not None:
        spec.bias = weight(tokens.bias[:vocab])


def fill_attention(spec: Any, norm: nn.LayerNorm, *matrices: tuple[nn.Linear, ...], scale: float | None) -> None:
    """Set an attention layer: its norm, its matrices, each of one or several of ours, and the scale of the scores."""
    fill_norm(spec.layer_norm, norm)
    for inner, layers in zip(spec.linear, matrices, strict=True):
        fill_linear(inner, *layers)
    if scale is not None:
        spec.queries_scale = scale


def fill_feedforward(spec: Any, norm: nn.LayerNorm, mlp: Any) -> None:
    """Set a feed-forward layer with its norm."""
    fill_norm(spec.layer_norm, norm)
    fill_linear(spec.linear_0, mlp.up)
    fill_linear(spec.linear_1, mlp.down)


def scale(config: Any, number: int = 1) -> float | None:
    """What the scores of a block are multiplied by, counted from 1; None: by the usual 1 / sqrt(K)."""
    if config.score == "dot":
        return 1.0
    return (config.width // config.heads) ** -0.5 / number if config.score == "depth_scaled_dot" else None


def fill_linear(spec: Any, *layers: nn.Linear) -> None:
    """Set a matrix and its bias: those of several layers below each other."""
    spec.weight = torch.cat([weight(layer.weight) for layer in layers])
    spec.bias = torch.cat([weight(layer.bias) for layer in layers])


def fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    """Set a layer norm; its epsilon is a setting of the whole model."""
    spec.gamma, spec.beta = weight(norm.weight), weight(norm.bias)


def weight(tensor: Tensor) -> Tensor:
    """A weight as it is written: in float32, without a gradient; a copy, which CTranslate2 rounds in place for int8."""
    return tensor.detach().float().clone(memory_format=torch.contiguous_format)
