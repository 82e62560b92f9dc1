"""XLM-R in the files of Hugging Face: RoBERTa's names of tensors and settings, with other names of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.models.exchange import ENCODER_DEFAULTS, PublishedConfig
from heedful.models.roberta import weights as roberta
from heedful.models.roberta.weights import PREFIX, canonical, match_tensors, table
from heedful.models.xlm_roberta.config import XlmRobertaConfig

__all__ = ["MODEL_TYPES", "PREFIX", "RELEASE", "canonical", "config_json", "match_tensors", "read_config", "table"]
TITLE = "XLM-R"
MODEL_TYPES = ("xlm-roberta",)
RELEASE = None
ARCHITECTURES = {f"XLM{name}": parts for name, parts in roberta.ARCHITECTURES.items()}


def read_config(settings: Mapping[str, Any], where: Path) -> PublishedConfig:
    """The settings of a config.json; an invalid one is an error that names it."""
    return roberta.read_settings(settings, where, TITLE, ARCHITECTURES, XlmRobertaConfig, ENCODER_DEFAULTS)


def config_json(
    config: XlmRobertaConfig, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The config.json of such a model; special tokens have the ids that were published."""
    return roberta.write_settings(config, head, labels, TITLE, MODEL_TYPES[0], ARCHITECTURES)
