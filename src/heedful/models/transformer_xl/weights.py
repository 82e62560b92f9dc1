"""Transformer-XL in the files of Hugging Face (`TransfoXLLMHeadModel`), up to version 4 of its library; needs no torch.

Only the settings below are read. Those that would change what is computed are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import wrong
from heedful.models.exchange import (
    PublishedConfig,
    Rule,
    Table,
    Twin,
    architecture_in,
    fill_in,
    float_setting,
    int_setting,
    refuse,
    refuse_attention,
    validate_config,
    weight_and_bias,
)
from heedful.models.transformer_xl.config import TransformerXLConfig

TITLE = "Transformer-XL"
MODEL_TYPES = ("transfo-xl",)
RELEASE = None
PREFIX = ""  # all are written with an output
ARCHITECTURE = "TransfoXLLMHeadModel"
SIZES = {  # ours, theirs, the least and the most
    "vocab": ("vocab_size", 2, 10_000_000),
    "width": ("d_model", 2, 65_536),
    "heads": ("n_head", 1, 1024),
    "head_width": ("d_head", 1, 65_536),
    "layers": ("n_layer", 1, 1000),
    "hidden": ("d_inner", 1, 1_048_576),
    "embed": ("d_embed", 1, 65_536),
    "divisor": ("div_val", 1, 1024),
    "memory": ("mem_len", 1, 1_048_576),
}
SWITCHES = ("same_length", "untie_r", "pre_lnorm")
DEFAULTS: dict[str, Any] = {  # of transformers 4, for what a config.json leaves out
    "vocab_size": 267_735,
    "d_model": 1024,
    "n_head": 16,
    "d_head": 64,
    "n_layer": 18,
    "d_inner": 4096,
    "d_embed": 1024,
    "div_val": 4,
    "mem_len": 1600,
    "cutoffs": [20_000, 40_000, 200_000],
    "clamp_len": 1000,
    "same_length": True,
    "untie_r": True,
    "pre_lnorm": False,
}
# Settings that change what is computed, with the values under which they do not.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "attn_type": (0, None),
    "proj_share_all_but_first": (True, None),
    "adaptive": (True, None),
    "tie_word_embeddings": (True, None),
    "tie_weight": (True, None),
    "sample_softmax": (-1, 0, None),
    "ext_len": (0, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
LAYER = {  # of a block; linear maps of the attention have no bias
    "attention.qkv.weight": "dec_attn.qkv_net.weight",
    "attention.distance.weight": "dec_attn.r_net.weight",
    "attention.out.weight": "dec_attn.o_net.weight",
}
NORMS_AND_MAPS = {
    "add1.norm": "dec_attn.layer_norm",
    "mlp.up": "pos_ff.CoreNet.0",
    "mlp.down": "pos_ff.CoreNet.3",
    "add2.norm": "pos_ff.layer_norm",
}
BIASES = {"u": "r_w_bias", "v": "r_r_bias"}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; an invalid one is an error that names it."""
    refuse(settings, HARMLESS, where, "choose the folder of a Transformer-XL as it was published")
    architecture_in(settings, (ARCHITECTURE,), where)
    settings, left_out = fill_in(settings, DEFAULTS)
    found: dict[str, Any] = {
        ours: int_setting(settings, key, least, most, where) for ours, (key, least, most) in SIZES.items()
    }
    switches = {}
    for key in SWITCHES:
        switches[key] = settings[key]
        if not isinstance(switches[key], bool):
            raise wrong(where, key, switches[key], "true or false")
    if found["embed"] == found["width"]:
        del found["embed"]
    if found["heads"] * found["head_width"] == found["width"]:
        del found["head_width"]
    found |= {"same_length": switches["same_length"], "share_biases": not switches["untie_r"]}
    found["norm"] = "pre" if switches["pre_lnorm"] else "post"
    clamp = settings["clamp_len"]
    if not isinstance(clamp, int) or isinstance(clamp, bool) or clamp > 1_048_576:
        raise wrong(where, "clamp_len", clamp, "a whole number; 0 or less for no limit")
    found["clamp"] = clamp if clamp > 0 else None
    cutoffs = settings["cutoffs"]
    if not isinstance(cutoffs, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in cutoffs):
        raise wrong(where, "cutoffs", cutoffs, "a list of ids, such as [20000, 40000, 200000]")
    found["cutoffs"] = tuple(cutoffs)
    if settings.get("tgt_len") is not None:
        found["context"] = int_setting(settings, "tgt_len", 2, 1_048_576, where)
    found["dropout"] = float_setting(settings, "dropout", 0.1, where)
    found["attention_dropout"] = float_setting(settings, "dropatt", 0.0, where)
    found["norm_eps"] = float_setting(settings, "layer_norm_epsilon", 1e-5, where)
    keys = {ours: key for ours, (key, _, _) in SIZES.items()} | {"cutoffs": "cutoffs", "context": "tgt_len"}
    config = validate_config(TransformerXLConfig, found, keys, where)
    note = "a text begins with an empty memory here; `transformers` fills it with zeros, which tokens attend to"
    return PublishedConfig(config, notes=(*left_out, note))


def config_json(
    config: TransformerXLConfig,
    head: str | None = None,
    labels: Sequence[str] = (),
    pad: int = 0,
    end: int | None = None,
) -> dict[str, Any]:
    """The config.json of such a model."""
    refuse_attention(config, TITLE)
    whole = config.model_copy(
        update={"embed": config.table_width, "head_width": config.inner // config.heads}
    )  # as the file has them
    settings: dict[str, Any] = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPES[0]}
    settings |= {key: getattr(whole, ours) for ours, (key, _, _) in SIZES.items()}
    return settings | {
        "cutoffs": list(config.cutoffs),
        "tgt_len": config.context,
        "clamp_len": config.clamp or -1,
        "same_length": config.same_length,
        "untie_r": not config.share_biases,
        "pre_lnorm": config.norm == "pre",
        "dropout": config.dropout,
        "dropatt": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "attn_type": 0,
        "proj_share_all_but_first": True,
        "adaptive": True,
        "tie_word_embeddings": True,
        "sample_softmax": -1,
        "eos_token_id": end,
        "dtype": "float32",
    }


def table(config: TransformerXLConfig, head: str | None = None) -> Table:
    """Hugging Face's names. Input and output share tables, and projections but for the head's."""
    tails = len([cutoff for cutoff in config.cutoffs if config.vocab is None or cutoff < config.vocab])
    tables = 1 if config.divisor == 1 else tails + 1
    rules, twins, words = [], [], "transformer.word_emb"
    for index in range(tables):
        rules.append(Rule(f"tokens.tables.{index}", (f"{words}.emb_layers.{index}.weight",)))
        rules.append(Rule(f"tokens.biases.{index}", (f"crit.out_layers.{index}.bias",)))
        twins.append(Twin(f"crit.out_layers.{index}.weight", f"{words}.emb_layers.{index}.weight"))
    if config.divisor > 1 or config.table_width != config.width:
        rules += [Rule(f"tokens.projections.{index}", (f"{words}.emb_projs.{index}",)) for index in range(tables)]
        rules.append(Rule("tokens.out", ("crit.out_projs.0",)))
        shared = [(index, index if tables > 1 else 0) for index in range(1, tails + 1)]
        twins += [Twin(f"crit.out_projs.{index}", f"{words}.emb_projs.{of}") for index, of in shared]
    if tails:
        rules += [
            Rule("tokens.clusters", ("crit.cluster_weight",)),
            Rule("tokens.cluster_bias", ("crit.cluster_bias",)),
        ]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"transformer.layers.{index}"
        rules += [Rule(f"{ours}.{own}", (f"{theirs}.{other}",)) for own, other in LAYER.items()]
        for own, other in NORMS_AND_MAPS.items():
            rules += weight_and_bias(f"{ours}.{own}", f"{theirs}.{other}")
        for own, other in BIASES.items():
            if config.share_biases:
                twins.append(Twin(f"{theirs}.dec_attn.{other}", f"transformer.{other}"))
            else:
                rules.append(Rule(f"biases.{index}.{own}", (f"{theirs}.dec_attn.{other}",)))
    if config.share_biases:
        rules += [Rule(f"biases.0.{own}", (f"transformer.{other}",)) for own, other in BIASES.items()]
    return Table(tuple(rules), tuple(twins), ("transformer.pos_emb.inv_freq",))


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file."""
    return {name: name for name in names}


def match_tensors(published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
    """The same: there is one head, which every file has."""
    return published
