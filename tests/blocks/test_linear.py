"""The linear map is x W^T + b, whichever library computes the product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.blocks import linear as module
from heedful.blocks.linear import LEAST, Linear, linear
from tolerance import close

WIDTH, OUT = 96, 128
ROWS = LEAST // (WIDTH * OUT) + 1
SHAPES = [(ROWS, WIDTH), (2, ROWS, WIDTH), (2, 3, ROWS, WIDTH), (1, WIDTH), (0, WIDTH), (WIDTH,)]


def by_double(x: Tensor, layer: Linear) -> Tensor:
    bias = 0 if layer.bias is None else layer.bias.double()
    return x.double() @ layer.weight.double().T + bias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(ROWS, WIDTH), (2, ROWS, WIDTH), (2, 3, ROWS, WIDTH), (1, WIDTH), (0, WIDTH), (WIDTH,)]
)
def test_product_is_exact_for_every_shape(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = Linear(WIDTH, OUT, bias), torch.randn(shape)
    if bias:
        torch.nn.init.normal_(layer.bias)
    with torch.inference_mode():
        found = layer(x)
    assert found.shape == (*shape[:-1], OUT)
    close(found, by_double(x, layer).float())
    close(found, layer(x))  # with gradients


def test_views_and_transposes_are_multiplied_as_they_are() -> None:
    torch.manual_seed(0)
    layer = Linear(WIDTH, OUT)
    whole = torch.randn(ROWS, 3, 2 * WIDTH)
    with torch.no_grad():
        for x in (whole[:, 1, ::2], whole.transpose(0, 1)[..., :WIDTH], torch.randn(WIDTH, 2 * ROWS).T[::2]):
            close(layer(x), by_double(x, layer).float())
        x = torch.randn(ROWS, OUT)
        close(linear(x, layer.weight.T), (x.double() @ layer.weight.double()).float())


def test_large_products_of_inference_alone_are_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    plain = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(module.torch.ops.mkldnn, "_linear_pointwise", lambda *a: counted.append(1) or plain(*a))
    layer = Linear(WIDTH, OUT)

    def calls(x: Tensor) -> int:
        counted.clear()
        layer(x)
        return len(counted)

    large = torch.randn(ROWS, WIDTH)
    assert calls(large) == 0
    with torch.no_grad():
        assert calls(large) == torch.backends.mkldnn.is_available()
        assert calls(large[: ROWS // 2]) == 0
        layer.double()
        assert calls(large.double()) == 0
        layer.float()
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(large).dtype == torch.bfloat16
