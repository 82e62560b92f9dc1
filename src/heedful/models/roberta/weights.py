"""RoBERTa in files of Hugging Face; does not import torch.

Only the settings below are read. Unsupported ones that would change the computation are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.models.exchange import (
    EMBEDDING,
    ENCODER_DEFAULTS,
    ENCODER_HARMLESS,
    ENCODER_SIZES,
    PROBLEMS,
    PublishedConfig,
    Table,
    Twin,
    add_prefix,
    architecture_in,
    encoder_json,
    encoder_keys,
    encoder_rules,
    encoder_settings,
    fill_in,
    head_in,
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
from heedful.models.roberta.config import FIRST, RobertaConfig, RobertaEncoderConfig

TITLE = "RoBERTa"
MODEL_TYPES = ("roberta",)
RELEASE = None
PREFIX = "roberta."  # of an encoder without a head of its own
POSITIONS = "max_position_embeddings"
SIZES = {**ENCODER_SIZES, POSITIONS: ("context", 4 + FIRST, 1_048_576 + FIRST)}
DEFAULTS = {**ENCODER_DEFAULTS, "vocab_size": 50_265}
# The parts of each architecture besides the encoder: pooler, masked-token head, and the task's head.
Architectures = Mapping[str, tuple[bool, bool, str | None]]
ARCHITECTURES: Architectures = {
    "RobertaModel": (True, False, None),
    "RobertaForMaskedLM": (False, True, None),
    "RobertaForSequenceClassification": (True, False, "classifier"),
    "RobertaForMultipleChoice": (True, False, "multiple_choice"),
    "RobertaForTokenClassification": (False, False, "tagger"),
    "RobertaForQuestionAnswering": (False, False, "answerer"),
}
HARMLESS: dict[str, tuple[Any, ...]] = {**ENCODER_HARMLESS, "pad_token_id": (FIRST - 1, None)}  # positions follow it
LOGITS = "lm_head.decoder"
# With a classification head, the pooler is part of that head.
HEADS = {
    **dict.fromkeys(PROBLEMS, ("classifier.dense", "classifier.out_proj")),
    "multiple_choice": ("roberta.pooler.dense", "classifier"),
    "tagger": ("roberta.pooler.dense", "classifier"),
    "answerer": ("roberta.pooler.dense", "qa_outputs"),
}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json, checked; an error names the invalid one."""
    return read_settings(settings, where, TITLE, ARCHITECTURES, RobertaConfig, DEFAULTS)


def config_json(
    config: RobertaConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of a model with this config and head; special tokens have their published ids."""
    return write_settings(config, head, labels, TITLE, MODEL_TYPES[0], ARCHITECTURES)


def read_settings(
    settings: Mapping[str, Any],
    where: Path,
    title: str,
    architectures: Architectures,
    config_class: type[RobertaEncoderConfig],
    defaults: Mapping[str, Any],
) -> PublishedConfig:
    """The settings of a RoBERTa-like model with these architectures."""
    refuse(settings, HARMLESS, where, f"choose the folder of a {title} as it was published")
    named = architecture_in(settings, architectures, where)
    pooler, words, head = architectures[named or next(iter(architectures))]
    complete, notes = fill_in(settings, defaults)
    ties = ties_in(settings, where)
    found = encoder_settings(complete, SIZES, where) | {"pooler": pooler, "masked_words": words}
    found["output"] = "tied" if ties or not words else "untied"
    found["context"] -= FIRST
    config = validate_config(config_class, found, encoder_keys(SIZES), where)
    labels, named_head = labels_in(settings, where), head_in(settings, head, where)
    return PublishedConfig(config, named_head, labels, named is not None, ties, notes)


def write_settings(
    config: RobertaEncoderConfig,
    head: str | None,
    labels: Sequence[str],
    title: str,
    model_type: str,
    architectures: Architectures,
) -> dict[str, Any]:
    """The inverse of `read_settings`."""
    kind = published_head(head)
    words = config.masked_words and head is None
    name = next(name for name, parts in architectures.items() if parts[1:] == (words, kind))
    written = encoder_json(config, title, model_type, name, SIZES)
    written[POSITIONS] += FIRST
    written |= {"bos_token_id": 0, "pad_token_id": FIRST - 1, "eos_token_id": 2}
    return written | output_settings(config.output) | label_settings(head, labels)


def table(config: RobertaEncoderConfig, head: str | None = None) -> Table:
    """Hugging Face's tensor names; those of the encoder start with `roberta.`."""
    pooler, top = HEADS[head or "tagger"]
    rules = encoder_rules(PREFIX, config.layers)
    twins: list[Twin] = []
    spare = ["roberta.embeddings.position_ids"]
    if config.pooler:
        rules += weight_and_bias("pooler.dense", pooler)
    if config.masked_words:
        last, twins = logit_rules(config.output, LOGITS, f"{PREFIX}{EMBEDDING}", "lm_head.bias")
        rules += word_rules("lm_head.dense", "lm_head.layer_norm") + last
    if head is not None:
        rules += weight_and_bias("head", top)
    return Table(tuple(rules), tuple(twins), tuple(spare))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file; encoders have no prefix `roberta.`."""
    return add_prefix(names, PREFIX, ("embeddings.", "encoder.", "pooler."))


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The config with the parts for which there are tensors; the head is inferred if the file does not name one."""
    config, head = published.config, published.head
    if head is None and not published.named:
        if "classifier.out_proj.weight" in names:
            head = "classifier"
        elif "classifier.weight" in names:
            head = "multiple_choice" if "roberta.pooler.dense.weight" in names else "tagger"
        elif "qa_outputs.weight" in names:
            head = "answerer"
    pools = head in (*PROBLEMS, "multiple_choice") or "roberta.pooler.dense.weight" in names
    words = any(name.startswith("lm_head.") for name in names)
    parts = {
        "pooler": pools,
        "masked_words": words,
        "output": output_of(published, words, names, f"{LOGITS}.weight", where),
    }
    return published._replace(config=config.model_copy(update=parts), head=head)
