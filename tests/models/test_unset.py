"""Models that are built for weights from a file."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from heedful.models import MODELS, build, config_class
from heedful.models.unset import Unset


@pytest.mark.parametrize("kind", MODELS)
def test_all_but_the_weights_is_that_of_a_model_with_random_ones(kind: str) -> None:
    config = config_class(kind).tiny()
    with Unset():
        unset = build(config)
    usual = build(config)
    shapes = {name: (x.shape, x.dtype, x.requires_grad) for name, x in usual.named_parameters()}
    assert {name: (x.shape, x.dtype, x.requires_grad) for name, x in unset.named_parameters()} == shapes
    for (name, one), (other, right) in zip(unset.named_buffers(), usual.named_buffers(), strict=True):
        assert name == other and torch.equal(one, right)
    unset.load_state_dict(usual.state_dict())
    assert all(torch.equal(one, right) for one, right in zip(unset.parameters(), usual.parameters(), strict=True))


def test_weights_are_zero_in_this_thread_alone() -> None:
    found = {}
    with Unset():
        other = threading.Thread(target=lambda: found.update(other=nn.Linear(9, 9).weight))
        other.start()
        other.join()
        found["here"] = nn.Linear(9, 9).weight
        truncated = nn.init.trunc_normal_(torch.empty(9, 9), std=0.02, a=-0.04, b=0.04)
    assert not found["here"].any() and not truncated.any() and found["other"].any() and nn.Linear(9, 9).weight.any()
