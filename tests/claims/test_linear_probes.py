"""Row M25 of the claim sheet: representations become linearly separable with depth."""

from __future__ import annotations

import pytest
import torch

from generators import drain_generator
from heedful.lectures.linear_probes import PairsOfDigits, Settings, linear_probe, study


@pytest.mark.claim("M25")
def test_probe_accuracy_grows_with_depth() -> None:
    _, found = drain_generator(study(Settings(steps=500)))
    pixels, first, second, third = found.trained
    assert pixels < 0.56  # hardly better than guessing
    assert first > pixels + 0.08 and second > first + 0.08
    assert third > max(0.85, second - 0.02)  # six seeds gain 0.004 to 0.03 here
    assert max(found.untrained) < 0.7 and third > found.untrained[-1] + 0.2


def test_labels_are_the_parity_of_the_sum() -> None:
    pairs = PairsOfDigits("test", 0)
    x, even = pairs.next(500)
    assert x.shape == (500, 128) and 0.4 < float(even.double().mean()) < 0.6
    images = [tuple(image) for image in pairs.pixels.tolist()]
    for row, right in zip(x[:50], even.tolist(), strict=False):
        first, second = (pairs.labels[images.index(tuple(half.tolist()))] for half in row.split(64))
        assert right == (int(first + second) % 2 == 0)


def test_probe_learns_only_linearly_separable_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    x, tested = (torch.randn(2000, 5, generator=generator) for _ in range(2))
    plane = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    assert linear_probe(x, (x @ plane > 1).long(), tested, (tested @ plane > 1).long()) > 0.95
    xor, other = ((each[:, 0] * each[:, 1] > 0).long() for each in (x, tested))
    assert linear_probe(x, xor, tested, other) < 0.6
