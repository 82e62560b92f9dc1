"""Rows J9 to J11 of the claim sheet: trees, grids and graphs, of which the sequence is a special case."""

import numpy as np
import pytest
import torch

from heedful.blocks.graphs import ChildSumCell, GraphLSTM, Order
from heedful.blocks.grids import GridLSTM
from heedful.blocks.recurrent import LSTM, unroll
from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.batches import encode_trees
from heedful.data.trees.treebank import Tree, WordsConfig
from heedful.models.tree_lstm.config import TreeLSTMConfig
from heedful.models.tree_lstm.model import TreeLSTM
from tolerance import close

X, H, STEPS = 4, 5, 9


def randomize(model: torch.nn.Module) -> None:
    """Perturb the weights so that no bias is zero."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))


def to_lstm_order(weight: torch.Tensor) -> torch.Tensor:
    """Gates i, g, o, f as the LSTM has them: i, f, g, o."""
    i, g, o, f = weight.split(H)
    return torch.cat([i, f, g, o])


def sequence(x: torch.nn.Module, below: torch.Tensor) -> LSTM:
    """The LSTM of the same weights; `below` are those that act on the state, as i, g, o, f."""
    cell = LSTM(X, H).to(below.dtype)
    state = {"x.weight": to_lstm_order(x.weight), "x.bias": to_lstm_order(x.bias), "h.weight": to_lstm_order(below)}
    cell.load_state_dict(state)
    return cell


def run_lstm(cell: LSTM, x: torch.Tensor) -> torch.Tensor:
    """The LSTM over one sequence (T, X)."""
    return unroll(cell, x[None], (x.new_zeros(1, H),) * 2)[0][0]


@pytest.mark.claim("J9")
@pytest.mark.parametrize(("form", "arity"), [("child_sum", 2), ("nary", 1), ("nary", 3)])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_tree_lstm_on_a_chain_is_the_lstm(form: str, arity: int, dtype: torch.dtype, near: float) -> None:
    names = tuple(f"w{number}" for number in range(STEPS))
    words = WordVocab.learn(WordsConfig(), [names])
    config = TreeLSTMConfig(form=form, arity=arity, vocab=words.vocab, width=X, hidden=H)
    model = TreeLSTM(config).to(dtype).eval()
    randomize(model)
    chain = Tree((0,) * STEPS, names, ((), *((below,) for below in range(STEPS - 1))))
    batch = encode_trees([chain], words).batch(np.zeros(1, np.int64))
    states = torch.empty(STEPS, H, dtype=dtype).index_copy(0, batch.nodes, model.states(batch))
    if isinstance(model.cell, ChildSumCell):
        below = torch.cat([model.cell.h.weight, model.cell.f.weight])
    else:
        below = model.cell.h.weight[: 4 * H, :H]  # the first child position
    expected = run_lstm(sequence(model.cell.x, below), model.tokens.weight[words.ids(names)])
    torch.testing.assert_close(states, expected, rtol=0, atol=near)
    assert expected.std() > 0.05


@pytest.mark.claim("J10")
def test_grid_lstm_on_one_row_or_column_is_the_lstm() -> None:
    grid = GridLSTM(X, H)
    randomize(grid)
    x = torch.randn(STEPS, X)
    weight, bias = grid.cell.x.weight, grid.cell.x.bias
    assert bias is not None
    for y, gate, side in ((grid(x[None, None])[0, 0], 4, 1), (grid(x[None, :, None])[0, :, 0], 3, 0)):
        keep = [*range(3 * H), *range(gate * H, (gate + 1) * H)]  # i, g, o and the forget gate of that direction
        part = torch.nn.Linear(X, 4 * H)
        part.load_state_dict({"weight": weight[keep], "bias": bias[keep]})
        cell = sequence(part, grid.cell.h.weight[keep, side * H : (side + 1) * H])
        close(y, run_lstm(cell, x), slack=16)


@pytest.mark.claim("J10")
def test_grid_cell_depends_only_on_cells_above_and_left() -> None:
    grid, x = GridLSTM(X, H), torch.randn(1, 4, 5, X, requires_grad=True)
    y = grid(x)
    for row in range(4):
        for column in range(5):
            (gradient,) = torch.autograd.grad(y[0, row, column].sum(), x, retain_graph=True)
            dependencies = gradient[0].abs().sum(-1) > 0
            expected = torch.zeros(4, 5, dtype=torch.bool)
            expected[: row + 1, : column + 1] = True
            assert dependencies.equal(expected)


@pytest.mark.claim("J11")
@pytest.mark.parametrize("merge", ["sum", "mean"])
def test_graph_lstm_on_a_path_is_the_lstm(merge: str) -> None:
    graph = GraphLSTM(X, H, merge)
    randomize(graph)
    x = torch.randn(STEPS, X)
    y = graph(x, Order.of(STEPS, [(at, at + 1) for at in range(STEPS - 1)]))
    cell = sequence(graph.cell.x, torch.cat([graph.cell.h.weight, graph.cell.f.weight]))
    close(y, run_lstm(cell, x), slack=16)


@pytest.mark.claim("J11")
@pytest.mark.parametrize("merge", ["sum", "mean"])
def test_permuting_nodes_permutes_outputs(merge: str) -> None:
    graph, x = GraphLSTM(X, H, merge), torch.randn(7, X)
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4), (5, 4), (5, 6)]
    y = graph(x, Order.of(7, edges))
    for _ in range(5):
        names = torch.randperm(7)
        permuted = [(int(names[a]), int(names[b])) for a, b in edges]
        again = graph(torch.empty_like(x).index_copy(0, names, x), Order.of(7, permuted))
        close(again[names], y, slack=16)
    assert not torch.allclose(y, graph(x, Order.of(7, edges[1:])))
