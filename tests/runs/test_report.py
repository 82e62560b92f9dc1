"""The report of a run: one self-contained page, the same each time, which never fails a run."""

from __future__ import annotations

import re
import shutil
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.data.images.sources import Images
from heedful.plots import autoencoder_plots as plots
from heedful.runs import report
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe
from heedful.runs.report import page, write_report
from heedful.runs.train import Event, Finished, Noted, Stage, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.training.metrics import Score

DIGITS = ["data.train=100", "data.valid=20", "data.test=80", "train.budget.epochs=1", "train.evaluate_every=2"]
NUMBERS = [
    "data.train=60", "data.valid=8", "data.test=8", "tokenizer.vocab=90", "model.width=8", "model.heads=2",
    "model.hidden=8", "model.context=48", "model.encoder_layers=1", "model.decoder_layers=1", "decode.beams=1",
    "train.budget.steps=2", "train.evaluate_every=2", "train.save_every=2", "train.average=1",
]  # fmt: skip
VOID = {"meta", "img"}


class Page(HTMLParser):
    """A parsed page: it must be well-formed and load nothing from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.images: list[bytes] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe")
        values = dict(attrs)
        if tag == "img":
            kind, _, data = (values["src"] or "").partition(",")
            assert kind == "data:image/png;base64"
            self.images.append(b64decode(data))
        if tag == "a":
            self.links.append(values["href"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def read(run: Path) -> Page:
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "http" not in text and "url(" not in text
    return Page(text)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    run = tmp_path_factory.mktemp("digits") / "run"
    return run, list(train(load_recipe("digits", DIGITS), run))


def test_report_of_an_autoencoder_has_pictures_scores_and_layers(
    digits: tuple[Path, list[Event]],
) -> None:
    run, events = digits
    found = read(run)
    assert [path.name for path in sorted((run / "pictures").iterdir())] == ["codes.png", "images.png", "walk.png"]
    names = ["pictures/images.png", "pictures/walk.png", "pictures/codes.png", "loss.png"]
    assert found.links == names
    assert found.images == [(run / name).read_bytes() for name in names]
    (test,) = [event for event in events if isinstance(event, Evaluated) and event.split == "test"]
    expected = (
        "An autoencoder of 7,274 parameters, trained on 100 images in 4 steps, on cpu.",
        f"mean squared error {test.loss:.4f}",
        *(score.signature for score in test.scores),
        "dense_1 (Dense) 48 3,120",
        "The code of an image has 10 values.",
        "heedful reconstruct",
        f"heedful figure maps model={run}",
        "kind: rmsprop",
        "(PCA-10)",
    )
    for words in expected:
        assert words in found.words
    assert Stage("drawing pictures") in events
    assert not [event for event in events if isinstance(event, Noted)]


def test_complete_run_writes_the_same_report_again(digits: tuple[Path, list[Event]], tmp_path: Path) -> None:
    run, _ = digits
    before = {path: path.read_bytes() for path in (run / "report.html", *(run / "pictures").iterdir())}
    shutil.rmtree(run / "pictures")
    (run / "report.html").unlink()
    list(train(load_recipe("digits", DIGITS), run))
    assert {path: path.read_bytes() for path in before} == before


def test_error_in_a_plot_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: tuple[Path, list[Event]]
) -> None:
    shutil.copytree(digits[0], tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()

    def broken(*_: object) -> None:
        raise ValueError("no colours left")

    monkeypatch.setattr(plots, "image_grid", broken)
    events = list(train(load_recipe("digits", DIGITS), tmp_path / "run"))
    assert isinstance(events[-1], Finished) and not events[-1].stopped
    (note,) = [event for event in events if isinstance(event, Noted)]
    assert note.text.endswith("complete all the same: no colours left")
    assert not (tmp_path / "run" / "report.html").exists()


def test_noisy_images_are_shown_with_their_reconstructions(tmp_path: Path) -> None:
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        whole = plots.image_grid
        patch.setattr(plots, "image_grid", lambda columns, *rest: seen.append(columns) or whole(columns, *rest))
        list(train(load_recipe("digits-denoising", DIGITS), tmp_path / "run"))
    ((original, noisy, restored),) = seen
    assert [column.title for column in (original, noisy, restored)] == ["original", "noisy", "restored"]
    assert noisy.errors.mean() > 0.01 and len(restored.images) == 10
    assert "Images with noise of deviation 0.3" in read(tmp_path / "run").words


def test_report_of_texts_has_samples_and_only_the_loss_plot(tmp_path: Path) -> None:
    run = tmp_path / "run"
    events = list(train(load_recipe("numbers", NUMBERS), run))
    assert not [event for event in events if isinstance(event, Noted)]
    found = read(run)
    assert found.links == ["loss.png"] and not (run / "pictures").exists()
    (test,) = [event for event in events if isinstance(event, Evaluated) and event.split == "test"]
    assert test.samples
    for given, right, made in test.samples:
        for text in (given, right, made):
            assert " ".join(text.split()) in found.words
    assert "The loss by step: nats a token." in found.words
    assert "A transformer of" in found.words
    assert all(score.signature in found.words for score in test.scores)


def test_without_a_test_set_the_report_shows_validation(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).random((20, 8, 8)))
    data = f"data={{kind: array, root: {tmp_path}, train: {{file: images.npy}}, valid: {{file: images.npy}}}}"
    changes = [data, "train.budget.epochs=1", "train.evaluate_every=1"]
    events = list(train(load_recipe("digits", changes), tmp_path / "run"))
    assert not [event for event in events if isinstance(event, Noted)]
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    found = read(tmp_path / "run")
    assert "On the validation set" in found.words and f"{last.loss:.4f}" in found.words


def test_texts_are_escaped(tmp_path: Path, digits: tuple[Path, list[Event]]) -> None:
    run = tmp_path / "a <b>bold & 'odd' run"
    shutil.copytree(digits[0], run)
    task, predictor = task_of(load_recipe("digits", DIGITS)), load(run)
    evil = "<script>alert('x')</script>\x1b[31m\ud800"
    result = Evaluated(1, "test", 0.5, (Score("<i>", 1.0, "<u>"),), ((evil, evil, evil),), 0)
    text = page(run, task, predictor.model.config, predictor, result, 100)
    assert "<script" not in text and "<b>" not in text and "<i>" not in text and "<u>" not in text
    assert "\x1b" not in text and text.encode()
    words = Page(text).words
    assert "<script>alert('x')</script>\\x1b[31m\\ud800" in words and "a <b>bold & 'odd' run" in words


def codes(run: Path, test: Images) -> list[str]:
    """The titles of the plots of a model, drawn from other images than its own."""
    data = load_recipe("digits", DIGITS).data
    other = type("Other", (), {"test": 1, "read": lambda self, split: data.read(split) if split == "train" else test})()
    return [one.about for one, _ in plots.save_figures(load(run), other, run / "pictures")]


def test_single_unlabelled_and_constant_images_can_be_plotted(digits: tuple[Path, list[Event]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(digits[0], run)
    one = Images(np.zeros((1, 1, 8, 8), np.float32))
    assert len(codes(run, one)) == 2  # one point is no map
    alike = Images(np.full((5, 1, 8, 8), 0.5, np.float32))
    found = codes(run, alike)
    assert found[2] == "A point for each, at two principal components of 10 values."
    labelled = replace(alike, labels=np.zeros(5, np.int64), names=("only",))
    assert "coloured by class" in codes(run, labelled)[2]


def test_two_dimensional_codes_are_shown_without_projection() -> None:
    codes = np.random.default_rng(0).random((9, 2)).astype(np.float32)
    assert plots.flat(codes) is codes
    np.testing.assert_array_equal(plots.flat(codes[:, :1]), np.stack([codes[:, 0], 0 * codes[:, 0]], 1))
    assert plots.flat(np.random.default_rng(0).random((9, 5)).astype(np.float32)).shape == (9, 2)


def test_pca_is_omitted_when_slow(
    digits: tuple[Path, list[Event]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plots, "WORTH", 1.0)
    shutil.copytree(digits[0], tmp_path / "run")
    task, predictor = task_of(load_recipe("digits", DIGITS)), load(tmp_path / "run")
    assert (
        write_report(tmp_path / "run", task, predictor.model.config, predictor, None, 100)
        == tmp_path / "run" / report.NAME
    )
    assert "PCA" not in re.sub(r"base64,[^\"]+", "", (tmp_path / "run" / "report.html").read_text())
