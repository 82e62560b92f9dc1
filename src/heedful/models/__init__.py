"""The table of models; torch and the model's own file are imported when one is built."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from heedful.models.configs import ElmoConfig, RnnLMConfig, Seq2SeqConfig, TransformerConfig, TreeLSTMConfig

if TYPE_CHECKING:
    from torch import nn

MODELS = {
    "transformer": ("heedful.models.transformer", "Transformer", TransformerConfig),
    "seq2seq": ("heedful.models.seq2seq", "Seq2Seq", Seq2SeqConfig),
    "rnn_lm": ("heedful.models.rnn_lm", "RnnLM", RnnLMConfig),
    "elmo": ("heedful.models.elmo", "Elmo", ElmoConfig),
    "tree_lstm": ("heedful.models.tree_lstm", "TreeLSTM", TreeLSTMConfig),
}


def build(config: TransformerConfig | Seq2SeqConfig | RnnLMConfig | ElmoConfig | TreeLSTMConfig) -> nn.Module:
    """Make the model that a config describes, its weights freshly drawn."""
    module, name, _ = MODELS[config.kind]
    model: nn.Module = getattr(importlib.import_module(module), name)(config)
    return model
