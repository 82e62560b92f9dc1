"""Language models, and a stand-in for the kernels of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.blocks.state import Shared
from heedful.models.gpt.rows import RowByRow, RowsState
from heedful.serve import rows
from heedful.serve.rows import KernelRows
from heedful.tasks.language_model.predictor import TextGenerator

RUNS = Path(__file__).parents[1] / "golden" / "runs"


class PlainRows:
    """What `RowByRow` computes, without its kernels: the texts of the slots are kept as tokens."""

    prompt_rows = staticmethod(RowByRow.prompt_rows)

    def __init__(self, model: Any) -> None:
        self.model, self.calls = model, 0

    def empty(self, rows: int, room: int) -> RowsState:
        return RowsState(Shared(torch.zeros(1, 1, rows, 1, room, 1)), torch.zeros(rows, dtype=torch.int), None)

    def read(self, rows: Tensor, state: RowsState) -> RowsState:
        for token, owner, place in rows.tolist():
            state.cache.value[0, 0, owner, 0, place, 0] = token
        return state

    def logits(self, tokens: Tensor, owner: Tensor, place: Tensor, state: RowsState, count: int) -> Tensor:
        texts = state.cache.value[0, 0, :, 0, :, 0]
        self.read(torch.stack([tokens, owner, place], 1), state)
        found = []
        for row, at in zip(owner[:count].tolist(), place[:count].tolist(), strict=True):
            x = self.model.read(texts[row, : at + 1].long()[None])
            found.append(self.model.tokens.logits(x[:, -1:])[0, 0])
        self.calls += 1
        return torch.stack(found)


class PlainGraphs:
    """`Graphs` without a GPU: what would be captured is computed at each replay."""

    def __init__(self, model: Any) -> None:
        self.current: Any = None

    @staticmethod
    def capture(advance: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Any:
        advance(*inputs)  # the warm-up before a capture
        return advance, inputs

    def select(self, captured: Any, inputs: tuple[Tensor, ...]) -> None:
        self.current = captured
        for buffer, x in zip(captured[1], inputs, strict=True):
            buffer.copy_(x)

    def run(self, name: Any, once: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Any:
        return once(*inputs)

    def replay(self) -> Any:
        advance, buffers = self.current
        return advance(*buffers)[-1]


class NoEvent:
    """An event of a device that is never busy."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows by kernels, on the CPU."""

    def buffer(count: int) -> Any:
        return torch.zeros(2, count, KernelRows.count, dtype=torch.float64), NoEvent()

    monkeypatch.setattr(rows, "Graphs", PlainGraphs)
    monkeypatch.setattr(KernelRows, "_buffer", staticmethod(buffer))

    def rows_of(generator: TextGenerator, slots: int, longest: int) -> KernelRows:
        return KernelRows(generator, PlainRows(generator.model), slots, longest)

    monkeypatch.setattr("heedful.serve.engine.rows_of", rows_of)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """A recorded run by its name."""
    loaded: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in loaded:
            loaded[name] = heedful.load(RUNS / name, "cpu")
        return loaded[name]

    return load
