"""The table of models; torch and the model's own file are imported when one is built."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from heedful.models.autoencoder.config import AutoencoderConfig
from heedful.models.bert.config import BertConfig
from heedful.models.conv_classifier.config import ConvClassifierConfig
from heedful.models.elmo.config import ElmoConfig
from heedful.models.gpt.config import GptConfig
from heedful.models.heads.config import (
    AnswererConfig,
    ClassifierConfig,
    MultipleChoiceConfig,
    RegressorConfig,
    TaggerConfig,
)
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.seq2seq.config import Seq2SeqConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.models.tree_lstm.config import TreeLSTMConfig

if TYPE_CHECKING:
    from torch import nn

MODELS = {
    "transformer": ("heedful.models.transformer.model", "Transformer", TransformerConfig),
    "seq2seq": ("heedful.models.seq2seq.model", "Seq2Seq", Seq2SeqConfig),
    "gpt": ("heedful.models.gpt.model", "Gpt", GptConfig),
    "rnn_lm": ("heedful.models.rnn_lm.model", "RnnLM", RnnLMConfig),
    "elmo": ("heedful.models.elmo.model", "Elmo", ElmoConfig),
    "bert": ("heedful.models.bert.model", "Bert", BertConfig),
    "classifier": ("heedful.models.heads.classifier", "Classifier", ClassifierConfig),
    "conv_classifier": ("heedful.models.conv_classifier.model", "ConvClassifier", ConvClassifierConfig),
    "regressor": ("heedful.models.heads.classifier", "Regressor", RegressorConfig),
    "multiple_choice": ("heedful.models.heads.classifier", "Regressor", MultipleChoiceConfig),
    "tagger": ("heedful.models.heads.tagger", "Tagger", TaggerConfig),
    "answerer": ("heedful.models.heads.answerer", "Answerer", AnswererConfig),
    "autoencoder": ("heedful.models.autoencoder.model", "Autoencoder", AutoencoderConfig),
    "tree_lstm": ("heedful.models.tree_lstm.model", "TreeLSTM", TreeLSTMConfig),
}


def build(config: Any) -> nn.Module:
    """Make the model that a config describes, its weights freshly drawn."""
    module, name, _ = MODELS[config.kind]
    model: nn.Module = getattr(importlib.import_module(module), name)(config)
    return model
