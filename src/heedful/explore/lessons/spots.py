"""The parts of each view that a step can point at, by the `data-testid` of the page; N stands for a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

INPUT = ("figure", "text", "another-example")
IMAGES = ("figure", "image-N", "draw")
ATTENTION = (*INPUT, "other", "look", "layer")
SPOTS: Mapping[str, Sequence[str]] = {
    "home": ("figure", "text"),
    "heads": (*ATTENTION, "heads", "head-N", "all-heads", "all-tokens", "least", "ask-N", "see-N"),
    "grid": (*ATTENTION, "grid", "sort", "thumb-N-N-N"),
    "blocks": ("figure", "mode", "share", "layer", "head", "inside"),
    "alignment": (*INPUT, "other", "layer", "head", "stage", "share", "cells", "mark-N", "written-N", "play"),
    "steps": (*ATTENTION, "head", "query-N", "stage-N", "mask-N", "weight-N", "example", "play"),
    "beam": (*INPUT, "other", "k", "t", "paths", "path-N", "node-N", "play", "forced", "yours"),
    "next": (*INPUT, "other", "temperature", "top-k", "top-p", "bars", "bar-N", "argmax", "draw", "entropy", "seed"),
    "fill": (*INPUT, "other", "token-N", "fill", "moved", "moved-grid", "show-all", "share-N-N"),
    "classifier": (
        "figure",
        "text",
        "classes",
        "class-N",
        "saliency-N",
        "sum-N",
        "caution",
        "edits",
        "without-N",
        "data",
        "slices",
        "row-N",
    ),
    "lens": (*INPUT, "other", "lens", "cell-N-N", "top-N"),
    "map": ("figure", "map", "of", "way", "nearest", "lines", "word", "find", "legend", "opened"),
    "ablation": (
        *INPUT,
        "other",
        "layer-N-N",
        "switch-N-N-N",
        "all-on",
        "sweep",
        "missed",
        "after-N",
        "before-N",
        "change",
    ),
    "recurrent": (*INPUT, "other", "layer", "token-N", "units", "cell", "gradient"),
    "reconstruct": (*IMAGES, "reconstruct", "noise", "mean-N", "unit-N", "share", "reset"),
    "image": (*IMAGES, "attention", "block", "classes", "decisive", "layer", "maps", "mean", "method", "rollout"),
    "caption": (*IMAGES, "attention", "beam-list", "caption-figure", "region", "words", "word-N", "weights", "beams"),
    "paragraph": (*IMAGES, "regions", "sentences", "sentence-N"),
    "glimpses": (*IMAGES, "glimpses", "glimpse-N", "classes"),
    "hops": ("figure", "story", "question", "weights", "answers"),
    "dialogue": ("figure",),
    "agent": ("figure",),
    "positions": ("figure", "mask-kind", "mask-N", "near", "words", "of", "readout"),
    "run": ("figure", "results", "recipe", "samples"),
    "source": ("figure", "source", "whole", "line-N"),
}
