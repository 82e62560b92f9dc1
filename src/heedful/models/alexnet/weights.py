"""AlexNet in published files: those of torchvision; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from heedful.models.alexnet.config import SIZES, AlexNetConfig
from heedful.models.exchange import IMAGENET, Layout, Table, weight_and_bias

TITLE = "AlexNet"
MODEL_TYPES = ()
ARCHITECTURES = {"torchvision": {"alexnet": SIZES["alexnet"]}}
USUAL = {"torchvision": IMAGENET}
NAMES = {  # ours: torchvision's
    "layers.0.conv": "features.0",
    "layers.2.conv": "features.3",
    "layers.4.conv": "features.6",
    "layers.5.conv": "features.8",
    "layers.6.conv": "features.10",
    "dense.1": "classifier.1",
    "dense.4": "classifier.4",
    "head": "classifier.6",
}


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The names as they are."""
    return {name: name for name in names}


def tables(config: AlexNetConfig) -> dict[Layout, Table]:
    """The names in torchvision."""
    known = {ours: theirs for ours, theirs in NAMES.items() if ours != "head" or config.classes is not None}
    return {"torchvision": Table(tuple(rule for pair in known.items() for rule in weight_and_bias(*pair)))}


def match_tensors(config: AlexNetConfig, names: set[str]) -> AlexNetConfig:
    """The same: there is one AlexNet."""
    return config
