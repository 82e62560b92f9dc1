import random
from itertools import combinations

import pytest
import torch
from torch import Tensor

from heedful.blocks.graphs import GraphLSTM, Order
from heedful.blocks.taps import taps, watch
from tolerance import close

Edges = list[tuple[int, int]]


def drawn(seed: int, count: int, edges: int) -> Edges:
    """A random graph without cycles, whose nodes are in no order."""
    r = random.Random(seed)
    names = r.sample(range(count), count)
    return [(names[a], names[b]) for a, b in r.sample(list(combinations(range(count), 2)), edges)]


def node_by_node(model: GraphLSTM, x: Tensor, edges: Edges, merge: str) -> Tensor:
    """Each node as soon as all that it reads are there, gate by gate."""
    H, cell = model.size, model.cell
    states: dict[int, tuple[Tensor, Tensor]] = {}
    while len(states) < len(x):
        for node in range(len(x)):
            reads = [a for a, b in edges if b == node]
            if node in states or any(a not in states for a in reads):
                continue
            scale = 1 / max(1, len(reads)) if merge == "mean" else 1.0
            i, g, o, f = cell.x(x[node]).split(H)
            total = sum((states[a][0] for a in reads), x.new_zeros(H)) * scale
            more = cell.h(total).split(H)
            c = torch.sigmoid(i + more[0]) * torch.tanh(g + more[1])
            for a in reads:
                c = c + scale * torch.sigmoid(f + cell.f(states[a][0])) * states[a][1]
            states[node] = (torch.sigmoid(o + more[2]) * torch.tanh(c), c)
    return torch.stack([states[node][0] for node in range(len(x))])


@pytest.mark.parametrize("merge", ["sum", "mean"])
@pytest.mark.parametrize(("count", "edges"), [(1, 0), (5, 0), (2, 1), (12, 20), (9, 36)])
def test_by_levels_is_node_by_node_and_so_are_the_gradients(count: int, edges: int, merge: str) -> None:
    model = GraphLSTM(4, 5, merge).double()
    graph = drawn(count, count, edges)
    x = torch.randn(count, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(count, 5, dtype=torch.float64)
    results = []
    for y in (model(x, Order.of(count, graph)), node_by_node(model, x, graph, merge)):
        wanted = [x, *(model.parameters() if edges else [*model.cell.x.parameters()])]
        results.append((y, *torch.autograd.grad((y * weight).sum(), wanted)))
    for fast, slow in zip(*results, strict=True):
        close(fast, slow, slack=8192)


def test_as_many_steps_as_the_longest_path_has_nodes() -> None:
    model = GraphLSTM(4, 5)
    with watch(model, "cell.gates.hidden") as seen:
        model(torch.randn(6, 4), Order.of(6, [(0, 1), (1, 2), (0, 2), (3, 2), (4, 5)]))
    assert [len(h) for h in seen.all["cell.gates.hidden"]] == [3, 2, 1]


def test_sum_and_mean_differ_only_where_several_are_read() -> None:
    edges = [(0, 1), (0, 2), (1, 2)]
    one, two = GraphLSTM(4, 5, "sum"), GraphLSTM(4, 5, "mean")
    two.load_state_dict(one.state_dict())
    x, order = torch.randn(3, 4), Order.of(3, edges)
    assert one(x, order)[:2].equal(two(x, order)[:2])
    assert not torch.allclose(one(x, order)[2], two(x, order)[2], atol=1e-4)


def test_watched_is_fast_and_every_tap_hears() -> None:
    model, x, order = GraphLSTM(4, 5), torch.randn(6, 4), Order.of(6, drawn(0, 6, 9))
    fast = model(x, order)
    with watch(model) as seen:
        assert model(x, order).equal(fast)
    assert set(seen) == set(taps(model))


@pytest.mark.parametrize(("a", "b"), [(0, 3), (3, 0), (-1, 1), (1, -1)])
def test_an_edge_to_a_missing_node_is_named(a: int, b: int) -> None:
    with pytest.raises(ValueError, match=f"edge from {a} to {b}, but the nodes are 0 to 2"):
        Order.of(3, [(0, 1), (a, b)])


@pytest.mark.parametrize(
    ("count", "edges", "cycles"),
    [
        (2, [(1, 1)], ["1 -> 1"]),
        (3, [(0, 1), (1, 2), (2, 1)], ["1 -> 2 -> 1", "2 -> 1 -> 2"]),
        (
            6,
            [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5)],
            ["1 -> 2 -> 3 -> 1", "2 -> 3 -> 1 -> 2", "3 -> 1 -> 2 -> 3"],
        ),
    ],
)
def test_a_cycle_is_named_by_its_nodes_in_the_direction_of_the_edges(
    count: int, edges: Edges, cycles: list[str]
) -> None:
    with pytest.raises(ValueError, match="has a cycle: ") as caught:
        Order.of(count, edges)
    assert str(caught.value).partition(": ")[2] in cycles


def test_an_edge_that_is_given_twice_is_named() -> None:
    with pytest.raises(ValueError, match="the edge from 0 to 2 is given twice"):
        Order.of(3, [(0, 2), (1, 2), (0, 2)])


@pytest.mark.parametrize("rows", [2, 4])
def test_a_row_for_each_node_no_more_and_no_less(rows: int) -> None:
    with pytest.raises(ValueError, match=f"there are {rows} rows, but the order is of 3 nodes"):
        GraphLSTM(4, 5)(torch.randn(rows, 4), Order.of(3, [(0, 1)]))


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        Order.of(0, [])


def test_a_long_path_takes_no_recursion() -> None:
    order = Order.of(5000, [(at, at + 1) for at in range(4999)])
    assert len(order.levels) == 5000
    with pytest.raises(ValueError, match="cycle"):
        Order.of(5000, [(at, (at + 1) % 5000) for at in range(5000)])


def test_an_order_moves_whole() -> None:
    order = Order.of(3, [(0, 1), (1, 2)]).to("meta")
    tensors = [
        order.nodes,
        *(level.to for level in order.levels),
        *(t for level in order.levels for _, t in level.reads),
    ]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
