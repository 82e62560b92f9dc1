"""Seeds from counters: pinned, all different, and dropout repeated exactly without replay."""

from __future__ import annotations

import itertools

import torch

from heedful.training.seeds import reseed, seed_for

CPU = torch.device("cpu")


def test_seeds_are_pinned() -> None:
    assert seed_for(0, 1) == 5864353725504481575
    assert seed_for(0, 1, 0, 0) == seed_for(0, 1)


def test_seeds_are_63_bits_and_differ_in_every_counter() -> None:
    seeds = [seed_for(*counters) for counters in itertools.product((0, 1, -1, 2**70), range(12), range(12), range(12))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_dropout_of_a_step_does_not_depend_on_earlier_draws() -> None:
    dropout = torch.nn.Dropout(0.5)
    reseed(CPU, 3, 100, 1)
    first = dropout(torch.ones(1000))
    torch.rand(17)
    reseed(CPU, 3, 100, 1)
    assert torch.equal(dropout(torch.ones(1000)), first)
    reseed(CPU, 3, 100, 2)
    assert not torch.equal(dropout(torch.ones(1000)), first)
