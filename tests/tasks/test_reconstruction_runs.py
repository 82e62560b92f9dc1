"""Autoencoder runs: exact resume, results, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import UserError
from heedful.models.autoencoder.config import SIZES
from heedful.runs.evaluate import Evaluated, results
from heedful.runs.recipe import load_recipe, recipe_in
from heedful.runs.train import Finished, train
from heedful.tasks import task_of
from heedful.tasks.base import HeldOut
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from heedful.tasks.reconstruction.recipe import ReconstructionRecipe
from heedful.tasks.reconstruction.task import ReconstructionTask
from heedful.training.checkpoint.folder import newest
from heedful.training.loop import Epoch, Step

SHORT = [
    "data.train=150", "data.valid=40", "data.test=60", "train.budget.epochs=4", "train.evaluate_every=10",
    "train.save_every=10", "train.log_every=1", "train.device=cpu",
]  # fmt: skip


def recipe(name: str = "digits", *changes: str) -> ReconstructionRecipe:
    found = load_recipe(name, [*SHORT, *changes])
    assert isinstance(found, ReconstructionRecipe)
    return found


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots have their own tests."""
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    threads = torch.get_num_threads()
    yield  # type: ignore[misc]
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.runs.report.write_report", lambda *given: None)
        events = list(train(recipe(), folder))
    torch.set_num_threads(threads)
    return folder, events


def test_run_learns_reports_each_epoch_and_scores_the_test_set(finished: tuple[Path, list[Any]]) -> None:
    folder, events = finished
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert [(epoch.epoch, epoch.step) for epoch in epochs] == [(1, 5), (2, 10), (3, 15), (4, 20)]
    assert epochs[-1].loss < epochs[0].loss
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if line["kind"] == "epoch"] == [epoch.loss for epoch in epochs]
    test = results(folder)
    assert isinstance(test, Evaluated) and test.scores[0].name == "explained"
    assert isinstance(events[-1], Finished) and not events[-1].stopped
    assert (folder / "images.json").exists() and not (folder / "tokenizer.json").exists()
    assert sorted(path.name for path in (folder / "model").iterdir()) == [
        "config.json", "images.json", "manifest.json", "model.safetensors",
    ]  # fmt: skip


def test_explained_is_the_share_of_variance(finished: tuple[Path, list[Any]]) -> None:
    folder, _ = finished
    test, predictor = results(folder), heedful.load(folder)
    task = task_of(recipe_in(folder / "recipe.yaml"))
    pixels = task.read("test").pixels
    apart = ((predictor.reconstruct(pixels) - pixels) ** 2).mean()
    assert test is not None
    assert test.loss == pytest.approx(float(apart), rel=1e-5)
    spread = ((pixels - pixels.mean(0)) ** 2).mean()
    assert test.scores[0].value == pytest.approx(100 * (1 - apart / spread), rel=1e-4)


def test_run_model_folder_and_checkpoint_load_the_same(finished: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, _ = finished
    from_run, from_model = heedful.load(folder), heedful.load(folder / "model")
    shutil.copytree(folder, tmp_path / "unfinished")
    shutil.rmtree(tmp_path / "unfinished" / "model")
    from_checkpoint = heedful.load(tmp_path / "unfinished")
    x = np.random.default_rng(0).random((3, 1, 8, 8))
    for predictor in (from_run, from_model, from_checkpoint):
        assert isinstance(predictor, ImageAutoencoder)
        assert predictor.canvas.image == (1, 8, 8) and predictor.canvas.names == tuple("0123456789")
        assert np.array_equal(predictor.reconstruct(x), from_run.reconstruct(x))


@pytest.mark.parametrize("name", ["digits", "digits-denoising"])
def test_interrupted_run_equals_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    changes = ["train.budget.epochs=3", "train.threads=2" if name == "digits" else "model.encoder.0.filters=4"]
    losses, broken = list[float](), list[float]()
    for event in train(recipe(name, *changes), tmp_path / "whole"):
        losses += [event.loss] if isinstance(event, Step) else []
    for stop_at in (4, 8, 99):
        wish = Event()
        for event in train(recipe(name, *changes), tmp_path / "broken", stop=wish.is_set):
            if isinstance(event, Step):
                broken.append(event.loss)
                if event.step == stop_at:
                    wish.set()
    assert broken == losses and len(losses) == 15
    whole, again = (newest(tmp_path / run, 1)[0][0].path for run in ("whole", "broken"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / file).read_bytes() == (again / file).read_bytes()


@pytest.mark.parametrize("workers", [1])
def test_workers_do_not_change_the_run(workers: int, tmp_path: Path) -> None:
    changes = ("digits-denoising", "train.budget.steps=6", "model.encoder.0.filters=4")
    runs = [
        [event.loss for event in train(recipe(*changes, f"train.workers={count}"), tmp_path / str(count))
         if isinstance(event, Step)]
        for count in (0, workers)
    ]  # fmt: skip
    assert runs[0] == runs[1] and len(runs[0]) == 6


# ------------------------------------------------------------------ errors
def test_model_for_other_images_is_rejected_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        list(train(recipe("digits", "model.input=[48]", "model.decoder.1.width=48"), tmp_path / "run"))
    assert raised.value.where == "model.input"
    assert raised.value.found == "[48], but the images are of 1 x 8 x 8"
    assert raised.value.expected == "[1, 8, 8], or [64] for each as one vector"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "images.json"),
        (lambda path: path.write_text("{"), "images.json"),
        (lambda path: path.write_text('{"image": [1, 9, 9], "names": []}'), "do not belong together"),
        (lambda path: path.write_text('{"image": [1, 8], "names": []}'), "images.json"),
    ],
    ids=["missing", "damaged", "another size", "no picture"],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_model_folder_without_images_json_is_rejected(
    finished: tuple[Path, list[Any]], tmp_path: Path, spoil: Any, message: str, sealed: bool
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(finished[0] / "model", folder)
    spoil(folder / "images.json")
    if not sealed:
        (folder / "manifest.json").unlink()
    with pytest.raises(UserError) as raised:
        heedful.load(folder)
    assert (message if not sealed else "images.json") in str(raised.value)
    assert raised.value.todo


def test_missing_or_changed_images_json_is_rejected(finished: tuple[Path, list[Any]], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    (tmp_path / "run" / "images.json").write_text('{"image": [1, 9, 9], "names": []}')
    with pytest.raises(UserError, match="not what the run started with"):
        heedful.load(tmp_path / "run")
    (tmp_path / "run" / "images.json").unlink()
    with pytest.raises(UserError, match=r"images\.json"):
        heedful.load(tmp_path / "run")


def test_number_of_threads_follows_the_size_of_a_step() -> None:
    def threads(name: str, *changes: str) -> int:
        task = task_of(load_recipe(name, list(changes)))
        assert isinstance(task, ReconstructionTask)
        return task.threads(None, 64)

    assert threads("digits") == 1
    assert threads("mnist-dense") == SIZES["dense"].products * 128 // 8_000_000 == 2
    assert threads("mnist-denoising") == 64
    assert threads("mnist-dense", "train.batch_examples=1") == 1


def test_model_that_learned_nothing_is_reported_as_possibly_dead() -> None:
    task = task_of(recipe())
    images = task.read("test")
    encoded = task.encode(images, task.learn(images))
    spread = float(np.var(images.pixels, 0).mean())
    dead, good = (
        task.evaluate(None, HeldOut(images, encoded, loss, 1, "test")) for loss in (spread * 1.2, spread * 0.5)
    )
    assert "no better than the mean image: try another learning rate or train.seed" in task.remarks(dead)[0]
    assert task.remarks(good) == []
    assert good.selection_score(task.metric) > dead.selection_score(task.metric)
    assert good.scores[0].value == pytest.approx(50, rel=1e-4)
    assert task.in_words(0.01449) == "mean squared error 0.0145"
    assert task.next(Path("a run"), None)[0] == "heedful reconstruct 'a run' -o grid.png"
    assert task_of(recipe("digits-denoising")).next(Path("run"), None)[0] == "heedful denoise run -o grid.png"
