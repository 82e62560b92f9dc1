"""The run view: records are shown while it trains, resumed runs are read again, and no path is sent."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import run as view
from heedful.runs.events import trim_jsonl
from heedful.training.checkpoint.ownership import acquire_lock, is_training, release_lock

Answer = tuple[dict[str, Any], dict[str, NDArray[Any]]]


@pytest.fixture
def started(run: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run that has recorded something, and has no checkpoint yet."""
    folder = tmp_path / "begun"
    folder.mkdir()
    for name in ("recipe.yaml", "metrics.jsonl", "env.json", "lock"):
        shutil.copy(run("translation") / name, folder / name)
    return folder


@pytest.fixture
def locked(started: Path) -> Iterator[int]:
    """The same while it is trained."""
    lock = acquire_lock(started)
    yield lock
    release_lock(lock)


def since(explorer: Explorer, offset: int = 0, mark: str = "") -> Answer:
    (subject,) = explorer.subjects.values()
    return unpack(explorer.answer("run", "metrics", {"model": subject.name, "offset": offset, "mark": mark}))


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [event for event in events if event["kind"] == kind]


def test_curves_and_evaluations_are_those_of_metrics_jsonl(run: Callable[[str], Path]) -> None:
    folder = run("translation")
    words, arrays = since(Explorer([folder]))
    steps = lines(folder, "step")
    assert arrays["step"].tolist() == [event["step"] for event in steps]
    for name in ("loss", "rate", "norm", "tokens_per_second"):
        assert (arrays[name] == np.array([event[name] for event in steps], np.float32)).all()
    evaluations = lines(folder, "evaluated")
    assert [(one["step"], one["split"], one["loss"]) for one in words["evaluations"]] == [
        (event["step"], event["split"], event["loss"]) for event in evaluations
    ]
    assert words["evaluations"][0]["samples"] == evaluations[0]["samples"]
    assert words["offset"] == (folder / "metrics.jsonl").stat().st_size
    assert (words["running"], words["more"]) == (False, False)


@pytest.mark.claim("M24")
def test_each_loss_of_a_weighted_sum_has_a_curve(started: Path) -> None:
    explorer, path = Explorer([started]), started / "metrics.jsonl"
    first, arrays = since(explorer)
    assert not any(name.startswith("part") for name in arrays)  # recorded before losses had parts
    events = [{"parts": {"words": 0.5, "<b>": 1}}, {"parts": {"words": "none", "pairs": 2}}, {"parts": 7}, {}]
    with path.open("a") as file:
        for step, event in enumerate(events, 130):
            file.write(json.dumps({"kind": "step", "step": step, "loss": 1.0, **event}) + "\n")
    _, arrays = since(explorer, first["offset"], first["mark"])
    assert {name for name in arrays if name.startswith("part")} == {"part words", "part pairs"}
    np.testing.assert_array_equal(arrays["part words"], [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(arrays["part pairs"], [np.nan, 2, np.nan, np.nan])


def test_only_new_events_are_sent_and_incomplete_lines_wait(started: Path) -> None:
    explorer, path = Explorer([started]), started / "metrics.jsonl"
    first, _ = since(explorer)
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "step": 130, "loss": 0.5}\n{"kind": "step", "st')
    second, arrays = since(explorer, first["offset"], first["mark"])
    assert not second["anew"]
    assert arrays["step"].tolist() == [130]
    assert np.isnan(arrays["rate"]).all()  # which this line does not tell
    with path.open("ab") as file:
        file.write(b'ep": 140, "loss": 0.25}\n')
    third, arrays = since(explorer, second["offset"], second["mark"])
    assert arrays["loss"].tolist() == [0.25]
    assert since(explorer, third["offset"], third["mark"])[1]["step"].size == 0


def test_truncated_or_replaced_file_is_read_again(started: Path) -> None:
    explorer, path = Explorer([started]), started / "metrics.jsonl"
    before, arrays = since(explorer)
    assert trim_jsonl(path, 60) > 0
    trimmed, arrays = since(explorer, before["offset"], before["mark"])
    assert trimmed["anew"]
    assert arrays["step"].max() == 60
    # As long as before, with other lines in it.
    path.write_bytes(path.read_bytes().replace(b'"loss": ', b'"loss":9', 3))
    replaced, _ = since(explorer, trimmed["offset"], trimmed["mark"])
    assert replaced["offset"] == trimmed["offset"]
    assert not replaced["anew"]  # its end is the same: only that is compared
    path.write_bytes(path.read_bytes()[:-40] + b"x" * 39 + b"\n")
    assert since(explorer, trimmed["offset"], trimmed["mark"])[0]["anew"]
    path.unlink()
    gone, arrays = since(explorer, before["offset"], before["mark"])
    assert gone["anew"]
    assert arrays["step"].size == 0


def test_invalid_lines_are_skipped(started: Path) -> None:
    explorer, path = Explorer([started]), started / "metrics.jsonl"
    odd = [
        "", "null", "[]", "{", "NaN", '{"kind": "step"}', '{"kind": "step", "step": -1}', "[" * 5000,
        '{"kind": "step", "step": 1e9}', '{"kind": "step", "step": true}', '{"kind": "step", "step": 99999999999}',
        '{"kind": "step", "step": 1, "loss": NaN, "rate": Infinity, "norm": "x"}',
        '{"kind": "step", "step": 2, "loss": 1e300, "text": "a\u2028b\x85c\u2029"}',
        '{"kind": "step", "step": 3, "loss": ' + "9" * 400 + "}",
        '{"kind": "evaluated", "step": 3, "loss": NaN, "scores": {"a": 1, "b": {"value": NaN}}, "samples": [1, [2]]}',
        '{"kind": "evaluated", "step": 4, "split": 7, "scores": [], "samples": [["\\u001b[31m", 2, null]]}',
    ]  # fmt: skip
    path.write_bytes("\n".join(odd).encode() + b"\n\xff\xfe\n")
    words, arrays = since(explorer)
    assert arrays["step"].tolist() == [1, 2]
    assert words["broken"] == 11  # seven without a step, two whose step is no whole number, one too large, no UTF-8
    assert np.isnan(arrays["loss"]).all()
    assert [one["loss"] for one in words["evaluations"]] == [None, None]
    assert words["evaluations"][0]["scores"] == words["evaluations"][0]["samples"] == []
    assert words["evaluations"][1]["samples"] == [["\\x1b[31m", "2", "None"]]


def test_long_file_is_sent_in_parts(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "AT_ONCE", 700)
    explorer = Explorer([started])
    (started / "metrics.jsonl").open("ab").write(b"x" * 2000 + b"\n")  # a line that no part holds as a whole
    steps: list[int] = []
    words: dict[str, Any] = {"offset": 0, "mark": "", "more": True}
    asked = view.calls(explorer.subject("begun"), {"model": "begun"})[1:]
    for one in asked:
        assert words["more"]
        assert (one.settings["offset"], one.settings["mark"]) == (words["offset"], words["mark"])
        words, arrays = unpack(explorer.answer(*one))
        steps += arrays["step"].tolist()
    assert not words["more"]
    assert len(asked) > 5
    whole = [json.loads(line) for line in (started / "metrics.jsonl").read_text().splitlines()[:-1]]
    # Evaluations with their samples are longer than such a part, and are skipped too.
    assert steps == [event["step"] for event in whole if event["kind"] == "step"]


def test_running_run_is_recognized_by_its_lock(started: Path, tmp_path: Path) -> None:
    assert not is_training(started)
    lock = acquire_lock(started)
    assert is_training(started)
    assert since(Explorer([started]))[0]["running"]
    release_lock(lock)
    assert not is_training(started)
    release_lock(acquire_lock(started))  # nothing keeps it from being trained on
    assert not is_training(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "lock")  # without waiting
    assert not is_training(tmp_path)


def test_view_fits_all_runs_and_nothing_else(started: Path, minilm: Path) -> None:
    explorer = Explorer([started, minilm])
    _, published = explorer.subjects
    assert view.fits(explorer.subject("begun"))
    assert not view.fits(explorer.subject(published))
    assert explorer.subject("begun").views == ("run",)
    for call in ("about", "metrics"):
        with pytest.raises(UserError, match="does not fit"):
            explorer.answer("run", call, {"model": published})


def test_no_path_is_sent_to_the_page(started: Path) -> None:
    recipe = started / "recipe.yaml"
    places = ["/home/alice/data", "~/things", "C:\\\\Users\\\\me", "../up/there", "secret/part"]
    text = recipe.read_text().replace("  source: en", f'  source: "{places[0]}"').replace(
        "  target: de", f'  target: ["{places[1]}", "{places[2]}", "{places[3]}"]\n  root: {places[4]}'
    )  # fmt: skip
    recipe.write_text(text)
    environment = json.loads((started / "env.json").read_text())
    (started / "env.json").write_text(json.dumps({**environment, "cache": "/var/tmp/alice/cache"}))
    words, _ = unpack(explorer_about := Explorer([started]).answer("run", "about", {"model": "begun"}))
    settings = dict(words["settings"])
    assert settings["data.source"] == "data"
    assert settings["data.root"] == "part"
    assert json.loads(settings["data.target"]) == ["things", "me", "there"]
    assert dict(words["environment"])["torch"] == environment["torch"]
    for secret in (b"alice", b"Users", b"secret", str(started.parent).encode(), socket.gethostname().encode()):
        assert secret not in explorer_about
    assert words["sample"] == ["given", "right", "made"]  # of a recipe that is not valid any more


def test_recipe_is_described_in_the_terms_of_its_task(run: Callable[[str], Path]) -> None:
    folder = run("images")
    words, _ = unpack(Explorer([folder]).answer("run", "about", {"model": "images"}))
    assert words["recipe"] == (folder / "recipe.yaml").read_text()
    assert words["counted"] == "images"
    assert dict(words["settings"])["train.budget.epochs"] == "10"


def test_page_follows_a_run_that_trains(
    browse: Callable[..., Any], started: Path, locked: int, run: Callable[[str], Path]
) -> None:
    browsing = browse(started)
    page = browsing.go("run")
    steps = lines(started, "step")
    figure = page.get_by_test_id("run")
    assert "training" in page.get_by_test_id("state").inner_text()
    assert int(figure.get_attribute("data-steps")) == len(steps)
    value = page.get_by_test_id("loss-train")
    assert float(value.get_attribute("data-value")) == np.float32(steps[-1]["loss"])
    with (started / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**steps[-1], "step": 150, "loss": 0.125}) + "\n")
    page.locator(f'[data-testid="run"][data-steps="{len(steps) + 1}"]').wait_for()
    assert value.inner_text() == "0.125"
    trim_jsonl(started / "metrics.jsonl", 60)  # as a run does that is resumed
    early = [event for event in steps if event["step"] <= 60]
    page.locator(f'[data-testid="run"][data-steps="{len(early)}"]').wait_for()
    release_lock(locked)
    page.get_by_text("stopped, step 60").wait_for()
    page.wait_for_timeout(200)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(1300)
    assert asked == []  # no more requests
    assert page.locator("nav a[data-testid^=view-]").count() == 1
    shutil.copytree(
        run("translation") / "model", started / "model"
    )  # once there is a model, there is more to see of it
    page.get_by_test_id("again").click()
    page.get_by_test_id("view-heads").wait_for()
    assert page.locator("h2").inner_text() == "Run"


def test_page_compares_two_runs(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"), run("recurrent"))
    page = browsing.go("run", model="translation")
    page.get_by_test_id("beside").select_option("recurrent")
    browsing.ready()
    assert "beside=recurrent" in page.url
    both = {name: lines(run(name), "step") for name in ("translation", "recurrent")}
    page.get_by_test_id("loss-recurrent-train").wait_for()
    # The arrow keys go through the steps: all curves tell what they were there.
    page.locator('[data-testid="loss"] svg[role="img"]').focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    step = both["translation"][-3]["step"]
    assert page.get_by_test_id("at").inner_text() == f"at step {step}"
    for name, events in both.items():
        shown = page.get_by_test_id(f"loss-{name}-train")
        assert shown.get_attribute("data-step") == str(step)
        (expected,) = [event["loss"] for event in events if event["step"] == step]
        assert float(shown.get_attribute("data-value")) == np.float32(expected)
    different = page.get_by_test_id("differences").inner_text()
    assert "model.kind" in different
    assert "seq2seq" in different
    assert "data.kind" not in different
    # Samples of an earlier evaluation.
    evaluations = [event for event in lines(run("translation"), "evaluated") if event["split"] == "valid"]
    page.get_by_test_id("evaluation").fill("0")
    assert (
        page.get_by_test_id("made-0").inner_text().removeprefix("✓").strip() == evaluations[0]["samples"][0][2].strip()
    )
    assert page.get_by_test_id("score-chrf").inner_text() == f"{evaluations[0]['scores']['chrf']['value']:.2f}"
    assert page.get_by_test_id("score-bleu").count() == 0  # numbers are one word in German
    assert "kind: number_words" in page.get_by_test_id("recipe").inner_text()
    # A running mean that forgets, computed here again.
    page.get_by_test_id("smooth").fill("50")
    mean, share = 0.0, 0.0
    for event in both["translation"]:
        mean, share = mean / 2 + event["loss"] / 2, share / 2 + 0.5
    page.locator("h2").click()
    page.mouse.move(5, 5)
    page.locator('[data-testid="loss"] svg[role="img"]').blur()
    page.get_by_text("The values are the latest").wait_for()
    shown = page.get_by_test_id("loss-translation-train").get_attribute("data-value")
    assert float(shown) == pytest.approx(mean / share, rel=1e-6)


def test_bleu_of_very_short_texts_is_not_shown() -> None:
    """Runs of older versions recorded it, whatever it was of."""
    scores = {"bleu": {"value": 0.0, "signature": ""}, "chrf": {"value": 9.0, "signature": ""}}
    event = {"step": 1, "split": "valid", "loss": 1.0, "scores": scores}
    words, lines = (["three", "drei", "vier"], ["it is late now", "es ist jetzt spät", "es ist spät"])
    assert [name for name, *_ in view.evaluation({**event, "samples": [words]})["scores"]] == ["chrf"]
    assert [name for name, *_ in view.evaluation({**event, "samples": [lines]})["scores"]] == ["bleu", "chrf"]
