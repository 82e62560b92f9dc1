"""The gates of an LSTM over time.

T steps, H hidden width.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.recurrent import unroll
from heedful.blocks.taps import watch
from heedful.lectures import Progress, recall
from heedful.lectures.learning import learn
from heedful.plots.style import Figure, Style, drawing

GATES = {"forget": "forget gate f", "write": "input gate i", "reveal": "output gate o", "cell": "cell C"}


def gate_values(net: recall.LastState, tokens: Tensor) -> dict[str, Tensor]:
    """The gates and the cell (T, H) of an LSTM that reads tokens (T,)."""
    cell, hidden = net.layer.cell, net.out.weight.shape[1]
    state = (torch.zeros(1, hidden), torch.zeros(1, hidden))
    with torch.no_grad(), watch(cell) as seen:
        unroll(cell, net.tokens(tokens[None]), state)
    return {gate: torch.cat(seen.all[gate]) for gate in GATES}


def lstm_gates(
    *,
    distance: Annotated[int, Field(ge=1, le=60, description="filler words between the key and the question")] = 12,
    width: Annotated[int, Field(ge=1, le=64, description="units of the LSTM")] = 16,
    steps: Annotated[int, Field(ge=0, le=100_000, description="steps of training; 0: as initialized")] = 400,
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """An LSTM is trained to recall the first word; a row for each unit, a column for each word that it reads."""
    trial = recall.trial("LSTM", distance, recall.Settings(width=width, seed=seed))
    for share in learn(trial.net, trial.loss, steps, 5e-3):
        yield Progress(share, "training an LSTM")
    tokens, _ = trial.sentences(1)
    right = trial.right()
    assert isinstance(trial.net, recall.LastState)
    values = gate_values(trial.net, tokens[0])
    order = values["cell"][-1].argsort().flip(0)  # units with a large cell on top
    words = ["key", *["·"] * distance, "?"]
    title = f"An LSTM recalls a word over {distance} others (right: {right:.0%}, after {steps:,} steps of training)"
    with drawing(style, 10.5, 7.2, title) as (figure, palette):
        for axes, (gate, name) in zip(figure.subplots(2, 2).flat, GATES.items(), strict=True):
            bound = float(values[gate].abs().max()) if gate == "cell" else 1.0
            image = axes.imshow(
                values[gate][:, order].T.numpy(), cmap=palette.sequential, aspect="auto", interpolation="nearest",
                vmin=-bound if gate == "cell" else 0.0, vmax=bound,
            )  # fmt: skip
            axes.set_title(name)
            axes.set_xticks(range(len(words)), words)
            axes.set_xlabel("word")
            axes.set_ylabel("unit")
            axes.spines[:].set_visible(False)
            bar = figure.colorbar(image, ax=axes, aspect=18, pad=0.02)
            bar.outline.set_visible(False)
    return figure
