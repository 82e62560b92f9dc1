"""DistilBERT in the files of Hugging Face; needs no torch.

Only the settings below are read. Those that would change what is computed are refused by name; with
`sinusoidal_pos_embds`, the positions are sinusoids at first, and in the files like any others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.models.distilbert.config import DistilBertConfig
from heedful.models.exchange import (
    EMBEDDING,
    ENCODER_HARMLESS,
    PROBLEMS,
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
    unwritable,
    validate_config,
    weight_and_bias,
    word_rules,
)

TITLE = "DistilBERT"
MODEL_TYPES = ("distilbert",)
RELEASE = None
PREFIX = "distilbert."  # of an encoder without a head of its own
SIZES = {  # their key, ours, the least and the most
    "vocab_size": ("vocab", 5, 10_000_000),
    "dim": ("width", 1, 65_536),
    "n_layers": ("layers", 1, 1000),
    "n_heads": ("heads", 1, 1024),
    "hidden_dim": ("hidden", 1, 1_048_576),
    "max_position_embeddings": ("context", 4, 1_048_576),
}
DEFAULTS = {
    "vocab_size": 30_522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "max_position_embeddings": 512,
}
DROPOUTS = {"dropout": "dropout", "attention_dropout": "attention_dropout"}
ACTIVATION_KEY = "activation"
NORM_EPS = 1e-12  # of all norms
# What a model of each name has on top of its encoder: masked words, and a head of its own.
ARCHITECTURES: dict[str, tuple[bool, str | None]] = {
    "DistilBertModel": (False, None),
    "DistilBertForMaskedLM": (True, None),
    "DistilBertForSequenceClassification": (False, "classifier"),
    "DistilBertForMultipleChoice": (False, "multiple_choice"),
    "DistilBertForTokenClassification": (False, "tagger"),
    "DistilBertForQuestionAnswering": (False, "answerer"),
}
POOLED = (*PROBLEMS, "multiple_choice")  # heads with a layer before the last, which is our pooler
LOGITS = "vocab_projector"
LAYER = {  # of a block, without .weight and .bias
    "attention.out": "attention.out_lin",
    "add1.norm": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "add2.norm": "output_layer_norm",
}
ATTENTION = ("attention.q_lin", "attention.k_lin", "attention.v_lin")


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; an invalid one is an error that names it."""
    refuse(settings, ENCODER_HARMLESS, where, "choose the folder of a DistilBERT as it was published")
    named = architecture_in(settings, ARCHITECTURES, where)
    words, head = ARCHITECTURES[named or "DistilBertModel"]
    complete, notes = fill_in(settings, DEFAULTS)
    found = encoder_settings({**complete, "layer_norm_eps": NORM_EPS}, SIZES, where, DROPOUTS, ACTIVATION_KEY)
    ties = ties_in(settings, where)
    found |= {"pooler": head in POOLED, "masked_words": words}
    found["output"] = "tied" if ties or not words else "untied"
    config = validate_config(DistilBertConfig, found, encoder_keys(SIZES, DROPOUTS), where)
    labels, named_head = labels_in(settings, where), head_in(settings, head, where)
    return PublishedConfig(config, named_head, labels, named is not None, ties, notes)


def config_json(
    config: DistilBertConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of such a model."""
    if config.norm_eps != NORM_EPS:
        raise unwritable(TITLE, "norm_eps", f"{config.norm_eps:g}", f"{NORM_EPS:g}")
    if config.pooler and head not in POOLED:
        raise unwritable(TITLE, "pooler", "true", "false, without a head that reads it")
    kind = published_head(head)
    words = config.masked_words and head is None
    name = next(name for name, parts in ARCHITECTURES.items() if parts == (words, kind))
    settings = encoder_json(config, TITLE, MODEL_TYPES[0], name, SIZES, DROPOUTS, ACTIVATION_KEY)
    del settings["layer_norm_eps"]
    settings |= {"sinusoidal_pos_embds": False, "tie_weights_": True, "pad_token_id": pad}
    return settings | output_settings(config.output) | label_settings(head, labels)


def table(config: DistilBertConfig, head: str | None = None) -> Table:
    """Hugging Face's names, as a model with a head has them: the encoder's below `distilbert.`."""
    rules = [rule for rule in embedding_rules(PREFIX) if rule.ours != "segments"]
    for index in range(config.layers):
        rules += block_rules(f"blocks.{index}", f"distilbert.transformer.layer.{index}", ATTENTION, LAYER)
    twins: list[Twin] = []
    if config.pooler:
        rules += weight_and_bias("pooler.dense", "pre_classifier")
    if config.masked_words:
        last, twins = logit_rules(config.output, LOGITS, f"{PREFIX}{EMBEDDING}")
        rules += word_rules("vocab_transform", "vocab_layer_norm") + last
    rules += head_rules(head)
    return Table(tuple(rules), tuple(twins), ("distilbert.embeddings.position_ids",))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: encoders are saved without `distilbert.`."""
    return add_prefix(names, PREFIX, ("embeddings.", "transformer."))


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The same, with the parts for which there are tensors; where the file names no head, it is inferred."""
    pools = "pre_classifier.weight" in names
    head = infer_head(published, names, pools)
    words = f"{LOGITS}.bias" in names
    output = output_of(published, words, names, f"{LOGITS}.weight", where)
    parts = {"pooler": pools or head in POOLED, "masked_words": words, "output": output}
    return published._replace(config=published.config.model_copy(update=parts), head=head)
