"""An autoencoder's reconstructions as columns of an image grid, and the figures of its run.

N images, C channels, Y rows, X columns, D dimensions of a code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.data.images.sources import Images, scale_pixels
from heedful.files.writing import ensure_folder
from heedful.plots.figures import scatter
from heedful.plots.image_grid import Column, Window, image_grid, image_strips
from heedful.plots.style import Figure, Style, save
from heedful.tasks.reconstruction.predictor import Floats, ImageAutoencoder

if TYPE_CHECKING:
    from heedful.extras.estimators.pca import PCA

FIGURES = ("images", "walk", "codes")
ROWS, STEPS, POINTS = 10, 12, 10_000  # images of a grid, steps of a walk, codes of a map
NOTHING = 1e-6  # of the variance
WORTH = 1e11  # multiplications that an automatic PCA may take


def first_of_each(labels: NDArray[np.int64] | None, count: int, there: int) -> NDArray[np.int64]:
    """The indices of images to show: the first of each class, where classes are known, then the others in order."""
    first = np.arange(0) if labels is None else np.unique(labels, return_index=True)[1]
    return np.concatenate([first, np.setdiff1d(np.arange(there), first)])[:count].astype(np.int64)


def chosen(images: Images, count: int) -> Images:
    """The first images of each class, up to a count, as the model reads them."""
    rows = first_of_each(images.labels, count, len(images))
    labels = None if images.labels is None else images.labels[rows]
    return Images(scale_pixels(images.pixels[rows]), labels, images.names)


def class_names(images: Images) -> list[str] | None:
    """The name of each image's class."""
    return None if images.labels is None else [images.names[label] for label in images.labels]


def compared(title: str, found: Floats, right: Floats) -> Column:
    """A column of images with their mean squared errors from the right ones."""
    return Column(title, found, np.square(found.astype(np.float64) - right).mean((1, 2, 3)))


def made(autoencoder: ImageAutoencoder, images: Floats, name: str, seed: int = 0) -> list[Column]:
    """The reconstructions of a model; of a denoising one, the noisy images too."""
    if not autoencoder.noise.deviation:
        return [compared(name, autoencoder.reconstruct(images), images)]
    noisy = autoencoder.noisy(images, seed)
    return [
        compared(f"{name}\nnoisy".strip(), noisy, images),
        compared(f"{name}\nrestored".strip(), autoencoder.reconstruct(noisy), images),
    ]


def by_pca(known: NDArray[Any], images: Floats, width: int) -> Column:
    """The reconstructions of images by `width` principal components of known ones (N, C * Y * X)."""
    return left_by(components(known, width), images, images)


def components(known: NDArray[Any], width: int) -> PCA:
    """At most `width` principal components of known images (N, C * Y * X)."""
    from heedful.extras.estimators.pca import PCA

    return PCA(min(width, *known.shape)).fit(scale_pixels(known))


def loses(pca: PCA) -> bool:
    """Whether principal components lose any variance; if not, their reconstruction is the image itself."""
    return float(pca.explained_variance_ratio_.sum()) < 1 - NOTHING


def left_by(pca: PCA, given: Floats, right: Floats) -> Column:
    """The reconstructions of images by principal components, with their errors."""
    left = pca.reconstruct(given.reshape(len(given), -1))
    return compared(f"PCA-{len(pca.components_)}", left.reshape(given.shape).astype(np.float32), right)


class RunFigure(NamedTuple):
    """A figure of a run, with its title and caption."""

    title: str
    about: str
    figure: Figure


def save_figures(model: ImageAutoencoder, data: Any, folder: Path) -> Iterator[tuple[RunFigure, Path]]:
    """Draw the figures of a run into a folder: reconstructions, an interpolation, and a map of the codes."""
    test = shown_images(data)
    ensure_folder(folder)
    for name in FIGURES if len(test) > 2 else FIGURES[:2]:
        one = plot_run(name, model, data, test=test)
        save(one.figure, folder / f"{name}.png")
        yield one, folder / f"{name}.png"


def shown_images(data: Any) -> Images:
    """The images that a run's figures show."""
    found: Images = data.read("valid" if data.test is None else "test")
    return found


def plot_run(
    name: str, model: ImageAutoencoder, data: Any, style: Style = "light", test: Images | None = None
) -> RunFigure:
    """One of the figures of a run."""
    test = shown_images(data) if test is None else test
    if name == "images":
        return plot_images(model, data, test, style)
    return plot_walk(model, test, style) if name == "walk" else plot_codes(model, test, style)


def plot_images(model: ImageAutoencoder, data: Any, test: Images, style: Style = "light") -> RunFigure:
    """Images of the test, and their reconstructions by principal components and by the model."""
    images = chosen(test, ROWS)
    noise = model.noise.deviation
    columns = [Column("original" if noise else "input", images.pixels)]
    about = "The first test image of each class" if images.labels is not None else "Test images"
    if not noise:
        known, pca = data.read("train").vectors, None
        if known.shape[0] * known.shape[1] ** 2 <= WORTH:
            pca = components(known, model.code_size)
        if pca is not None and loses(pca):
            columns.append(left_by(pca, images.pixels, images.pixels))
            about += f", its reconstruction by as many principal components as a code has values ({columns[-1].title})"
    columns += made(model, images.pixels, "" if noise else "reconstructed")
    about += ", with noise, and restored." if noise else ", and the model's reconstruction."
    title = f"Images with noise of deviation {noise:g}, and restored" if noise else "Images and their reconstructions"
    figure = image_grid(columns, class_names(images), title, style)
    return RunFigure(title, about + " Beneath: mean squared error.", figure)


def plot_walk(model: ImageAutoencoder, test: Images, style: Style = "light") -> RunFigure:
    """An interpolation from the first image to the first of another class, or to the next one."""
    other = 0 if test.labels is None else int(np.argmax(test.labels != test.labels[0]))
    ends = scale_pixels(test.pixels[[0, other or min(1, len(test) - 1)]])  # (2, C, Y, X)
    title = "Interpolation between two codes"
    figure = image_strips([("", model.walk(ends[:1], ends[1:], STEPS))], title, Window.of(ends), style)
    return RunFigure(title, "Codes on the straight line between those of two images, decoded.", figure)


def plot_codes(model: ImageAutoencoder, test: Images, style: Style = "light") -> RunFigure:
    """A point for each code: at its two values, or on the two principal components of the codes."""
    some = slice(None, POINTS)
    codes = model.encode(test.pixels[some])  # (N, D)
    width = codes.shape[1]
    where = "its two values" if width == 2 else f"two principal components of {width:,} values"
    labels = None if test.labels is None else test.labels[some]
    title = f"The codes of {len(codes):,} images"
    figure = scatter({where: flat(codes)}, labels, test.names, title, style)
    return RunFigure(title, f"A point for each{', coloured by class' * (labels is not None)}, at {where}.", figure)


def flat(codes: Floats) -> NDArray[Any]:
    """Codes (N, D) as points (N, 2)."""
    from heedful.extras.estimators.pca import PCA

    if codes.shape[1] == 1:
        return np.pad(codes, ((0, 0), (0, 1)))
    return codes if codes.shape[1] == 2 else PCA(2, solver="randomized", random_state=0).fit_transform(codes)
