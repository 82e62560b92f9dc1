"""The verbs `reconstruct`, `denoise` and `encode`: what an autoencoder makes of images, as pictures and as codes.

N images, C channels, Y rows, X columns, D numbers of a code.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heedful.cli.figure import written
from heedful.cli.images import given, images_for
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
    beside: Sequence[Path],
    pca: bool,
    walk: tuple[str, str] | None,
    count: int | None,
    seed: int,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Draw images beside what one or several models make of them, or a walk from one image to another."""
    require_figure(out, "--out")
    autoencoders = {name: load_as(ImageAutoencoder, path) for name, path in by_name([run, *beside]).items()}
    canvas = same_canvas(autoencoders)
    if walk is not None:
        if pca or paths:
            raise UserError(
                "a walk goes from one image to another", where="--interpolate", todo="leave out the other images"
            )
        walked(run, autoencoders, canvas, walk, count or ROWS, out, as_json, style)
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


def walked(
    run: Path,
    autoencoders: dict[str, ImageAutoencoder],
    canvas: ImageSpec,
    ends: tuple[str, str],
    steps: int,
    out: Path,
    as_json: bool,
    style: Style,
) -> None:
    """Draw, for each model, the images of the codes between two images."""
    if steps < 2:
        raise UserError("a walk has a beginning and an end", where="--count", found=str(steps), expected="at least 2")
    first, last = (end_of(run, end, canvas) for end in ends)
    rows = [(name, autoencoder.walk(first, last, steps)) for name, autoencoder in autoencoders.items()]
    title = f"From one code to another in {steps} steps"
    save(image_strips(rows, title, Window.of(np.concatenate([first, last])), style), out)
    say(json_line({"picture": str(out), "steps": steps, "runs": list(autoencoders)}) if as_json else f"picture  {out}")


def end_of(run: Path, name: str, canvas: ImageSpec) -> Floats:
    """An image (1, C, Y, X) by its number in the test set, the first being 0, or from a file."""
    if not name.isdecimal():
        return scale_pixels(given(name, canvas).pixels[:1])
    every = images_for(run, [], canvas).pixels
    if int(name) >= len(every):
        raise UserError(
            "there is no such image",
            where="--interpolate",
            found=name,
            expected=f"a number below {len(every):,}, or a file",
        )
    return every[int(name)][None]


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
    """Draw images, what noise leaves of them, and what is restored of that."""
    require_figure(out, "--out")
    if noisy_already and (noise is not None or not paths):
        raise UserError(
            "--noisy says that the given images are noisy already", where="--noisy",
            todo="name them, and leave out --noise",
        )  # fmt: skip
    autoencoder = load_as(ImageAutoencoder, run)
    if noise is not None:
        autoencoder.noise = replace(autoencoder.noise, deviation=noise)
    images = chosen(images_for(run, paths, autoencoder.canvas), count or ROWS)
    if noisy_already:
        columns = [Column("noisy", images.pixels), Column("restored", autoencoder.reconstruct(images.pixels))]
        title = "Images and what is restored of them"
    elif autoencoder.noise.deviation:
        columns = [Column("original", images.pixels), *made(autoencoder, images.pixels, "", seed)]
        title = f"Noise of deviation {autoencoder.noise.deviation:g}, and what is restored"
    else:
        raise UserError(
            "this model has not learned to undo noise", where=str(run),
            todo="say how much to add, with --noise 0.5, or train one with task.noise=0.5",
        )  # fmt: skip
    finish(image_grid(columns, class_names(images), title, style), columns, out, as_json)


# ------------------------------------------------------------------ encode
def encode_command(run: Path, paths: Sequence[str], out: Path) -> None:
    """Write the code of each image, and its label where that is known."""
    files.require_writable(out, "--out")
    if out.suffix.lower() not in CODES:
        raise UserError(
            "the name does not say what to write", where="--out", found=str(out),
            expected="a name that ends in " + " or ".join(CODES),
        )  # fmt: skip
    autoencoder = load_as(ImageAutoencoder, run)
    images = images_for(run, paths, autoencoder.canvas)
    codes = autoencoder.encode(images.pixels)
    files.write_atomic(out, CODES[out.suffix.lower()](codes, images))
    labelled = ", with labels" if images.labels is not None and out.suffix.lower() != ".npy" else ""
    say(f"wrote {len(codes):,} codes of {codes.shape[1]:,} numbers to {out}{labelled}")


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


# ------------------------------------------------------------------ what they share
def same_canvas(autoencoders: dict[str, ImageAutoencoder]) -> ImageSpec:
    """What the images of all these models are like."""
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
    """Write the figure, and print how far each column is from the first."""
    save(figure, out)
    known = [(column.title.replace("\n", " "), column.errors) for column in columns if column.errors is not None]
    if as_json:
        errors = {title: [float(f"{error:.6g}") for error in some] for title, some in known}
        means = {title: float(f"{some.mean():.6g}") for title, some in known}
        say(json_line({"picture": str(out), "images": len(columns[0].images), "mse": means, "each": errors}))
        return
    if known:
        rows = tuple((title, float(some.mean()), float(some.min()), float(some.max())) for title, some in known)
        for line in written(Table(("", "mean squared difference", "least", "most"), rows)):
            say(line)
        say("")
    say(f"picture  {printable(str(out))}")
