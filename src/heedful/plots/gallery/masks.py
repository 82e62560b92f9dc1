"""Masks of attention, and the masked tokens of BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from heedful.blocks.masks import Mask, causal, dense, order, padding, prefix, window
from heedful.data.masking import MaskingVocab, apply_masking, choose_tokens, count_masked
from heedful.plots.figures import legend_below, put_legend
from heedful.plots.style import Figure, Style, drawing, label

Grid = NDArray[np.bool_]
Length = Annotated[int, Field(ge=2, le=40, description="tokens of the sequence")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def grid_of(rule: Mask | None, length: int) -> Grid:
    """Which of `length` keys (columns) each query (row) may attend to."""
    if rule is None:
        return np.ones((length, length), dtype=np.bool_)
    x = torch.zeros(1, 1, length, 1)
    found: Grid = dense(rule, x, x).expand(1, 1, length, length)[0, 0].numpy()
    return found


def random_order(length: int, seed: int) -> list[int]:
    """The position that comes first, second ... in a random factorization order."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()


def ranks_of(positions: list[int]) -> torch.Tensor:
    """The rank of each position in an order, (1, S)."""
    return torch.tensor(positions).argsort()[None]


def masks(
    *,
    length: Length = 8,
    real: Annotated[int, Field(ge=1, description="tokens before the padding")] = 5,
    size: Annotated[int, Field(ge=0, description="keys on each side that a window reaches")] = 2,
    seed: Seed = 0,
    style: Style = "light",
) -> Figure:
    """The four rules by which keys are masked."""
    positions = random_order(length, seed)
    panels = {
        "causal": grid_of(causal(), length),
        f"padding: {min(real, length)} real tokens": grid_of(padding(torch.tensor([real])), length),
        f"window of ± {size}": grid_of(window(size), length),
        f"order {' '.join(str(one + 1) for one in positions)}": grid_of(order(ranks_of(positions)), length),
    }
    return draw_grids(panels, "Which keys a query may attend to", style)


def three_masks(
    *,
    length: Length = 6,
    source: Annotated[int, Field(ge=0, description="tokens of the source, for a prefix mask; 0: no such panel")] = 0,
    seed: Seed = 0,
    style: Style = "light",
) -> Figure:
    """A language model predicts from the left, BERT from both sides, XLNet in any order, by two streams."""
    positions = random_order(length, seed)
    ranks = ranks_of(positions)
    panels = {
        "GPT: left to right": grid_of(causal(), length),
        "BERT: both sides": grid_of(None, length),
        f"XLNet: order {' '.join(str(one + 1) for one in positions)}": grid_of(order(ranks), length),
        "XLNet's content stream: itself too": grid_of(order(ranks, ranks + 1), length),
    }
    if source:
        panels[f"seq2seq: source of {source}"] = grid_of(prefix(torch.tensor([source])) | causal(), length)
    return draw_grids(
        panels, "Three language models and their masks" if not source else "Four models and their masks", style
    )


def draw_grids(
    panels: Mapping[str, NDArray[Any]], title: str, style: Style, names: Sequence[str] = ("masked", "may attend")
) -> Figure:
    """Grids of numbers side by side, each number with a colour and a name; 0 is masked."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    length = len(next(iter(panels.values())))
    side = 2.7 if len(panels) > 3 else 3.1
    with drawing(style, side * len(panels) + 0.4, side + 1.3, title) as (figure, palette):
        colours = [palette.line, *palette.series[: len(names) - 1]]
        for number, (axes, (name, grid)) in enumerate(
            zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True)
        ):
            axes.imshow(grid, cmap=ListedColormap(colours), vmin=0, vmax=len(names) - 1, interpolation="nearest")
            axes.set_title(label(name, 60))
            ticks = range(length) if length <= 12 else range(0, length, 5)
            axes.set_xticks(ticks, [str(one + 1) for one in ticks])
            axes.set_yticks(ticks, [str(one + 1) for one in ticks])
            axes.set_xticks(np.arange(0.5, length - 1), minor=True)
            axes.set_yticks(np.arange(0.5, length - 1), minor=True)
            axes.grid(which="minor", color=palette.paper, linewidth=1.5)
            axes.tick_params(which="both", length=0)
            axes.spines[:].set_visible(False)
            axes.set_xlabel("key")
            if not number:
                axes.set_ylabel("query")
        handles = [Patch(color=colour, label=name) for name, colour in zip(names, colours, strict=True)]
        legend_below(figure, [*handles[1:], handles[0]], len(names))
    return figure


# ------------------------------------------------------------------ masked tokens
SENTENCE = "the man went to the store to buy a gallon of fresh milk and then he walked home again"
OUTCOMES = ("[MASK]", "random token", "unchanged")


def masked_rows(
    text: list[str], rows: int, share: float, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], Grid]:
    """Ids of a text as it is, after masking, and which of them were chosen, each (rows, tokens); id 0 is [MASK]."""
    vocab = sorted(set(text))
    special = np.arange(1 + len(vocab)) == 0
    marks = MaskingVocab(0, 0, 0, 0, special, np.zeros_like(special), np.flatnonzero(~special).astype(np.int32))
    ids = np.array([[1 + vocab.index(word) for word in text]] * rows, dtype=np.int32)
    random = np.random.default_rng(seed)
    chosen = choose_tokens(
        np.ones(ids.shape, dtype=np.bool_), count_masked(np.full(rows, len(text)), share),
        random.integers(2**64, size=ids.shape, dtype=np.uint64),
    )  # fmt: skip
    luck, other = random.integers(2**64, size=(2, int(chosen.sum())), dtype=np.uint64)
    return ids, apply_masking(ids, chosen, luck, other, marks), chosen


def outcomes(ids: NDArray[np.int32], after: NDArray[np.int32], chosen: Grid) -> dict[str, float]:
    """The share of chosen tokens that became a mask, another token, or stayed; another may equal the original."""
    masked, same = (after == 0)[chosen], (after == ids)[chosen]
    return dict(zip(OUTCOMES, (masked.mean(), (~masked & ~same).mean(), same.mean()), strict=True))


def masking(
    *,
    text: Annotated[str, Field(min_length=1, max_length=400)] = SENTENCE,
    examples: Annotated[int, Field(ge=1, le=12, description="rows that show the text")] = 5,
    rows: Annotated[int, Field(ge=1, le=100_000, description="times that it is masked for the shares")] = 5000,
    share: Annotated[float, Field(gt=0, le=1, description="share of the tokens that are chosen")] = 0.15,
    seed: Seed = 0,
    style: Style = "light",
) -> Figure:
    """A text masked several times, and how often each of the three things happens to a chosen token."""
    words = text.split()
    vocab = sorted(set(words))
    ids, after, chosen = masked_rows(words, max(rows, examples), share, seed)
    found = outcomes(ids, after, chosen)
    shown = [["[MASK]" if new == 0 else label(vocab[new - 1]) for new in row] for row in after[:examples].tolist()]
    wide = [1.5 + max(len(line[column]) for line in shown) for column in range(len(words))]  # in characters
    left = np.cumsum([0.0, *wide])
    with drawing(style, 11.5, 2.6 + 0.36 * examples, "Masked language modelling: what becomes of the tokens") as (
        figure,
        palette,
    ):
        upper, lower = figure.subplots(2, 1, height_ratios=[0.36 * examples + 0.3, 1.5])
        upper.set_axis_off()
        upper.set(xlim=(0, left[-1]), ylim=(examples, 0))
        upper.set_title(
            f"{chosen[0].sum()} of {len(words)} tokens are chosen each time: {share:.0%}", color=palette.quiet
        )
        colours = dict(zip(OUTCOMES, (palette.series[0], palette.series[1], palette.series[2]), strict=True))
        size = min(12.0, 11.5 * 72 / float(left[-1]) / 0.66)
        for row, column in np.ndindex(examples, len(words)):
            new = int(after[row, column])
            what = OUTCOMES[0 if new == 0 else 1 if new != ids[row, column] else 2]
            picked = bool(chosen[row, column])
            upper.text(
                float(left[column] + left[column + 1]) / 2, row + 0.5, shown[row][column], ha="center", va="center",
                color=colours[what] if picked else palette.ink, fontsize=size, weight="bold" if picked else "normal",
            )  # fmt: skip
        begin = 0.0
        for name, value in found.items():
            lower.barh(0, value, left=begin, color=colours[name], height=0.6, label=f"{name}: {value:.1%}")
            begin += value
        lower.set(xlim=(0, 1), ylim=(-0.4, 0.4), yticks=[])
        lower.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        lower.set_xlabel(f"share of the {int(chosen.sum()):,} tokens chosen in {len(ids):,} maskings")
        put_legend(lower)
    return figure
