"""What is checked: rows in, an output for each row, whatever the model is and however it is called.

B rows of a batch, T tokens, or other positions, of a row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from heedful.contracts.refusals import RefusedError, user_code

Side = Literal["right", "left"]
Call = Callable[[nn.Module, Tensor, Tensor | None], Tensor]
Between = Callable[[], object]
Step = Callable[[nn.Module, Tensor, Sequence[int], Between], Tensor]
Rows = Sequence[Tensor]


@dataclass(frozen=True)
class Subject:
    """One input of a model, which the checks vary; the others stay as they are.

    `call` takes the module, inputs (B, T, ...) and which of them are real (B, T), or None for rows without positions.
    """

    name: str  # of the input
    module: nn.Module
    row: Callable[[int, torch.Generator], Tensor]  # a row of this many positions
    call: Call
    longest: int = 12  # positions of a row that the checks use at most
    sequence: bool = True  # whether rows have positions
    aligned: bool = False  # whether there is an output at each position
    sides: tuple[Side, ...] = ("right", "left")  # where rows can be padded
    unpadded: str = ""  # why they cannot be
    empty: bool = True  # whether a row may have no tokens at all
    pad: int = 0
    causal: bool | None = None  # whether no position may see later ones; None: not known
    step: Step | None = None  # a batch in chunks, with what the model keeps in between; `Between` is called there
    uncached: str = "it takes no cache"
    chunked: bool = True  # whether several tokens at once may follow what a cache holds
    every: Call | None = None  # all outputs of a row in one vector (B, N), where `call` gives one of several
    smooth: bool = True  # whether small changes of weights and inputs change the output little
    with_positions: Call | None = None  # a call with positions that count real tokens alone, where `call` passes none
    fresh: nn.Module | None = None  # a copy of the module that was never called, if there can be one

    def rows(self, lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
        """Random rows of these lengths."""
        random = torch.Generator().manual_seed(seed)
        return [self.row(length, random) for length in lengths]

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return next((weight.device for weight in self.module.parameters()), torch.device("cpu"))

    def read(self, inputs: Tensor, real: Tensor | None, seed: int = 0) -> Tensor:
        """The output for a batch, with this random seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with user_code():
                found = self.call(self.module, inputs.to(self.device), None if real is None else real.to(self.device))
        if not found.dim():
            raise RefusedError("gives one number for the whole batch")
        return found

    def outputs(self, rows: Rows, side: Side = "right", more: int = 0, seed: int = 0) -> list[Tensor]:
        """The output of each row of a batch, padded to the longest row plus `more`; of real positions alone."""
        inputs, real = self.batch(rows, side, more)
        found = self.read(inputs, real, seed)
        if len(found) != len(rows):
            raise RefusedError(f"gives {counted(len(found), 'output')} for {counted(len(rows), 'row')}")
        if not (self.aligned and real is not None):
            return list(found)
        return [one[mask.to(one.device)] for one, mask in zip(found, real, strict=True)]

    def batch(self, rows: Rows, side: Side = "right", more: int = 0) -> tuple[Tensor, Tensor | None]:
        """Rows in one tensor, and which of its positions are real."""
        if not self.sequence:
            return torch.stack(list(rows)), None
        every = [torch.ones(len(row), dtype=torch.bool) for row in rows]
        inputs = pad_sequence(list(rows), batch_first=True, padding_value=self.pad, padding_side=side)
        real = pad_sequence(every, batch_first=True, padding_side=side)
        if more:
            shape = (len(rows), more)
            wider = inputs.new_full((*shape, *inputs.shape[2:]), self.pad), real.new_zeros(shape)
            pairs = zip((inputs, real), wider, strict=True)
            inputs, real = (torch.cat([one, two] if side == "right" else [two, one], 1) for one, two in pairs)
        return inputs, real

    def of(self, module: nn.Module) -> Subject:
        """The same with another module, such as a copy."""
        return replace(self, module=module)


def counted(number: int, word: str) -> str:
    """A number with its word, `1 row` or `2 rows`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def copied(module: nn.Module) -> nn.Module | None:
    """A copy; None where something in it cannot be copied."""
    kept = (one for part in module.modules() for value in vars(part).values() for one in with_graph(value))
    memo = {id(one): one.detach().clone() for one in kept}
    try:
        return copy.deepcopy(module, memo)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def with_graph(value: object) -> Iterator[Tensor]:
    """The tensors of a graph in what a module keeps, such as its last attention weights; these cannot be copied."""
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, dict | list | tuple | set) and not isinstance(value, nn.Module):
        for part in value.values() if isinstance(value, dict) else value:
            yield from with_graph(part)


def lively_copy(module: nn.Module) -> nn.Module | None:
    """A copy with random noise on its weights, as after some training: none of them is zero."""
    other = copied(module)
    if other is None:
        return None
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.is_floating_point():
                scale = 0.1 * (float(weight.float().square().mean().sqrt()) or 0.2)
                weight.add_((scale * torch.randn(weight.shape, generator=random)).to(weight))
    return other


def distance(found: Rows, expected: Rows) -> Tensor:
    """The largest difference of each row, relative to the largest finite value; infinite for NaN or another shape."""
    if any(one.shape != two.shape for one, two in zip(found, expected, strict=True)):
        return torch.full((len(expected),), torch.inf)
    finite = (one.detach()[one.detach().isfinite()] for one in expected)
    size = max((float(one.abs().max()) for one in finite if one.numel()), default=0.0) or 1.0
    gaps = list[Tensor]()
    for one, two in zip(found, expected, strict=True):
        same = one.detach() == two.detach()  # also -inf, which excludes a token, and -inf
        gaps.append((one.detach().double() - two.detach().double()).masked_fill(same, 0.0).abs() / size)
    return torch.tensor([float(gap.max()) if gap.numel() else 0.0 for gap in gaps]).nan_to_num(
        nan=torch.inf, posinf=torch.inf
    )
