"""Whole runs: interrupted or not, the result is the same; the folder is complete, and damaged files are named."""

from __future__ import annotations

import errno
import itertools
import json
import math
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.blocks.feedforward import FeedForward
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.models import build
from heedful.models.transformer.config import SIZES
from heedful.runs import train as experiment
from heedful.runs.evaluate import Evaluated, results, scored
from heedful.runs.finish import curve
from heedful.runs.load import few_threads, load
from heedful.runs.recipe import Recipe, load_recipe
from heedful.runs.report import plot_loss
from heedful.runs.train import Event, Finished, Stage, Started, train
from heedful.training.checkpoint.folder import newest
from heedful.training.checkpoint.weights import average
from heedful.training.loop import Epoch, Saved, Step
from heedful.training.metrics import Score
from heedful.training.optim import Cosine

TINY = [
    "data.train=150", "data.valid=12", "data.test=20", "tokenizer.vocab=90", "model.width=16", "model.heads=2",
    "model.hidden=32", "model.context=48", "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0.1",
    "train.batch_tokens=1024", "train.accumulate=2", "train.budget.steps=40", "train.log_every=1",
    "train.evaluate_every=10", "train.save_every=10", "train.samples=3", "train.keep=3", "train.average=2",
    "train.use=average", "train.schedule.warmup=5", "train.optimizer.lr=2e-2",
]  # fmt: skip


def recipe(*changes: str) -> Recipe:
    return load_recipe("numbers", [*TINY, *changes])


def started(events: list[Event]) -> Started:
    return next(event for event in events if isinstance(event, Started))


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def until(step: int, run: Path, *changes: str) -> list[Event]:
    """The events of a run that stops after a step."""
    at = [0]
    events: list[Event] = []
    for event in train(recipe(*changes), run, lambda: at[0] >= step):
        events.append(event)
        if isinstance(event, Started | Step):
            at[0] = event.step
    return events


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def outcome(run: Path) -> dict[str, Any]:
    """Everything that must not depend on interruptions."""
    names = ("checkpoints/step-00000040/model", "checkpoints/step-00000040/optimizer", "model/model")
    found: dict[str, Any] = {name: (run / f"{name}.safetensors").read_bytes() for name in names}
    return found | {"results": json.loads((run / "results.json").read_text()), "metrics": metrics(run)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """An uninterrupted run, and its events."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, list(train(recipe(), run))


@pytest.fixture(autouse=True)
def _one_curve(whole: tuple[Path, list[Event]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the uninterrupted run has its losses drawn, which takes longer than its steps."""
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)


@pytest.fixture
def copied(whole: tuple[Path, list[Event]], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(whole[0], tmp_path / "copy")
    return tmp_path / "copy"


# ------------------------------------------------------------------ the same run, however often it was interrupted
KILLER = """
import os, signal, sys
from pathlib import Path

import torch

from heedful.runs.train import Step, train
from heedful.runs.recipe import load_recipe
from heedful.files import writing as files

import torch._dynamo  # which an optimizer would import in each child

torch.set_num_threads(1)
place, *words = sys.argv[1:]
points, overrides = words[: words.index("--")], words[words.index("--") + 1 :]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(work, after):
    left = [after]
    def call(*given):
        left[0] -= 1
        if left[0] < 0:
            die()
        return work(*given)
    return call

for point in points:
    child = os.fork()
    if child == 0:
        name, count = point.split("-")
        if name != "step":
            setattr(files, name, dying(getattr(files, name), int(count)))
        for event in train(load_recipe("numbers", overrides), Path(place) / point):
            if name == "step" and isinstance(event, Step) and event.step == int(count):
                die()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, point
"""


@pytest.mark.parametrize(
    "points",
    [
        ["step-13", "write-26", "rename-5"],
        pytest.param(["step-1", "step-30", "step-38", "sync-17", "sync-36", "unlink-0"], marks=pytest.mark.slow),
    ],
    ids=["some", "more"],
)
def test_run_killed_at_any_moment_resumes_to_the_same_result(
    whole: tuple[Path, list[Event]], tmp_path: Path, points: list[str]
) -> None:
    subprocess.run([sys.executable, "-c", KILLER, str(tmp_path), *points, "--", *TINY], check=True, timeout=300)
    expected = outcome(whole[0])
    for point in points:
        run = tmp_path / point
        name, count = point.split("-")
        events = list(train(recipe(), run))
        if name == "step":
            assert started(events).step == (int(count) - 1) // 10 * 10, point  # none loses more than a save interval
        assert outcome(run) == expected, point
        assert not [path for path in run.rglob("*") if ".tmp-" in path.name], point


def test_run_stopped_five_times_resumes_to_the_same_result(whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = 0
    for step in (3, 4, 17, 20, 33):
        events = until(step, run)
        assert started(events).step == before
        assert finished(events) == Finished(step, True, str(run))
        assert not (run / "model").exists()
        before = step
    assert not finished(until(99, run)).stopped
    # Only regular saves are averaged, so that a stop between two of them does not change the model.
    assert outcome(run) == outcome(whole[0])


def test_metrics_have_each_step_once(whole: tuple[Path, list[Event]]) -> None:
    lines = metrics(whole[0])
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 41))
    assert [(line["step"], line["split"]) for line in lines if line["kind"] == "evaluated"] == [
        (10, "valid"), (20, "valid"), (30, "valid"), (40, "valid"), (40, "test"),
    ]  # fmt: skip
    assert {line["epoch"] for line in lines if line["kind"] == "step"} > {0, 1}


def test_training_twice_is_bit_identical(whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    events = list(train(recipe(), tmp_path / "run"))
    assert outcome(tmp_path / "run") == outcome(whole[0])
    kinds = [type(event).__name__ for event in events]
    assert kinds == [type(event).__name__ for event in whole[1]]
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (whole[0] / "tokenizer.json").read_bytes()


def test_complete_run_is_not_trained_again(copied: Path) -> None:
    before = outcome(copied)
    events = list(train(recipe(), copied))
    assert not any(isinstance(event, Step | Saved) for event in events)
    assert [event.split for event in events if isinstance(event, Evaluated)] == ["test"]
    assert not any(isinstance(event, Stage) and "test" in event.name for event in events)
    assert finished(events) == Finished(40, False, str(copied))
    assert outcome(copied) == before


# ------------------------------------------------------------------ events and files of a run
def test_events_are_in_order(whole: tuple[Path, list[Event]]) -> None:
    kinds = [
        f"{type(event).__name__} {event.name if isinstance(event, Stage) else event.step}"
        for event in whole[1]
        if not isinstance(event, Step | Epoch)
    ]
    assert kinds == [
        "Stage reading the data", "Stage training the tokenizer", "Stage tokenizing the text", "Started 0",
        "Evaluated 10", "Saved 10", "Evaluated 20", "Saved 20", "Evaluated 30", "Saved 30", "Evaluated 40", "Saved 40",
        "Stage translating the test set", "Evaluated 40", "Stage drawing pictures", "Finished 40",
    ]  # fmt: skip


def test_started_event_has_the_counts(whole: tuple[Path, list[Event]]) -> None:
    begin = started(whole[1])
    settings = recipe()
    model = build(settings.model.model_copy(update={"vocab": begin.vocab}))
    assert begin.parameters == sum(weight.numel() for weight in model.parameters())
    assert begin.examples + begin.dropped == len(settings.data.pairs("train"))
    assert (begin.skipped, begin.device, begin.threads, begin.notes) == (0, "cpu", 1, ())
    setting = json.loads((whole[0] / "env.json").read_text())
    assert setting["torch"] == torch.__version__.split("+")[0] or setting["torch"] == torch.__version__
    assert setting["threads"] == 1


def test_learning_rates_follow_the_schedule(whole: tuple[Path, list[Event]]) -> None:
    schedule = Cosine(warmup=5)
    rates = [event.rate for event in whole[1] if isinstance(event, Step)]
    assert rates == [2e-2 * schedule.factor(step, (step - 1) / 40) for step in range(1, 41)]


def test_evaluations_carry_signatures_and_samples(whole: tuple[Path, list[Event]]) -> None:
    pairs = {(pair.source, pair.target) for pair in recipe().data.pairs("valid")}
    for event in whole[1]:
        if not isinstance(event, Evaluated):
            continue
        named = {score.name: score for score in event.scores}
        assert list(named) == ["chrf", "exact_match"]  # no BLEU of references that are one word
        assert named["chrf"].signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
        assert all(0 <= score.value <= 100 for score in event.scores)
        assert math.isfinite(event.loss) and event.unread == 0
        assert len(event.samples) == 3
        if event.split == "valid":
            assert {(source, reference) for source, reference, _ in event.samples} <= pairs
    losses = [event.loss for event in whole[1] if isinstance(event, Evaluated)]
    assert losses[3] < losses[0]


def test_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([5.0, 50.0, 7.0, 8.0, 50.0, 9.0, 1.0])
    monkeypatch.setattr("heedful.training.metrics.chrf", lambda *_: Score("chrf", next(scores), ""))
    run = tmp_path / "run"
    list(train(recipe("train.budget.steps=12", "train.evaluate_every=2", "train.save_every=2", "train.keep=2"), run))
    assert [point.step for point in newest(run, 9)[0]] == [12, 10, 4]
    state = newest(run, 1)[0][0].state
    assert state["best"] == [[4, 50.0]]


def test_best_is_a_checkpoint_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([99.0, 5.0, 98.0, 4.0, 3.0, 2.0])
    monkeypatch.setattr("heedful.training.metrics.chrf", lambda *_: Score("chrf", next(scores), ""))
    run = tmp_path / "run"
    list(train(recipe("train.budget.steps=10", "train.evaluate_every=2", "train.save_every=4"), run))
    assert newest(run, 1)[0][0].state["best"][0][0] == 4  # 2 and 6 were better, and are on no disk


def test_final_model_is_the_mean_of_the_last_checkpoints(whole: tuple[Path, list[Event]]) -> None:
    run, _ = whole
    points = newest(run, 9)[0]
    assert [point.step for point in points][:3] == [40, 30, 20]
    last, former = points[0].load("model"), points[1].load("model")
    weights = load(run).model.state_dict()
    for name, value in weights.items():
        assert torch.equal(value, ((last[name].double() + former[name].double()) / 2).float())
    assert any(not torch.equal(value, last[name]) for name, value in weights.items())
    assert all(torch.equal(average([last])[name], last[name]) for name in last)


def test_folder_is_complete(whole: tuple[Path, list[Event]]) -> None:
    run, events = whole
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints", "env.json", "lock", "loss.png", "metrics.jsonl", "model", "recipe.yaml", "report.html",
        "results.json", "tokenizer.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (run / "model").iterdir()) == [
        "config.json", "manifest.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert results(run) == [event for event in events if isinstance(event, Evaluated)][-1]
    about = newest(run, 1)[0][0].manifest.about
    assert {"seed", "threads", "tokenizer", "data", "packed", "torch"} <= about.keys()


def test_crash_at_the_end_repeats_no_events(copied: Path) -> None:
    wanted = metrics(copied)
    (copied / "results.json").unlink()  # as if it died just before writing it; the model is scored again
    list(train(recipe(), copied))
    assert metrics(copied) == wanted
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:-1]))  # as if it died just after
    list(train(recipe(), copied))
    assert metrics(copied) == wanted


def test_invalid_metrics_lines_are_ignored(copied: Path) -> None:
    with (copied / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3}\n{"step": 3, "kind": "step", "loss": "low"}\n{"step": 3, "kind": "step"}\n')
    list(train(recipe(), copied))
    assert curve(copied, "nats a token") == copied / "loss.png"


def test_leftover_checkpoint_of_a_crash_is_deleted_on_resume(copied: Path) -> None:
    before = [point.step for point in newest(copied, 99)[0]]
    shutil.copytree(copied / "checkpoints" / "step-00000040", copied / "checkpoints" / "step-00000005")
    list(train(recipe(), copied))
    assert [point.step for point in newest(copied, 99)[0]] == before


def test_curve_shows_training_and_validation_only(copied: Path) -> None:
    figure = plot_loss(copied, "nats a token")
    assert figure is not None
    train_line, valid_line = figure.axes[0].lines
    assert list(train_line.get_xdata()) == list(range(1, 41))
    assert list(valid_line.get_xdata()) == [10, 20, 30, 40]  # the loss on the test set is not one of them
    assert figure.axes[0].get_ylabel() == "nats a token"
    assert curve(copied, "nats a token") == copied / "loss.png"
    (copied / "metrics.jsonl").write_text("")
    assert curve(copied, "nats a token") is None
    (copied / "metrics.jsonl").unlink()
    assert curve(copied, "nats a token") is None


def test_token_and_minutes_budgets_end_a_run(tmp_path: Path) -> None:
    events = list(train(recipe("train.budget.steps=null", "train.budget.tokens=3000"), tmp_path / "tokens"))
    steps = [event for event in events if isinstance(event, Step)]
    assert steps[-2].tokens < 3000 <= steps[-1].tokens
    assert finished(events).stopped is False
    events = list(train(recipe("train.budget.steps=null", "train.budget.minutes=0.002"), tmp_path / "minutes"))
    assert finished(events).stopped is False
    assert load(tmp_path / "minutes").translate(["one"])


def test_long_sources_are_counted_and_score_zero(tmp_path: Path) -> None:
    events = list(train(recipe("model.context=16", "train.budget.steps=2"), tmp_path / "run"))
    assert started(events).dropped > 0
    test = [event for event in events if isinstance(event, Evaluated)][-1]
    assert 0 < test.unread < 20


# ------------------------------------------------------------------ what is refused
def test_changed_recipe_is_rejected(copied: Path) -> None:
    with pytest.raises(UserError, match="another recipe") as error:
        list(train(recipe("train.seed=1"), copied))
    assert "train.seed: 0 in the folder, 1 now" in str(error.value)
    with pytest.raises(UserError, match="another recipe"):
        list(train(recipe("train.batching=packed"), copied))


@pytest.mark.parametrize(("before", "now"), [("padded", "packed"), ("packed", "padded")])
def test_order_of_samples_cannot_change_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, now: str
) -> None:
    run = tmp_path / "run"
    until(3, run, f"train.batching={before}")
    stored = (run / "recipe.yaml").read_text()
    monkeypatch.setattr(experiment, "render", lambda _: stored)  # as if the recipe said auto
    with pytest.raises(UserError, match="same order of samples") as error:
        list(train(recipe(f"train.batching={now}"), run))
    assert error.value.where == "train.batching"
    assert error.value.found == f"{now} batches on this device, {before} ones when the run started"
    assert [point.step for point in newest(run, 9)[0]] == [3]


def test_packed_batches_train_and_resume_on_cpu(tmp_path: Path) -> None:
    short = ("train.batching=packed", "train.budget.steps=6", "train.save_every=3", "train.evaluate_every=6")
    list(train(recipe(*short), tmp_path / "whole"))
    until(2, tmp_path / "broken", *short)
    list(train(recipe(*short), tmp_path / "broken"))
    name = "checkpoints/step-00000006/model.safetensors"
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_model_has_the_same_losses(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `inductor`, which users have, the C++ compiler takes most of a minute when its cache is empty."""
    if backend == "inductor" and shutil.which("c++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    short = ("train.batching=packed", "train.budget.steps=3", "model.dropout=0")
    losses = {
        compiled: [
            event.loss
            for event in train(recipe(*short, f"train.compile={compiled}"), tmp_path / compiled)
            if isinstance(event, Step)
        ]
        for compiled in ("false", "true")
    }
    assert losses["true"] == pytest.approx(losses["false"], rel=1e-4)
    assert load(tmp_path / "true").translate(["one"]) == load(tmp_path / "false").translate(["one"])


def test_recompute_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden layers are computed again if the recipe says so, with the same losses, bit for bit."""
    asked: list[bool] = []

    def compute(self: FeedForward, x: torch.Tensor) -> torch.Tensor:
        asked.append(self.recompute)
        return self.down(self.activation(self.up(x)))

    monkeypatch.setattr(FeedForward, "compute", compute)
    losses = []
    for again in (False, True):
        asked.clear()
        run = until(2, tmp_path / str(again), f"train.recompute={str(again).lower()}", "train.budget.steps=2")
        losses.append([event.loss for event in run if isinstance(event, Step)])
        assert set(asked) == {again}
    assert losses[0] == losses[1]


def test_batch_size_below_one_pair_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too small for one pair"):
        list(train(recipe("train.batching=packed", "train.batch_tokens=20"), tmp_path / "run"))


def test_changed_data_or_tokenizer_is_rejected(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text("one\ntwo\nthree\nfour\n" * 9)
        (tmp_path / f"{split}.de").write_text("eins\nzwei\ndrei\nvier\n" * 9)
    words = [word for word in TINY if not word.startswith(("data.", "tokenizer."))]
    sides = "".join(f"{split}: {{source: {split}.en, target: {split}.de}}, " for split in ("train", "valid", "test"))
    data = f"data={{kind: parallel, root: {tmp_path}, {sides}}}"
    files_of = load_recipe("multi30k", [*words, data, "tokenizer={kind: wordpiece, vocab: 40}"])
    run = tmp_path / "run"
    steps = itertools.count()
    list(train(files_of, run, lambda: next(steps) >= 3))
    good = newest(run, 1)[0][0].path.name

    text = (tmp_path / "train.en").read_text()
    (tmp_path / "train.en").write_text(text.replace("one", "four", 1))
    with pytest.raises(UserError, match="not what the run started with") as error:
        list(train(files_of, run))
    assert error.value.where == "the training data"
    (tmp_path / "train.en").write_text(text)

    (run / "tokenizer.json").write_text(TrainedTokenizer.train(WordPiece(vocab=32), ["eins two"]).json)
    with pytest.raises(UserError, match="not what the run started with") as error:
        list(train(files_of, run))
    assert error.value.where == str(run / "tokenizer.json")
    assert good in str(error.value.expected)
    (run / "tokenizer.json").unlink()  # trained again from the same text it is the same
    assert not finished(list(train(files_of, run))).stopped


def test_changed_number_of_threads_is_noted(tmp_path: Path) -> None:
    until(2, tmp_path / "run")
    manifest = newest(tmp_path / "run", 1)[0][0].manifest
    assert manifest.about["threads"] == 1
    assert started(until(3, tmp_path / "run")).notes == (
        "versions, machine, threads and processes are as before: the run resumes bit for bit",
    )
    try:
        notes = started(until(4, tmp_path / "run", "train.threads=2")).notes
    finally:
        torch.set_num_threads(1)
    assert notes == ("threads was 1 and is 2 now: results may differ in the last bits",)


def test_damaged_checkpoint_is_skipped_and_noted(copied: Path) -> None:
    shutil.rmtree(copied / "model")
    (copied / "results.json").unlink()
    (copied / "checkpoints" / "step-00000040" / "model.safetensors").write_bytes(b"")
    before = outcome_of_step(copied, 30)
    (note,) = load(copied).notes
    assert "step-00000040" in note
    events = list(train(recipe(), copied))
    assert started(events).step == 30
    assert "skipped a damaged checkpoint" in started(events).notes[0]
    assert "step-00000040" in started(events).notes[0]
    assert outcome_of_step(copied, 30) == before
    assert (copied / "model").is_dir()


def outcome_of_step(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes()


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


AVERAGING = (
    "train.average=3",
    "train.keep=4",
    "train.save_every=2",
    "train.budget.steps=12",
    "train.evaluate_every=12",
)


@pytest.fixture(scope="module")
def averaging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run whose model is the mean of three checkpoints, of which it keeps four."""
    run = tmp_path_factory.mktemp("averaging") / "run"
    list(train(recipe(*AVERAGING), run))
    return run


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: flip(folder / "model.safetensors"),
        lambda folder: (folder / "model.safetensors").unlink(),
        shutil.rmtree,
    ],
    ids=["flipped bit", "file deleted", "folder deleted"],
)
def test_missing_checkpoint_of_an_average_stops_the_run(
    averaging: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(averaging, run)
    shutil.rmtree(run / "model")
    (run / "results.json").unlink()
    harm(run / "checkpoints" / "step-00000010")
    with pytest.raises(UserError, match="mean of steps 8, 10, 12") as error:
        list(train(recipe(*AVERAGING), run))
    assert "step-00000010" in str(error.value.where)
    assert not (run / "model").exists()
    for step in (10, 12):  # its advice works: the steps are trained again, bit for bit
        assert "every later one, to train them again from step-00000008" in str(error.value.todo)
        shutil.rmtree(run / "checkpoints" / f"step-{step:08d}", ignore_errors=True)
    list(train(recipe(*AVERAGING), run))
    assert (run / "model/model.safetensors").read_bytes() == (averaging / "model/model.safetensors").read_bytes()


def test_incomplete_average_is_reported_before_training_resumes(averaging: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(averaging, run)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    flip(run / "checkpoints" / "step-00000008" / "model.safetensors")
    events: list[Event] = []
    with pytest.raises(UserError, match="mean of steps 8, 10, 12") as error:
        events.extend(train(recipe(*AVERAGING), run))
    assert error.value.where == str(run / "checkpoints" / "step-00000008" / "model.safetensors")
    assert not any(isinstance(event, Step) for event in events)


def test_damaged_checkpoint_outside_the_average_is_ignored(averaging: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(averaging, run)
    shutil.rmtree(run / "model")
    flip(run / "checkpoints" / "step-00000006" / "model.safetensors")
    list(train(recipe(*AVERAGING), run))
    assert (run / "model/model.safetensors").read_bytes() == (averaging / "model/model.safetensors").read_bytes()


def test_diverged_training_has_its_exit_code_and_no_bad_checkpoint(tmp_path: Path) -> None:
    wild = ("train.optimizer.lr=1e37", "train.clip=null", "train.schedule={kind: constant}", "train.save_every=1")
    for name, changes in (("seen", ("train.evaluate_every=1",)), ("unseen", ("train.evaluate_every=1000",))):
        with pytest.raises(UserError, match="not finite") as error:
            list(train(recipe(*wild, *changes), tmp_path / name))
        assert error.value.exit_code == 3
        for point in newest(tmp_path / name, 9)[0]:
            assert all(value.isfinite().all() for value in point.load("model").values())
    assert "validation set" in str(error.value) or "at step 2" in str(error.value)


# ------------------------------------------------------------------ a trained model from its folder
def test_loaded_model_reproduces_the_runs_scores(whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    run, _ = whole
    stored = results(run)
    assert stored is not None
    settings = recipe()
    again = scored(load(run), settings, "test", stored.step)
    assert again == stored
    shutil.copytree(run / "model", tmp_path / "alone")
    pairs = settings.data.pairs("test")
    found = load(tmp_path / "alone").translate([pair.source for pair in pairs])
    assert found == load(str(run)).translate([pair.source for pair in pairs])
    assert {sample[2] for sample in stored.samples} <= set(found)


def test_run_without_a_model_is_loaded_from_the_newest_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(UserError, match="not a run"):
        load(run)
    until(0, run)
    with pytest.raises(UserError, match="no checkpoint yet"):
        load(run)
    until(12, run)
    weights = newest(run, 1)[0][0].load("model")
    assert all(torch.equal(value, weights[name]) for name, value in load(run).model.state_dict().items())


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = json.loads((folder / "config.json").read_text())
        change(data)
        (folder / "config.json").write_text(json.dumps(data))

    return apply


def cut(name: str, keep: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:keep])

    return apply


def put(name: str, text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(text)

    return apply


def lie(folder: Path) -> None:
    """The same bytes with another dtype in the header."""
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size].replace(b'"F32"', b'"I32"')
    (folder / "model.safetensors").write_bytes(data[:8] + header + data[8 + size :])


GARBAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json", "cannot be read"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors", "cannot be read"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json", "this file is missing"),
    "bad JSON": (put("config.json", '{"task": "translation", '), "config.json", "not JSON"),
    "deep JSON": (put("config.json", '{"a":' * 100_000), "config.json", "nested more than"),
    "a list": (put("config.json", "[1, 2]"), "config.json", "has no settings"),
    "empty config": (put("config.json", "{}"), "config.json", "has no settings"),
    "other task": (edit(lambda data: data.update(task="telepathy")), "config.json", "invalid value for task"),
    "other model": (edit(lambda data: data["model"].update(kind="bert")), "config.json", "invalid value for kind"),
    "unknown key": (edit(lambda data: data["model"].update(widht=16)), "config.json", "did you mean width"),
    "model is text": (edit(lambda data: data.update(model="big")), "config.json", "invalid value for model"),
    "no decode": (edit(lambda data: data.pop("decode")), "config.json", "invalid value for decode"),
    "no vocabulary": (edit(lambda data: data["model"].update(vocab=None)), "config.json", "do not belong together"),
    "small vocabulary": (edit(lambda data: data["model"].update(vocab=50)), "config.json", "do not belong together"),
    "wider": (edit(lambda data: data["model"].update(width=32)), "model.safetensors", "do not fit the model"),
    "a giant": (
        edit(lambda data: data["model"].update(width=16384, hidden=65536, encoder_layers=30)),
        "model.safetensors", "do not fit the model",
    ),
    "a monster": (edit(lambda data: data["model"].update(encoder_layers=10**6)), "config.json", "encoder_layers"),
    "more layers": (edit(lambda data: data["model"].update(decoder_layers=2)), "model.safetensors", "not in the file"),
    "cut weights": (cut("model.safetensors", 500), "model.safetensors", "not a valid safetensors file"),
    "empty weights": (cut("model.safetensors", 0), "model.safetensors", "not a valid safetensors file"),
    "whole numbers": (lie, "model.safetensors", "int32"),
    "a pickle": (put("model.safetensors", "\x80\x02}q"), "model.safetensors", "not a valid safetensors file"),
    "bad tokenizer": (put("tokenizer.json", "{}"), "tokenizer.json", ""),
}  # fmt: skip


@pytest.mark.parametrize("sealed", [False, True], ids=["bare", "sealed"])
@pytest.mark.parametrize("name", GARBAGE)
def test_damaged_file_is_named(copied: Path, name: str, sealed: bool) -> None:
    spoil, file, words = GARBAGE[name]
    folder = copied / "model"
    if not sealed:
        (folder / "manifest.json").unlink()
    spoil(folder)
    with pytest.raises(UserError) as error:
        load(copied)
    message = str(error.value)
    assert error.value.exit_code == 2
    if sealed:
        assert str(folder) in message
    else:
        assert str(folder / file) in message and words in message


def test_checkpoint_with_weights_of_another_model_is_rejected(copied: Path) -> None:
    shutil.rmtree(copied / "model")
    text = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(text.replace("width: 16", "width: 32"))
    with pytest.raises(UserError, match="not the recipe that step-00000040 was made with") as error:
        load(copied)
    assert "model.width: 16 in step-00000040, 32 now" in str(error.value.found)


def test_unreadable_results_are_named_and_recomputed_by_training(copied: Path) -> None:
    wanted = results(copied)
    (copied / "results.json").write_text('{"step": 3}')
    with pytest.raises(UserError, match="test scores cannot be read") as error:
        results(copied)
    assert error.value.where == str(copied / "results.json")
    list(train(recipe(), copied))
    assert results(copied) == wanted
    (copied / "results.json").unlink()
    assert results(copied) is None
    assert not finished(list(train(recipe(), copied))).stopped
    assert results(copied) is not None


def test_unknown_device_is_rejected(whole: tuple[Path, list[Event]]) -> None:
    wrong = ["nonsense", "meta", *([] if torch.cuda.is_available() else ["cuda"])]
    for name in wrong:
        with pytest.raises(UserError, match="no such device"):
            load(whole[0], name)
    assert load(whole[0], "cpu").device == torch.device("cpu")


def test_full_disk_at_the_end_keeps_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    short = recipe("train.budget.steps=4", "train.save_every=2")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    events = train(short, run)
    assert next(event for event in events if isinstance(event, Saved) and event.step == 4)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        with pytest.raises(UserError, match="cannot write the model") as error:
            next(events)
    assert error.value.exit_code == files.EXIT_DISK
    again = list(train(short, run))
    assert started(again).step == 4
    assert not finished(again).stopped
    assert load(run).translate(["one"])


def test_model_larger_than_memory_is_rejected_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.runs.prepare.task_of", lambda _: pytest.fail("nothing is read or built"))
    with pytest.raises(UserError, match="too large to train here") as error:
        list(train(recipe("model.width=8192", "model.hidden=32768", "model.encoder_layers=200"), tmp_path / "run"))
    assert "parameters" in str(error.value.found)
    assert not (tmp_path / "run").exists()


def test_tiny_models_use_one_thread() -> None:
    tiny = build(SIZES["transformer-tiny"].model_copy(update={"vocab": 100}))
    assert few_threads(tiny, torch.device("cpu")) == 1
    large = torch.nn.Linear(2000, 2000)
    assert few_threads(large, torch.device("cpu")) >= 1
