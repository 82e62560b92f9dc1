"""The figure of an image classifier's run: its worst mistakes.

N images, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.images.labelled_batches import EncodedLabelledImages, encode_labelled_images
from heedful.data.images.sources import scale_pixels
from heedful.files.writing import ensure_folder
from heedful.plots.autoencoder_plots import RunFigure, shown_images
from heedful.plots.image_grid import Column, image_grid
from heedful.plots.style import Style, save
from heedful.tasks.image_classification.predictor import ImageClassifier, logits_of

MISTAKES = 12  # images


def save_mistakes(classifier: ImageClassifier, data: Any, folder: Path) -> Iterator[tuple[RunFigure, Path]]:
    """Draw the worst mistakes on the test images of a run, if there are any, into a folder."""
    encoded = encode_labelled_images(shown_images(data), classifier.canvas)
    logits = logits_of(classifier.model, encoded, classifier.device)
    one = plot_mistakes(classifier, encoded, logits.double().softmax(-1).numpy())
    if one is not None:
        ensure_folder(folder)
        save(one.figure, folder / "mistakes.png")
        yield one, folder / "mistakes.png"


def plot_mistakes(
    classifier: ImageClassifier,
    encoded: EncodedLabelledImages,
    probabilities: NDArray[np.float64],
    style: Style = "light",
) -> RunFigure | None:
    """The images whose class has the lowest probability, of those that are misclassified."""
    rows = worst_mistakes(encoded.labels, probabilities)[:MISTAKES]
    if not len(rows):
        return None
    names, found = classifier.labels, probabilities.argmax(1)
    labels = [
        f"{names[encoded.labels[row]]} taken for {names[found[row]]} ({probabilities[row, found[row]]:.0%})"
        for row in rows
    ]
    images = scale_pixels(encoded.array(rows))
    title = "Worst mistakes"
    figure = image_grid([Column("", images)], labels, title, style)
    return RunFigure(title, "The misclassified images whose true class is the least probable to the model.", figure)


def worst_mistakes(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """The misclassified images, the least probable true class first."""
    wrong = np.flatnonzero(probabilities.argmax(1) != labels)
    return wrong[np.argsort(probabilities[wrong, labels[wrong]], kind="stable")]
