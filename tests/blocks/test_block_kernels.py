"""The kernels of block-sparse attention against the readable path, where there is a GPU to run them."""

import pytest
import torch

from heedful.blocks.attention import SelfAttention, attend, unchanged
from heedful.blocks.masks import Mask, alibi, causal, global_tokens, padding, random_blocks, same, sink, window
from heedful.blocks.sparse import BlockSparse, block_attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")

ERROR = {torch.float32: 2e-3, torch.bfloat16: 3e-2}
each_precision = pytest.mark.parametrize("dtype", ERROR, ids=str)

MASKS = {  # by name: the mask of 2 rows and 3 heads of a length, on a device
    "window": lambda length, device: window(70),
    "bigbird": lambda length, device: (
        global_tokens(64) | random_blocks(2, 64, 3, 1, length, device=device) | window(64)
    ),
    "heavy": lambda length, device: window(10) | global_tokens(3) | global_tokens(70, length - 70),
    "causal with a sink": lambda length, device: causal() & (window(100) | sink(4)),
    "padding": lambda length, device: window(70) & padding(torch.tensor([length, length // 3], device=device)),
    "documents": lambda length, device: causal() & same(
        (torch.arange(length, device=device) // 150).expand(2, -1), ascending=True
    ),
    "any": lambda length, device: Mask(lambda b, h, q, k: (q * 3 + k * (h + 1)) % 7 > b),
}  # fmt: skip


@each_precision
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("length", "width"), [(384, 64), (301, 24), (2560, 128)], ids=str)
def test_block_sparse_attention(name: str, size: int, length: int, width: int, dtype: torch.dtype) -> None:
    inputs = [torch.randn(2, 3, length, width, device="cuda").to(dtype).requires_grad_() for _ in range(3)]
    exact = [x.detach().double().cpu().requires_grad_() for x in inputs]
    mask, right = (BlockSparse.of(MASKS[name](length, d), 2, 3, length, size=size, device=d) for d in ("cuda", "cpu"))
    for bias in (None, alibi(3)):
        o = attend(inputs[0], inputs[1], inputs[2], mask, bias)
        truth = attend(exact[0], exact[1], exact[2], right, bias)
        probe = torch.randn_like(truth)
        grads = torch.autograd.grad((o * probe.to(o)).sum(), inputs)
        truths = torch.autograd.grad((truth * probe).sum(), exact)
        for mine, theirs in zip((o, *grads), (truth, *truths), strict=True):
            assert bool(mine.isfinite().all())
            error = float((mine.double().cpu() - theirs).detach().abs().max())
            assert error <= ERROR[dtype] * float(theirs.detach().abs().max())


def test_block_sparse_lists_are_the_same_on_a_gpu() -> None:
    for name, make in MASKS.items():
        one, two = (BlockSparse.of(make(700, device), 2, 3, 700, size=64, device=device) for device in ("cuda", "cpu"))
        assert one.dense().cpu().equal(two.dense()), name
        for mine, theirs in zip((*one.lists, *one.back), (*two.lists, *two.back), strict=True):
            assert mine.cpu().equal(theirs), name


@pytest.mark.parametrize("size", [64, 128])
def test_block_sparse_dropout_is_that_of_the_cpu(size: int) -> None:
    """Both decide by the same hash of seed, head, query and key, so that outputs and gradients agree."""
    masks = [BlockSparse.of(MASKS["bigbird"](700, d), 2, 3, 700, size=size, device=d) for d in ("cuda", "cpu")]
    inputs = [torch.randn(2, 3, 700, 32, device="cuda", requires_grad=True) for _ in range(3)]
    exact = [x.detach().double().cpu().requires_grad_() for x in inputs]
    probe = torch.randn(2, 3, 700, 32).double()
    found = []
    for given, mask in zip((inputs, exact), masks, strict=True):
        device = given[0].device
        o, _ = block_attention(*given, list(mask.lists), list(mask.back), torch.empty(0, device=device),
                               torch.tensor([77], device=device), 0.2)  # fmt: skip
        grads = torch.autograd.grad((o * probe.to(o)).sum(), given)
        found.append([x.double().cpu() for x in (o, *grads)])
    for mine, theirs in zip(*found, strict=True):
        assert float((mine - theirs).abs().max()) <= ERROR[torch.float32] * float(theirs.abs().max())
    ones = [torch.randn(2, 3, 700, 16, device="cuda") for _ in range(2)] + [torch.ones(2, 3, 700, 16, device="cuda")]
    kept = attend(ones[0], ones[1], ones[2], masks[0], dropout=0.25)
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.02)


def test_block_sparse_attention_is_compiled_and_captured() -> None:
    """Lists are made without waiting for the device, so that all of it fits into one CUDA graph."""
    x = torch.randn(2, 3, 512, 64, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([512, 200], device="cuda")

    def run(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rule = (window(60) | global_tokens(64) | random_blocks(1, 64, 3, 0, 512, device="cuda")) & padding(lengths)
        return attend(x, x, x, BlockSparse.of(rule, 2, 3, 512, device="cuda"))

    truth = run(x, lengths)
    assert torch.compile(run, fullgraph=True, dynamic=False)(x, lengths).sub(truth).abs().max() < 1e-2
    run(x, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(x, lengths)
    lengths[1] = 300
    graph.replay()
    assert result.sub(run(x, lengths)).abs().max() < 1e-2


def test_self_attention_writes_one_gradient() -> None:
    """Queries, keys and values of one product have the same outputs and gradients as if they were three tensors."""
    layer = SelfAttention(96, 3, 0.0).to("cuda", torch.bfloat16)
    x = torch.randn(2, 384, 96, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mask = BlockSparse.of(MASKS["bigbird"](384, "cuda"), 2, 3, 384, device="cuda")
    for bias in (None, alibi(3)):
        found = []
        for past in (unchanged, lambda kv: kv):
            o = layer(x, mask, bias, past=past)
            found.append([o, *torch.autograd.grad(o.float().square().sum(), [x, *layer.parameters()])])
        assert all(one.equal(other) for one, other in zip(*found, strict=True))
