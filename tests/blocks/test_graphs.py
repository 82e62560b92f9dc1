"""LSTMs on directed acyclic graphs against a node-by-node reference, and the errors of invalid graphs."""

import random
from itertools import combinations

import pytest
import torch
from torch import Tensor

from heedful.blocks.graphs import GraphLSTM, Order
from heedful.blocks.taps import taps, watch
from tolerance import close

Edges = list[tuple[int, int]]


def random_graph(seed: int, count: int, edges: int) -> Edges:
    """A random acyclic graph whose nodes are not numbered in topological order."""
    r = random.Random(seed)
    names = r.sample(range(count), count)
    return [(names[a], names[b]) for a, b in r.sample(list(combinations(range(count), 2)), edges)]


def node_by_node(model: GraphLSTM, x: Tensor, edges: Edges, merge: str) -> Tensor:
    """The hidden states, computed for each node once its predecessors are known, with the gates written out."""
    H, cell = model.size, model.cell
    states: dict[int, tuple[Tensor, Tensor]] = {}
    while len(states) < len(x):
        for node in range(len(x)):
            predecessors = [a for a, b in edges if b == node]
            if node in states or any(a not in states for a in predecessors):
                continue
            scale = 1 / max(1, len(predecessors)) if merge == "mean" else 1.0
            i, g, o, f = cell.x(x[node]).split(H)
            total = sum((states[a][0] for a in predecessors), x.new_zeros(H)) * scale
            recurrent = cell.h(total).split(H)
            c = torch.sigmoid(i + recurrent[0]) * torch.tanh(g + recurrent[1])
            for a in predecessors:
                c = c + scale * torch.sigmoid(f + cell.f(states[a][0])) * states[a][1]
            states[node] = (torch.sigmoid(o + recurrent[2]) * torch.tanh(c), c)
    return torch.stack([states[node][0] for node in range(len(x))])


@pytest.mark.parametrize("merge", ["sum", "mean"])
@pytest.mark.parametrize(("count", "edges"), [(1, 0), (5, 0), (2, 1), (12, 20), (9, 36)])
def test_outputs_and_gradients_match_node_by_node_reference(count: int, edges: int, merge: str) -> None:
    model = GraphLSTM(4, 5, merge).double()
    graph = random_graph(count, count, edges)
    x = torch.randn(count, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(count, 5, dtype=torch.float64)
    results = []
    for y in (model(x, Order.of(count, graph)), node_by_node(model, x, graph, merge)):
        inputs = [x, *(model.parameters() if edges else [*model.cell.x.parameters()])]
        results.append((y, *torch.autograd.grad((y * weight).sum(), inputs)))
    for fast, slow in zip(*results, strict=True):
        close(fast, slow, slack=8192)


def test_number_of_steps_is_the_longest_path() -> None:
    model = GraphLSTM(4, 5)
    with watch(model, "cell.gates.hidden") as seen:
        model(torch.randn(6, 4), Order.of(6, [(0, 1), (1, 2), (0, 2), (3, 2), (4, 5)]))
    assert [len(h) for h in seen.all["cell.gates.hidden"]] == [3, 2, 1]


def test_sum_and_mean_differ_only_with_several_predecessors() -> None:
    edges = [(0, 1), (0, 2), (1, 2)]
    one, two = GraphLSTM(4, 5, "sum"), GraphLSTM(4, 5, "mean")
    two.load_state_dict(one.state_dict())
    x, order = torch.randn(3, 4), Order.of(3, edges)
    assert one(x, order)[:2].equal(two(x, order)[:2])
    assert not torch.allclose(one(x, order)[2], two(x, order)[2], atol=1e-4)


def test_watching_does_not_change_the_output() -> None:
    model, x, order = GraphLSTM(4, 5), torch.randn(6, 4), Order.of(6, random_graph(0, 6, 9))
    fast = model(x, order)
    with watch(model) as seen:
        assert model(x, order).equal(fast)
    assert set(seen) == set(taps(model))


@pytest.mark.parametrize(("a", "b"), [(0, 3), (3, 0), (-1, 1), (1, -1)])
def test_error_for_a_missing_node_names_it(a: int, b: int) -> None:
    with pytest.raises(ValueError, match=f"edge from {a} to {b}, but nodes are numbered 0 to 2"):
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
def test_error_for_a_cycle_lists_its_nodes(count: int, edges: Edges, cycles: list[str]) -> None:
    with pytest.raises(ValueError, match="has a cycle: ") as caught:
        Order.of(count, edges)
    assert str(caught.value).partition(": ")[2] in cycles


def test_error_for_a_duplicate_edge_names_it() -> None:
    with pytest.raises(ValueError, match="the edge from 0 to 2 is given twice"):
        Order.of(3, [(0, 2), (1, 2), (0, 2)])


@pytest.mark.parametrize("rows", [2, 4])
def test_input_must_have_one_row_per_node(rows: int) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows, but the graph has 3 nodes"):
        GraphLSTM(4, 5)(torch.randn(rows, 4), Order.of(3, [(0, 1)]))


def test_empty_graph_is_rejected() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        Order.of(0, [])


def test_long_path_does_not_exceed_recursion_limit() -> None:
    order = Order.of(5000, [(at, at + 1) for at in range(4999)])
    assert len(order.levels) == 5000
    with pytest.raises(ValueError, match="cycle"):
        Order.of(5000, [(at, (at + 1) % 5000) for at in range(5000)])


def test_moving_an_order_moves_all_its_tensors() -> None:
    order = Order.of(3, [(0, 1), (1, 2)]).to("meta")
    tensors = [
        order.nodes,
        *(level.to for level in order.levels),
        *(t for level in order.levels for _, t in level.reads),
    ]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
