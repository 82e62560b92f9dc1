"""The summary of every model: layers, output shapes and parameters, whose total is the config's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import heedful
from heedful.models import MODELS, build, config_class
from heedful.models.bert.config import SIZES

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("depth", [1, 2, 0])
@pytest.mark.parametrize("kind", MODELS)
def test_rows_add_up_to_the_parameter_count(kind: str, depth: int) -> None:
    config = config_class(kind).tiny()
    torch.manual_seed(0)
    model = build(config).train()
    before = torch.get_rng_state()
    found = heedful.summary(model, depth)
    assert found.parameters == config.parameters(23) == sum(weight.numel() for weight in model.parameters())
    assert model.training and torch.equal(torch.get_rng_state(), before)
    assert depth != 1 or sum(not row.shape for row in found) <= 2, "layers without an output"
    text = str(found)
    assert text.startswith("Layer (type)") and f"Total parameters: {found.parameters:,}" in text
    assert heedful.summary(config, depth) == found


def test_shapes_match_a_forward_pass() -> None:
    found = {row.name: row for row in heedful.summary(config_class("gpt").tiny())}
    assert found["blocks.1"].output == "(None, 10, 16)" and found["blocks.1"].kind == "Block"
    rows = heedful.summary(config_class("seq2seq").tiny(), 0)
    assert len(rows) > 8 and all(row.kind != "ModuleList" for row in rows)
    assert heedful.summary(config_class("conv_classifier").tiny())[-1].output == "(None, 2)"


def test_frozen_weights_are_counted_separately() -> None:
    model = build(config_class("classifier").tiny())
    model.encoder.requires_grad_(False)
    found = heedful.summary(model)
    assert found.frozen == next(row.parameters for row in found if row.name == "encoder")
    assert f"Non-trainable parameters: {found.frozen:,}" in str(found)


def test_bert_tiny_has_its_published_size() -> None:
    config = SIZES["bert-tiny"].model_copy(update={"vocab": 30_522, "masked_words": False, "next_sentence": False})
    assert heedful.summary(config).parameters == 4_385_920


def test_summary_of_a_predictor_asks_for_its_model() -> None:
    predictor: Any = SimpleNamespace(model=None)
    with pytest.raises(TypeError, match=r"not a SimpleNamespace; pass its \.model"):
        heedful.summary(predictor)
