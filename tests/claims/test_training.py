"""What the claim sheet says about gradients."""

import pytest
import torch

from heedful.training.optim import clip


@pytest.mark.claim("X2")
def test_gradients_are_clipped_by_their_norm_and_by_its_square_only_when_asked() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert float(clip([weight], 5.0)) == 5
    assert weight.grad.tolist() == [3, 4]  # the true norm is 5: nothing to clip
    assert float(clip([weight], 5.0, rule="squared")) == 5
    assert weight.grad.tolist() == pytest.approx([0.6, 0.8])
