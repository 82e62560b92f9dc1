"""All estimators with the interface of scikit-learn, by one name.

>>> from heedful.sklearn import TextClassifier
>>> TextClassifier().fit(texts, labels).predict(new_texts)
"""

from __future__ import annotations

from heedful.extras.estimators.autoencoder import Autoencoder, ConvAutoencoder, DenoisingAutoencoder
from heedful.extras.estimators.pca import PCA
from heedful.extras.estimators.text import SentenceEmbedder, TextClassifier, TextRegressor, TokenTagger

__all__ = [
    "PCA",
    "Autoencoder",
    "ConvAutoencoder",
    "DenoisingAutoencoder",
    "SentenceEmbedder",
    "TextClassifier",
    "TextRegressor",
    "TokenTagger",
]
