"""ResNet in published files: those of transformers, timm and torchvision; needs no torch.

Settings that would change what is computed are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import wrong
from heedful.models.exchange import (
    IMAGENET,
    Layout,
    PublishedConfig,
    Rule,
    Table,
    add_prefix,
    architecture_in,
    class_count,
    fill_in,
    image_labels,
    int_setting,
    label_settings,
    norm_rules,
    refuse,
    unsupported,
    unwritable,
    validate_config,
    weight_and_bias,
)
from heedful.models.resnet.config import SIZES, ResNetConfig

TITLE = "ResNet"
MODEL_TYPES = ("resnet",)
NETS = {f"resnet{layers}": SIZES[f"resnet-{layers}"] for layers in (18, 34, 50, 101, 152)}
ARCHITECTURES = {"timm": NETS, "torchvision": NETS}
USUAL = {"transformers": IMAGENET, "torchvision": IMAGENET}
CLASSIFIES = {"ResNetModel": False, "ResNetForImageClassification": True}  # whether it has a last layer
DEFAULTS: dict[str, Any] = {  # of transformers, for what a config.json leaves out
    "num_channels": 3,
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
}
HARMLESS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("relu", None),
    "downsample_in_first_stage": (False, None),
    "downsample_in_bottleneck": (False, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
KEYS = {
    "channels": "num_channels",
    "stem_width": "embedding_size",
    "widths": "hidden_sizes",
    "depths": "depths",
    "block": "layer_type",
}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; the size of the images is not among them."""
    refuse(settings, HARMLESS, where, "choose the folder of a ResNet as it was published")
    named = architecture_in(settings, CLASSIFIES, where)
    settings, notes = fill_in(settings, DEFAULTS)
    found: dict[str, Any] = {}
    for ours in ("channels", "stem_width"):
        found[ours] = int_setting(settings, KEYS[ours], 1, 65_536, where)
    for ours in ("widths", "depths"):
        value = settings[KEYS[ours]]
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise wrong(where, KEYS[ours], value, "a list of whole numbers, one for each stage")
        found[ours] = tuple(value)
    if settings["layer_type"] not in ("basic", "bottleneck"):
        raise unsupported(where, "layer_type", settings["layer_type"], ("basic", "bottleneck"))
    found["block"] = settings["layer_type"]
    found["classes"] = class_count(settings, where) if CLASSIFIES[named or "ResNetModel"] else None
    config = validate_config(ResNetConfig, found, KEYS, where)
    return PublishedConfig(config, labels=image_labels(settings, where), named=named is not None, notes=notes)


def config_json(config: ResNetConfig, labels: Sequence[str]) -> dict[str, Any]:
    """The config.json of such a model."""
    if config.stem != "large":
        raise unwritable(TITLE, "stem", config.stem, "large")
    architecture = "ResNetModel" if config.classes is None else "ResNetForImageClassification"
    stages = len(config.depths)
    return {
        "architectures": [architecture],
        "model_type": "resnet",
        **{theirs: getattr(config, ours) for ours, theirs in KEYS.items()},
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
        "stage_names": ["stem", *(f"stage{number}" for number in range(1, stages + 1))],
        "out_features": [f"stage{stages}"],
        "out_indices": [stages],
        "dtype": "float32",
        **label_settings(None, labels),
    }


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: in transformers, a model without a last layer has no `resnet.`."""
    return add_prefix(names, "resnet.", ("embedder.", "encoder."))


def tables(config: ResNetConfig) -> dict[Layout, Table]:
    """The names in transformers, and in timm and torchvision, which have the same."""
    inner = "resnet.encoder.stages"
    hf = _conv("stem.0", "resnet.embedder.embedder.convolution", "resnet.embedder.embedder.normalization")
    plain = _conv("stem.0", "conv1", "bn1")
    for stage, depth in enumerate(config.depths):
        for number in range(depth):
            ours, theirs, its = (
                f"stages.{stage}.{number}",
                f"{inner}.{stage}.layers.{number}",
                f"layer{stage + 1}.{number}",
            )
            for place in range(3 if config.block == "bottleneck" else 2):
                layer = f"{theirs}.layer.{place}"
                hf += _conv(f"{ours}.body.{place}", f"{layer}.convolution", f"{layer}.normalization")
                plain += _conv(f"{ours}.body.{place}", f"{its}.conv{place + 1}", f"{its}.bn{place + 1}")
            if not number and config.projects(stage):
                short = f"{theirs}.shortcut"
                hf += _conv(f"{ours}.shortcut", f"{short}.convolution", f"{short}.normalization")
                plain += _conv(f"{ours}.shortcut", f"{its}.downsample.0", f"{its}.downsample.1")
    if config.classes is not None:
        hf += weight_and_bias("head", "classifier.1")
        plain += weight_and_bias("head", "fc")
    return {"transformers": Table(tuple(hf)), "timm": Table(tuple(plain)), "torchvision": Table(tuple(plain))}


def _conv(ours: str, conv: str, norm: str) -> list[Rule]:
    return [Rule(f"{ours}.conv.weight", (f"{conv}.weight",)), *norm_rules(f"{ours}.norm", norm)]


def match_tensors(config: ResNetConfig, names: set[str]) -> ResNetConfig:
    """The same: all ResNets have the same parts."""
    return config
