"""BERT in published files: those of Hugging Face, and the original TensorFlow release; does not import torch.

Only the settings below are read. Unsupported ones that would change the computation are refused by name; the others,
such as generation settings, do not concern an encoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.models.bert.config import BertConfig
from heedful.models.exchange import (
    EMBEDDING,
    ENCODER_DEFAULTS,
    ENCODER_HARMLESS,
    ENCODER_SIZES,
    LAYER,
    QKV,
    PublishedConfig,
    Rule,
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

if TYPE_CHECKING:
    from torch import Tensor

TITLE = "BERT"
MODEL_TYPES = ("bert",)
RELEASE = ("bert_config.json", "bert_model.ckpt.*")
PREFIX = "bert."  # of an encoder without a head of its own
# The parts of each architecture besides the encoder: pooler, masked-token and next-sentence heads, the task's head.
ARCHITECTURES: dict[str, tuple[bool, bool, bool, str | None]] = {
    "BertModel": (True, False, False, None),
    "BertForPreTraining": (True, True, True, None),
    "BertForMaskedLM": (False, True, False, None),
    "BertForNextSentencePrediction": (True, False, True, None),
    "BertForSequenceClassification": (True, False, False, "classifier"),
    "BertForMultipleChoice": (True, False, False, "multiple_choice"),
    "BertForTokenClassification": (False, False, False, "tagger"),
    "BertForQuestionAnswering": (False, False, False, "answerer"),
}
ORIGINAL_HEADS: dict[str, tuple[str, str]] = {
    "classifier": ("output_weights", "output_bias"),
    "answerer": ("cls/squad/output_weights", "cls/squad/output_bias"),
}
LOGITS = "cls.predictions.decoder"
OLD_NORM, NEW_NORM = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$"), {"gamma": "weight", "beta": "bias"}
OPTIMIZER_STATE = re.compile(r".+/(adam_[mv]|AdamWeightDecayOptimizer(_1)?|LAMBOptimizer(_1)?)|global_step")


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json, checked; an error names the invalid one."""
    refuse(settings, ENCODER_HARMLESS, where, "choose the folder of a BERT as it was published")
    named = architecture_in(settings, ARCHITECTURES, where)
    pooler, words, next_sentence, head = ARCHITECTURES[named or "BertModel"]
    complete, notes = fill_in(settings, ENCODER_DEFAULTS)
    found = encoder_settings(complete, ENCODER_SIZES, where)
    ties = ties_in(settings, where)
    found |= {"pooler": pooler, "masked_words": words, "next_sentence": next_sentence}
    found["output"] = "tied" if ties or not words else "untied"
    config = validate_config(BertConfig, found, encoder_keys(ENCODER_SIZES), where)
    labels, named_head = labels_in(settings, where), head_in(settings, head, where)
    return PublishedConfig(config, named_head, labels, named is not None, ties, notes)


def config_json(
    config: BertConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of a model with this config and head."""
    settings = encoder_json(config, TITLE, MODEL_TYPES[0], architecture(config, head), ENCODER_SIZES)
    return settings | {"pad_token_id": pad} | output_settings(config.output) | label_settings(head, labels)


def architecture(config: BertConfig, head: str | None) -> str:
    """The smallest published architecture that has these parts."""
    if head is not None:
        kind = published_head(head)
        return next(name for name, parts in ARCHITECTURES.items() if parts[3] == kind)
    if config.masked_words and config.next_sentence:
        return "BertForPreTraining"
    if config.masked_words:
        return "BertForMaskedLM"
    return "BertForNextSentencePrediction" if config.next_sentence else "BertModel"


def table(config: BertConfig, head: str | None = None) -> Table:
    """Hugging Face's tensor names; those of the encoder start with `bert.`."""
    rules = encoder_rules(PREFIX, config.layers)
    twins: list[Twin] = []
    if config.pooler:
        rules += weight_and_bias("pooler.dense", "bert.pooler.dense")
    if config.masked_words:
        inner = "cls.predictions.transform"
        last, twins = logit_rules(config.output, LOGITS, f"{PREFIX}{EMBEDDING}", "cls.predictions.bias")
        rules += word_rules(f"{inner}.dense", f"{inner}.LayerNorm") + last
    if config.next_sentence:
        rules += weight_and_bias("next_sentence", "cls.seq_relationship")
    rules += head_rules(head)
    return Table(tuple(rules), tuple(twins), ("bert.embeddings.position_ids",))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file, which may have old names of norms, or no prefix `bert.`."""
    whole = add_prefix(names, PREFIX, ("embeddings.", "encoder.", "pooler."))
    return {name: OLD_NORM.sub(lambda part: NEW_NORM[part[1]], found) for name, found in whole.items()}


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The config with the parts for which there are tensors; the head is inferred if the file does not name one."""
    config, named = published.config, published.named
    pooler = "bert.pooler.dense.weight" in names
    head = infer_head(published, names, pooler)
    follows = any(name.startswith("cls.seq_relationship.") for name in names)
    words = any(name.startswith("cls.predictions.") for name in names)
    parts = {
        "pooler": pooler or follows or (config.pooler and named and head is not None),
        "masked_words": words,
        "output": output_of(published, words, names, f"{LOGITS}.weight", where),
        "next_sentence": follows,
    }
    return published._replace(config=config.model_copy(update=parts), head=head)


def release_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of an original TensorFlow checkpoint, which has both pre-training heads."""
    return read_config({**settings, "architectures": ["BertForPreTraining"]}, where)


def release_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of that checkpoint, unchanged."""
    return tensors


def release_table(published: PublishedConfig, names: Iterable[str]) -> tuple[PublishedConfig, Table]:
    """The tensor names of an original TensorFlow checkpoint, whose matrices are transposed.

    It may be fine-tuned, and have its pre-training heads or not. The optimizer state is skipped.
    """
    given = set(names)
    follows = any(name.startswith("cls/seq_relationship/") for name in given)
    parts = {
        "pooler": follows or "bert/pooler/dense/kernel" in given,
        "masked_words": any(name.startswith("cls/predictions/") for name in given),
        "next_sentence": follows,
    }
    config: BertConfig = published.config.model_copy(update=parts)
    head = next((kind for kind, (weight, _) in ORIGINAL_HEADS.items() if weight in given), None)
    rules = [
        Rule("tokens.weight", ("bert/embeddings/word_embeddings",)),
        Rule("positions.table", ("bert/embeddings/position_embeddings",)),
        Rule("segments", ("bert/embeddings/token_type_embeddings",)),
        *_norm("norm", "bert/embeddings/LayerNorm"),
    ]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"bert/encoder/layer_{index}"
        for part, own in (("kernel", "weight"), ("bias", "bias")):
            stack = tuple(f"{theirs}/attention/self/{name}/{part}" for name in QKV)
            rules.append(Rule(f"{ours}.attention.qkv.{own}", stack, part == "kernel"))
        for own, other in LAYER.items():
            path = f"{theirs}/{other.replace('.', '/')}"
            rules += _norm(f"{ours}.{own}", path) if own.endswith("norm") else _dense(f"{ours}.{own}", path)
    if config.pooler:
        rules += _dense("pooler.dense", "bert/pooler/dense")
    if config.masked_words:
        rules += _dense("masked_words.dense", "cls/predictions/transform/dense")
        rules += _norm("masked_words.norm", "cls/predictions/transform/LayerNorm")
        rules.append(Rule("masked_words.bias", ("cls/predictions/output_bias",)))
    if config.next_sentence:
        rules.append(Rule("next_sentence.weight", ("cls/seq_relationship/output_weights",)))
        rules.append(Rule("next_sentence.bias", ("cls/seq_relationship/output_bias",)))
    if head is not None:
        weight, bias = ORIGINAL_HEADS[head]
        rules += [Rule("head.weight", (weight,)), Rule("head.bias", (bias,))]
    table = Table(tuple(rules), spare=tuple(name for name in names if OPTIMIZER_STATE.fullmatch(name)))
    return PublishedConfig(config, head), table


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", (f"{theirs}/kernel",), True), Rule(f"{ours}.bias", (f"{theirs}/bias",))]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", (f"{theirs}/gamma",)), Rule(f"{ours}.bias", (f"{theirs}/beta",))]
