"""Models of the attention era, built from one small set of blocks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "PCA",
    "Autoencoder",
    "ConvAutoencoder",
    "Dataset",
    "DenoisingAutoencoder",
    "TextEncoder",
    "UserError",
    "WordVectors",
    "__version__",
    "build",
    "fit",
    "load",
    "load_glove",
    "load_recipe",
    "load_vectors",
    "load_word2vec",
    "show",
    "train",
    "watch",
]

if TYPE_CHECKING:
    from heedful.blocks.taps import watch
    from heedful.data.own import Dataset
    from heedful.data.word_vectors import WordVectors, load_glove, load_vectors, load_word2vec
    from heedful.errors import UserError
    from heedful.explore.export import show
    from heedful.extras.estimators.autoencoder import Autoencoder, ConvAutoencoder, DenoisingAutoencoder
    from heedful.extras.estimators.pca import PCA
    from heedful.models import build
    from heedful.runs.fit import fit
    from heedful.runs.load import load
    from heedful.runs.recipe import load_recipe
    from heedful.runs.train import train
    from heedful.tasks.pretraining.predictor import TextEncoder

_PLACES = {
    "Autoencoder": "heedful.extras.estimators.autoencoder",
    "ConvAutoencoder": "heedful.extras.estimators.autoencoder",
    "Dataset": "heedful.data.own",
    "DenoisingAutoencoder": "heedful.extras.estimators.autoencoder",
    "PCA": "heedful.extras.estimators.pca",
    "TextEncoder": "heedful.tasks.pretraining.predictor",
    "UserError": "heedful.errors",
    "WordVectors": "heedful.data.word_vectors",
    "build": "heedful.models",
    "fit": "heedful.runs.fit",
    "load": "heedful.runs.load",
    "load_glove": "heedful.data.word_vectors",
    "load_recipe": "heedful.runs.recipe",
    "load_vectors": "heedful.data.word_vectors",
    "load_word2vec": "heedful.data.word_vectors",
    "show": "heedful.explore.export",
    "train": "heedful.runs.train",
    "watch": "heedful.blocks.taps",
}


def __dir__() -> list[str]:
    """The public names, which `globals()` lacks until they are fetched."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Public names are fetched when first asked for, so that `import heedful` costs nothing."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")
