"""A two-dimensional LSTM: each cell reads the cells above and to the left (Graves et al., 2007).

The cells of an antidiagonal depend only on the previous one, and are computed at once.

Differs: no peephole connections from the memory cell to the gates.

B batch, Y rows, X columns, D width in, N cells of a diagonal, H hidden width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.gates import Gates
from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap


class GridCell(nn.Module):
    """c = i * g + f_up * c_up + f_left * c_left and h = o * tanh(c), every gate from x, h_up and h_left."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.x = Linear(width, 5 * hidden)  # i, g, o, f_up, f_left
        self.h = Linear(2 * hidden, 5 * hidden, bias=False)
        self.forget, self.gates = Tap(), Gates()
        assert self.x.bias is not None
        nn.init.ones_(self.x.bias.data[3 * hidden :])

    def forward(self, x: Tensor, up: tuple[Tensor, Tensor], left: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x (B, N, 5 H) are the inputs after projection; `up` and `left` the states (h, c) of the neighbours."""
        h, c = (torch.cat(parts, -1) for parts in zip(up, left, strict=True))  # (B, N, 2 * H)
        igo, f = (x + self.h(h)).tensor_split([3 * up[0].shape[-1]], -1)
        kept = self.forget(torch.sigmoid(f)) * c  # (B, N, 2 * H)
        return self.gates(igo, sum(kept.chunk(2, -1)))  # (B, N, H)


class GridLSTM(nn.Module):
    """x (B, Y, X, D) -> h (B, Y, X, H), computed antidiagonal by antidiagonal."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.size = GridCell(width, hidden), hidden

    def forward(self, x: Tensor) -> Tensor:
        B, Y, X, _ = x.shape
        if not Y * X:
            raise ValueError(f"the grid is empty: {Y} rows and {X} columns")
        spans = [range(max(0, d - X + 1), min(Y, d + 1)) for d in range(Y + X - 1)]  # the rows of each diagonal
        cells = torch.tensor([y * X + d - y for d, rows in enumerate(spans) for y in rows], device=x.device)  # (Y * X,)
        gates = self.cell.x(x).flatten(1, 2)[:, cells].split([len(rows) for rows in spans], 1)
        state, first, states = (x.new_zeros(B, 0, self.size),) * 2, 0, []
        for gate, rows in zip(gates, spans, strict=True):
            # With zeros outside the grid, the cells above rows y are rows y - 1 of the previous antidiagonal.
            before = [F.pad(part, (0, 0, 1, 1)) for part in state]
            above = rows.start - first
            up, left = (tuple(part[:, at : at + len(rows)] for part in before) for at in (above, above + 1))
            state, first = self.cell(gate, up, left), rows.start
            states.append(state[0])
        h = torch.cat(states, 1)  # (B, Y * X, H)
        return torch.empty_like(h).index_copy(1, cells, h).view(B, Y, X, -1)  # (B, Y, X, H)
