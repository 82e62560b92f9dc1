"""XLNet in the files of Hugging Face; needs no torch.

Only the settings below are read. Those that would change what is computed are refused by name. Published files have no
longest sequence: `context`, a setting of ours, is kept in them under that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import UserError, wrong
from heedful.models.exchange import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    PROBLEMS,
    PublishedConfig,
    Rule,
    Table,
    Twin,
    add_prefix,
    architecture_in,
    fill_in,
    float_setting,
    head_in,
    int_setting,
    label_settings,
    labels_in,
    logit_rules,
    output_of,
    output_settings,
    published_head,
    refuse,
    refuse_attention,
    ties_in,
    unsupported,
    validate_config,
    weight_and_bias,
)
from heedful.models.xlnet.config import XLNetConfig

TITLE = "XLNet"
MODEL_TYPES = ("xlnet",)
RELEASE = None
PREFIX = "transformer."  # of an encoder without a head of its own
SIZES = {  # their key, ours, the least and the most
    "vocab_size": ("vocab", 5, 10_000_000),
    "d_model": ("width", 2, 65_536),
    "n_layer": ("layers", 1, 1000),
    "n_head": ("heads", 1, 1024),
    "d_inner": ("hidden", 1, 1_048_576),
}
DEFAULTS = {"vocab_size": 32_000, "d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096}
KEYS = {ours: key for key, (ours, _, _) in SIZES.items()} | {"dropout": "dropout", "context": "context"}
# What a model of each name has on top of its encoder: pooler, words, and a head of its own.
ARCHITECTURES: dict[str, tuple[bool, bool, str | None]] = {
    "XLNetModel": (False, False, None),
    "XLNetLMHeadModel": (False, True, None),
    "XLNetForSequenceClassification": (True, False, "classifier"),
    "XLNetForMultipleChoice": (True, False, "multiple_choice"),
    "XLNetForTokenClassification": (False, False, "tagger"),
    "XLNetForQuestionAnsweringSimple": (False, False, "answerer"),
}
# Settings that change what is computed, with the values under which they do not.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "bi_data": (False, None),
    "same_length": (False, None),
    "untie_r": (True, None),
    "summary_type": ("last", None),
    "summary_use_proj": (True, None),
    "summary_proj_to_labels": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
LOGITS = "lm_loss"
DIRECTIONS = {"bi": "both", "uni": "left"}
HEADS = {
    **dict.fromkeys(PROBLEMS, "logits_proj"),
    "multiple_choice": "logits_proj",
    "tagger": "classifier",
    "answerer": "qa_outputs",
}
BEAMS = "XLNetForQuestionAnswering"  # a head of three networks, whose end depends on the start


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; an invalid one is an error that names it."""
    refuse(settings, HARMLESS, where, "choose the folder of an XLNet as it was published")
    if settings.get("architectures") == [BEAMS]:
        raise UserError(
            f"not supported: {BEAMS}, in which the end of an answer is predicted from its start",
            where=f"{where}: architectures", expected="XLNetForQuestionAnsweringSimple",
            todo="choose the folder of another model, or fine-tune its encoder on the task `answering`",
        )  # fmt: skip
    named = architecture_in(settings, ARCHITECTURES, where)
    pooler, words, head = ARCHITECTURES[named or "XLNetModel"]
    if pooler and settings.get("summary_activation", "tanh") != "tanh":
        raise unsupported(where, "summary_activation", settings["summary_activation"], ["tanh"])
    settings, notes = fill_in(settings, DEFAULTS)
    found: dict[str, Any] = {
        ours: int_setting(settings, key, least, most, where) for key, (ours, least, most) in SIZES.items()
    }
    if settings.get("d_head", found["width"] // found["heads"]) != found["width"] // found["heads"]:
        raise wrong(where, "d_head", settings["d_head"], f"{found['width'] // found['heads']}, d_model / n_head")
    for key, ours, known in (("ff_activation", "activation", ACTIVATIONS), ("attn_type", "direction", DIRECTIONS)):
        value = settings.get(key, next(iter(known)))
        if not isinstance(value, str) or value not in known:
            raise unsupported(where, key, value, known)
        found[ours] = known[value]
    clamp = settings.get("clamp_len", -1)
    if not isinstance(clamp, int) or isinstance(clamp, bool):
        raise wrong(where, "clamp_len", clamp, "a whole number; -1: none")
    ties = ties_in(settings, where)
    found |= {"clamp": clamp if clamp > 0 else None, "pooler": pooler, "masked_words": words}
    found["output"] = "tied" if ties or not words else "untied"
    found["dropout"] = float_setting(settings, "dropout", 0.1, where)
    found["norm_eps"] = float_setting(settings, "layer_norm_eps", 1e-12, where)
    if "context" in settings:
        found["context"] = int_setting(settings, "context", 4, 1_048_576, where)
    config = validate_config(XLNetConfig, found, KEYS, where)
    labels, named_head = labels_in(settings, where), head_in(settings, head, where)
    return PublishedConfig(config, named_head, labels, named is not None, ties, notes)


def config_json(
    config: XLNetConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of such a model."""
    refuse_attention(config, TITLE)
    kind = published_head(head)
    words = config.masked_words and head is None
    name = next(name for name, parts in ARCHITECTURES.items() if parts[1:] == (words, kind))
    return {
        "architectures": [name],
        "model_type": MODEL_TYPES[0],
        **{theirs: getattr(config, ours) for ours, theirs in KEYS.items()},
        "attn_type": next(theirs for theirs, ours in DIRECTIONS.items() if ours == config.direction),
        "bi_data": False,
        "clamp_len": config.clamp or -1,
        "ff_activation": ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.norm_eps,
        "initializer_range": 0.02,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "summary_last_dropout": config.dropout,
        "pad_token_id": pad,
        "dtype": "float32",
        **output_settings(config.output),
        **label_settings(head, labels),
    }


def table(config: XLNetConfig, head: str | None = None) -> Table:
    """Hugging Face's names, as a model with a head has them: the encoder's below `transformer.`."""
    rules = [Rule("tokens.weight", (f"{PREFIX}word_embedding.weight",)), Rule("query", (f"{PREFIX}mask_emb",))]
    twins: list[Twin] = []
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"{PREFIX}layer.{index}"
        own, other = f"{ours}.attention", f"{theirs}.rel_attn"
        for name, parts in (("q", "q"), ("kv", "kv"), ("r", "r")):
            rules.append(Rule(f"{own}.{name}.weight", tuple(f"{other}.{part}" for part in parts), True, config.heads))
        rules.append(Rule(f"{own}.out.weight", (f"{other}.o",), heads=config.heads))
        for name, part in (("u", "r_w_bias"), ("v", "r_r_bias"), ("s", "r_s_bias"), ("segments", "seg_embed")):
            rules.append(Rule(f"{own}.{name}", (f"{other}.{part}",)))
        rules += weight_and_bias(f"{ours}.add1.norm", f"{other}.layer_norm")
        rules += weight_and_bias(f"{ours}.mlp.up", f"{theirs}.ff.layer_1")
        rules += weight_and_bias(f"{ours}.mlp.down", f"{theirs}.ff.layer_2")
        rules += weight_and_bias(f"{ours}.add2.norm", f"{theirs}.ff.layer_norm")
    if config.pooler:
        rules += weight_and_bias("pooler.dense", "sequence_summary.summary")
    if config.masked_words:
        last, twins = logit_rules(config.output, LOGITS, f"{PREFIX}word_embedding.weight")
        rules += last
    if head is not None:
        rules += weight_and_bias("head", HEADS[head])
    return Table(tuple(rules), tuple(twins))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: encoders are saved without `transformer.`."""
    return add_prefix(names, PREFIX, ("word_embedding.", "mask_emb", "layer."))


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The same, with the parts for which there are tensors; where the file names no head, it is inferred."""
    config, head = published.config, published.head
    pools = "sequence_summary.summary.weight" in names
    if head is None and not published.named:
        tops = {"logits_proj.weight": "classifier", "classifier.weight": "tagger", "qa_outputs.weight": "answerer"}
        head = next((kind for name, kind in tops.items() if name in names), None)
    words = any(name.startswith("lm_loss.") for name in names)
    output = output_of(published, words, names, f"{LOGITS}.weight", where)
    parts = {"pooler": pools, "masked_words": words, "output": output}
    return published._replace(config=config.model_copy(update=parts), head=head)
