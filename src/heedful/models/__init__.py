"""The table of models; torch and the model's own file are imported when one is built."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from heedful.models.configs import (
    AnswererConfig,
    BertConfig,
    ClassifierConfig,
    ElmoConfig,
    MultipleChoiceConfig,
    RegressorConfig,
    RnnLMConfig,
    Seq2SeqConfig,
    TaggerConfig,
    TransformerConfig,
    TreeLSTMConfig,
)
from heedful.models.configs.autoencoder import AutoencoderConfig
from heedful.models.configs.conv_classifier import ConvClassifierConfig
from heedful.models.configs.gpt import GptConfig

if TYPE_CHECKING:
    from torch import nn

MODELS = {
    "transformer": ("heedful.models.transformer", "Transformer", TransformerConfig),
    "seq2seq": ("heedful.models.seq2seq", "Seq2Seq", Seq2SeqConfig),
    "gpt": ("heedful.models.gpt", "Gpt", GptConfig),
    "rnn_lm": ("heedful.models.rnn_lm", "RnnLM", RnnLMConfig),
    "elmo": ("heedful.models.elmo", "Elmo", ElmoConfig),
    "bert": ("heedful.models.bert", "Bert", BertConfig),
    "classifier": ("heedful.models.classifier", "Classifier", ClassifierConfig),
    "conv_classifier": ("heedful.models.conv_classifier", "ConvClassifier", ConvClassifierConfig),
    "regressor": ("heedful.models.classifier", "Regressor", RegressorConfig),
    "multiple_choice": ("heedful.models.classifier", "Regressor", MultipleChoiceConfig),
    "tagger": ("heedful.models.tagger", "Tagger", TaggerConfig),
    "answerer": ("heedful.models.answerer", "Answerer", AnswererConfig),
    "autoencoder": ("heedful.models.autoencoder", "Autoencoder", AutoencoderConfig),
    "tree_lstm": ("heedful.models.tree_lstm", "TreeLSTM", TreeLSTMConfig),
}


def build(config: Any) -> nn.Module:
    """Make the model that a config describes, its weights freshly drawn."""
    module, name, _ = MODELS[config.kind]
    model: nn.Module = getattr(importlib.import_module(module), name)(config)
    return model
