"""The learned mix of layers."""

import torch

from heedful.blocks.mix import Mix
from heedful.blocks.taps import watch


def test_mix_is_the_weighted_sum_of_layers() -> None:
    mix, x = Mix(3), torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(mix(x), x.mean(1))
    with torch.no_grad():
        mix.share.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    share = mix.share.exp() / mix.share.exp().sum()
    expected = 1.7 * sum(share[layer] * x[:, layer] for layer in range(3))
    torch.testing.assert_close(mix(x), expected)
    with watch(mix) as seen:
        assert mix(x).equal(mix(x))
    torch.testing.assert_close(seen["weights"], share)


def test_mix_learns_the_right_layer() -> None:
    mix, x = Mix(3), torch.randn(8, 3, 4, 5)
    optimizer = torch.optim.Adam(mix.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (mix(x) - 2 * x[:, 1]).square().mean().backward()
        optimizer.step()
    assert mix.share.softmax(0)[1].item() > 0.95
    assert abs(mix.gamma.item() - 2) < 0.1
