"""Caches: decoding at once, in chunks and step by step agrees; rows can be selected, repeated and reordered."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.attention import KV, MultiHead
from heedful.blocks.positions import Rotary
from heedful.blocks.state import (
    Cache,
    Past,
    PreallocatedCache,
    Ragged,
    Shared,
    StaticCache,
    cached_length,
    make_room,
    map_tensors,
    regroup,
    reserve,
    select,
    tensors,
)
from tolerance import close

R, T, D = 3, 6, 8
KINDS: dict[str, Callable[[Any, int], Any]] = {
    "grown": lambda past, count: past,
    "static": lambda past, count: reserve(past, 8) if isinstance(past, Cache) and past.length else past,
    "preallocated": make_room,
}


def run(block: MultiHead, x: Tensor, past: Past) -> tuple[Tensor, Past]:
    """One layer of self-attention over the next tokens."""
    count = x.shape[1]
    at = past.positions(count, torch.device("cpu"))
    (slot,) = past.layer_caches(count)
    kv = slot.append(block.keys_values(x, at))
    return block(x, kv, past.attention_mask(count), at=at), past.after([slot])


@pytest.fixture
def block() -> MultiHead:
    return MultiHead(D, 2, rotary=Rotary(16, D // 2)).eval()


@pytest.mark.parametrize("chunks", [[6], [1] * 6, [2, 3, 1], [4, 2]])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_chunked_decoding_equals_full_forward(block: MultiHead, chunks: list[int], kind: str) -> None:
    x = torch.randn(R, T, D)
    full, _ = run(block, x, Cache((None,)))
    past: Past = Cache((None,))
    parts = []
    for part in x.split(chunks, 1):
        o, past = run(block, part, KINDS[kind](past, part.shape[1]))
        parts.append(o)
    close(torch.cat(parts, 1), full, slack=16)
    assert int(past.length) == T


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_left_padded_rows_equal_single_rows(block: MultiHead, kind: str) -> None:
    x, skip, rows = torch.randn(R, T, D), torch.tensor([0, 3, 1]), torch.tensor([1, 0, 1])
    past: Any = Cache((None,), Ragged(skip, 16))
    _, past = run(block, x[:, :4], past)
    o, past = run(block, x[:, 4:5], KINDS[kind](past, 1))
    for row, begin in enumerate(skip.tolist()):
        alone, _ = run(block, x[row : row + 1, begin:5], Cache((None,)))
        close(o[row], alone[0, -1:], slack=16)
    assert cached_length((past, None, "x", Shared(past))) == 5
    o, past = run(block, x[:, 5:], KINDS[kind](regroup(past, rows), 1))
    for row, other in enumerate(rows.tolist()):
        whole = torch.cat([x[other : other + 1, skip[other] : 5], x[row : row + 1, 5:]], 1)
        alone, _ = run(block, whole, Cache((None,)))
        close(o[row], alone[0, -1:], slack=16)


@torch.inference_mode()
def test_finished_rows_stay_at_their_last_position() -> None:
    for past in (Cache((None,)), reserve(run(MultiHead(D, 2), torch.randn(R, 9, D), Cache((None,)))[1], 12)):
        ragged = replace(past, ragged=Ragged(torch.tensor([0, 5, 9]), 8))  # type: ignore[type-var]
        begun = int(past.length)
        assert ragged.positions(3, torch.device("cpu")).tolist() == [
            [min(max(begun + t - skip, 0), 7) for t in range(3)] for skip in (0, 5, 9)
        ]
    assert Cache((None,), Ragged(torch.tensor([0]), 8)).max_length(9) == 8
    assert Cache((None,)).max_length(9) == 9


def test_cache_is_never_written_in_place(block: MultiHead) -> None:
    x = torch.randn(R, 3, D)
    _, before = run(block, x[:, :1], Cache((None,)))
    copies = [t.clone() for t in tensors(before)]
    run(block, x[:, 1:], before)
    assert all(a.equal(b) for a, b in zip(tensors(before), copies, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_reordered_hypotheses_keep_their_past(block: MultiHead, kind: str) -> None:
    x, rows = torch.randn(R, 5, D), torch.tensor([2, 0, 2])
    _, past = run(block, x[:, :1], Cache((None,)))
    _, past = run(block, x[:, 1:3], KINDS[kind](past, 2))
    past = regroup(past, rows)
    _, past = run(block, x[:, 3:4], KINDS[kind](past, 1))
    past = regroup(past, rows)
    o, _ = run(block, x[:, 4:], KINDS[kind](past, 1))
    whole = torch.cat([x[rows[rows], :3], x[rows, 3:4], x[:, 4:]], 1)
    full, _ = run(block, whole, Cache((None,)))
    close(o, full[:, 4:], slack=16)


@torch.inference_mode()
def test_cache_grows_when_full() -> None:
    x, rows = torch.randn(R, 80, D), torch.tensor([1, 0, 2])
    wide = MultiHead(D, 2).eval()
    past: Any = Cache((None,))
    rooms = set()
    for place in range(80):
        past = regroup(make_room(past, 1), rows) if place else past
        rooms.add(past.layers[0].k.shape[1] if isinstance(past, PreallocatedCache) else 0)
        o, past = run(wide, x[:, place : place + 1], past)
    assert len(rooms) > 2
    order = [torch.arange(3) if (79 - place) % 2 == 0 else rows for place in range(80)]
    whole = torch.stack([x[order[place], place] for place in range(80)], 1)
    full, _ = run(wide, whole, Cache((None,)))
    close(o, full[:, -1:], slack=16)


def test_cache_can_be_enlarged_without_losing_keys(block: MultiHead) -> None:
    x = torch.randn(R, 4, D)
    _, past = run(block, x[:, :2], Cache((None,)))
    past = regroup(reserve(past, 4), torch.tensor([1, 0, 2]))
    _, past = run(block, x[:, 2:3], past)
    large = reserve(past, 12)
    assert isinstance(large, StaticCache)
    assert large.rows.shape == (R, 12)
    got, want = run(block, x[:, 3:], large)[0], run(block, x[:, 3:], past)[0]
    close(got, want, slack=16)


@dataclass(frozen=True)
class EveryPart:
    """A state with every kind of part."""

    own: tuple[KV | None, ...]
    shared: Shared[Tensor]
    count: Tensor
    name: str


def every_part() -> EveryPart:
    return EveryPart(
        (KV(torch.arange(3.0), torch.arange(3.0) * 10), None), Shared(torch.arange(3)), torch.tensor(7), "n"
    )


def test_select_takes_rows_and_regroup_keeps_shared_parts() -> None:
    rows = torch.tensor([2, 2, 0, 1])
    picked, moved = select(every_part(), rows), regroup(every_part(), rows)
    for state in (picked, moved):
        assert isinstance(state.own[0], KV)
        assert state.own[0].v.tolist() == [20, 20, 0, 10]
        assert (state.own[1], int(state.count), state.name) == (None, 7, "n")
    assert picked.shared.value.tolist() == [2, 2, 0, 1]
    assert moved.shared.value.tolist() == [0, 1, 2]


def test_every_tensor_is_listed_in_order_and_replaced() -> None:
    assert [t.tolist() for t in tensors(every_part())] == [[0, 1, 2], [0, 10, 20], [0, 1, 2], 7]
    more = map_tensors(every_part(), lambda t: t + 1)
    assert [t.tolist() for t in tensors(more)] == [
        [1, 2, 3],
        [1, 11, 21],
        [1, 2, 3],
        8,
    ]
