"""BigBird in files of Hugging Face; does not import torch.

Only the settings below are read. Unsupported ones that would change the computation are refused by name. In evaluation,
`transformers` takes the first block for every random one: `random_from: first`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.models.bigbird.config import BigBirdConfig
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
    unsupported,
    unwritable,
    validate_config,
    weight_and_bias,
    word_rules,
)

TITLE = "BigBird"
MODEL_TYPES = ("big_bird",)
RELEASE = None
PREFIX = "bert."  # of an encoder without a head of its own
SIZES = {
    **ENCODER_SIZES,
    "block_size": ("block", 1, 65_536),
    "num_random_blocks": ("random_blocks", 0, 10_000),
}
DEFAULTS = {**ENCODER_DEFAULTS, "vocab_size": 50_358, "max_position_embeddings": 4096}
ATTENTIONS = ("block_sparse", "original_full")
# The parts of each architecture besides the encoder: masked-token and next-sentence heads, the task's head.
ARCHITECTURES: dict[str, tuple[bool, bool, str | None]] = {
    "BigBirdModel": (False, False, None),
    "BigBirdForPreTraining": (True, True, None),
    "BigBirdForMaskedLM": (True, False, None),
    "BigBirdForSequenceClassification": (False, False, "classifier"),
    "BigBirdForMultipleChoice": (False, False, "multiple_choice"),
    "BigBirdForTokenClassification": (False, False, "tagger"),
    "BigBirdForQuestionAnswering": (False, False, "answerer"),
}
HARMLESS: dict[str, tuple[Any, ...]] = {
    **ENCODER_HARMLESS, "use_bias": (True, None), "rescale_embeddings": (False, None),
}  # fmt: skip
CLASSES = tuple(PROBLEMS)  # heads with a pooler of their own, whose activation is that of the blocks
HEADS = {
    **dict.fromkeys(PROBLEMS, "classifier.out_proj"),
    "multiple_choice": "classifier",
    "tagger": "classifier",
    "answerer": "qa_classifier.qa_outputs",
}
LOGITS = "cls.predictions.decoder"
LAST = {
    "last.mlp.up": "qa_classifier.intermediate.dense",
    "last.mlp.down": "qa_classifier.output.dense",
    "last.add.norm": "qa_classifier.output.LayerNorm",
}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json, checked; an error names the invalid one."""
    refuse(settings, HARMLESS, where, "choose the folder of a BigBird as it was published")
    named = architecture_in(settings, ARCHITECTURES, where)
    words, follows, head = ARCHITECTURES[named or "BigBirdModel"]
    settings = {"block_size": 64, "num_random_blocks": 3, "attention_type": ATTENTIONS[0], **settings}
    settings, notes = fill_in({"hidden_act": "gelu_new", **settings}, DEFAULTS)
    found = encoder_settings(settings, SIZES, where)
    if settings["attention_type"] not in ATTENTIONS:
        raise unsupported(where, "attention_type", settings["attention_type"], ATTENTIONS)
    found |= {"attention": settings["attention_type"], "random_from": "first"}
    ties = ties_in(settings, where)
    found["output"] = "tied" if ties or not words else "untied"
    found |= {"pooler": True, "masked_words": words, "next_sentence": follows, "last_mlp": head == "answerer"}
    head = head_in(settings, head, where)
    found["pool"] = found["activation"] if head in CLASSES else "tanh"
    config = validate_config(BigBirdConfig, found, encoder_keys(SIZES), where)
    return PublishedConfig(config, head, labels_in(settings, where), named is not None, ties, notes)


def config_json(
    config: BigBirdConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of such a model."""
    sparse = config.attention == "block_sparse"
    if sparse and config.random_blocks and config.random_from != "first":
        raise unwritable(
            TITLE, "random_from", config.random_from, "first: its random blocks are the first block in use"
        )
    if sparse and config.window_blocks != 3:
        raise unwritable(TITLE, "window_blocks", str(config.window_blocks), "3")
    if config.global_tokens:
        raise unwritable(TITLE, "global_tokens", str(config.global_tokens), "0")
    pool = config.activation if head in CLASSES else "tanh"
    if config.pooler and config.pool != pool:
        raise unwritable(TITLE, "pool", config.pool, pool)
    if config.last_mlp != (head == "answerer"):
        raise unwritable(TITLE, "last_mlp", str(config.last_mlp).lower(), str(head == "answerer").lower())
    settings = encoder_json(config, TITLE, MODEL_TYPES[0], architecture(config, head), SIZES)
    settings |= {"attention_type": config.attention, "pad_token_id": pad}
    settings |= {} if end is None else {"sep_token_id": end}  # a question ends there
    return settings | output_settings(config.output) | label_settings(head, labels)


def architecture(config: BigBirdConfig, head: str | None) -> str:
    """The smallest published architecture that has these parts."""
    if head is not None:
        kind = published_head(head)
        return next(name for name, parts in ARCHITECTURES.items() if parts[2] == kind)
    if config.next_sentence:
        return "BigBirdForPreTraining"
    return "BigBirdForMaskedLM" if config.masked_words else "BigBirdModel"


def table(config: BigBirdConfig, head: str | None = None) -> Table:
    """Hugging Face's tensor names; those of the encoder start with `bert.`."""
    rules = encoder_rules(PREFIX, config.layers)
    twins: list[Twin] = []
    spare = ["bert.embeddings.position_ids", "bert.embeddings.token_type_ids"]
    if head in CLASSES:
        spare += ["bert.pooler.weight", "bert.pooler.bias"]  # is there, but not read
    if config.pooler:
        rules += weight_and_bias("pooler.dense", "classifier.dense" if head in CLASSES else "bert.pooler")
    if config.masked_words:
        inner = "cls.predictions.transform"
        last, twins = logit_rules(config.output, LOGITS, f"{PREFIX}{EMBEDDING}", "cls.predictions.bias")
        rules += word_rules(f"{inner}.dense", f"{inner}.LayerNorm") + last
    if config.next_sentence:
        rules += weight_and_bias("next_sentence", "cls.seq_relationship")
    if config.last_mlp:
        for ours, theirs in LAST.items():
            rules += weight_and_bias(ours, theirs)
    if head is not None:
        rules += weight_and_bias("head", HEADS[head])
    return Table(tuple(rules), tuple(twins), tuple(spare))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file; encoders have no prefix `bert.`."""
    return add_prefix(names, PREFIX, ("embeddings.", "encoder.", "pooler."))


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The config with the parts for which there are tensors; the head is inferred if the file does not name one."""
    config, head, named = published.config, published.head, published.named
    if head is None and not named:
        if "classifier.out_proj.weight" in names:
            head = "classifier"
        elif "classifier.weight" in names:
            head = "tagger"
        elif "qa_classifier.qa_outputs.weight" in names:
            head = "answerer"
    follows = any(name.startswith("cls.seq_relationship.") for name in names)
    words = any(name.startswith("cls.predictions.") for name in names)
    parts = {
        "pooler": head in (*CLASSES, "multiple_choice") or follows or "bert.pooler.weight" in names,
        "masked_words": words,
        "output": output_of(published, words, names, f"{LOGITS}.weight", where),
        "next_sentence": follows,
        "last_mlp": head == "answerer",
        "pool": config.activation if head in CLASSES else "tanh",
    }
    return published._replace(config=config.model_copy(update=parts), head=head)
