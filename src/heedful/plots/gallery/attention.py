"""Attention: the weights of a sentence, the heads of a layer, and worked examples with numbers.

T queries, S keys, H heads, K width of a query and of a key, E width of a value.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.attention import attend
from heedful.blocks.scores import dot, scaled_dot
from heedful.blocks.taps import Tap
from heedful.errors import UserError
from heedful.explore.inspect import TextInput, Trace, reading, trace
from heedful.lectures import Progress
from heedful.plots.figures import brief, heatmap, heatmaps
from heedful.plots.gallery import pronouns
from heedful.plots.style import Figure, Palette, Style, drawing, label
from heedful.runs.load import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGER = 12  # times the usual size of random weights
Text = Annotated[str, Field(min_length=1, max_length=2000)]
Model = Annotated[
    str | None,
    Field(description="a run or a model folder; null: a small BERT, trained at once on sentences like the default one"),
]
Vector = tuple[Annotated[float, Field(ge=-1e6, le=1e6)], ...]
Matrix = tuple[Vector, ...]


# ------------------------------------------------------------------ of a model
class Layer(NamedTuple):
    """The weights (H, T, S) of a layer's attention, the tokens of both sides, and whose they are."""

    weights: Tensor
    queries: list[str]
    keys: list[str]
    source: str


def attention_of(
    text: str, other: str | None, model: str | None, look: str | None, layer: int, seed: int
) -> Generator[Progress, None, Layer]:
    """The attention weights of a text in a layer, counted from 1."""
    if model is not None:
        predictor = load(model)
    elif pronouns.known(text):
        predictor = yield from pronouns.train(seed)
    else:
        predictor = _random(text, seed)
    given = reading(predictor, TextInput(text=text, other=other))
    seen: Trace = trace(predictor.model, given)
    if not seen.attentions:
        raise UserError("this model has no attention", where="model", found=str(model), todo="name another")
    names = [one.title for one in seen.attentions]
    if look is not None and look not in names:
        raise UserError("there is no such attention", where="look", found=look, expected=" or ".join(names))
    kind = seen.attentions[0 if look is None else names.index(look)]
    sides = {side: [token.piece for token in tokens] for side, tokens in given.sides.items()}
    ours = "a small BERT, trained on pronouns" if pronouns.known(text) else "a randomly initialized BERT"
    source = ours if model is None else f"{Path(model).name or model}, {kind.title}"
    return Layer(seen.weights(kind, layer - 1).float(), sides[kind.queries], sides[kind.keys], source)


def _random(text: str, seed: int) -> Any:
    """A small encoder with random weights, whose tokens are the words of a text."""
    from heedful.data.tokenizers.tokenizer import WordPiece
    from heedful.data.tokenizers.wordpiece import BertTokenizer
    from heedful.lectures.learning import seeded
    from heedful.models import build, config_class
    from heedful.tasks.pretraining.predictor import TextEncoder

    tokenizer = BertTokenizer.train(WordPiece(vocab=1000, lowercase=False), [text] * 3)
    sizes = {"width": 64, "heads": 4, "layers": 2, "hidden": 128, "context": 512}
    config = config_class("bert")(vocab=tokenizer.vocab, **sizes)
    model = seeded(lambda: build(config), seed)
    with torch.no_grad():  # with BERT's small weights every token would attend to all alike
        for name, weight in model.named_parameters():
            if name.endswith(("q.weight", "kv.weight")):
                weight.mul_(LARGER)
    return TextEncoder(model.eval(), tokenizer, torch.device("cpu"))


def attention(
    *,
    text: Text = pronouns.SENTENCE,
    other: str | None = None,
    model: Model = None,
    look: Annotated[str | None, Field(description="which attention, such as decoder cross; null: the first")] = None,
    layer: Annotated[int, Field(ge=1, description="counted from 1")] = 1,
    head: Annotated[int, Field(ge=0, description="counted from 1; 0: the mean of all heads")] = 0,
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """A row for each query and a column for each key: every row sums to 1."""
    found = yield from attention_of(text, other, model, look, layer, seed)
    if head > len(found.weights):
        expected = f"1 to {len(found.weights)}, or 0 for their mean"
        raise UserError("there is no such head", where="head", found=str(head), expected=expected)
    weights = found.weights[head - 1] if head else found.weights.mean(0)
    what = f"head {head}" if head else "mean of all heads"
    title = f"Attention weights, layer {layer}, {what} ({found.source})"
    return heatmap(weights.numpy(), found.queries, found.keys, title, style=style)


def heads(
    *,
    text: Text = pronouns.SENTENCE,
    other: str | None = None,
    model: Model = None,
    look: Annotated[str | None, Field(description="which attention, such as decoder cross; null: the first")] = None,
    layer: Annotated[int, Field(ge=1, description="counted from 1")] = 1,
    most: Annotated[int, Field(ge=1, le=16, description="heads that are drawn, at most")] = 4,
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """Every head of a layer attends in its own way."""
    found = yield from attention_of(text, other, model, look, layer, seed)
    panels = {
        f"head {number}": (weights.numpy(), found.queries, found.keys)
        for number, weights in enumerate(found.weights[:most], 1)
    }
    return heatmaps(panels, f"The heads of layer {layer} ({found.source})", style)


# ------------------------------------------------------------------ worked examples
class Steps(NamedTuple):
    """Attention step by step: products (T, S), scores (T, S), weights (T, S), outputs (T, E)."""

    products: Tensor
    scores: Tensor
    weights: Tensor
    outputs: Tensor


def attention_in_steps(q: Tensor, k: Tensor, v: Tensor, scale: bool) -> Steps:
    """What passes the taps of `attend`, for queries (T, K), keys (S, K) and values (S, E)."""
    scores, weights, seen = Tap(), Tap(), dict[str, Tensor]()
    scores.hook = lambda x: seen.update(scores=x[0, 0])
    weights.hook = lambda x: seen.update(weights=x[0, 0])
    outputs = attend(q, k, v, score=scaled_dot if scale else dot, scores=scores, weights=weights)
    return Steps(dot(q, k), seen["scores"], seen["weights"], outputs)


def attention_steps(
    *,
    products: Annotated[Vector, Field(min_length=1, max_length=8, description="q . k of each key")] = (112.0, 96.0),
    width: Annotated[int, Field(ge=1, le=4096, description="of a query: scores are divided by its root")] = 64,
    words: Annotated[tuple[str, ...], Field(description="of the keys, the first one is the query")] = (
        "Thinking",
        "Machines",
    ),
    style: Style = "light",
) -> Figure:
    """A query against its keys: product, division by the root of the width, softmax, weighted sum of the values."""
    if len(words) != len(products):
        raise UserError("every key has a word", where="words", found=str(len(words)), expected=str(len(products)))
    q = torch.ones(1, width, dtype=torch.float64)
    k = torch.tensor(products, dtype=torch.float64)[:, None] / width * q  # q . k is then as given
    v = torch.sin(torch.arange(8.0, dtype=torch.float64) * (1 + torch.arange(len(products))[:, None]) / 2 + 1)
    found = attention_in_steps(q, k, v, scale=True)
    heads = ("key", "q · k", f"÷ √{width} = {brief(width**0.5)}", "softmax", "value", "weight × value")
    left = (0.0, 2.3, 4.0, 6.2, 8.3, 11.4, 14.2)
    rows = len(products)
    with drawing(style, 10.5, 1.7 + 0.62 * (rows + 1), f'The query of "{words[0]}" attends to {rows} keys') as (
        figure,
        palette,
    ):
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0, left[-1]), ylim=(rows + 1.1, -0.8))
        for x, head in zip(left, heads, strict=False):
            axes.text(x, -0.5, head, color=palette.quiet, va="center")
        for row, word in enumerate(words):
            axes.text(0, row + 0.5, label(word), va="center", fontsize="large")
            numbers = (found.products[0, row], found.scores[0, row], found.weights[0, row])
            for x, value, digits in zip(left[1:], numbers, (2, 3, 4), strict=False):
                axes.text(x, row + 0.5, f"{float(value):.{digits}f}".rstrip("0").rstrip("."), va="center", size="large")
            _strip(axes, left[4], row, v[row], palette)
            _strip(axes, left[5], row, found.weights[0, row] * v[row], palette)
        axes.axhline(rows + 0.08, color=palette.line)
        axes.text(left[3], rows + 0.6, f"{float(found.weights.sum()):.4g}", va="center", fontsize="large")
        axes.text(left[4] + 0.2, rows + 0.6, "sum = output", color=palette.quiet, va="center")
        _strip(axes, left[5], rows + 0.1, found.outputs[0], palette)
    return figure


def _strip(axes: Axes, x: float, y: float, values: Tensor, palette: Palette) -> None:
    """A vector as a strip of cells between -1 and 1."""
    axes.imshow(
        values[None].numpy(), cmap=palette.sequential, vmin=-1, vmax=1, aspect="auto",
        extent=(x, x + 2.6, y + 0.85, y + 0.15), interpolation="nearest",
    )  # fmt: skip


def self_attention(
    *,
    inputs: Matrix = ((1, 0, 1, 0), (0, 2, 0, 2), (1, 1, 1, 1)),
    query: Matrix = ((1, 0, 1), (1, 0, 0), (0, 0, 1), (0, 1, 1)),
    key: Matrix = ((0, 0, 1), (1, 1, 0), (0, 1, 0), (1, 1, 0)),
    value: Matrix = ((0, 2, 0), (0, 3, 0), (1, 0, 3), (1, 1, 0)),
    scale: Annotated[bool, Field(description="whether scores are divided by the root of the width")] = False,
    style: Style = "light",
) -> Figure:
    """Inputs X, their queries, keys and values, the scores, the weights and the outputs, as matrices."""
    x, *projections = (_matrix(name, given) for name, given in zip(
        ("inputs", "query", "key", "value"), (inputs, query, key, value), strict=True
    ))  # fmt: skip
    for name, weight in zip(("query", "key", "value"), projections, strict=True):
        if len(weight) != x.shape[1]:
            expected = f"{x.shape[1]} rows, one for each column of inputs"
            raise UserError(
                "this matrix does not fit the inputs", where=name, found=str(len(weight)), expected=expected
            )
    q, k, v = (x @ weight for weight in projections)
    if q.shape[1] != k.shape[1]:
        raise UserError("queries and keys have different widths", where="key", expected=f"{q.shape[1]} columns")
    found = attention_in_steps(q, k, v, scale)
    score = "scores Q Kᵀ" + " / √K" * scale
    grid: list[list[tuple[str, Tensor]]] = [
        [("inputs X", x), ("queries Q = X W_Q", q), ("keys K = X W_K", k), ("values V = X W_V", v)],
        [(score, found.scores), ("weights: softmax of rows", found.weights), ("outputs: weights × V", found.outputs)],
    ]
    tall = 0.36 * len(x) + 0.55
    with drawing(style, 10.5, 2 * tall + 0.7, f"Self-attention of {len(x)} tokens") as (figure, palette):
        rows: Any = figure.subfigures(2, 1)
        for row, line in zip(rows, grid, strict=True):
            for axes, (name, matrix) in zip(row.subplots(1, 4), [*line, *[("", x)] * (4 - len(line))], strict=True):
                _matrix_panel(axes, name, matrix, palette)
    return figure


def _matrix(name: str, rows: Matrix) -> Tensor:
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1 or len(rows) > 8 or len(rows[0]) > 8:
        raise UserError("this is no matrix", where=name, expected="rows of the same length, at most 8 by 8")
    return torch.tensor(rows, dtype=torch.float64)


def _matrix_panel(axes: Axes, name: str, matrix: Tensor, palette: Palette) -> None:
    axes.set_axis_off()
    if not name:
        return
    axes.set_title(label(name, 40))
    values = matrix.numpy()
    low, high = min(0.0, float(values.min())), max(float(values.max()), 1e-9)
    axes.imshow(values, cmap=palette.sequential, vmin=low, vmax=high, aspect="auto", alpha=0.75)
    axes.set_xticks(np.arange(-0.5, values.shape[1]), minor=True)
    for (i, j), value in np.ndenumerate(values):
        colour = palette.paper if (value - low) / (high - low) > 0.55 else palette.ink
        axes.text(j, i, f"{value:.3f}".rstrip("0").rstrip("."), ha="center", va="center", color=colour)
