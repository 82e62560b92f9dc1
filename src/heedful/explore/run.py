"""A run in a notebook: its recipe, its trained model, and figures of both."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from heedful.errors import UserError
from heedful.files.reading import require_folder
from heedful.plots.style import Figure, Style

if TYPE_CHECKING:
    from heedful.runs.load import AnyPredictor
    from heedful.tasks.recipe_parts import Recipe

Plot = Literal["loss", "attention", "images", "walk", "codes"]
Attention = Literal["self", "causal", "cross"]


class Run:
    """A run's folder; `plot` returns a Matplotlib `Figure`, which a notebook shows.

    run = heedful.Run("runs/demo")
    run.plot()
    run.plot("attention", "three hundred twenty-seven", style="dark").savefig("attention.pdf")
    """

    def __init__(self, folder: str | Path) -> None:
        require_folder(folder, "the folder of a run")
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @cached_property
    def recipe(self) -> Recipe:
        """The settings that the run was trained with."""
        from heedful.runs.load import read_recipe

        return read_recipe(self.folder)

    @cached_property
    def predictor(self) -> AnyPredictor:
        """The trained model, as `heedful.load` returns it."""
        from heedful.runs.load import load

        return load(self.folder)

    def plot(
        self,
        what: Plot = "loss",
        text: str | None = None,
        *,
        attention: Attention | None = None,
        layer: int = -1,
        head: int | None = None,
        style: Style = "light",
    ) -> Figure:
        """A figure of the run.

        - `loss`: of training and validation, by step.
        - `attention`: the weights for a text, a row for each query and a column for each key, in one layer (from 0, or
          from the end), of one head or of their mean. A model with several kinds of attention shows `cross` first.
        - `images`, `walk`, `codes`: of an autoencoder, its reconstructions, an interpolation, and a map of its codes.
        """
        if what == "loss":
            return self._loss(style)
        if what == "attention":
            return self._attention(text, attention, layer, head, style)
        if what in get_args(Plot):
            return self._images(what, style)
        raise UserError("there is no such plot", where="plot", found=repr(what), expected=", ".join(get_args(Plot)))

    def _loss(self, style: Style) -> Figure:
        from heedful.runs.report import plot_loss
        from heedful.tasks import task_of

        figure = plot_loss(self.folder, task_of(self.recipe).words.loss, style)
        if figure is None:
            raise UserError("this run has recorded no loss yet", where=str(self.folder), todo="train it first")
        return figure

    def _attention(
        self, text: str | None, kind: Attention | None, layer: int, head: int | None, style: Style
    ) -> Figure:
        from heedful.explore.inspect import TextInput, reading, trace
        from heedful.plots.figures import heatmap

        if text is None:
            raise UserError("attention needs a text", where="plot", todo='run.plot("attention", "some text")')
        seen = trace(self.predictor.model, reading(self.predictor, TextInput(text=text)))
        every = sorted(seen.attentions, key=lambda one: one.kind != "cross")
        found = [one for one in every if kind in (None, one.kind)]
        if not found:
            raise UserError(
                "this model has no such attention", where="attention", found=str(kind),
                expected=", ".join(dict.fromkeys(one.kind for one in every)) or "a model with attention",
            )  # fmt: skip
        one = found[0]
        number = require_index("layer", layer, len(one.taps))
        weights = seen.weights(one, number).float()  # (H, T, S)
        heads = "mean of the heads" if head is None else f"head {require_index('head', head, len(weights))}"
        grid = weights.mean(0) if head is None else weights[head]
        rows, columns = ([token.piece for token in seen.reading.sides[side]] for side in (one.queries, one.keys))
        title = f"{one.title} attention, layer {number}, {heads}"
        return heatmap(grid.cpu().numpy(), rows, columns, title[0].upper() + title[1:], style=style)

    def _images(self, what: Plot, style: Style) -> Figure:
        from heedful.plots import autoencoder_plots as plots
        from heedful.tasks.reconstruction.predictor import ImageAutoencoder

        model, data = self.predictor, self.recipe.data
        if not isinstance(model, ImageAutoencoder):
            raise UserError(f"{what} is a plot of an autoencoder", where="plot", found=type(model).__name__)
        return plots.plot_run(what, model, data, style).figure


def require_index(what: str, index: int, count: int) -> int:
    """An index from the beginning or, below 0, from the end."""
    if not -count <= index < count:
        raise UserError(f"there is no such {what}", where=what, found=str(index), expected=f"0 to {count - 1}")
    return index % count
