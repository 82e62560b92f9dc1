"""A recipe trained in one call, with functions that are called on its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.models.own import OwnModel
from heedful.runs.load import AnyPredictor, load
from heedful.runs.own import AnyData
from heedful.runs.progress import Event
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks.recipe_parts import Recipe

Callback = Callable[[Event], object]


def fit(
    recipe: Recipe | str,
    run: str | Path,
    *,
    model: OwnModel | None = None,
    data: AnyData | None = None,
    on: Callback | Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
) -> AnyPredictor:
    """Train a recipe, or resume its run, to the end, and return the trained model, ready to predict.

    `recipe` may be a path or a shipped name. Each function of `on` is called with every event that `train` yields, in
    order; what one of them raises ends training as an interrupt does, and the run resumes from its last checkpoint.
    `model` and `data` are as for `train`.

    >>> translator = heedful.fit("numbers", "runs/numbers", on=print)
    """
    given = load_recipe(recipe) if isinstance(recipe, str) else recipe
    called = (on,) if callable(on) else tuple(on)
    for event in train(given, run, stop, model=model, data=data):
        for function in called:
            function(event)
    return load(run, model=model)
