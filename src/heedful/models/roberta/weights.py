"""RoBERTa in the files of Hugging Face; needs no torch.

Only the settings below are read. Those that would change what is computed are refused by name where they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import wrong
from heedful.models.exchange import (
    ACTIVATIONS,
    SHARES,
    THEIRS,
    Described,
    Rule,
    Table,
    Twin,
    architecture_in,
    both,
    checked,
    encoder_rules,
    head_in,
    label_settings,
    labels_in,
    real,
    refuse,
    refuse_attention,
    unsupported,
    whole,
)
from heedful.models.roberta.config import FIRST, RobertaConfig

TITLE = "RoBERTa"
MODEL_TYPES = ("roberta",)
RELEASE = None
PREFIX = "roberta."  # of an encoder without a head of its own
PLACES = "max_position_embeddings"
SIZES = {  # their key, ours, the least and the most
    "vocab_size": ("vocab", 5, 10_000_000),
    "hidden_size": ("width", 1, 65_536),
    "num_hidden_layers": ("layers", 1, 1000),
    "num_attention_heads": ("heads", 1, 1024),
    "intermediate_size": ("hidden", 1, 1_048_576),
    PLACES: ("context", 4 + FIRST, 1_048_576 + FIRST),
    "type_vocab_size": ("segments", 1, 1),
}
# What a model of each name has on top of its encoder: pooler, masked words, and a head of its own.
ARCHITECTURES: dict[str, tuple[bool, bool, str | None]] = {
    "RobertaModel": (True, False, None),
    "RobertaForMaskedLM": (False, True, None),
    "RobertaForSequenceClassification": (True, False, "classifier"),
    "RobertaForMultipleChoice": (True, False, "multiple_choice"),
    "RobertaForTokenClassification": (False, False, "tagger"),
    "RobertaForQuestionAnswering": (False, False, "answerer"),
}
# Settings that change what is computed, with the values under which they do not.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
    "pad_token_id": (FIRST - 1, None),  # which positions are counted from
}
# Under a head for classes, the pooler is a part of that head.
HEADS = {
    "classifier": ("classifier.dense", "classifier.out_proj"),
    "regressor": ("classifier.dense", "classifier.out_proj"),
    "multiple_choice": ("roberta.pooler.dense", "classifier"),
    "tagger": ("roberta.pooler.dense", "classifier"),
    "answerer": ("roberta.pooler.dense", "qa_outputs"),
}


def described(settings: Mapping[str, Any], where: Path) -> Described:
    """The settings of a config.json, each checked and named if it is not right."""
    refuse(settings, HARMLESS, where, "name the folder of a RoBERTa as it was published")
    found: dict[str, Any] = {
        ours: whole(settings, key, least, most, where) for key, (ours, least, most) in SIZES.items()
    }
    found["context"] -= FIRST
    found |= {ours: real(settings, key, 0.1, where) for key, ours in SHARES.items()}
    act = settings.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise unsupported(where, "hidden_act", act, ACTIVATIONS)
    found["activation"] = ACTIVATIONS[act]
    found["norm_eps"] = real(settings, "layer_norm_eps", 1e-12, where)
    if found["width"] % found["heads"]:
        raise wrong(where, "num_attention_heads", found["heads"], f"a divisor of hidden_size, {found['width']:,}")
    named = architecture_in(settings, ARCHITECTURES, where)
    pooler, words, head = ARCHITECTURES[named or "RobertaModel"]
    keys = {ours: key for key, (ours, _, _) in SIZES.items()} | {ours: key for key, ours in SHARES.items()}
    config = checked(RobertaConfig, {**found, "pooler": pooler, "masked_words": words}, keys, where)
    return Described(config, head_in(settings, head, where), labels_in(settings, where), named is not None)


def config_json(
    config: RobertaConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The settings of a config.json that says the same; special tokens have the ids that were published."""
    refuse_attention(config, TITLE)
    kind = "classifier" if head == "regressor" else head
    words = config.masked_words and head is None
    name = next(name for name, parts in ARCHITECTURES.items() if parts[1:] == (words, kind))
    settings: dict[str, Any] = {"architectures": [name], "model_type": MODEL_TYPES[0]}
    settings |= {theirs: getattr(config, ours) for theirs, (ours, _, _) in SIZES.items()}
    settings[PLACES] += FIRST
    settings |= {theirs: getattr(config, ours) for theirs, ours in SHARES.items()}
    settings |= {
        "hidden_act": THEIRS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "initializer_range": 0.02,
        "bos_token_id": 0,
        "pad_token_id": FIRST - 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    return settings | label_settings(head, labels)


def table(config: RobertaConfig, head: str | None = None) -> Table:
    """Hugging Face's names, as a model with a head has them: the encoder's below `roberta.`."""
    pooler, top = HEADS[head or "tagger"]
    rules = encoder_rules(PREFIX, config.layers)
    twins: list[Twin] = []
    spare = ["roberta.embeddings.position_ids"]
    if config.pooler:
        rules += both("pooler.dense", pooler)
    if config.masked_words:
        rules += both("masked_words.dense", "lm_head.dense")
        rules += both("masked_words.norm", "lm_head.layer_norm")
        rules.append(Rule("masked_words.bias", ("lm_head.bias",)))
        twins.append(Twin("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"))
        twins.append(Twin("lm_head.decoder.bias", "lm_head.bias"))
    if head is not None:
        rules += both("head", top)
    return Table(tuple(rules), tuple(twins), tuple(spare))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: encoders are saved without `roberta.`."""
    given = list(names)
    bare = not any(name.startswith(PREFIX) for name in given)
    return {
        name: PREFIX + name if bare and name.startswith(("embeddings.", "encoder.", "pooler.")) else name
        for name in given
    }


def as_found(told: Described, names: set[str], where: Path) -> Described:
    """The parts that the tensors tell of, and the head where the file does not name it."""
    config, head = told.config, told.head
    if head is None and not told.named:
        if "classifier.out_proj.weight" in names:
            head = "classifier"
        elif "classifier.weight" in names:
            head = "multiple_choice" if "roberta.pooler.dense.weight" in names else "tagger"
        elif "qa_outputs.weight" in names:
            head = "answerer"
    pools = head in ("classifier", "regressor", "multiple_choice") or "roberta.pooler.dense.weight" in names
    words = any(name.startswith("lm_head.") for name in names)
    return told._replace(config=config.model_copy(update={"pooler": pools, "masked_words": words}), head=head)
