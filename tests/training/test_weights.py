"""Weights are loaded completely or not at all, and gathered for the leader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful.errors import UserError
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.training.checkpoint.weights import gather_weights, load_strictly
from heedful.training.distributed.team import ProcessInfo, Team

MODEL = TransformerConfig(vocab=20, width=16, heads=2, encoder_layers=1, decoder_layers=1, hidden=32, context=60)


def test_weights_are_loaded_completely_or_not_at_all() -> None:
    model = build(MODEL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wrong = {name: value + 1 for name, value in before.items()}
    wrong["strange"] = wrong.pop("tokens.weight")
    wrong["decoder.0.mlp.down.bias"] = torch.zeros(3)
    wrong["decoder.0.mlp.down.weight"] = wrong["decoder.0.mlp.down.weight"].int()
    with pytest.raises(UserError) as error:
        load_strictly(model, wrong, Path("model.safetensors"))
    assert error.value.where == "model.safetensors"
    assert str(error.value.found).split("\n") == [
        "decoder.0.mlp.down.bias: float32 (3,) in the file, float32 (16,) in the model",
        "decoder.0.mlp.down.weight: int32 (16, 32) in the file, float32 (16, 32) in the model",
        "strange: not in the model",
        "tokens.weight: not in the file",
    ]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(UserError, match=f"and {len(before) - 10} more"):
        load_strictly(model, {}, Path("model.safetensors"))
    load_strictly(model, {name: value + 1 for name, value in before.items()}, Path("model.safetensors"))
    assert all(torch.equal(value, before[name] + 1) for name, value in model.state_dict().items())


def test_only_the_leader_gets_the_weights() -> None:
    model = build(MODEL)
    leader, other = (Team(ProcessInfo(rank, 2, rank, 2, "", 0)) for rank in (0, 1))
    found = gather_weights(model, leader)
    assert found.keys() == model.state_dict().keys()
    assert all(found[name].equal(value) and not found[name].requires_grad for name, value in model.named_parameters())
    assert gather_weights(model, other) == {}
