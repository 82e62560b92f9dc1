"""Feed-forward layers whose hidden layer is computed again in the backward pass."""

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.feedforward import FeedForward, recompute_hidden


def gradients(mlp: FeedForward, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)  # of dropout
    return list(torch.autograd.grad(mlp(x).square().sum(), [x, *mlp.parameters()]))


@pytest.mark.parametrize("activation", [nn.functional.gelu, nn.Sequential(nn.ReLU(), nn.Dropout(0.5))], ids=str)
def test_recomputed_hidden_layer_has_the_same_gradients(activation: nn.Module) -> None:
    mlp, x = FeedForward(6, 24, activation), torch.randn(2, 5, 6, requires_grad=True)
    kept = gradients(mlp, x)
    recompute_hidden(nn.Sequential(mlp))
    assert mlp.recompute
    assert all(one.equal(two) for one, two in zip(kept, gradients(mlp, x), strict=True))


def test_recomputed_hidden_layer_is_not_kept() -> None:
    mlp, x = FeedForward(6, 24), torch.randn(2, 5, 6, requires_grad=True)
    sizes: list[int] = []

    def pack(kept: Tensor) -> Tensor:
        sizes.append(kept.shape[-1])
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        mlp(x)
        hidden = sizes.count(24)
        sizes.clear()
        recompute_hidden(mlp)
        mlp(x)
    assert hidden
    assert 24 not in sizes


def test_nothing_is_recomputed_without_gradients_or_training(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, x = FeedForward(6, 24), torch.randn(2, 5, 6)
    recompute_hidden(mlp)
    monkeypatch.setattr("heedful.blocks.feedforward.checkpoint", None)
    with torch.no_grad():
        mlp(x)
    mlp.eval()(x)
    with pytest.raises(TypeError):
        mlp.train()(x)
