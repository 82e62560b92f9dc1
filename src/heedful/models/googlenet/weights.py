"""GoogLeNet in published files: those of torchvision; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from heedful.models.exchange import HALVES, Layout, Rule, Table, norm_rules, weight_and_bias
from heedful.models.googlenet.config import SIZES, GoogLeNetConfig

TITLE = "GoogLeNet"
MODEL_TYPES = ()
ARCHITECTURES = {"torchvision": {"googlenet": SIZES["googlenet"]}}
USUAL = {
    "torchvision": HALVES
}  # to which torchvision's model itself changes images that are normalized as for its others
FIRST = 3  # the number of the first stage of inception modules in the paper
BRANCHES = {  # ours: torchvision's, of a module
    "branches.0": "branch1",
    "branches.1.0": "branch2.0",
    "branches.1.1": "branch2.1",
    "branches.2.0": "branch3.0",
    "branches.2.1": "branch3.1",
    "branches.3.1": "branch4.1",
}


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The names as they are."""
    return {name: name for name in names}


def tables(config: GoogLeNetConfig) -> dict[Layout, Table]:
    """The names in torchvision."""
    rules = _conv("stem.0", "conv1") + _conv("stem.2", "conv2") + _conv("stem.3", "conv3")
    index = 0
    for stage, modules in enumerate(config.stages):
        for place in range(len(modules)):
            ours = f"inceptions.{index}.1" if stage and not place else f"inceptions.{index}"  # after a pool
            theirs = f"inception{stage + FIRST}{chr(ord('a') + place)}"
            for own, its in BRANCHES.items():
                rules += _conv(f"{ours}.{own}", f"{theirs}.{its}")
            index += 1
    for number, side in enumerate(config.sides, 1):
        rules += _conv(f"sides.{side}", f"aux{number}.conv") + weight_and_bias(
            f"sides.{side}.dense", f"aux{number}.fc1"
        )
        if config.classes is not None:
            rules += weight_and_bias(f"sides.{side}.head", f"aux{number}.fc2")
    if config.classes is not None:
        rules += weight_and_bias("head", "fc")
    return {"torchvision": Table(tuple(rules))}


def _conv(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.conv.weight", (f"{theirs}.conv.weight",)), *norm_rules(f"{ours}.norm", f"{theirs}.bn")]


def match_tensors(config: GoogLeNetConfig, names: set[str]) -> GoogLeNetConfig:
    """With side classifiers if there are tensors of them."""
    return config if any(name.startswith("aux1.") for name in names) else config.model_copy(update={"sides": ()})
