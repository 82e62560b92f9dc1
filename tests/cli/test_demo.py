"""The demo with a barely trained model: its output, and that it trains only once."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.cli import demo
from heedful.data.embedded import NumberWords
from heedful.runs.evaluate import results
from heedful.runs.load import load
from heedful.runs.recipe import Recipe, load_recipe

TINY = ["tokenizer.vocab=90", "model.width=16", "model.heads=2", "model.hidden=32", "train.budget.steps=3"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with a recipe of three steps on the same numbers."""

    def small(name: str) -> Recipe:
        return load_recipe(name, [*TINY, "data.train=2000", "data.valid=20", "data.test=50"])

    monkeypatch.setattr(demo, "load_recipe", small)


def test_demo_shows_test_numbers_only() -> None:
    data = load_recipe("numbers").data
    assert isinstance(data, NumberWords)
    assert data.test == 2000
    assert set(demo.UNSEEN) <= set(data.numbers("test"))
    assert not set(demo.UNSEEN) & {*data.numbers("train"), *data.numbers("valid")}


def test_demo_trains_only_once(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "demo"
    demo.demo_command(run)
    first = capsys.readouterr().out
    assert "step 3  loss " in first
    assert "trained and tested in " in first
    picture = run / "alignment.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    picture.unlink()

    demo.demo_command(run)
    again = capsys.readouterr().out
    assert picture.exists()
    assert "step 3  loss " not in again
    assert "trained before" in again
    end = "\n  twenty-five\n"
    assert again[again.index(end) :] == first[first.index(end) :]
    for expected in ("three hundred twenty-seven", "seven", "% of 50 numbers", f"heedful translate {run}"):
        assert expected in first


def test_demo_offers_the_explorer(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, opened = tmp_path / "demo", list[object]()
    monkeypatch.setattr("heedful.cli.explore.explore_command", lambda folders, *rest: opened.append(folders))
    monkeypatch.setattr("typer.confirm", lambda question, default: "browser" in question)
    demo.demo_command(run)
    assert f"heedful explore {run}" in capsys.readouterr().out
    assert not opened  # stdin is not a terminal
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    monkeypatch.setattr(demo, "is_built", lambda: True)
    demo.offer_explorer(run)
    assert opened == [[run]]
    monkeypatch.setattr(demo, "is_built", lambda: False)
    demo.offer_explorer(run)
    assert opened == [[run]]


@pytest.mark.slow
def test_full_demo_is_accurate_and_aligns_swapped_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "demo"
    demo.demo_command(run)
    capsys.readouterr()
    test = results(run)
    assert test is not None
    (exact,) = (score for score in test.scores if score.name == "exact_match")
    assert exact.signature.endswith("lines:2000")
    assert exact.value >= 99

    translator = load(run)
    source = "three hundred twenty-seven"
    looked = translator.align(source, translator.search([source])[0][0])
    most = {
        row: looked.source[int(weights.argmax())] for row, weights in zip(looked.target, looked.weights, strict=True)
    }
    assert (most["##sieben"], most["##zwan"]) == ("seven", "twenty")
