"""Models of the attention era, built from one small set of blocks."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "load", "load_recipe", "train", "watch"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from heedful.blocks.taps import watch
    from heedful.errors import UserError
    from heedful.experiment import Happening, load, train
    from heedful.recipe import Recipe, load_recipe

_PLACES = {
    "UserError": "heedful.errors",
    "load": "heedful.experiment",
    "load_recipe": "heedful.recipe",
    "watch": "heedful.blocks.taps",
}


class _Train(ModuleType):
    """The package `heedful.train`, which can also be called: importing one of its modules puts it where the name is."""

    def __call__(
        self, recipe: Recipe, run: str | Path, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Happening]:
        """See `heedful.experiment.train`."""
        from heedful.experiment import train

        return train(recipe, run, stop)


import_module("heedful.train").__class__ = _Train  # the package itself is empty, and costs nothing


def __getattr__(name: str) -> object:
    """Public names are fetched when first asked for, so that `import heedful` costs nothing."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")
