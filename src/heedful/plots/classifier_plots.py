"""The figures of an image classifier's run: its confusion matrix, and its worst mistakes.

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
from heedful.plots.figures import heatmap
from heedful.plots.image_grid import Column, image_grid
from heedful.plots.style import Style, save
from heedful.tasks.image_classification.predictor import ImageClassifier, logits_of
from heedful.training.metrics import confusion

MOST_CLASSES = 40  # of a confusion matrix that can be read
MISTAKES = 12  # images


def evaluated(classifier: ImageClassifier, data: Any) -> tuple[EncodedLabelledImages, NDArray[np.float64]]:
    """The test images of a run, and the probabilities (N, C) of their classes."""
    encoded = encode_labelled_images(shown_images(data), classifier.canvas)
    logits = logits_of(classifier.model, encoded, classifier.device)
    return encoded, logits.double().softmax(-1).numpy()


def save_figures(
    classifier: ImageClassifier, encoded: EncodedLabelledImages, probabilities: NDArray[np.float64], folder: Path
) -> Iterator[tuple[RunFigure, Path]]:
    """Draw the figures of a run into a folder."""
    ensure_folder(folder)
    figures: dict[str, RunFigure | None] = {}
    if len(classifier.labels) <= MOST_CLASSES:
        figures["confusion"] = plot_confusion(classifier, encoded, probabilities)
    figures["mistakes"] = plot_mistakes(classifier, encoded, probabilities)
    for name, one in figures.items():
        if one is not None:
            save(one.figure, folder / f"{name}.png")
            yield one, folder / f"{name}.png"


def plot_confusion(
    classifier: ImageClassifier,
    encoded: EncodedLabelledImages,
    probabilities: NDArray[np.float64],
    style: Style = "light",
) -> RunFigure:
    """The share of the images of each class (rows) that are predicted as each class (columns)."""
    names = classifier.labels
    counts = confusion(probabilities.argmax(1), encoded.labels, len(names))  # (C, C)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    title = "Confusion matrix"
    about = "Rows: the classes of the images; columns: the predicted classes; each row adds up to 1."
    return RunFigure(title, about, heatmap(shares, names, names, title, style=style))


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


def class_table(
    labels: NDArray[np.int64], probabilities: NDArray[np.float64], names: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """Name, number of images, precision, recall and F1 of each class, in percent."""
    counts = confusion(probabilities.argmax(1), labels, len(names))  # (C, C)
    right, there, predicted = np.diag(counts), counts.sum(1), counts.sum(0)  # (C,)
    rows: list[tuple[str, ...]] = []
    for number, name in enumerate(names):
        precision, recall, f1 = (
            100 * right[number] / total if total else 0.0
            for total in (predicted[number], there[number], (there[number] + predicted[number]) / 2)
        )
        rows.append((name, f"{there[number]:,}", f"{precision:.2f}", f"{recall:.2f}", f"{f1:.2f}"))
    return rows
