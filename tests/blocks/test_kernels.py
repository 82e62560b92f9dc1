"""Kernels of our own against the readable path, where there is a GPU to run them."""

import pytest
import torch

from heedful.blocks.attention import KV, MultiHead, attend
from heedful.blocks.layouts import Packed
from heedful.blocks.losses import cross_entropy, projected_cross_entropy
from heedful.blocks.norms import PostNorm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")

ERROR = {torch.float32: 2e-3, torch.bfloat16: 3e-2}
each_precision = pytest.mark.parametrize("dtype", ERROR, ids=str)


@each_precision
@pytest.mark.parametrize("part", ["mask", "cross", "look_back"])
def test_packed_attention(part: str, dtype: torch.dtype) -> None:
    source, target = torch.tensor([5, 70, 1, 33]), torch.tensor([9, 64, 2, 20])
    layout = Packed.of(source.cuda(), target.cuda(), 128, 112, longest=70)
    visible = getattr(layout, part)
    queries, keys = (128 if part == "mask" else 112), (112 if part == "look_back" else 128)
    inputs = [torch.randn(1, 4, n, 32, dtype=dtype, device="cuda", requires_grad=True) for n in (queries, keys, keys)]
    exact = [x.detach().double().cpu().requires_grad_() for x in inputs]
    o = attend(inputs[0], inputs[1], inputs[2], visible)
    truth = attend(exact[0], exact[1], exact[2], visible.dense().cpu())
    probe = torch.randn_like(truth)
    grads = torch.autograd.grad((o * probe.to(o)).sum(), inputs)
    truths = torch.autograd.grad((truth * probe).sum(), exact)
    for mine, theirs in zip((o, *grads), (truth, *truths), strict=True):
        assert bool(mine.isfinite().all())
        assert float((mine.double().cpu() - theirs).detach().abs().max()) <= ERROR[dtype] * float(theirs.abs().max())
    nowhere = ~visible.dense().any(-1).cpu()
    assert bool((o.detach().cpu()[:, :, nowhere] == 0).all())


@each_precision
@pytest.mark.parametrize("length", [1, 31, 32, 50])
def test_look_back(length: int, dtype: torch.dtype) -> None:
    block = MultiHead(64, 4).cuda().to(dtype).eval()
    k, v = torch.randn(6, 4, 64, 16, dtype=dtype, device="cuda"), torch.randn(6, 4, 64, 16, dtype=dtype, device="cuda")
    rows = torch.randint(0, 6, (6, 64), device="cuda")
    memory, x = KV(k, v, rows, torch.tensor(length, device="cuda")), torch.randn(6, 1, 64, dtype=dtype, device="cuda")
    whole = memory.gathered()
    truth = block(x, KV(whole.k[:, :, :length], whole.v[:, :, :length]))
    with torch.inference_mode():
        mine = block(x, memory)
    assert float((mine.float() - truth.float()).abs().max()) <= ERROR[dtype] * float(truth.detach().abs().max())


@each_precision
def test_add_and_norm(dtype: torch.dtype) -> None:
    block = PostNorm(96, 0.0).cuda()
    x, y = (torch.randn(50, 96, dtype=dtype, device="cuda", requires_grad=True) for _ in range(2))
    exact = [t.detach().double().requires_grad_() for t in (x, y)]
    o = block(x, lambda _: y)
    truth = torch.nn.functional.layer_norm(exact[0] + exact[1], (96,))
    probe = torch.randn_like(truth)
    grads = torch.autograd.grad((o * probe.to(o)).sum(), (x, y))
    truths = torch.autograd.grad((truth * probe).sum(), exact)
    for mine, theirs in zip((o, *grads), (truth, *truths), strict=True):
        assert float((mine.double() - theirs).detach().abs().max()) <= ERROR[dtype] * float(theirs.detach().abs().max())


@each_precision
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_projected_cross_entropy(dtype: torch.dtype, smoothing: float) -> None:
    x, weight = (torch.randn(n, 32, dtype=dtype, device="cuda", requires_grad=True) for n in (40, 1003))
    targets = torch.randint(0, 1003, (40,), device="cuda")
    targets[::5] = -100
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    loss, truth = (
        projected_cross_entropy(x, weight, targets, smoothing),
        cross_entropy(exact[0] @ exact[1].mT, targets, smoothing),
    )
    assert loss.total.item() == pytest.approx(truth.total.item(), rel=1e-2)
    assert loss.plain.item() == pytest.approx(truth.plain.item(), rel=1e-2)
    grads, truths = torch.autograd.grad(loss.total, (x, weight)), torch.autograd.grad(truth.total, exact)
    for mine, theirs in zip(grads, truths, strict=True):
        assert float((mine.double() - theirs).abs().max()) <= ERROR[dtype] * float(theirs.abs().max())
