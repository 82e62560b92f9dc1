"""The figures of the lecture on autoencoders: images reconstructed and restored, pooling and upsampling."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from heedful import PCA, load
from heedful.cli import app as cli
from heedful.cli import reconstruct
from heedful.cli.figure import watched
from heedful.config import parse
from heedful.data.embedded import Digits
from heedful.lectures import pooling
from heedful.models.autoencoder.config import SIZES
from heedful.models.autoencoder.layers import MaxPool, Upsample
from heedful.models.autoencoder.network import Network
from heedful.plots.image_grid import Column, image_grid
from heedful.runs.train import train
from heedful.tasks.reconstruction.recipe import ReconstructionRecipe
from tolerance import close

MODELS = {"dense": 161_804, "conv": 1_185, "denoising": 28_353}


def save_enlarged_digits(path: Path, count: int) -> None:
    """Digits of 28 x 28 pixels: each pixel repeated 3 x 3, with a border."""
    pixels = np.kron(Digits().read("train").pixels[:count, 0], np.ones((1, 3, 3), np.float32))
    np.save(path, np.pad(pixels, ((0, 0), (2, 2), (2, 2))))


@pytest.mark.claim("K11")
def test_reconstruct_plots_all_models_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_enlarged_digits(tmp_path / "digits.npy", 64)
    data = {"kind": "array", "root": str(tmp_path), "train": {"file": "digits.npy"}, "test": {"file": "digits.npy"}}
    for name, size in MODELS.items():
        settings = {
            "task": {"kind": "reconstruction", "noise": 0.5 if name == "denoising" else 0.0},
            "data": data,
            "model": SIZES[name].model_dump(),
            "train": {"budget": {"steps": 3}, "batch_examples": 32, "evaluate_every": 10},
        }
        recipe = parse(ReconstructionRecipe, settings)
        assert recipe.size == size
        list(train(recipe, tmp_path / name))
    columns: list[Column] = []

    def recording_grid(given: list[Column], *rest: Any) -> Figure:
        columns.extend(given)
        return image_grid(given, *rest)

    monkeypatch.setattr(reconstruct, "image_grid", recording_grid)
    words = ["reconstruct", "dense", "--pca", "--compare", "conv", "--compare", "denoising", "--count", "5"]
    monkeypatch.setattr(sys, "argv", ["heedful", *words, "-o", "grid.png", "--json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code in (0, None)
    result = json.loads(capsys.readouterr().out)
    assert list(result["mse"]) == ["PCA-20", "dense", "conv", "denoising noisy", "denoising restored"]
    assert result["mse"]["denoising noisy"] == pytest.approx(
        0.5**2 / 2, rel=0.25
    )  # about half of the noise is clipped at 0 or 1
    given, pca, dense, conv, noisy, restored = (column.images for column in columns)
    assert (given == np.load("digits.npy")[:5, None]).all()
    outputs = {"dense": (given, dense), "conv": (given, conv), "denoising": (noisy, restored)}
    for name, (read, made) in outputs.items():
        model: Any = load(tmp_path / name).model  # applied here as a plain network
        with torch.inference_mode():
            x = torch.from_numpy(read)
            right = model(x.flatten(1) if name == "dense" else x).reshape(5, 1, 28, 28)
        close(made, right)
        assert result["mse"][name + " restored" * (name == "denoising")] == pytest.approx(
            float((right - torch.from_numpy(given)).square().mean()), rel=1e-4
        )
    assert result["mse"]["PCA-20"] < min(result["mse"]["dense"], result["mse"]["conv"])  # three steps teach them little
    close(pca.reshape(5, -1), PCA(20).fit(np.load("digits.npy").reshape(64, -1)).reconstruct(given.reshape(5, -1)))
    with Image.open("grid.png") as image:
        assert image.width > 2 * 6 * 84 and image.height > 2 * 5 * 84  # six columns and five rows of 28 x 28


@pytest.mark.claim("K12")
def test_max_pooling_and_nearest_upsampling() -> None:
    x = torch.randn(2, 3, 8, 6)
    pooled = Network.of((3, 8, 6), [MaxPool()])(x)
    assert torch.equal(pooled, x.reshape(2, 3, 4, 2, 3, 2).amax((3, 5)))
    upsampled = Network.of((3, 4, 3), [Upsample()])(pooled)
    assert torch.equal(upsampled, torch.kron(pooled, torch.ones(2, 2)))
    for row, column in np.ndindex(8, 6):
        assert torch.equal(upsampled[..., row, column], pooled[..., row // 2, column // 2])
    assert torch.equal(Network.of((3, 8, 6), [MaxPool()])(upsampled), pooled)  # the maxima are unchanged


@pytest.mark.claim("K12")
def test_pooling_figure_shows_information_loss_and_shapes() -> None:
    numbers, digit, odd = watched(pooling.study(pooling.Settings())).grids.values()
    assert numbers.pooled.tolist() == [[6, 7], [2, 9]]
    assert numbers.again.tolist() == [[6, 6, 7, 7], [6, 6, 7, 7], [2, 2, 9, 9], [2, 2, 9, 9]]
    assert numbers.lost.sum() == 11
    assert (digit.given.shape, digit.pooled.shape, digit.given.max()) == ((8, 8), (4, 4), 16)
    assert (odd.given.shape, odd.pooled.shape, odd.again.shape) == ((7, 7), (4, 4), (8, 8))
    assert odd.pooled[3, 3] == odd.given[6, 6]  # the last window is cropped to one pixel
    assert odd.pooled[0, 3] == odd.given[:2, 6].max()
