"""The names of BERT's tensors: ours, Hugging Face's and those of the original TensorFlow checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from heedful.hub.configs import HeadKind
from heedful.hub.rules import Rule, Table, Twin
from heedful.models.bert.config import BertConfig

LAYER = {  # of a block, without .weight and .bias
    "attention.out": "attention.output.dense",
    "add1.norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "add2.norm": "output.LayerNorm",
}
QKV = ("query", "key", "value")
HEADS: dict[HeadKind, str] = {
    "classifier": "classifier",
    "regressor": "classifier",
    "multiple_choice": "classifier",
    "tagger": "classifier",
    "answerer": "qa_outputs",
}
ORIGINAL_HEADS: dict[HeadKind, tuple[str, str]] = {
    "classifier": ("output_weights", "output_bias"),
    "answerer": ("cls/squad/output_weights", "cls/squad/output_bias"),
}
MEMORY = re.compile(r".+/(adam_[mv]|AdamWeightDecayOptimizer(_1)?|LAMBOptimizer(_1)?)|global_step")


def table(config: BertConfig, head: HeadKind | None = None) -> Table:
    """Hugging Face's names, as a model with a head has them: the encoder's below `bert.`."""
    rules = [
        Rule("tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
        Rule("positions.table", ("bert.embeddings.position_embeddings.weight",)),
        Rule("segments", ("bert.embeddings.token_type_embeddings.weight",)),
        *_both("norm", "bert.embeddings.LayerNorm"),
    ]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"bert.encoder.layer.{index}"
        for part in ("weight", "bias"):
            stack = tuple(f"{theirs}.attention.self.{name}.{part}" for name in QKV)
            rules.append(Rule(f"{ours}.attention.qkv.{part}", stack))
        for own, other in LAYER.items():
            rules += _both(f"{ours}.{own}", f"{theirs}.{other}")
    twins: list[Twin] = []
    if config.pooler:
        rules += _both("pooler.dense", "bert.pooler.dense")
    if config.masked_words:
        rules += _both("masked_words.dense", "cls.predictions.transform.dense")
        rules += _both("masked_words.norm", "cls.predictions.transform.LayerNorm")
        rules.append(Rule("masked_words.bias", ("cls.predictions.bias",)))
        twins.append(Twin("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"))
        twins.append(Twin("cls.predictions.decoder.bias", "cls.predictions.bias"))
    if config.next_sentence:
        rules += _both("next_sentence", "cls.seq_relationship")
    if head is not None:
        rules += _both("head", HEADS[head])
    return Table(tuple(rules), tuple(twins), ("bert.embeddings.position_ids",))


def _both(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.{part}", (f"{theirs}.{part}",)) for part in ("weight", "bias")]


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: old names of norms, and encoders saved without `bert.`."""
    given = list(names)
    bare = not any(name.startswith("bert.") for name in given)
    found = {}
    for name in given:
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        inner = new.startswith(("embeddings.", "encoder.", "pooler."))
        found[name] = f"bert.{new}" if bare and inner else new
    return found


def bare(tensors: Mapping[str, object]) -> bool:
    """Whether a model's tensors are those of an encoder alone, which is saved without `bert.`."""
    return all(name.startswith("bert.") for name in tensors)


def parts_of_original(config: BertConfig, names: Iterable[str]) -> tuple[BertConfig, HeadKind | None]:
    """The parts that the names in an original checkpoint tell of: it may be fine-tuned, with or without its heads."""
    given = set(names)
    follows = any(name.startswith("cls/seq_relationship/") for name in given)
    parts = {
        "pooler": follows or "bert/pooler/dense/kernel" in given,
        "masked_words": any(name.startswith("cls/predictions/") for name in given),
        "next_sentence": follows,
    }
    head = next((kind for kind, (weight, _) in ORIGINAL_HEADS.items() if weight in given), None)
    return config.model_copy(update=parts), head


def original(config: BertConfig, head: HeadKind | None, names: Iterable[str]) -> Table:
    """The names in a checkpoint of the original TensorFlow program, whose matrices lie on their side.

    What its optimizer remembers is no part of the model, and is passed over.
    """
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
    return Table(tuple(rules), spare=tuple(name for name in names if MEMORY.fullmatch(name)))


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", (f"{theirs}/kernel",), True), Rule(f"{ours}.bias", (f"{theirs}/bias",))]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", (f"{theirs}/gamma",)), Rule(f"{ours}.bias", (f"{theirs}/beta",))]
