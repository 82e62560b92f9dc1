"""Verbs of models of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import CheckpointOption, Dark, Json, RunFolder
from heedful.training.checkpoint.choice import at

Pictured = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IMAGE", help="Pictures, folders, .npy or .npz arrays, idx files; else the run's own test images."
    ),
]
Drawn = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The figure to draw: .png, .svg or .pdf.")]
Shown = Annotated[int | None, typer.Option("--count", min=1, max=1000, help="Images to show; 10 by default.")]
NoiseSeed = Annotated[int, typer.Option(min=0, max=2**62, help="Random seed of the noise.")]


def reconstruct(
    run: RunFolder,
    out: Drawn,
    images: Pictured = None,
    compare: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run, in columns of its own; may be repeated.")
    ] = None,
    pca: Annotated[bool, typer.Option("--pca", help="Also show a PCA with as many components as a code.")] = False,
    interpolate: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="From one image's code to another's: numbers of test images, or files."),
    ] = None,
    count: Shown = None,
    seed: NoiseSeed = 0,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Draw images beside their reconstructions, with the errors below."""
    from heedful.cli.reconstruct import reconstruct_command

    reconstruct_command(
        at(run, checkpoint), images or [], out, compare or [], pca, interpolate, count, seed, as_json,
        "dark" if dark else "light",
    )  # fmt: skip


def denoise(
    run: RunFolder,
    out: Drawn,
    images: Pictured = None,
    noise: Annotated[
        float | None, typer.Option(min=0, max=100, help="Standard deviation of the noise; else as in training.")
    ] = None,
    noisy_already: Annotated[bool, typer.Option("--noisy", help="The images are noisy already; add no noise.")] = False,
    count: Shown = None,
    seed: NoiseSeed = 0,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Draw images, the same with noise, and denoised by an autoencoder."""
    from heedful.cli.reconstruct import denoise_command

    denoise_command(
        at(run, checkpoint), images or [], out, noise, noisy_already, count, seed, as_json, "dark" if dark else "light"
    )


def encode(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .npy, .npz or .csv.")],
    images: Pictured = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Write the codes of images by an autoencoder, with labels where they are known."""
    from heedful.cli.reconstruct import encode_command

    encode_command(at(run, checkpoint), images or [], out)
