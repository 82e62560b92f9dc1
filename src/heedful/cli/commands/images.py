"""Commands for models of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from heedful.cli.options import CheckpointOption, Dark, Json, RunFolder
from heedful.training.checkpoint.choice import checkpoint_path

ImagePaths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IMAGE", help="Image files, folders, .npy or .npz arrays, idx files; by default the run's test images."
    ),
]
FigurePath = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="The figure to write: .png, .svg or .pdf.")
]
ImageCount = Annotated[int | None, typer.Option("--count", min=1, max=1000, help="Images to show; 10 by default.")]
NoiseSeed = Annotated[int, typer.Option(min=0, max=2**62, help="Random seed of the noise.")]


def caption(
    run: RunFolder,
    images: Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help="Images, folders or zip files.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Captions of each image, the best first.")] = 1,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw where each word of the best captions attended: .png, .svg or .pdf."),
    ] = None,
    attention: Annotated[
        Literal["soft", "hard"] | None,
        typer.Option(help="Attend softly, or to one place; by default as in training."),
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Describe images by sentences, and show what each word attended to."""
    from heedful.cli.caption import caption_command

    caption_command(
        checkpoint_path(run, checkpoint), images or [], settings["beams"], top, picture, attention, as_json,
        "dark" if dark else "light",
    )  # fmt: skip


def describe(
    run: RunFolder,
    images: Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help="Images.")] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON of boxes, [[top, left, bottom, right], ...] in pixels; by default image.json beside image.png.",
        ),
    ] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Hypotheses of the beam search; else as the recipe says.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the boxes and the sentences of the first image: .png, .svg or .pdf."),
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Describe an image and its regions in a paragraph, and show which region each sentence comes from."""
    from heedful.cli.describe import describe_command

    describe_command(
        checkpoint_path(run, checkpoint), images or [], boxes, beams, picture, as_json, "dark" if dark else "light"
    )


def reconstruct(
    run: RunFolder,
    out: FigurePath,
    images: ImagePaths = None,
    compare: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run to compare with; may be repeated.")
    ] = None,
    pca: Annotated[bool, typer.Option("--pca", help="Also show a PCA with as many components as the code.")] = False,
    interpolate: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="Interpolate between the codes of two images: indices of test images, or files."
        ),
    ] = None,
    count: ImageCount = None,
    seed: NoiseSeed = 0,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Draw images beside their reconstructions, with the errors below."""
    from heedful.cli.reconstruct import reconstruct_command

    reconstruct_command(
        checkpoint_path(run, checkpoint), images or [], out, compare or [], pca, interpolate, count, seed, as_json,
        "dark" if dark else "light",
    )  # fmt: skip


def denoise(
    run: RunFolder,
    out: FigurePath,
    images: ImagePaths = None,
    noise: Annotated[
        float | None, typer.Option(min=0, max=100, help="Standard deviation of the noise; by default as in training.")
    ] = None,
    noisy_already: Annotated[bool, typer.Option("--noisy", help="The images are already noisy; add no noise.")] = False,
    count: ImageCount = None,
    seed: NoiseSeed = 0,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Draw images with noise added, and as an autoencoder denoises them."""
    from heedful.cli.reconstruct import denoise_command

    denoise_command(
        checkpoint_path(run, checkpoint),
        images or [],
        out,
        noise,
        noisy_already,
        count,
        seed,
        as_json,
        "dark" if dark else "light",
    )


def encode(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .npy, .npz or .csv.")],
    images: ImagePaths = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Write an autoencoder's codes of images, with labels where they are known."""
    from heedful.cli.reconstruct import encode_command

    encode_command(checkpoint_path(run, checkpoint), images or [], out)
