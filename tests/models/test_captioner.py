"""The captioner's whole-sequence kernels against the loop that defines them, where there is a GPU to run them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.models import build, config_class

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")


def made(score: str, gate: bool, cell: str, layers: int) -> Any:
    tiny: Any = config_class("captioner").tiny()
    decoder = {"kind": "recurrent", "cell": cell, "layers": layers, "width": 24, "hidden": 40}
    decoder |= {"attention": {"kind": "soft", "score": score, "gate": gate}}
    torch.manual_seed(0)
    return build(type(tiny).model_validate(tiny.model_dump() | {"decoder": decoder, "dropout": 0.0})).eval()


def outputs_and_gradients(model: Any, device: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The last layer and the weights, both in the loss, and the gradients; two captions of each image."""
    torch.manual_seed(1)
    images, tokens = torch.randn(3, *model.config.encoder.input), torch.randint(0, 23, (6, 9))
    model.to(device, torch.float32).zero_grad()
    read = model.read(images.to(device), tokens.to(device))
    torch.manual_seed(2)
    loss = sum((x.double().cpu() * torch.randn(x.shape, dtype=torch.double)).sum() for x in (read.x, read.weights))
    loss.backward()  # type: ignore[union-attr]
    found = {name: weight.grad.double().cpu().clone() for name, weight in model.named_parameters()}
    return read.x.detach().double().cpu(), read.weights.detach().double().cpu(), found


@gpu
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("score", ["additive", "general"])
def test_kernels_give_the_outputs_weights_and_gradients_of_the_loop(
    score: str, gate: bool, cell: str, layers: int
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    loop, kernels = (outputs_and_gradients(made(score, gate, cell, layers), device) for device in ("cpu", "cuda"))
    for ours, theirs in zip(kernels[:2], loop[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for name, grad in loop[2].items():
        error = float((kernels[2][name] - grad).abs().max())
        assert error <= 2e-3 * float(grad.abs().max()) + 1e-5, name
