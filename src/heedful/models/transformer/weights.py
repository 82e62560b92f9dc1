"""Marian's Transformer (Junczys-Dowmunt et al., 2018), such as the OPUS-MT translators, in files of Hugging Face.

Ids differ: theirs are `</s> <unk> ... <pad>`, and decoding starts from `<pad>`; ours are `<pad> <unk> <bos> </s> ...`,
and `<bos>` has the vector of their `<pad>`. Both sides have one vocabulary and embedding, or one each. Does not import
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import UserError, shown, wrong
from heedful.models.exchange import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    PublishedConfig,
    Rule,
    Table,
    Twin,
    bool_setting,
    fill_in,
    float_setting,
    int_setting,
    refuse,
    refuse_attention,
    unsupported,
    unwritable,
    validate_config,
    weight_and_bias,
)
from heedful.models.sizes import Output
from heedful.models.transformer.config import TransformerConfig

TITLE = "Marian"
MODEL_TYPES = ("marian",)
RELEASE = None
PREFIX = ""  # models are always written with their output layer
SIZES = {  # our key: their key, minimum, maximum
    "vocab": ("vocab_size", 4, 10_000_000),
    "width": ("d_model", 1, 65_536),
    "heads": ("encoder_attention_heads", 1, 1024),
    "encoder_layers": ("encoder_layers", 1, 1000),
    "decoder_layers": ("decoder_layers", 1, 1000),
    "hidden": ("encoder_ffn_dim", 1, 1_048_576),
    "context": ("max_position_embeddings", 2, 1_048_576),
}
KEYS = {ours: key for ours, (key, _, _) in SIZES.items()} | {"dropout": "dropout"}
SAME = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
DEFAULTS = {  # of transformers, for what a config.json leaves out
    "vocab_size": 58_101,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
}
ARCHITECTURE = "MarianMTModel"
# Settings that would change the computation, with their supported values.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "static_position_embeddings": (True, None),
    "normalize_before": (False, None),
    "normalize_embedding": (False, None),
    "add_final_layer_norm": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
OUTPUTS: dict[tuple[bool, bool], Output] = {  # whether the matrix of the logits is that of the target; with a bias
    (True, False): "tied",
    (True, True): "biased",
    (False, False): "untied",
    (False, True): "untied_biased",
}
TRAINING = ("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
SHARE, TIE = "share_encoder_decoder_embeddings", "tie_word_embeddings"
EMBEDDING, BIAS = "model.shared.weight", "final_logits_bias"
SOURCE, TARGET, LOGITS = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
TWINS = (SOURCE, TARGET, LOGITS)  # where both sides share one embedding
TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json, checked; an error names the invalid one."""
    shares, ties = bool_setting(settings, SHARE, True, where), bool_setting(settings, TIE, True, where)
    harmless = {**HARMLESS, TIE: (True, None)} if shares else HARMLESS  # else both sides would have one of their own
    refuse(settings, harmless, where, "choose the folder of an OPUS-MT model as it was published")
    if (named := settings.get("architectures")) not in (None, [], [ARCHITECTURE]):
        raise wrong(where, "architectures", named, ARCHITECTURE)
    settings, notes = fill_in(settings, DEFAULTS)
    found: dict[str, Any] = {
        ours: int_setting(settings, key, least, most, where) for ours, (key, least, most) in SIZES.items()
    }
    for key, other in SAME.items():
        if settings[key] != settings[other]:
            raise UserError(
                f"not supported: {key} that differs from {other}", where=f"{where}: {key}", found=shown(settings[key]),
                expected=shown(settings[other]), todo="choose the folder of another model",
            )  # fmt: skip
    found["scale_embedding"] = bool_setting(settings, "scale_embedding", False, where)
    count = source = found["vocab"]  # of the target, and of the source
    if not shares and settings.get("decoder_vocab_size") is not None:
        count = int_setting(settings, "decoder_vocab_size", 4, 10_000_000, where)
    last = f"the last of {count:,} tokens, decoder_vocab_size" if not shares else f"the last of {count:,} tokens"
    places = {
        "decoder_vocab_size": (count, "vocab_size, since both sides share one embedding"),
        "pad_token_id": (count - 1, last),
        "eos_token_id": (0, "the first token"),
        "decoder_start_token_id": (count - 1, last),
    }
    for key, (expected, reason) in places.items():
        if settings.get(key, expected) not in (expected, None):
            raise UserError(
                f"not supported: another {key}", where=f"{where}: {key}", found=shown(settings[key]),
                expected=f"{expected:,}: {reason}", todo="choose the folder of an OPUS-MT model as it was published",
            )  # fmt: skip
    if source < count:
        raise UserError(
            "not supported: fewer tokens of the source than of the target, whose <pad> has no row there",
            where=f"{where}: vocab_size", found=f"{source:,}", expected=f"at least {count:,}, the decoder_vocab_size",
            todo="choose the folder of an OPUS-MT model as it was published",
        )  # fmt: skip
    act = settings.get("activation_function", "gelu")
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise unsupported(where, "activation_function", act, ACTIVATIONS)
    if found["width"] % found["heads"]:
        raise wrong(where, "encoder_attention_heads", found["heads"], f"a divisor of d_model, {found['width']:,}")
    dropouts = {key: float_setting(settings, key, 0.0, where) for key in TRAINING}
    notes += tuple(f"{key} {value} is not used: it concerns training alone" for key, value in dropouts.items() if value)
    found |= {"vocab": count + 1, "source_vocab": None if shares else source + 1}
    found |= {"activation": ACTIVATIONS[act], "positions": "sinusoid_halves", "norm": "post"}
    found |= {"output": OUTPUTS[ties, True], "dropout": float_setting(settings, "dropout", 0.1, where)}
    return PublishedConfig(validate_config(TransformerConfig, found, KEYS, where), ties=ties, notes=notes)


def config_json(
    config: TransformerConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of a model with this config, whose special tokens are where Marian has them."""
    refuse_attention(config, TITLE)
    for name, found, known in (
        ("positions", config.positions, ("sinusoid_halves",)),
        ("norm", config.norm, ("post",)),
        ("output", config.output, ("tied", "biased") if config.source_vocab is None else tuple(OUTPUTS.values())),
    ):
        if found not in known:
            raise unwritable(TITLE, name, found, " or ".join(known))
    settings: dict[str, Any] = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPES[0]}
    settings |= {key: getattr(config, ours) for ours, key in KEYS.items()}
    count = (config.vocab or 1) - 1
    settings |= {"vocab_size": (config.source_vocab or count + 1) - 1, "decoder_vocab_size": count}
    settings |= {key: settings[other] for key, other in SAME.items()}
    return settings | {
        "activation_function": ACTIVATION_NAMES[config.activation],
        **dict.fromkeys(TRAINING, 0.0),
        "scale_embedding": config.scale_embedding,
        "static_position_embeddings": True,
        SHARE: config.source_vocab is None,
        TIE: config.output in ("tied", "biased"),
        "is_encoder_decoder": True,
        "pad_token_id": count - 1,
        "decoder_start_token_id": count - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "init_std": 0.02,
        "dtype": "float32",
    }


def table(config: TransformerConfig, head: str | None = None) -> Table:
    """Hugging Face's tensor names."""
    rows = _rows(config.vocab)
    if config.source_vocab is None:
        rules = [Rule("tokens.weight", (EMBEDDING,), rows=rows, instead=TWINS)]
        twins = [Twin(name, EMBEDDING) for name in TWINS]
    else:
        rules, twins = [Rule("source_tokens.weight", (SOURCE,), rows=_rows(config.source_vocab))], []
        if config.output in ("tied", "biased"):
            rules.append(Rule("tokens.weight", (TARGET,), rows=rows))
            twins.append(Twin(LOGITS, TARGET))
        else:
            rules += [Rule("tokens.input", (TARGET,), rows=rows), Rule("tokens.weight", (LOGITS,), rows=rows)]
    if config.output in ("biased", "untied_biased"):
        rules.append(Rule("tokens.bias", (BIAS,), rows=rows, flat=True))
    for index in range(config.encoder_layers):
        ours, theirs = f"encoder.{index}", f"model.encoder.layers.{index}"
        rules += _attention(f"{ours}.attention", f"{theirs}.self_attn")
        rules += _others(ours, theirs, ("self_attn_layer_norm", "final_layer_norm"))
    for index in range(config.decoder_layers):
        ours, theirs = f"decoder.{index}", f"model.decoder.layers.{index}"
        rules += _attention(f"{ours}.attention", f"{theirs}.self_attn")
        rules += _attention(f"{ours}.cross", f"{theirs}.encoder_attn")
        rules += _others(ours, theirs, ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"))
    return Table(tuple(rules), tuple(twins), TABLES)


def _rows(vocab: int | None) -> tuple[int, ...]:
    """Their row of each row of ours: <pad> <unk> <bos> </s>, and the others in their order."""
    last = (vocab or 2) - 2
    return (last, 1, last, 0, *range(2, last))


def _attention(ours: str, theirs: str) -> list[Rule]:
    rules = weight_and_bias(f"{ours}.q", f"{theirs}.q_proj") + weight_and_bias(f"{ours}.out", f"{theirs}.out_proj")
    for part in ("weight", "bias"):
        rules.append(Rule(f"{ours}.kv.{part}", (f"{theirs}.k_proj.{part}", f"{theirs}.v_proj.{part}")))
    return rules


def _others(ours: str, theirs: str, norms: Sequence[str]) -> list[Rule]:
    """The feed-forward layer, and the norms after each sum."""
    rules = weight_and_bias(f"{ours}.mlp.up", f"{theirs}.fc1") + weight_and_bias(f"{ours}.mlp.down", f"{theirs}.fc2")
    for number, name in enumerate(norms, 1):
        rules += weight_and_bias(f"{ours}.add{number}.norm", f"{theirs}.{name}")
    return rules


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: the same."""
    return {name: name for name in names}


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The config with a bias of the logits where there is one."""
    output = OUTPUTS[published.ties, BIAS in names]
    return published._replace(config=published.config.model_copy(update={"output": output}))
