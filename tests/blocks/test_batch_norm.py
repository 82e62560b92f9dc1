"""The kernels of batch norm against torch's, where there is a GPU to run them."""

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (8, 64, 56, 56), (2, 300, 4, 3)], ids=str)
def test_batch_norm(shape: tuple[int, int, int, int], adds: bool, relu: bool, dtype: torch.dtype) -> None:
    """relu(norm(x) + y), its moments and its gradients; a mean far from zero costs no digits."""
    from heedful.blocks.kernels.batch_norm import batch_norm

    if adds and not relu:
        pytest.skip("no block adds without a relu")
    torch.manual_seed(0)
    rows = torch.randn(2, *shape, device="cuda").to(dtype).contiguous()
    x, y = (part.to(memory_format=torch.channels_last).requires_grad_() for part in (rows[0] + 3, rows[1]))
    weight, bias = (torch.randn(shape[1], device="cuda").requires_grad_() for _ in range(2))
    given = [x, weight, bias, *([y] if adds else [])]
    o, mean, var = batch_norm(x, y if adds else None, weight, bias, 1e-5, relu)
    exact = [part.detach().double().requires_grad_() for part in given]
    truth = functional.batch_norm(exact[0], None, None, exact[1], exact[2], training=True, eps=1e-5)
    truth = truth + exact[3] if adds else truth
    truth = truth.relu() if relu else truth
    probe = torch.randn_like(truth)
    found = [o, mean, var, *torch.autograd.grad((o * probe.to(o)).sum(), given)]
    moments = exact[0].mean((0, 2, 3)), exact[0].var((0, 2, 3), correction=0)
    right = [truth, *moments, *torch.autograd.grad((truth * probe).sum(), exact)]
    for mine, theirs in zip(found, right, strict=True):
        error = (mine.double() - theirs).detach().norm() / theirs.detach().norm()
        assert float(error) <= (1e-5 if dtype == torch.float32 else 2e-2)
