"""The table of models. A model is a folder: its settings, which need no torch, its module, and its exchange table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union

from pydantic import Tag

from heedful.config import by_kind

if TYPE_CHECKING:
    from torch import nn

    from heedful.models.roles import ModelConfig, Role


class Model(NamedTuple):
    """What a model is to a task, and the class of its settings in the `config.py` of its folder."""

    role: Role
    config: str
    folder: str = ""  # that of its kind, unless given
    more: tuple[Role, ...] = ()  # other roles that it has


MODELS = {
    "transformer": Model("seq2seq", "TransformerConfig"),
    "seq2seq": Model("seq2seq", "Seq2SeqConfig"),
    "hred": Model("hierarchical", "HredConfig"),
    "rnn_lm": Model("causal", "RnnLMConfig"),
    "elmo": Model("bidirectional", "ElmoConfig"),
    "gpt": Model("causal", "GptConfig", more=("left_encoder",)),
    "transformer_xl": Model("causal", "TransformerXLConfig"),
    "bert": Model("encoder", "BertConfig"),
    "roberta": Model("encoder", "RobertaConfig"),
    "albert": Model("encoder", "AlbertConfig"),
    "distilbert": Model("encoder", "DistilBertConfig"),
    "xlm_roberta": Model("encoder", "XlmRobertaConfig"),
    "xlnet": Model("encoder", "XLNetConfig", more=("two_streams",)),
    "linformer": Model("encoder", "LinformerConfig"),
    "bigbird": Model("encoder", "BigBirdConfig"),
    "rnn_encoder": Model("encoder", "RnnEncoderConfig"),
    "conv_encoder": Model("encoder", "ConvEncoderConfig"),
    "classifier": Model("classifier", "ClassifierConfig", "heads"),
    "regressor": Model("regressor", "RegressorConfig", "heads"),
    "multi_label": Model("multi_label", "MultiLabelConfig", "heads"),
    "multiple_choice": Model("multiple_choice", "MultipleChoiceConfig", "heads"),
    "tagger": Model("tagger", "TaggerConfig", "heads"),
    "answerer": Model("answerer", "AnswererConfig", "heads"),
    "conv_classifier": Model("word_classifier", "ConvClassifierConfig"),
    "tabular": Model("tabular", "TabularConfig"),
    "text_vae": Model("text_autoencoder", "TextVaeConfig"),
    "style_transfer": Model("style_transfer", "StyleTransferConfig"),
    "memory_network": Model("story_answerer", "MemoryNetworkConfig"),
    "bag_of_words": Model("story_answerer", "BagOfWordsConfig", "memory_network"),
    "rnn_classifier": Model("word_classifier", "RnnClassifierConfig"),
    "transformer_classifier": Model("word_classifier", "TransformerClassifierConfig"),
    "autoencoder": Model("autoencoder", "AutoencoderConfig"),
    "lenet": Model("image_encoder", "LeNetConfig"),
    "tree_lstm": Model("tree_classifier", "TreeLSTMConfig"),
    "alexnet": Model("image_encoder", "AlexNetConfig"),
    "vgg": Model("image_encoder", "VggConfig"),
    "googlenet": Model("image_encoder", "GoogLeNetConfig"),
    "resnet": Model("image_encoder", "ResNetConfig"),
    "vit": Model("image_encoder", "VitConfig"),
    "recurrent_attention": Model("glimpse_classifier", "RecurrentAttentionConfig"),
    "captioner": Model("captioner", "CaptionerConfig"),
    "paragraph_captioner": Model("paragraph_captioner", "ParagraphCaptionerConfig"),
    "policy": Model("policy", "PolicyConfig"),
    "q_network": Model("q_network", "QNetworkConfig"),
}


def config_class(kind: str) -> type[Any]:
    """The class of a model's settings, which is imported when it is asked for."""
    model = MODELS[kind]
    found: type[Any] = getattr(importlib.import_module(f"{__name__}.{model.folder or kind}.config"), model.config)
    return found


def kinds_of(*roles: Role) -> tuple[str, ...]:
    """The kinds of models that have one of these roles."""
    return tuple(kind for kind, model in MODELS.items() if {model.role, *model.more} & {*roles})


def any_of(*roles: Role, usual: str) -> Any:
    """The type of settings of any model that has one of these roles; its `kind` may be left out for the usual one."""
    kinds = kinds_of(*roles)
    if len(kinds) == 1:
        return config_class(kinds[0])
    members: Any = tuple(Annotated[config_class(kind), Tag(kind)] for kind in kinds)
    return Annotated[Union[members], by_kind(usual)]  # noqa: UP007


def build(config: ModelConfig) -> nn.Module:
    """Build the model that a config describes, with randomly initialized weights."""
    file, _, name = config.implementation.partition(".")
    folder = type(config).__module__.rpartition(".")[0]
    model: nn.Module = getattr(importlib.import_module(f"{folder}.{file}"), name)(config)
    return model
