"""Recurrent layers: the cells as defined in the papers, and the same cells over a whole sequence in one fused call.

The state of a layer is (h,), or (h, c) for an LSTM, each (B, H). Steps that are not `real` are padding: they leave the
state unchanged and output zeros. Without `gaps`, there is no padding between real steps.

B batch, T steps, X width in, H hidden width, G gates.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import real_first
from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap, watched

State = tuple[Tensor, ...]
SHUT = 1e4  # sigmoid(-SHUT) is 0 and sigmoid(SHUT) is 1 exactly, in every precision
LONGEST = 32_768  # steps of one call; cuDNN takes fewer than 65,536
FLAGS = 8  # columns of the padding flag: matrix products are faster with multiples of eight


class Elman(nn.Module):
    """h' = tanh(W_x x + W_h h): the plain RNN (Elman, 1990)."""

    parts: ClassVar = 1
    shut: ClassVar = ()  # has no gates; a zero input keeps a zero state

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = Linear(width, hidden, bias=False), Linear(hidden, hidden, bias=False)
        self.hidden = Tap()

    def forward(self, x: Tensor, state: State) -> State:
        (h,) = state
        h = torch.tanh(self.x(x) + self.h(h))  # (B, H)
        return (self.hidden(h),)

    def quick(self, x: Tensor, state: State) -> State:
        return (torch.rnn_tanh_cell(x, state[0], self.x.weight, self.h.weight),)

    def fused(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        y, h = torch.rnn_tanh(x, state[0][None], weights, False, 1, 0.0, self.training, False, True)
        return y, (h[0],)

    def biases(self) -> list[Tensor]:
        return []


class LSTM(nn.Module):
    """c' = f * c + i * c~ and h' = o * tanh(c'), the gates f, i, o in (0, 1) (Hochreiter and Schmidhuber, 1997).

    W [h, x] + b of all four gates is one product; the forget gate starts open (b_f = 1).
    """

    parts: ClassVar = 2
    shut: ClassVar = (-SHUT, SHUT, 0.0, 0.0)  # write nothing, forget nothing

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = Linear(width, 4 * hidden), Linear(hidden, 4 * hidden, bias=False)
        self.forget, self.write, self.candidate, self.reveal = Tap(), Tap(), Tap(), Tap()
        self.cell, self.hidden = Tap(), Tap()
        assert self.x.bias is not None
        nn.init.ones_(self.x.bias.data[hidden : 2 * hidden])

    def forward(self, x: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)  # (B, H)
        f = self.forget(torch.sigmoid(f))  # how much of the cell is kept
        i = self.write(torch.sigmoid(i))  # how much is written to it
        g = self.candidate(torch.tanh(g))
        c = self.cell(f * c + i * g)  # (B, H)
        o = self.reveal(torch.sigmoid(o))  # how much of it is output
        h = self.hidden(o * torch.tanh(c))  # (B, H)
        return h, c

    def quick(self, x: Tensor, state: State) -> State:
        after: State = torch.lstm_cell(x, state, self.x.weight, self.h.weight, *self.biases())
        return after

    def fused(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        h, c = (part[None] for part in state)
        y, h, c = torch.lstm(x, (h, c), weights, True, 1, 0.0, self.training, False, True)
        return y, (h[0], c[0])

    def biases(self) -> list[Tensor]:
        assert self.x.bias is not None
        return [self.x.bias, torch.zeros_like(self.x.bias)]


class GRU(nn.Module):
    """h' = z * h + (1 - z) * tanh(W x + r * (U h)), with the gates r and z in (0, 1) (Cho et al., 2014).

    Differs: the paper's first version has U (r * h); the later one, r * (U h), is what fused kernels compute.
    """

    parts: ClassVar = 1
    shut: ClassVar = (0.0, SHUT, 0.0)  # keep everything

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = Linear(width, 3 * hidden), Linear(hidden, 3 * hidden)
        self.reset, self.keep, self.candidate, self.hidden = Tap(), Tap(), Tap(), Tap()

    def forward(self, x: Tensor, state: State) -> State:
        (h,) = state
        (xr, xz, xn), (hr, hz, hn) = self.x(x).chunk(3, -1), self.h(h).chunk(3, -1)  # (B, H)
        r = self.reset(torch.sigmoid(xr + hr))
        z = self.keep(torch.sigmoid(xz + hz))
        n = self.candidate(torch.tanh(xn + r * hn))
        h = z * h + (1 - z) * n  # (B, H)
        return (self.hidden(h),)

    def quick(self, x: Tensor, state: State) -> State:
        return (torch.gru_cell(x, state[0], self.x.weight, self.h.weight, self.x.bias, self.h.bias),)

    def fused(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        y, h = torch.gru(x, state[0][None], weights, True, 1, 0.0, self.training, False, True)
        return y, (h[0],)

    def biases(self) -> list[Tensor]:
        assert self.x.bias is not None and self.h.bias is not None
        return [self.x.bias, self.h.bias]


Cell = Elman | LSTM | GRU
CELLS: dict[str, type[Elman] | type[LSTM] | type[GRU]] = {"rnn": Elman, "lstm": LSTM, "gru": GRU}


def unroll(cell: Cell, x: Tensor, state: State, real: Tensor | None = None) -> tuple[Tensor, State]:
    """A cell over a sequence (B, T, X), step by step; `fused` computes the same."""
    outputs = []
    for t in range(x.shape[1]):
        after = cell(x[:, t], state)
        if real is not None:
            after = tuple(torch.where(real[:, t, None], new, old) for new, old in zip(after, state, strict=True))
        state = after
        outputs.append(state[0])
    y = torch.stack(outputs, 1)  # (B, T, H)
    return (y if real is None else y.masked_fill(~real[:, :, None], 0.0)), state


def fused(cell: Cell, x: Tensor, state: State, real: Tensor | None = None, gaps: bool = True) -> tuple[Tensor, State]:
    """A cell over a sequence in one call of torch's kernels; with padding, from a zero state.

    The kernel sees padding as extra input columns, which close the gates that would change the state. The output gate
    still changes h there: where there may be gaps, the real steps are first moved together.
    """
    if real is not None and gaps and has_gaps(real):
        to = real_first(real)  # (B, T)
        x = torch.zeros_like(x).scatter(1, to[:, :, None].expand_as(x), x)
        y, after = _fused(cell, x, state, torch.zeros_like(real).scatter(1, to, real))
        return y.gather(1, to[:, :, None].expand_as(y)), after
    return _fused(cell, x, state, real)


def has_gaps(real: Tensor) -> bool:
    """Whether there is padding between real steps; assumed on a GPU, where checking would synchronize."""
    if real.is_cuda or torch.compiler.is_compiling():
        return True
    begins = real[:, 1:] > real[:, :-1]  # (B, T - 1)
    return bool((begins.sum(1) + real[:, 0] > 1).any())


def _fused(cell: Cell, x: Tensor, state: State, real: Tensor | None = None) -> tuple[Tensor, State]:
    """The same where no real step follows padding, or the cell's state survives it."""
    into: Tensor = cell.x.weight
    if real is not None:
        x, into = _flagged(cell, x, into, real)
    weights: list[Tensor] = [into, cell.h.weight, *cell.biases()]
    place = x.device.type
    if torch.is_autocast_enabled(place):
        half = torch.get_autocast_dtype(place)
        x, state, weights = x.to(half), tuple(part.to(half) for part in state), [part.to(half) for part in weights]
    if x.is_cuda:  # cuDNN wants all weights in one contiguous tensor
        whole = torch.cat([weight.flatten() for weight in weights]).split([weight.numel() for weight in weights])
        weights = [part.view_as(weight) for part, weight in zip(whole, weights, strict=True)]
    chosen = torch.autocast(place, enabled=False) if torch.is_autocast_enabled(place) else nullcontext()
    with chosen:  # the precision is chosen above
        outputs, after = [], tuple(part.contiguous() for part in state)
        for piece in x.split(LONGEST, 1) if x.is_cuda else (x,):
            y, after = cell.fused(piece.contiguous(), after, weights)  # (B, T, H)
            outputs.append(y)
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)  # (B, T, H)
    if real is None:
        return y, after
    y = y.masked_fill(~real[:, :, None], 0.0)  # (B, T, H)
    return y, (last(y, real), *after[1:])


def _flagged(cell: Cell, x: Tensor, into: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and input weights with flags such that a padded step keeps the state."""
    if not cell.shut:
        return x.masked_fill(~real[:, :, None], 0.0), into
    flags = nn.functional.pad((~real)[:, :, None].to(x.dtype), (0, FLAGS - 1))  # (B, T, FLAGS)
    size = len(into) // len(cell.shut)
    column = torch.cat([into.new_full((size, 1), gate) for gate in cell.shut])  # (G * H, 1)
    column = nn.functional.pad(column, (0, FLAGS - 1))
    return torch.cat([x, flags], -1), torch.cat([into, column], 1)


def last(y: Tensor, real: Tensor) -> Tensor:
    """The output at the last real step of each row; zeros where there is none."""
    steps = torch.arange(real.shape[1], device=real.device)
    at = torch.where(real, steps, 0).amax(1)  # (B,)
    return y[torch.arange(y.shape[0], device=y.device), at]  # (B, H)


class Layer(nn.Module):
    """One cell over a sequence: (B, T, X) -> (B, T, H), and the state after it."""

    stepped: ClassVar = True  # called once per step, so FSDP must not gather its weights on each call

    def __init__(self, kind: str, width: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.size = CELLS[kind](width, hidden), hidden

    def zeros(self, x: Tensor) -> State:
        return tuple(x.new_zeros(x.shape[0], self.size) for _ in range(self.cell.parts))

    def step(self, x: Tensor, state: State) -> State:
        after: State = (self.cell if watched(self.cell) else self.cell.quick)(x, state)
        return after

    def forward(
        self, x: Tensor, state: State | None = None, real: Tensor | None = None, gaps: bool = True
    ) -> tuple[Tensor, State]:
        if x.shape[1] == 0:
            raise ValueError("the sequence is empty: it has no steps")
        if x.shape[1] == 1 and real is None:
            state = self.step(x[:, 0], state or self.zeros(x))
            return state[0][:, None], state  # (B, T, H)
        if watched(self.cell) or (state and real is not None):
            return unroll(self.cell, x, state or self.zeros(x), real)
        return fused(self.cell, x, state or self.zeros(x), real, gaps)


class BidirectionalLayer(nn.Module):
    """A layer in each direction, their outputs side by side: (B, T, X) -> (B, T, 2 H) (Schuster and Paliwal, 1997)."""

    def __init__(self, kind: str, width: int, hidden: int) -> None:
        super().__init__()
        self.ahead, self.back = Layer(kind, width, hidden), Layer(kind, width, hidden)

    def forward(
        self, x: Tensor, state: None = None, real: Tensor | None = None, gaps: bool = True
    ) -> tuple[Tensor, State]:
        y, ahead = self.ahead(x, None, real, gaps)
        z, back = self.back(x.flip(1), None, None if real is None else real.flip(1), gaps)
        return torch.cat([y, z.flip(1)], -1), (*ahead, *back)  # (B, T, 2 * H)


class Stack(nn.Module):
    """A stack of layers, with dropout between them."""

    def __init__(self, layers: Sequence[nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.outputs = nn.ModuleList(Tap() for _ in layers)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, states: tuple[State, ...] | None = None, real: Tensor | None = None, gaps: bool = True
    ) -> tuple[Tensor, tuple[State, ...]]:
        after: list[State] = []
        for number, (layer, output) in enumerate(zip(self.layers, self.outputs, strict=True)):
            x = self.dropout(x) if number else x
            x, state = layer(x, states[number] if states else None, real, gaps)  # (B, T, H)
            x = output(x)
            after.append(state)
        return x, tuple(after)

    def step(self, x: Tensor, states: tuple[State, ...]) -> tuple[Tensor, tuple[State, ...]]:
        """One step (B, X) -> (B, H), for callers that compute something between two steps."""
        after: list[State] = []
        layers: Any = self.layers  # a ModuleList does not know the type of its layers
        for number, (layer, output) in enumerate(zip(layers, self.outputs, strict=True)):
            after.append(layer.step(self.dropout(x) if number else x, states[number]))
            x = output(after[-1][0])  # (B, H)
        return x, tuple(after)
