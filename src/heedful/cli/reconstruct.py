"""The commands `reconstruct`, `denoise` and `encode`: reconstructions and codes of images by an autoencoder.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heedful.cli.figure import table_lines
from heedful.cli.images import images_for, read_images
from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError, printable
from heedful.files import writing as files
from heedful.lectures import Table
from heedful.plots.autoencoder_plots import ROWS, by_pca, chosen, class_names, made
from heedful.plots.image_grid import Column, Window, image_grid, image_strips
from heedful.plots.style import Figure, Style, require_figure, save
from heedful.runs.images import training_vectors
from heedful.tasks.reconstruction.predictor import Floats, ImageAutoencoder
from heedful.training.checkpoint.choice import by_name


# ------------------------------------------------------------------ reconstruct
def reconstruct_command(
    run: Path,
    paths: Sequence[str],
    out: Path,
    compare: Sequence[Path],
    pca: bool,
    interpolate: tuple[str, str] | None,
    count: int | None,
    seed: int,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Draw images and their reconstructions by one or several models, or an interpolation between two images."""
    require_figure(out, "--out")
    autoencoders = {name: load_as(ImageAutoencoder, path) for name, path in by_name([run, *compare]).items()}
    canvas = common_spec(autoencoders)
    if interpolate is not None:
        if pca or paths:
            raise UserError(
                "an interpolation has two images", where="--interpolate", todo="leave out --pca and the other images"
            )
        draw_interpolation(run, autoencoders, canvas, interpolate, count or ROWS, out, as_json, style)
        return
    images = chosen(images_for(run, paths, canvas), count or ROWS)
    columns = [Column("input", images.pixels)]
    if pca:
        width = next(iter(autoencoders.values())).code_size
        columns.append(by_pca(training_vectors(run), images.pixels, width))
    for name, autoencoder in autoencoders.items():
        columns += made(autoencoder, images.pixels, name, seed)
    figure = image_grid(columns, class_names(images), f"{len(images):,} images and their reconstructions", style)
    finish(figure, columns, out, as_json)


def draw_interpolation(
    run: Path,
    autoencoders: dict[str, ImageAutoencoder],
    canvas: ImageSpec,
    ends: tuple[str, str],
    steps: int,
    out: Path,
    as_json: bool,
    style: Style,
) -> None:
    """Draw, for each model, the decoded codes on the line between those of two images."""
    if steps < 2:
        raise UserError("an interpolation has two ends", where="--count", found=str(steps), expected="at least 2")
    first, last = (image_named(run, end, canvas) for end in ends)
    rows = [(name, autoencoder.walk(first, last, steps)) for name, autoencoder in autoencoders.items()]
    title = f"Interpolation between two codes in {steps} steps"
    save(image_strips(rows, title, Window.of(np.concatenate([first, last])), style), out)
    say(json_line({"picture": str(out), "steps": steps, "runs": list(autoencoders)}) if as_json else f"figure  {out}")


def image_named(run: Path, name: str, canvas: ImageSpec) -> Floats:
    """An image (1, C, Y, X) by its index in the test set, or from a file."""
    if not name.isdecimal():
        return scale_pixels(read_images(name, canvas).pixels[:1])
    test_set = images_for(run, [], canvas).pixels
    if int(name) >= len(test_set):
        raise UserError(
            "there is no such image",
            where="--interpolate",
            found=name,
            expected=f"a number below {len(test_set):,}, or a file",
        )
    return test_set[int(name)][None]


# ------------------------------------------------------------------ denoise
def denoise_command(
    run: Path,
    paths: Sequence[str],
    out: Path,
    noise: float | None,
    noisy_already: bool,
    count: int | None,
    seed: int,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Draw images, the same with noise, and denoised."""
    require_figure(out, "--out")
    if noisy_already and (noise is not None or not paths):
        raise UserError(
            "--noisy is for images that are already noisy", where="--noisy",
            todo="name them, and leave out --noise",
        )  # fmt: skip
    autoencoder = load_as(ImageAutoencoder, run)
    if noise is not None:
        autoencoder.noise = replace(autoencoder.noise, deviation=noise)
    images = chosen(images_for(run, paths, autoencoder.canvas), count or ROWS)
    if noisy_already:
        columns = [Column("noisy", images.pixels), Column("restored", autoencoder.reconstruct(images.pixels))]
        title = "Noisy images, denoised"
    elif autoencoder.noise.deviation:
        columns = [Column("original", images.pixels), *made(autoencoder, images.pixels, "", seed)]
        title = f"Images with noise of deviation {autoencoder.noise.deviation:g}, denoised"
    else:
        raise UserError(
            "this model was not trained to denoise", where=str(run),
            todo="choose the noise, such as --noise 0.5, or train a model with task.noise=0.5",
        )  # fmt: skip
    finish(image_grid(columns, class_names(images), title, style), columns, out, as_json)


# ------------------------------------------------------------------ encode
def encode_command(run: Path, paths: Sequence[str], out: Path) -> None:
    """Write the code of each image, with its label if that is known."""
    files.require_writable(out, "--out")
    if out.suffix.lower() not in CODES:
        raise UserError(
            "unknown file extension", where="--out", found=str(out),
            expected="a name that ends in " + " or ".join(CODES),
        )  # fmt: skip
    autoencoder = load_as(ImageAutoencoder, run)
    images = images_for(run, paths, autoencoder.canvas)
    codes = autoencoder.encode(images.pixels)
    files.write_atomic(out, CODES[out.suffix.lower()](codes, images))
    labels = ", with labels" if images.labels is not None and out.suffix.lower() != ".npy" else ""
    say(f"wrote {len(codes):,} codes of dimension {codes.shape[1]:,} to {out}{labels}")


def _npy(codes: Floats, images: Images) -> bytes:
    file = io.BytesIO()
    np.save(file, codes)
    return file.getvalue()


def _npz(codes: Floats, images: Images) -> bytes:
    file = io.BytesIO()
    labels: dict[str, Any] = {} if images.labels is None else {"labels": images.labels, "names": np.array(images.names)}
    np.savez_compressed(file, codes=codes, **labels)
    return file.getvalue()


def _csv(codes: Floats, images: Images) -> bytes:
    file = io.StringIO()
    labels = class_names(images)
    out = csv.writer(file, lineterminator="\n")
    out.writerow([*(f"code{number}" for number in range(1, codes.shape[1] + 1)), *(["label"] if labels else [])])
    for row, code in enumerate(codes.tolist()):
        out.writerow([*(f"{value:.9g}" for value in code), *([labels[row]] if labels else [])])
    return file.getvalue().encode()


CODES: dict[str, Callable[[Floats, Images], bytes]] = {".npy": _npy, ".npz": _npz, ".csv": _csv}


# ------------------------------------------------------------------ shared
def common_spec(autoencoders: dict[str, ImageAutoencoder]) -> ImageSpec:
    """The image size of these models, if it is the same for all."""
    (first, one), *others = autoencoders.items()
    for name, autoencoder in others:
        if autoencoder.canvas.image != one.canvas.image:
            raise UserError(
                "these models read images of different sizes", where="--compare",
                found=f"{_sides(autoencoder)} for {name}", expected=f"{_sides(one)}, as for {first}",
            )  # fmt: skip
    return one.canvas


def _sides(autoencoder: ImageAutoencoder) -> str:
    return " x ".join(map(str, autoencoder.canvas.image))


def finish(figure: Figure, columns: Sequence[Column], out: Path, as_json: bool) -> None:
    """Write the figure, and print the mean squared error of each column."""
    save(figure, out)
    known = [(column.title.replace("\n", " "), column.errors) for column in columns if column.errors is not None]
    if as_json:
        errors = {title: [float(f"{error:.6g}") for error in column] for title, column in known}
        means = {title: float(f"{column.mean():.6g}") for title, column in known}
        say(json_line({"picture": str(out), "images": len(columns[0].images), "mse": means, "each": errors}))
        return
    if known:
        rows = tuple((title, float(each.mean()), float(each.min()), float(each.max())) for title, each in known)
        for line in table_lines(Table(("", "mean squared error", "min", "max"), rows)):
            say(line)
        say("")
    say(f"figure  {printable(str(out))}")
