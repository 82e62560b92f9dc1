"""Block-sparse attention against the definition: the same rules as a tensor of all pairs."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.tolerance import close
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.blocks import sparse
from heedful.blocks.attention import SelfAttention, attend
from heedful.blocks.layouts import Documents, PackedTexts, Padded
from heedful.blocks.masks import (
    Grid,
    Mask,
    alibi,
    block_table,
    causal,
    dense,
    global_tokens,
    padding,
    prefix,
    random_blocks,
    real,
    same,
    sink,
    window,
)
from heedful.blocks.positions import Rotary
from heedful.blocks.sparse import BlockSparse, block_attention, rule_of
from heedful.blocks.taps import Tap, watch


def some_mask(r: random.Random, rows: int, heads: int, queries: int, keys: int, depth: int = 2) -> Mask:
    """A random combination of rules."""
    if depth and r.random() < 0.7:
        one, two = (some_mask(r, rows, heads, queries, keys, depth - 1) for _ in range(2))
        return one & two if r.random() < 0.5 else one | two
    luck = torch.Generator().manual_seed(r.randrange(1 << 30))
    block = r.choice([16, 32, 64, 128])
    offset = r.choice([0, keys - queries, r.randrange(-9, 9)])
    rules: list[Callable[[], Mask]] = [
        lambda: window(r.randrange(keys + 5), offset),
        lambda: causal(offset),
        lambda: global_tokens(r.randrange(1, 70), r.choice([0, 0, r.randrange(keys)])),
        lambda: sink(r.randrange(1, 70)),
        lambda: random_blocks(r.randrange(1, 4), block, heads, r.randrange(99), queries, keys),
        lambda: block_table(
            torch.rand(r.choice([1, heads]), -(-queries // block), -(-keys // block), generator=luck) < 0.4, block
        ),
        lambda: padding(torch.randint(0, keys + 1, (rows,), generator=luck)),
        lambda: prefix(torch.randint(0, keys + 1, (rows,), generator=luck)),
        lambda: real(torch.rand(rows, keys, generator=luck) < r.choice([0.02, 0.5, 0.98])),
        lambda: same(
            (torch.rand(rows, keys, generator=luck) < 0.03).cumsum(1),
            (torch.rand(rows, queries, generator=luck) < 0.03).cumsum(1),
            ascending=True,
        ),
        lambda: Mask(lambda b, h, q, k: (q * 3 + k * (h + 1)) % 5 > b % 2),
    ]
    return r.choice(rules)()


def indices(rows: int, heads: int, queries: int, keys: int) -> tuple[Tensor, ...]:
    b, h, q, k = (torch.arange(n) for n in (rows, heads, queries, keys))
    return b[:, None, None, None], h[:, None, None], q[:, None], k


@pytest.mark.claim("H3")
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, 10))])
def test_random_masks_equal_their_definition(part: int) -> None:
    """200 random masks in each part: lists, outputs and gradients, in float64."""
    r = random.Random(part)
    for case in range(200):
        rows, heads, size = r.randrange(1, 3), r.randrange(1, 3), r.choice([64, 64, 128])
        queries = r.choice([1, 5, 63, 64, 65, 127, 128, r.randrange(1, 200)])
        keys = r.choice([queries, queries, queries, r.randrange(1, 200)])
        mask = some_mask(r, rows, heads, queries, keys)
        blocks = BlockSparse.of(mask, rows, heads, queries, keys, size)
        truth = mask(*indices(rows, heads, queries, keys)).expand(rows, heads, queries, keys)
        assert blocks.dense().expand_as(truth).equal(truth), case
        luck = torch.Generator().manual_seed(case)
        q, k, v = (
            torch.randn(rows, heads, n, 3, generator=luck).double().requires_grad_() for n in (queries, keys, keys)
        )
        bias = alibi(heads) if r.random() < 0.2 else None
        probe = torch.randn(rows, heads, queries, 3, generator=luck).double()
        mine, theirs = attend(q, k, v, blocks, bias), attend(q, k, v, truth, bias)
        close(mine, theirs)
        grads = [torch.autograd.grad((o * probe).sum(), (q, k, v)) for o in (mine, theirs)]
        for one, two in zip(*grads, strict=True):
            close(one, two)
        assert bool((mine[~truth.any(-1)] == 0).all()), "queries that attend to no key give zeros"


@pytest.mark.parametrize("part", range(2))
def test_blocks_are_never_wrong(part: int) -> None:
    """Where a rule says "no pair" or "every pair" of a block, that is so, and it bounds how many are neither."""
    r = random.Random(part + 100)
    for _ in range(200):
        rows, heads, queries, keys = r.randrange(1, 3), r.randrange(1, 3), r.randrange(1, 200), r.randrange(1, 200)
        grid = Grid(queries, keys, r.choice([16, 64, 128]), r.choice([16, 64, 128]))
        mask = some_mask(r, rows, heads, queries, keys)
        truth = mask(*indices(rows, heads, queries, keys)).expand(rows, heads, queries, keys)
        found = mask.blocks(rows, heads, grid).expand(rows, heads, grid.rows, grid.columns)
        assert int((found == 1).sum((-1, -2)).max()) <= mask.most(grid)
        for i, rows_of in enumerate(truth.split(grid.height, 2)):
            for j, block in enumerate(rows_of.split(grid.width, 3)):
                some, every = block.flatten(2).any(-1), block.flatten(2).all(-1)
                assert not bool((some & (found[:, :, i, j] == 0)).any())
                assert not bool((~every & (found[:, :, i, j] == 2)).any())


@pytest.mark.parametrize(
    "mask",
    [
        window(20),
        window(70, 30),
        causal(),
        causal(11),
        global_tokens(5),
        global_tokens(64, 64),
        sink(3),
        padding(torch.tensor([100, 128])),
        real((torch.arange(150) % 40 > 20).expand(2, -1)),
        same((torch.arange(150) // 33).expand(2, -1), ascending=True),
        random_blocks(2, 32, 2, 0, 150),
    ],
)
def test_single_rules_know_their_blocks_exactly(mask: Mask) -> None:
    grid = Grid(150, 150, 64, 32)
    truth = mask(*indices(2, 2, 150, 150)).expand(2, 2, 150, 150)
    found = mask.blocks(2, 2, grid).expand(2, 2, grid.rows, grid.columns)
    for i, rows_of in enumerate(truth.split(64, 2)):
        for j, block in enumerate(rows_of.split(32, 3)):
            right = block.flatten(2).any(-1).int() + block.flatten(2).all(-1).int()
            assert found[:, :, i, j].equal(right.to(torch.int8))


def test_random_blocks_depend_on_seed_and_head_and_avoid_excluded_ones() -> None:
    def table(seed: int, exclude: Tensor | None = None) -> Tensor:
        mask = random_blocks(3, 64, 4, seed, 64 * 20, exclude=exclude)
        return mask.blocks(1, 4, Grid(64 * 20, 64 * 20, 64, 64))[0]

    near = (torch.arange(20) - torch.arange(20)[:, None]).abs() <= 1
    one = table(7)
    assert one.equal(table(7)) and not one.equal(table(8)) and not one[0].equal(one[1])
    assert bool(((one == 2).sum(-1) == 3).all()) and bool((one == 1).sum() == 0)
    assert bool((table(7, near)[:, near] == 0).all()) and bool(((table(7, near) > 0).sum(-1) == 3).all())
    chosen = torch.stack([table(seed) for seed in range(200)]).float().mean((0, 1)) / 2
    assert float(chosen.min()) > 0.10 and float(chosen.max()) < 0.20, (
        "each block is chosen about equally often: 3 of 20"
    )


def test_a_window_that_covers_everything_is_full_attention() -> None:
    q, k, v = (torch.randn(2, 3, 150, 8) for _ in range(3))
    close(attend(q, k, v, BlockSparse.of(window(150), 2, 3, 150)), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_precisions(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, 150, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    mask = BlockSparse.of(window(30) | global_tokens(2), 1, 2, 150)
    mine, truth = attend(q, k, v, mask), attend(exact[0], exact[1], exact[2], mask.dense())
    grads, truths = torch.autograd.grad(mine.sum(), (q, k, v)), torch.autograd.grad(truth.sum(), exact)
    assert mine.dtype == dtype
    for found, right in zip((mine, *grads), (truth, *truths), strict=True):
        error = float((found.double() - right).detach().abs().max() / right.detach().abs().max())
        assert error < (1e-5 if dtype == torch.float32 else 3e-2)


def test_values_may_have_another_width() -> None:
    q, k, v = torch.randn(1, 2, 70, 8), torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 5, requires_grad=True)
    mask = BlockSparse.of(window(30), 1, 2, 70, 90)
    mine, truth = attend(q, k, v, mask), attend(q, k, v, mask.dense())
    close(mine, truth)
    close(*(torch.autograd.grad(o.square().sum(), v)[0] for o in (mine, truth)))


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, tuple | list) else [found]:
            if isinstance(x, Tensor) and x.untyped_storage().nbytes():
                self.size = max(self.size, x.untyped_storage().nbytes() // x.element_size())
        return found


def test_memory_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of T x S values, forwards or backwards: the largest one doubles when the text does."""
    monkeypatch.setattr(sparse, "ROOM", 1 << 16)
    largest = []
    for length in (2048, 4096):
        rule = window(64) | global_tokens(8) | sink(4)
        q, k, v = (torch.randn(1, 1, length, 4) for _ in range(3))
        slope, seed = torch.empty(0), torch.zeros(1, dtype=torch.long)
        with Largest() as seen:
            mask = BlockSparse.of(rule, 1, 1, length)
            given = (q, k, v, list(mask.lists), list(mask.back), slope, seed, 0.0)
            o, sums = sparse.attend_blocks(*given)
            sparse.attend_blocks_backward(*given, o, sums, o)
        largest.append(seen.size)
    assert largest[1] < 4096 * 4096 / 8 and largest[1] <= 2.2 * largest[0]


def test_long_rows_are_divided_and_nothing_is_lost() -> None:
    """Each row's list is covered once by the programs, longest first, and rows in parts know their parts."""
    made = BlockSparse.of(window(64) | global_tokens(70), 1, 2, 64 * 90).lists
    for touched, work, parts in zip(made.touched[0], made.work[0], made.parts[0], strict=True):
        covered: dict[int, list[tuple[int, int, int]]] = {}
        for row, begin, end, part in work.tolist():
            if row >= 0:
                covered.setdefault(row, []).append((begin, end, part))
        assert sorted(covered) == list(range(90))
        divided = {row: (first, count) for row, first, count in parts.tolist() if count}
        assert set(divided) == {0, 1}
        for row, pieces in covered.items():
            assert [x for begin, end, _ in pieces for x in range(begin, end)] == list(range(int(touched[row])))
            first, count = divided.get(row, (-1, 1))
            assert [part for *_, part in pieces] == ([-1] if first < 0 else list(range(first, first + count)))
        assert max(end - begin for pieces in covered.values() for begin, end, _ in pieces) <= 16


def test_dropout_keeps_the_mean_repeats_with_the_seed_and_has_the_right_gradient() -> None:
    mask = BlockSparse.of(window(20), 2, 3, 100)
    q, k = torch.randn(2, 3, 100, 4), torch.randn(2, 3, 100, 4)
    ones = torch.ones(2, 3, 100, 1)

    def kept(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend(q, k, ones, mask, dropout=0.25)

    assert kept(0).equal(kept(0)) and not kept(0).equal(kept(1))
    assert float(torch.stack([kept(seed) for seed in range(20)]).mean()) == pytest.approx(1.0, abs=0.02)
    small = BlockSparse.of(window(2) | sink(1), 1, 2, 9)
    inputs = [torch.randn(1, 2, 9, 3).double().requires_grad_() for _ in range(3)]
    lists = (list(small.lists), list(small.back), torch.empty(0), torch.tensor([5]), 0.3)
    assert torch.autograd.gradcheck(lambda q, k, v: block_attention(q, k, v, *lists)[0], inputs)


def test_masks_of_layouts_become_rules() -> None:
    keys = torch.arange(90) < torch.tensor([[90], [40]])
    packed = PackedTexts.of(torch.tensor([30, 20, 25]), 90, 30).mask
    documents = (torch.arange(90) // 25).expand(2, -1)
    in_one_row = Documents.of(documents, in_one_row=True)
    apart = Documents.of(documents, in_one_row=False).mask
    assert isinstance(apart, Mask)
    cases = [
        (Padded(keys).mask, keys[:, None, None].expand(2, 1, 90, 90), (2, 90)),
        (packed, packed.dense()[None, None], (1, 90)),
        (in_one_row.mask, in_one_row.mask.dense()[None, None], (1, 180)),
        (apart, dense(apart, *(torch.empty(2, 1, 90, 1),) * 2), (2, 90)),
    ]
    for mask, truth, (rows, length) in cases:
        rule = rule_of(mask)
        assert rule is not None
        assert (
            BlockSparse.of(rule & window(10), rows, 1, length)
            .dense()
            .equal(truth & dense(window(10), *(torch.empty(1, 1, length, 1),) * 2))
        )
    assert rule_of(None) is None
    with pytest.raises(ValueError, match="shape"):
        rule_of(torch.ones(2, 1, 90, 90, dtype=torch.bool))


def test_whatever_is_watched_or_replaced_is_the_definition() -> None:
    q, k, v = (torch.randn(1, 2, 70, 4) for _ in range(3))
    mask = BlockSparse.of(window(10), 1, 2, 70)
    tap, seen = Tap(), []
    tap.hook = seen.append
    close(attend(q, k, v, mask, weights=tap), attend(q, k, v, mask))
    assert seen[0].shape == (1, 2, 70, 70) and bool((seen[0][..., ~mask.dense()[0, 0]] == 0).all())
    close(attend(q, k, v, mask, normalize="sparsemax"), attend(q, k, v, mask.dense(), normalize="sparsemax"))


@pytest.mark.parametrize("rotary", [False, True])
def test_self_attention_takes_it_compiled_and_watched(rotary: bool) -> None:
    torch.manual_seed(0)
    block: nn.Module = SelfAttention(24, 3, 0.0, Rotary(100, 8) if rotary else None).eval()
    x, keys, at = torch.randn(2, 100, 24), torch.arange(100) < torch.tensor([[100], [70]]), torch.arange(100)

    def run(x: Tensor, keys: Tensor) -> Tensor:
        rule = (window(20) | random_blocks(1, 32, 3, 1, 100)) & real(keys)
        return block(x, BlockSparse.of(rule, 2, 3, 100), None, at)

    whole = (window(20) | random_blocks(1, 32, 3, 1, 100)) & real(keys)
    truth = block(x, dense(whole, *(torch.empty(2, 3, 100, 1),) * 2), None, at)
    close(run(x, keys), truth)
    close(torch.compile(run, backend="eager", fullgraph=True)(x, keys), truth)
    with watch(block) as seen:
        close(run(x, keys), truth)
    assert seen["weights"].shape == (2, 3, 100, 100)
