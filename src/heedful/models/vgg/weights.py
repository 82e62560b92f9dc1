"""VGG in published files: those of torchvision and timm; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from heedful.models.exchange import (
    IMAGENET,
    Layout,
    Rule,
    Table,
    norm_rules,
    weight_and_bias,
)
from heedful.models.vgg.config import DEPTHS, SIZES, VggConfig

TITLE = "VGG"
MODEL_TYPES = ()
NETS = {
    f"vgg{layers}{end}": SIZES[f"vgg-{layers}{own}"] for layers in DEPTHS for end, own in (("", ""), ("_bn", "-norm"))
}
ARCHITECTURES = {"timm": NETS, "torchvision": NETS}
USUAL = {"torchvision": IMAGENET}


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The names as they are."""
    return {name: name for name in names}


def tables(config: VggConfig) -> dict[Layout, Table]:
    """The names in torchvision, and in timm, whose hidden layers are convolutions."""
    convolutions: list[Rule] = []
    place = 0  # in a list of all layers: convolutions, norms, activations and pools
    for stage, depth in enumerate(config.depths):
        for number in range(depth):
            ours = f"stages.{stage}.{number}"
            convolutions += weight_and_bias(f"{ours}.conv", f"features.{place}")
            if config.norm == "batch":
                convolutions += norm_rules(f"{ours}.norm", f"features.{place + 1}")
            place += 3 if config.norm == "batch" else 2
        place += 1
    dense = weight_and_bias("dense.0", "classifier.0") + weight_and_bias("dense.3", "classifier.3")
    hidden: list[Rule] = []
    for ours, theirs, inner in (
        ("dense.0", "pre_logits.fc1", (config.filters[-1], config.grid, config.grid)),
        ("dense.3", "pre_logits.fc2", (config.hidden, 1, 1)),
    ):
        hidden.append(Rule(f"{ours}.weight", (f"{theirs}.weight",), inner=inner))
        hidden.append(Rule(f"{ours}.bias", (f"{theirs}.bias",)))
    if config.classes is not None:
        dense, hidden = dense + weight_and_bias("head", "classifier.6"), hidden + weight_and_bias("head", "head.fc")
    return {"torchvision": Table((*convolutions, *dense)), "timm": Table((*convolutions, *hidden))}


def match_tensors(config: VggConfig, names: set[str]) -> VggConfig:
    """The same: a VGG of this name has all parts."""
    return config
