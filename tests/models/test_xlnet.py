"""XLNet against the published formulas in loops, its memory, and padding in both streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.normalizers import NORMALIZERS
from heedful.models import build
from heedful.models.xlnet.config import XLNetConfig
from tolerance import close

WIDTH, HEADS = 8, 2


def xlnet(**changes: Any) -> Any:
    settings: dict[str, Any] = {"vocab": 11, "width": WIDTH, "heads": HEADS, "layers": 2, "hidden": 12, "context": 16}
    model = build(XLNetConfig(**{**settings, **changes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def sinusoid(distance: int) -> Tensor:
    """[sin(d / 10000^(2j/D)); cos(...)]."""
    angles = [distance / 10000 ** (2 * j / WIDTH) for j in range(WIDTH // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def reference(
    model: Any, ids: list[int], segments: list[int], ranks: list[int], places: list[int], memory: list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Both streams of one text by the formulas, a head, a query and a key at a time."""
    kept, size = (len(memory[0]) if memory else 0), WIDTH // HEADS
    h, g = model.tokens.weight[ids], model.query[0].expand(len(places), -1)
    layers = [h]
    for number, block in enumerate(model.blocks):
        a = block.attention
        read = torch.cat([memory[number], h]) if memory else h
        wk, wv = a.kv.weight.chunk(2)

        def stream(x: Tensor, at: list[int], itself: bool, a: Any = a, read: Tensor = read, wk: Tensor = wk,
                   wv: Tensor = wv, block: Any = block) -> Tensor:  # fmt: skip
            rows = []
            for row, i in enumerate(at):
                heads = []
                for head in range(HEADS):
                    part = slice(head * size, (head + 1) * size)
                    q, scores, values = (a.q.weight @ x[row])[part], [], []
                    for j in range(len(read)):
                        key = j - kept  # memory is before position 0
                        rank = -1 if key < 0 else ranks[key]
                        if not (rank < ranks[i] or (itself and rank == ranks[i])):
                            continue
                        same = segments[i] == (0 if key < 0 else segments[key])
                        r = (a.r.weight @ sinusoid(i - key))[part]
                        e = a.segments[0 if same else 1, head]
                        content = (q + a.u[head]) @ (wk @ read[j])[part]
                        position, segment = (q + a.v[head]) @ r, (q + a.s[head]) @ e
                        scores.append((content + position + segment) / math.sqrt(size))
                        values.append((wv @ read[j])[part])
                    weights = NORMALIZERS[model.config.normalize](torch.stack(scores), None) if scores else None
                    heads.append(x.new_zeros(size) if weights is None else weights @ torch.stack(values))
                rows.append(a.out.weight @ torch.cat(heads))
            x = block.add1.norm(x + torch.stack(rows))
            return block.add2.norm(x + block.mlp.down(F.gelu(block.mlp.up(x))))  # type: ignore[no-any-return]

        h, g = stream(h, list(range(len(ids))), True), stream(g, places, False)
        layers.append(h)
    return layers, g


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("kept", [0, 3])
@torch.no_grad()
def test_both_streams_match_the_formulas(kept: int, normalize: str) -> None:
    model, length = xlnet(normalize=normalize), 5
    ids, segments = torch.randint(0, 11, (2, length)), torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 3, 0]])
    ranks, places = torch.stack([torch.randperm(length) for _ in range(2)]), torch.tensor([[0, 3], [4, 1]])
    memory = None
    if kept:
        memory = model.start(2, kept, ids.device)
        more = [torch.randn(2, kept, WIDTH, dtype=torch.float64) for _ in model.blocks]
        memory = type(memory)(tuple(more), torch.ones(2, kept, dtype=torch.bool))
    content, query = model.two_streams(ids, ranks, places, segments, None, memory)
    for row in range(2):
        example = (ids[row].tolist(), segments[row].tolist(), ranks[row].tolist(), places[row].tolist())
        layers, last = reference(model, *example, [x[row] for x in memory.layers] if memory else [])
        close([x[row] for x in content], layers)
        close(query[row], last)


def test_memory_equals_text_read_before() -> None:
    model, kept = xlnet(), 4
    earlier, ids, segments = (
        torch.randint(0, 11, (2, kept)),
        torch.randint(0, 11, (2, 5)),
        torch.tensor([0, 0, 1, 1, 2]),
    )
    segments, places = segments.expand(2, -1), torch.tensor([[1, 4], [0, 2]])
    ranks = torch.stack([torch.randperm(5) for _ in range(2)])
    zeros = torch.zeros_like(earlier)
    memory = model.start(2, kept, ids.device).append(model.layers(earlier, zeros))
    content, query = model.two_streams(ids, ranks, places, segments, None, memory)
    whole = torch.cat([earlier, ids], 1), torch.cat([zeros - 1, ranks], 1), kept + places
    both, asked = model.two_streams(*whole, torch.cat([zeros, segments], 1))
    close(content[-1], both[-1][:, kept:])
    close(query, asked)
    (into,) = torch.autograd.grad(query.sum(), [model.tokens.weight], retain_graph=True)
    only = torch.tensor(sorted({*earlier.flatten().tolist()} - {*ids.flatten().tolist()}), dtype=torch.long)
    assert not any(x.requires_grad for x in memory.layers)
    assert not bool(into[only].any())  # no gradient reaches what is remembered


def test_empty_memory_changes_nothing_and_a_long_one_keeps_the_last_tokens() -> None:
    model = xlnet()
    ids, ranks, places = torch.randint(0, 11, (2, 5)), torch.arange(5).expand(2, -1), torch.tensor([[4], [2]])
    segments = torch.zeros_like(ids)
    none = model.start(2, 3, ids.device)
    close(
        model.two_streams(ids, ranks, places, segments, None, none)[1],
        model.two_streams(ids, ranks, places, segments)[1],
    )
    layers = model.layers(ids)
    once, twice = none.append([x[:, :2] for x in layers]), none.append(layers)
    assert once.real.tolist() == [[False, True, True]] * 2 and bool(twice.real.all())
    close(twice.layers[0], layers[0][:, 2:])
    close(once.append([x[:, 2:] for x in layers]).layers[1], twice.layers[1])


@pytest.mark.parametrize("gaps", [True, False])
@torch.no_grad()
def test_padding_on_either_side_changes_neither_stream(gaps: bool) -> None:
    model = xlnet()
    ids, segments, ranks = torch.randint(0, 11, (1, 5)), torch.tensor([[0, 0, 1, 1, 2]]), torch.randperm(5)[None]
    places = torch.tensor([[1, 4]])
    content, query = model.two_streams(ids, ranks, places, segments)
    for left, right in ((3, 0), (0, 3), (2, 2)):
        some = [F.pad(x, (left, right), value=value) for x, value in ((ids, 7), (ranks, 0), (segments, 0))]
        real = F.pad(torch.ones_like(ids, dtype=torch.bool), (left, right))
        padded, asked = model.two_streams(some[0], some[1], places + left, some[2], Padded(real, gaps))
        close(padded[-1][:, left : left + 5], content[-1])
        close(asked, query)


@torch.no_grad()
def test_masked_vectors_are_the_query_stream() -> None:
    model = xlnet()
    ids, segments, masks = torch.randint(0, 11, (2, 6)), torch.zeros(2, 6, dtype=torch.long), torch.tensor([1, 4, 8])
    found = model.masked_vectors(ids, segments, None, masks)
    ranks = torch.zeros(12, dtype=torch.long).index_fill(0, masks, 1).view(2, 6)
    content, query = model.two_streams(ids, ranks, torch.arange(6).expand(2, -1), segments)
    close(found, torch.where(ranks[:, :, None] == 1, query, content[-1]))
    other = ids.flatten().index_fill(0, masks, 3).view(2, 6)
    assert model.masked_vectors(other, segments, None, masks).equal(found)


def test_distances_beyond_the_clamp_count_as_the_clamp() -> None:
    model, clamped = xlnet(), xlnet(clamp=2)
    clamped.load_state_dict(model.state_dict())
    short, long = torch.randint(0, 11, (1, 3)), torch.randint(0, 11, (1, 6))
    close(model(short), clamped(short))
    assert float((model(long) - clamped(long)).detach().abs().max()) > 1e-4
