import pytest
import torch
from torch import Tensor

from heedful.blocks.grids import GridLSTM
from heedful.blocks.taps import taps, watch
from tolerance import close


def cell_by_cell(model: GridLSTM, x: Tensor) -> Tensor:
    """Row by row, column by column, gate by gate."""
    B, Y, X, _ = x.shape
    H, cell = model.size, model.cell
    nothing = (x.new_zeros(B, H), x.new_zeros(B, H))
    states: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for row in range(Y):
        for column in range(X):
            up, left = states.get((row - 1, column), nothing), states.get((row, column - 1), nothing)
            gates = cell.x(x[:, row, column]) + up[0] @ cell.h.weight[:, :H].T + left[0] @ cell.h.weight[:, H:].T
            i, g, o, above, beside = gates.chunk(5, -1)
            c = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(above) * up[1] + torch.sigmoid(beside) * left[1]
            states[row, column] = (torch.sigmoid(o) * torch.tanh(c), c)
    rows = [torch.stack([states[row, column][0] for column in range(X)], 1) for row in range(Y)]
    return torch.stack(rows, 1)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 6), (6, 1), (3, 5), (5, 3), (4, 4), (2, 9)])
def test_diagonals_match_cell_by_cell(rows: int, columns: int) -> None:
    model = GridLSTM(4, 5).double()
    x = torch.randn(2, rows, columns, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, rows, columns, 5, dtype=torch.float64)
    results = []
    for y in (model(x), cell_by_cell(model, x)):
        results.append((y, *torch.autograd.grad((y * weight).sum(), [x, *model.parameters()])))
    for fast, slow in zip(*results, strict=True):
        close(fast, slow, slack=8192)


def test_number_of_steps_is_the_number_of_diagonals() -> None:
    model = GridLSTM(4, 5)
    with watch(model, "cell.gates.hidden") as seen:
        model(torch.randn(2, 6, 7, 4))
    assert [h.shape[1] for h in seen.all["cell.gates.hidden"]] == [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1]


def test_transposing_the_grid_swaps_up_and_left() -> None:
    model, turned = GridLSTM(4, 5), GridLSTM(4, 5)
    H = 5
    with torch.no_grad():
        order = [*range(3 * H), *range(4 * H, 5 * H), *range(3 * H, 4 * H)]
        turned.cell.x.weight.copy_(model.cell.x.weight[order])
        assert turned.cell.x.bias is not None and model.cell.x.bias is not None
        turned.cell.x.bias.copy_(model.cell.x.bias[order])
        turned.cell.h.weight.copy_(model.cell.h.weight[order].roll(H, 1))
    x = torch.randn(2, 3, 4, 4)
    close(turned(x.transpose(1, 2)).transpose(1, 2), model(x), slack=16)


def test_watching_does_not_change_the_output() -> None:
    model, x = GridLSTM(4, 5), torch.randn(2, 3, 4, 4)
    fast = model(x)
    with watch(model) as seen:
        assert model(x).equal(fast)
    assert set(seen) == set(taps(model))


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (0, 0)])
def test_empty_grid_is_rejected(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows and {columns} columns"):
        GridLSTM(4, 5)(torch.randn(2, rows, columns, 4))
