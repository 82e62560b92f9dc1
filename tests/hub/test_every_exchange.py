"""Tests of every published model: its weights round-trip, and its table is complete."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.hub import pretrained, write
from heedful.hub.folder import exchanges, find_exchange, read_config
from heedful.hub.loading import HEADS, Head, Pretrained, task_model
from heedful.models import build, config_class
from heedful.models.exchange import Exchange

PUBLISHED = {"transformer": {"positions": "sinusoid_halves", "output": "biased"}}  # settings of tiny models
every_kind = pytest.mark.parametrize("kind", exchanges())


def tiny_model(kind: str, head: str | None = None) -> Pretrained:
    """A tiny model with random weights, optionally with a head."""
    config: Any = config_class(kind).tiny().model_copy(update=PUBLISHED.get(kind, {}))
    torch.manual_seed(1)
    if head is None:
        return Pretrained(config, None, build(config).state_dict(), ())
    config = config.under_head(config_class(head).pools, head)
    labels = ("no", "yes") if head in ("classifier", "multi_label", "tagger") else ()
    outputs = 1 if head in ("regressor", "multiple_choice") else 2
    top = {"weight": torch.randn(outputs, config.width), "bias": torch.randn(outputs)}
    return Pretrained(config, None, build(config).state_dict(), (), Head(head, labels, top))


@every_kind
def test_every_exchange_module_is_complete(kind: str) -> None:
    exchange = find_exchange(kind)
    for name, asked in inspect.getmembers(Exchange, inspect.isfunction):
        if not name.startswith("_") and (exchange is None or exchange.RELEASE or not name.startswith("release")):
            own = list(inspect.signature(getattr(exchange, name)).parameters)
            assert own == list(inspect.signature(asked).parameters)[1:], name
    assert exchange is not None and exchange.TITLE and exchange.MODEL_TYPES and len(exchange.RELEASE or "ab") == 2


def test_model_types_are_unique() -> None:
    types = [name for exchange in exchanges().values() for name in exchange.MODEL_TYPES]
    assert len(types) == len(set(types))


@every_kind
def test_table_lists_every_tensor_once(kind: str) -> None:
    exchange, found = find_exchange(kind), tiny_model(kind)
    assert exchange is not None
    assert sorted(rule.ours for rule in exchange.table(found.config).rules) == sorted(found.tensors)
    theirs = [name for rule in exchange.table(found.config).rules for name in rule.theirs]
    assert len(theirs) == len(set(theirs))


@every_kind
def test_weights_round_trip(kind: str, tmp_path: Path) -> None:
    found, exchange = tiny_model(kind), find_exchange(kind)
    assert exchange is not None
    if any(rule.rows for rule in exchange.table(found.config).rules):  # rows of ours that are one of theirs
        write(tmp_path / "first", found)
        found = pretrained(tmp_path / "first")
    write(tmp_path / "theirs", found)
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"] in exchange.MODEL_TYPES
    again = pretrained(tmp_path / "theirs")
    assert again.config == found.config == read_config(tmp_path / "theirs")
    assert again.tensors.keys() == found.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in found.tensors.items())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", exchanges("encoder"))
def test_head_round_trip(kind: str, head: str, tmp_path: Path) -> None:
    found = tiny_model(kind, head)
    write(tmp_path / "theirs", found)
    again = pretrained(tmp_path / "theirs")
    assert again.head is not None and found.head is not None
    assert (again.head.kind, again.head.labels) == (head, found.head.labels)
    assert all(torch.equal(again.head.tensors[name], tensor) for name, tensor in found.head.tensors.items())
    task, config, tensors, unused = task_model(again)
    assert (task, config.kind, unused) == (HEADS[head], head, ())
    build(config).load_state_dict(tensors)
