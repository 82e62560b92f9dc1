"""Kernels of our own against the readable path, where there is a GPU to run them."""

from dataclasses import replace

import pytest
import torch

from heedful.blocks.attention import KV, MultiHead, SelfAttention, attend, has_short_kernel
from heedful.blocks.convolution import batch_norm
from heedful.blocks.layouts import PackedPairs, PackedTexts, Padded
from heedful.blocks.losses import cross_entropy, projected_cross_entropy
from heedful.blocks.norms import PostNorm
from heedful.blocks.recurrent import Layer
from heedful.blocks.relative import gathered_bias, relative_attention, relative_bias, segment_bias
from heedful.models.xlnet.model import Keys, Memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")

ERROR = {torch.float32: 2e-3, torch.bfloat16: 3e-2}
each_precision = pytest.mark.parametrize("dtype", ERROR, ids=str)


@each_precision
@pytest.mark.parametrize("part", ["mask", "cross", "target_mask"])
def test_packed_attention(part: str, dtype: torch.dtype) -> None:
    source, target = torch.tensor([5, 70, 1, 33]), torch.tensor([9, 64, 2, 20])
    layout = PackedPairs.of(source.cuda(), target.cuda(), 128, 112, longest=70)
    visible = getattr(layout, part)
    queries, keys = (128 if part == "mask" else 112), (112 if part == "target_mask" else 128)
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
def test_decoding_attention(length: int, dtype: torch.dtype) -> None:
    block = MultiHead(64, 4).cuda().to(dtype).eval()
    k, v = torch.randn(6, 4, 64, 16, dtype=dtype, device="cuda"), torch.randn(6, 4, 64, 16, dtype=dtype, device="cuda")
    rows = torch.randint(0, 6, (6, 64), device="cuda")
    memory, x = KV(k, v, rows, torch.tensor(length, device="cuda")), torch.randn(6, 1, 64, dtype=dtype, device="cuda")
    whole = memory.gather()
    truth = block(x, KV(whole.k[:, :, :length], whole.v[:, :, :length]))
    with torch.inference_mode():
        mine = block(x, memory)
    assert float((mine.float() - truth.float()).abs().max()) <= ERROR[dtype] * float(truth.detach().abs().max())


@each_precision
@pytest.mark.parametrize("length", [33, 50])
def test_decoding_attention_skips_padded_keys(length: int, dtype: torch.dtype) -> None:
    block = MultiHead(64, 4).cuda().to(dtype).eval()
    k, v = (torch.randn(6, 4, 64, 16, dtype=dtype, device="cuda") for _ in range(2))
    rows, skip = torch.randint(0, 6, (6, 64), device="cuda"), torch.tensor([0, 1, 31, 32, 5, 0], device="cuda")
    memory, x = (
        KV(k, v, rows, torch.tensor(length, device="cuda"), skip),
        torch.randn(6, 1, 64, device="cuda").to(dtype),
    )
    whole = memory.gather()
    with torch.inference_mode():
        mine = block(x, memory)
        for row, begin in enumerate(skip.tolist()):
            part = KV(*(t[row : row + 1, :, begin:length] for t in (whole.k, whole.v)))
            truth = block(x[row : row + 1], part)
            assert float((mine[row] - truth[0]).float().abs().max()) <= ERROR[dtype] * float(truth.abs().max())


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


@each_precision
@pytest.mark.parametrize(
    "lengths",
    [[70, 128, 33, 0, 127, 1], [9, 200, 64, 65, 256], [9, 300, 64]],
    ids=["one tile", "one of queries", "several"],
)
def test_attention_within_sequences(dtype: torch.dtype, lengths: list[int]) -> None:
    room, count = sum(lengths) + 40, sum(lengths)
    mask = PackedTexts.of(torch.tensor(lengths, device="cuda"), room, max(lengths)).mask
    block = SelfAttention(64, 2, dropout=0.0).cuda().to(dtype)
    exact = SelfAttention(64, 2, dropout=0.0).double()
    exact.load_state_dict({name: value.double().cpu() for name, value in block.state_dict().items()})
    x = torch.randn(1, room, 64, dtype=dtype, device="cuda", requires_grad=True)
    y = x.detach().double().cpu().requires_grad_()
    mine, truth = block(x, mask), exact(y, mask.dense().cpu())
    probe = torch.randn_like(truth)
    probe[:, count:] = 0  # positions outside all sequences are not compared
    grads = torch.autograd.grad((mine * probe.to(mine)).sum(), (x, block.qkv.weight))
    truths = torch.autograd.grad((truth * probe).sum(), (y, exact.qkv.weight))
    for found, right in zip((mine[:, :count], *grads), (truth[:, :count], *truths), strict=True):
        assert bool(found.isfinite().all())
        assert float((found.double().cpu() - right).detach().abs().max()) <= ERROR[dtype] * float(right.abs().max())


@pytest.mark.parametrize("length", [65, 197, 256])
def test_full_attention_of_short_rows(length: int) -> None:
    """Rows of equal length without a mask take the kernel of packed sequences where gradients are needed."""
    block = SelfAttention(64, 2, dropout=0.0).cuda().bfloat16()
    exact = SelfAttention(64, 2, dropout=0.0).double()
    exact.load_state_dict({name: value.double().cpu() for name, value in block.state_dict().items()})
    x = torch.randn(3, length, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    y = x.detach().double().cpu().requires_grad_()
    assert has_short_kernel(block.qkv(x).unflatten(-1, (3, 2, -1)))
    mine, truth = block(x), exact(y)
    probe = torch.randn_like(truth)
    grads = torch.autograd.grad((mine * probe.to(mine)).sum(), (x, block.qkv.weight))
    truths = torch.autograd.grad((truth * probe).sum(), (y, exact.qkv.weight))
    for found, right in zip((mine, *grads), (truth, *truths), strict=True):
        assert float((found.double().cpu() - right).detach().abs().max()) <= 3e-2 * float(right.abs().max())


def test_lstm_reads_more_steps_than_cudnn_takes_at_once() -> None:
    layer = Layer("lstm", 4, 8).cuda()
    x = torch.randn(1, 70_000, 4, device="cuda", requires_grad=True)
    y, state = layer(x)
    first, between = layer(x[:, :30_000])
    rest, last = layer(x[:, 30_000:], between)
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(y, torch.cat([first, rest], 1), **near)
    torch.testing.assert_close(state[0], last[0], **near)
    probe = torch.randn_like(y)
    grads = [torch.autograd.grad((found * probe).sum(), x)[0] for found in (y, torch.cat([first, rest], 1))]
    torch.testing.assert_close(*grads, **near)


def test_attention_dropout_keeps_the_mean_and_repeats_with_the_seed() -> None:
    from heedful.blocks.kernels import sequences

    mask = PackedTexts.of(torch.tensor([128] * 4, device="cuda"), 512, 128).mask
    qkv = torch.randn(512, 3, 4, 64, device="cuda")
    qkv[:, 2] = 1.0  # so that an output is the sum of the weights that were kept

    def kept(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return sequences.attend(qkv, mask.begin, mask.end, mask.longest, 0.25)

    one = kept(0)
    assert one.equal(kept(0)) and not one.equal(kept(1))
    assert float(one.mean()) == pytest.approx(1.0, abs=0.01)
    spread = torch.stack([kept(seed)[:, :, 0] for seed in range(50)]).std(0)
    assert float(spread.min()) > 0  # every query of every head loses some


def test_attention_dropout_gradients_match_the_kept_weights() -> None:
    from heedful.blocks.kernels import sequences

    mask = PackedTexts.of(torch.tensor([40, 24], device="cuda"), 64, 40).mask
    qkv = torch.randn(64, 3, 2, 16, device="cuda", requires_grad=True)
    probe = torch.randn(64, 2, 16, device="cuda")

    def value(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return (sequences.attend(x, mask.begin, mask.end, mask.longest, 0.3) * probe).sum()

    (grad,) = torch.autograd.grad(value(qkv), qkv)
    step = torch.randn_like(qkv)
    with torch.no_grad():
        slope = (value(qkv + 1e-2 * step) - value(qkv - 1e-2 * step)) / 2e-2
    assert float((grad * step).sum()) == pytest.approx(float(slope), rel=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_with_bias(dtype: torch.dtype, tanh: bool) -> None:
    from heedful.blocks.kernels.gelu import gelu

    x = (3 * torch.randn(300, 1100, device="cuda")).to(dtype).requires_grad_()
    bias = torch.randn(1100, device="cuda", requires_grad=True)
    exact = [t.detach().double().requires_grad_() for t in (x, bias)]
    kind = "tanh" if tanh else "none"
    o, truth = gelu(x, bias, tanh), torch.nn.functional.gelu(exact[0] + exact[1], approximate=kind)
    probe = torch.randn_like(truth)
    grads = torch.autograd.grad((o * probe.to(o)).sum(), (x, bias))
    truths = torch.autograd.grad((truth * probe).sum(), exact)
    error = 1e-5 if dtype == torch.float32 else 1e-2
    for mine, theirs in zip((o, *grads), (truth, *truths), strict=True):
        assert float((mine.double() - theirs).detach().abs().max()) <= error * float(theirs.detach().abs().max())


@each_precision
@pytest.mark.parametrize("vocab", [1003, 40_003])
def test_projected_cross_entropy_with_bias(dtype: torch.dtype, vocab: int) -> None:
    x, weight = (torch.randn(n, 32, dtype=dtype, device="cuda", requires_grad=True) for n in (40, vocab))
    bias = torch.randn(vocab, device="cuda", requires_grad=True)
    targets = torch.randint(0, vocab, (40,), device="cuda")
    targets[::5] = -100
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    loss = projected_cross_entropy(x, weight, targets, bias=bias)
    truth = cross_entropy(exact[0] @ exact[1].mT + exact[2], targets)
    assert loss.total.item() == pytest.approx(truth.total.item(), rel=1e-2)
    grads, truths = torch.autograd.grad(loss.total, (x, weight, bias)), torch.autograd.grad(truth.total, exact)
    for mine, theirs in zip(grads, truths, strict=True):
        assert float((mine.double() - theirs).abs().max()) <= 2 * ERROR[dtype] * float(theirs.abs().max())


@pytest.mark.parametrize("longest", [47, 104])
def test_dropout_does_not_depend_on_the_tiling(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.blocks.kernels import sequences

    mask = PackedTexts.of(torch.tensor([longest, 9, 0, 31], device="cuda"), 256, longest).mask
    qkv = torch.randn(256, 3, 4, 32, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    probe = torch.randn(256, 4, 32, dtype=torch.bfloat16, device="cuda")
    found = []
    for one, tall in ((sequences.ONE_TILE, sequences.TALL), (0, sequences.TALL), (0, 0)):
        monkeypatch.setattr(sequences, "ONE_TILE", one)
        monkeypatch.setattr(sequences, "TALL", tall)
        torch.manual_seed(5)
        o = sequences.attend(qkv, mask.begin, mask.end, longest, 0.2)
        found.append(torch.autograd.grad((o * probe).sum(), qkv)[0].float())
    for each in found[:2]:
        assert float((each - found[2]).abs().max()) <= ERROR[torch.bfloat16] * float(found[2].abs().max())


def test_add_and_norm_gradient_with_dropout() -> None:
    block = PostNorm(96, 0.3).cuda()
    x, y = (torch.randn(50, 96, device="cuda", requires_grad=True) for _ in range(2))
    probe, step = torch.randn(50, 96, device="cuda"), torch.randn(50, 96, device="cuda")

    def value(y: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return (block(x, lambda _: y) * probe).sum()

    (grad,) = torch.autograd.grad(value(y), y)
    with torch.no_grad():
        slope = (value(y + 1e-2 * step) - value(y - 1e-2 * step)) / 2e-2
    assert float((grad * step).sum()) == pytest.approx(float(slope), rel=2e-2)
    assert 0.25 < float((grad == 0).float().mean()) < 0.35


@each_precision
@pytest.mark.parametrize("memory", [0, 24])
@pytest.mark.parametrize("length", [101, 104, 192])
def test_relative_attention_of_two_streams(dtype: torch.dtype, memory: int, length: int) -> None:
    rows, heads, width = 3, 2, 32
    tokens, places = torch.zeros(rows, length), torch.stack([torch.randperm(length)[:20] for _ in range(rows)])
    real = torch.ones(rows, length, dtype=torch.bool)
    real[0, :4], real[1, -5:] = False, False
    before = Memory((), torch.arange(memory).expand(rows, -1) > 3) if memory else None
    ranks = torch.stack([torch.randperm(length) for _ in range(rows)]).sub(80).clamp(min=0)
    segments = (torch.arange(length) > 40).long().expand(rows, -1)
    tokens_read = Keys.of(tokens, segments, Padded(real, gaps=False), False, ranks, before)
    keys, streams, pairs = (
        memory + length,
        [tokens_read.content(), tokens_read.query(places)],
        tokens_read.pairs(places),
    )
    assert pairs is not None
    shapes = [(rows, heads, sum(pairs.sizes), width)] * 3 + [(rows, heads, keys, width)] * 2
    shapes += [(heads, keys + length - 1, width), (2, heads, width)]
    given = [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    pairs = replace(pairs, **{name: value.cuda() for name, value in vars(pairs).items() if name != "sizes"})
    o = relative_attention((given[0], given[1], given[2]), given[3], given[4], given[5], given[6], pairs, 0.0)
    *queries, k, v, r, sides = exact
    parts = zip(*(x.split(list(pairs.sizes), 2) for x in queries), streams, strict=True)
    found = []
    for content, distance, segment, stream in parts:
        assert stream.same is not None
        bias = relative_bias(distance, r) if stream.index is None else gathered_bias(distance, r, stream.index)
        found.append(attend(content, k, v, stream.mask, segment_bias(bias, segment, sides, stream.same)))
    truth = torch.cat(found, 2)
    probe = torch.randn_like(truth)
    grads = torch.autograd.grad((o * probe.to(o)).sum(), given)
    truths = torch.autograd.grad((truth * probe).sum(), exact)
    for mine, theirs in zip((o, *grads), (truth, *truths), strict=True):
        error = float((mine.double().cpu() - theirs).detach().abs().max())
        assert error <= ERROR[dtype] * float(theirs.detach().abs().max())


@each_precision
@pytest.mark.parametrize(("add", "relu"), [(False, False), (False, True), (True, True), (True, False)])
@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (4, 64, 9, 9), (2, 200, 7, 5)], ids=str)
def test_batch_norm_kernels(shape: tuple[int, int, int, int], add: bool, relu: bool, dtype: torch.dtype) -> None:
    def made() -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)

    norm, exact = torch.nn.BatchNorm2d(shape[1]).cuda(), torch.nn.BatchNorm2d(shape[1]).double().cuda()
    torch.nn.init.normal_(norm.weight)
    exact.load_state_dict(norm.state_dict())
    x, y, g = (2 * made() + 3).requires_grad_(), made().requires_grad_(), made()
    inputs = [x, *([y] if add else []), norm.weight, norm.bias]
    o = batch_norm(x, norm, y if add else None, relu)
    grads = torch.autograd.grad(o, inputs, g)
    x2, y2 = (one.detach().double().requires_grad_() for one in (x, y))
    truth = exact(x2) + (y2 if add else 0)
    truth = truth.relu() if relu else truth
    truths = torch.autograd.grad(truth, [x2, *([y2] if add else []), exact.weight, exact.bias], g.double())
    for mine, theirs in zip((o, *grads), (truth, *truths), strict=True):
        error = float((mine.double() - theirs).abs().max())
        assert error <= ERROR[dtype] * float(theirs.abs().max())
    for one, other in zip(norm.buffers(), exact.buffers(), strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-4)
