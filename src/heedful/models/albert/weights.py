"""ALBERT in the files of Hugging Face; needs no torch.

Only the settings below are read. Those that would change what is computed are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.models.albert.config import AlbertConfig
from heedful.models.exchange import (
    EMBEDDING,
    ENCODER_DEFAULTS,
    ENCODER_HARMLESS,
    ENCODER_SIZES,
    QKV,
    PublishedConfig,
    Table,
    Twin,
    add_prefix,
    architecture_in,
    block_rules,
    embedding_rules,
    encoder_json,
    encoder_keys,
    encoder_settings,
    fill_in,
    head_in,
    head_rules,
    infer_head,
    label_settings,
    labels_in,
    logit_rules,
    output_of,
    output_settings,
    published_head,
    refuse,
    ties_in,
    validate_config,
    weight_and_bias,
    word_rules,
)

TITLE = "ALBERT"
MODEL_TYPES = ("albert",)
RELEASE = None
PREFIX = "albert."  # of an encoder without a head of its own
SIZES = {
    **ENCODER_SIZES,
    "embedding_size": ("embedding", 1, 65_536),
    "num_hidden_groups": ("shared_groups", 1, 1000),
}
DEFAULTS = {
    **ENCODER_DEFAULTS,
    "vocab_size": 30_000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16_384,
}
USUAL = {  # of transformers, and left out by most published models
    "num_hidden_groups": 1,
    "embedding_size": 128,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# What a model of each name has on top of its encoder: pooler, masked words, sentence order, and a head of its own.
ARCHITECTURES: dict[str, tuple[bool, bool, bool, str | None]] = {
    "AlbertModel": (True, False, False, None),
    "AlbertForPreTraining": (True, True, True, None),
    "AlbertForMaskedLM": (False, True, False, None),
    "AlbertForSequenceClassification": (True, False, False, "classifier"),
    "AlbertForMultipleChoice": (True, False, False, "multiple_choice"),
    "AlbertForTokenClassification": (False, False, False, "tagger"),
    "AlbertForQuestionAnswering": (False, False, False, "answerer"),
}
HARMLESS: dict[str, tuple[Any, ...]] = {**ENCODER_HARMLESS, "inner_group_num": (1, None)}
LOGITS = "predictions.decoder"
LAYER = {  # of a block, without .weight and .bias
    "attention.out": "attention.dense",
    "add1.norm": "attention.LayerNorm",
    "mlp.up": "ffn",
    "mlp.down": "ffn_output",
    "add2.norm": "full_layer_layer_norm",
}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; an invalid one is an error that names it."""
    refuse(settings, HARMLESS, where, "choose the folder of an ALBERT as it was published")
    named = architecture_in(settings, ARCHITECTURES, where)
    pooler, words, order, head = ARCHITECTURES[named or "AlbertModel"]
    complete, notes = fill_in(settings, DEFAULTS)
    found = encoder_settings({**USUAL, **complete}, SIZES, where)
    ties = ties_in(settings, where)
    found |= {"pooler": pooler, "masked_words": words, "sentence_order": order}
    found["output"] = "tied" if ties or not words else "untied"
    config = validate_config(AlbertConfig, found, encoder_keys(SIZES), where)
    labels, named_head = labels_in(settings, where), head_in(settings, head, where)
    return PublishedConfig(config, named_head, labels, named is not None, ties, notes)


def config_json(
    config: AlbertConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of such a model."""
    settings = encoder_json(config, TITLE, MODEL_TYPES[0], architecture(config, head), SIZES)
    settings |= {"inner_group_num": 1, "pad_token_id": pad}
    return settings | output_settings(config.output) | label_settings(head, labels)


def architecture(config: AlbertConfig, head: str | None) -> str:
    """The name of the smallest published model that has these parts."""
    kind = published_head(head)
    if kind is not None:
        return next(name for name, parts in ARCHITECTURES.items() if parts[3] == kind)
    if config.sentence_order:
        return "AlbertForPreTraining"
    return "AlbertForMaskedLM" if config.masked_words else "AlbertModel"


def table(config: AlbertConfig, head: str | None = None) -> Table:
    """Hugging Face's names, as a model with a head has them: the encoder's below `albert.`."""
    rules = embedding_rules(PREFIX) + weight_and_bias("widen", "albert.encoder.embedding_hidden_mapping_in")
    for group in range(config.groups):
        first = -(-group * config.layers // config.groups)  # the first layer of the group
        theirs = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0"
        rules += block_rules(f"blocks.{first}", theirs, tuple(f"attention.{name}" for name in QKV), LAYER)
    twins: list[Twin] = []
    if config.pooler:
        rules += weight_and_bias("pooler.dense", "albert.pooler")
    if config.masked_words:
        last, twins = logit_rules(config.output, LOGITS, f"{PREFIX}{EMBEDDING}", "predictions.bias")
        rules += word_rules("predictions.dense", "predictions.LayerNorm") + last
    if config.sentence_order:
        rules += weight_and_bias("sentence_order", "sop_classifier.classifier")
    rules += head_rules(head)
    return Table(tuple(rules), tuple(twins), ("albert.embeddings.position_ids",))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: encoders are saved without `albert.`."""
    return add_prefix(names, PREFIX, ("embeddings.", "encoder.", "pooler."))


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The same, with the parts for which there are tensors; where the file names no head, it is inferred."""
    config, named = published.config, published.named
    pooler = "albert.pooler.weight" in names
    head = infer_head(published, names, pooler)
    order = any(name.startswith("sop_classifier.") for name in names)
    words = any(name.startswith("predictions.") for name in names)
    parts = {
        "pooler": pooler or order or (config.pooler and named and head is not None),
        "masked_words": words,
        "output": output_of(published, words, names, f"{LOGITS}.weight", where),
        "sentence_order": order,
    }
    return published._replace(config=config.model_copy(update=parts), head=head)
