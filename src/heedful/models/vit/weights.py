"""The Vision Transformer and DeiT in published files: those of transformers, timm and torchvision; needs no torch.

Settings that would change what is computed are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import wrong
from heedful.models.exchange import (
    DROPOUTS,
    HALVES,
    IMAGENET,
    QKV,
    Layout,
    PublishedConfig,
    Rule,
    Table,
    add_prefix,
    architecture_in,
    block_rules,
    class_count,
    encoder_json,
    encoder_keys,
    encoder_settings,
    fill_in,
    image_labels,
    label_settings,
    refuse,
    unwritable,
    validate_config,
    weight_and_bias,
)
from heedful.models.vit.config import SIZES, VitConfig

TITLE = "Vision Transformer"
MODEL_TYPES = ("vit", "deit")
USUAL = {"transformers": HALVES._replace(shorter=None), "torchvision": IMAGENET}
# The distillation token and the number of last layers of each architecture.
PARTS: dict[str, tuple[str, bool]] = {
    "ViTModel": ("none", False),
    "ViTForImageClassification": ("none", True),
    "DeiTModel": ("token", False),
    "DeiTForImageClassification": ("token", True),
    "DeiTForImageClassificationWithTeacher": ("head", True),
}
NUMBERS = {  # their key: our key, minimum, maximum
    "hidden_size": ("width", 1, 65_536),
    "num_hidden_layers": ("layers", 1, 1000),
    "num_attention_heads": ("heads", 1, 1024),
    "intermediate_size": ("hidden", 1, 1_048_576),
    "num_channels": ("channels", 1, 1024),
    "patch_size": ("patch", 1, 1024),
}
DEFAULTS: dict[str, Any] = {  # of transformers, for what a config.json leaves out
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_channels": 3,
    "patch_size": 16,
    "image_size": 224,
}
HARMLESS: dict[str, tuple[Any, ...]] = {
    "qkv_bias": (True, None),
    "use_mask_token": (False, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
ARCHITECTURES = {
    "timm": {
        **{f"vit_{size}_patch16_224": SIZES[f"vit-{size}-16"] for size in ("tiny", "small", "base", "large")},
        **{f"deit_{size}_patch16_224": SIZES[f"vit-{size}-16"] for size in ("tiny", "small", "base")},
        **{f"deit_{size}_distilled_patch16_224": SIZES[f"deit-{size}-16"] for size in ("tiny", "small", "base")},
        "vit_base_patch32_224": SIZES["vit-base-32"],
        "vit_huge_patch14_224": SIZES["vit-huge-14"],
    },
    "torchvision": {
        "vit_b_16": SIZES["vit-base-16"],
        "vit_b_32": SIZES["vit-base-32"],
        "vit_l_16": SIZES["vit-large-16"],
        "vit_h_14": SIZES["vit-huge-14"],
    },
}
LAYER = {  # of a block in transformers, without .weight and .bias
    "attention.out": "attention.output.dense",
    "add1.norm": "layernorm_before",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "add2.norm": "layernorm_after",
}
IN_TIMM = {
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "add1.norm": "norm1",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
    "add2.norm": "norm2",
}
IN_TORCHVISION = {
    "attention.out": "self_attention.out_proj",
    "add1.norm": "ln_1",
    "mlp.up": "mlp.0",
    "mlp.down": "mlp.3",
    "add2.norm": "ln_2",
}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; an error names the invalid one."""
    refuse(settings, HARMLESS, where, "choose the folder of a ViT or DeiT as it was published")
    named = architecture_in(settings, PARTS, where)
    distillation, classifies = PARTS[named or ("DeiTModel" if settings["model_type"] == "deit" else "ViTModel")]
    settings, notes = fill_in(settings, DEFAULTS)
    settings = {**dict.fromkeys(DROPOUTS, 0.0), **settings}
    found = encoder_settings(settings, NUMBERS, where)
    side = settings["image_size"]
    if (
        not (isinstance(side, list) and len(side) == 2 and all(type(one) is int for one in side))
        and type(side) is not int
    ):
        raise wrong(where, "image_size", side, "a whole number, or rows and columns, [rows, columns]")
    found["size"] = tuple(side) if isinstance(side, list) else (side, side)
    found |= {"distillation": distillation, "classes": class_count(settings, where) if classifies else None}
    config = validate_config(VitConfig, found, encoder_keys(NUMBERS) | {"size": "image_size"}, where)
    return PublishedConfig(config, labels=image_labels(settings, where), named=named is not None, notes=notes)


def config_json(config: VitConfig, labels: Sequence[str]) -> dict[str, Any]:
    """The config.json of such a model."""
    for name, usual in (("pool", "class"), ("positions", "learned")):
        if (found := getattr(config, name)) != usual:
            raise unwritable(TITLE, name, found, usual)
    known = (config.distillation, config.classes is not None)
    architecture = next((name for name, parts in PARTS.items() if parts == known), "DeiTModel")
    kind = "vit" if architecture.startswith("ViT") else "deit"
    settings = encoder_json(config, TITLE, kind, architecture, NUMBERS)
    rows, columns = config.size
    size = rows if rows == columns else [rows, columns]
    return settings | {"image_size": size, "qkv_bias": True} | label_settings(None, labels)


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: in transformers, a model without a last layer has no prefix."""
    given = list(names)
    kind = "deit." if any("distillation_token" in name for name in given) else "vit."
    if not any(name.startswith(("embeddings.", "vit.", "deit.")) for name in given):
        return {name: name for name in given}
    return add_prefix(given, kind, ("embeddings.", "encoder.layer.", "layernorm.", "pooler."))


def tables(config: VitConfig) -> dict[Layout, Table]:
    """The names in transformers, timm and torchvision; the last knows no distillation."""
    found: dict[Layout, Table] = {"transformers": _transformers(config), "timm": _timm(config)}
    return found | ({"torchvision": _torchvision(config)} if config.distillation == "none" else {})


def _transformers(config: VitConfig) -> Table:
    prefix = "vit." if config.distillation == "none" else "deit."
    rules = _embedding(
        config,
        (f"{prefix}embeddings.cls_token", f"{prefix}embeddings.distillation_token"),
        f"{prefix}embeddings.position_embeddings",
        f"{prefix}embeddings.patch_embeddings.projection",
    )
    for index in range(config.layers):
        names = tuple(f"attention.attention.{name}" for name in QKV)
        rules += block_rules(f"blocks.{index}", f"{prefix}encoder.layer.{index}", names, LAYER)
    rules += weight_and_bias("norm", f"{prefix}layernorm")
    if config.classes is not None and config.distillation == "head":
        rules += weight_and_bias("head", "cls_classifier") + weight_and_bias("second.head", "distillation_classifier")
    elif config.classes is not None:
        rules += weight_and_bias("head", "classifier")
    return Table(tuple(rules), unused=(f"{prefix}pooler.dense.weight", f"{prefix}pooler.dense.bias"))


def _timm(config: VitConfig) -> Table:
    rules = _embedding(config, ("cls_token", "dist_token"), "pos_embed", "patch_embed.proj")
    for index in range(config.layers):
        for ours, theirs in IN_TIMM.items():
            rules += weight_and_bias(f"blocks.{index}.{ours}", f"blocks.{index}.{theirs}")
    rules += weight_and_bias("norm", "norm")
    if config.classes is not None:
        rules += weight_and_bias("head", "head")
        rules += weight_and_bias("second.head", "head_dist") if config.distillation == "head" else []
    return Table(tuple(rules))


def _torchvision(config: VitConfig) -> Table:
    rules = _embedding(config, ("class_token",), "encoder.pos_embedding", "conv_proj")
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"encoder.layers.encoder_layer_{index}"
        for part in ("weight", "bias"):
            rules.append(Rule(f"{ours}.attention.qkv.{part}", (f"{theirs}.self_attention.in_proj_{part}",)))
        for own, its in IN_TORCHVISION.items():
            rules += weight_and_bias(f"{ours}.{own}", f"{theirs}.{its}")
    rules += weight_and_bias("norm", "encoder.ln")
    return Table((*rules, *(weight_and_bias("head", "heads.head") if config.classes is not None else ())))


def _embedding(config: VitConfig, tokens: tuple[str, ...], positions: str, patches: str) -> list[Rule]:
    rules = [Rule(f"tokens.{number}", (name,)) for number, name in enumerate(tokens[: config.first])]
    if config.positions == "learned":
        rules.append(Rule("positions.table", (positions,)))
    return rules + weight_and_bias("patches.projection", patches)


def match_tensors(config: VitConfig, names: set[str]) -> VitConfig:
    """With the second last layer of DeiT only if there are tensors of it."""
    second = any(name.startswith(("distillation_classifier.", "head_dist.")) for name in names)
    return (
        config.model_copy(update={"distillation": "token"}) if config.distillation == "head" and not second else config
    )
