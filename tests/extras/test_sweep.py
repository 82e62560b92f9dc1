"""Sweeps: planned, trained in parallel, stopped, resumed, and with a failed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heedful.cli.scaling import scaling_command
from heedful.errors import UserError
from heedful.extras.parallel import Ended, Started, log_of, sweep_folder
from heedful.extras.scaling.sweep import (
    Cell,
    Size,
    Sweep,
    completed_runs,
    heads_for,
    parallel_runs,
    plan,
    read_runs,
    read_sizes,
    read_tokens,
    short,
)
from heedful.models import build
from heedful.models.heads.config import with_vocab
from heedful.runs.train import train
from patience import until

RECIPE = """
task: {kind: language_model}
data: {kind: text, train: text.txt, valid: valid.txt}
tokenizer: {kind: characters, vocab: 120}
model: {kind: rnn_lm, cell: gru, width: 32, hidden: 64, layers: 1, context: 16, dropout: 0.0}
train:
  budget: {steps: 10}
  batch_tokens: 256
  optimizer: {kind: adamw, lr: 1e-2}
  schedule: {kind: cosine, warmup: 20}
  samples: 0
  threads: 1
  log_every: 5
  save_every: 20
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    numbers = [f"{n} times {n} is {n * n}, and {n} more is {n * n + n}" for n in range(1200)]
    (tmp_path / "text.txt").write_text("\n".join(numbers[:1000]))
    (tmp_path / "valid.txt").write_text("\n".join(numbers[1000:]))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return "tiny.yaml"


def cells_of(recipe: str, sizes: str = "1x8,1x16", tokens: str = "5120", *overrides: str) -> list[Cell]:
    return plan(recipe, overrides, read_sizes(sizes), read_tokens(tokens), [], Path("sweep"))


# ------------------------------------------------------------------ planning
def test_lists_of_sizes_budgets_and_runs_are_parsed() -> None:
    assert read_sizes("2x64, 3X96") == [Size(2, 64), Size(3, 96)]
    assert read_tokens("1e6,2.5e6,1234567") == [1_000_000, 2_500_000, 1_234_567]
    assert read_runs("6x192:8e6") == [(Size(6, 192), 8_000_000)]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_sizes, "64", "invalid size"),
        (read_sizes, "2x0", "invalid size"),
        (read_sizes, " , ", "this list is empty"),
        (read_sizes, "2x64,2x64", "twice"),
        (read_tokens, "many", "invalid number of tokens"),
        (read_tokens, "0.5", "invalid number of tokens"),
        (read_tokens, "nan", "invalid number of tokens"),
        (read_tokens, "1e6,1000000", "twice"),
        (read_runs, "6x192", "invalid run to predict"),
        (read_runs, "6x192:-1", "invalid number of tokens"),
    ],
)
def test_invalid_lists_are_rejected(read: Any, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read(text)
    assert error.value.where is not None and error.value.where.startswith("--")


@pytest.mark.parametrize(("count", "name"), [(10, "10"), (10**6, "1e6"), (2_500_000, "2.5e6"), (1_234_567, "1234567")])
def test_budget_has_one_short_name(count: int, name: str) -> None:
    assert short(count) == name and int(float(name)) == count


@pytest.mark.parametrize("width", [8, 16, 48, 64, 96, 100, 128, 192, 256, 320, 384, 512, 768])
def test_heads_divide_the_width_and_are_16_to_64_wide(width: int) -> None:
    each = width / heads_for(width)
    assert each == width or 16 <= each <= 64
    assert width % heads_for(width) == 0


def test_width_that_cannot_be_split_into_heads_is_rejected() -> None:
    with pytest.raises(UserError, match="cannot be split") as error:
        heads_for(67)
    assert error.value.todo == "use width 80"


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("tiny.yaml", []), ("tiny.yaml", ["model={kind: gpt, width: 64, heads: 4, layers: 2, context: 16}"])],
)
def test_parameters_are_counted_without_embeddings(recipe: str, name: str, overrides: list[str]) -> None:
    (cell,) = plan(name, overrides, [Size(2, 32)], [10**4], [], Path("sweep"))
    model = build(with_vocab(cell.recipe.model, 50))
    sizes = {key: weight.numel() for key, weight in model.named_parameters()}
    embeddings = [key for key in sizes if key.startswith(("tokens.", "positions."))]
    assert "tokens.weight" in embeddings
    assert cell.parameters == sum(sizes.values()) - sum(sizes[key] for key in embeddings)


def test_run_has_the_recipe_with_its_own_size_and_budget(recipe: str) -> None:
    small, large = cells_of(recipe, "1x8", "5120,512000", "train.seed=3")
    assert (small.recipe.model.width, small.recipe.model.hidden) == (8, 16)
    assert (small.recipe.train.budget.tokens, small.recipe.train.budget.steps) == (5120, None)
    assert small.recipe.train.seed == large.recipe.train.seed == 3
    assert (small.name, large.name) == ("1x8-5120", "1x8-512000")
    assert (small.steps, large.steps) == (20, 2000)
    warmups = [cell.recipe.train.schedule.warmup for cell in (small, large)]
    assert warmups == [2, 20]  # a tenth of a short run, and the recipe's own where there is room


@pytest.mark.parametrize("schedule", ["{kind: constant}", "{kind: noam, warmup: 10}"])
def test_schedule_that_does_not_decay_is_rejected(recipe: str, schedule: str) -> None:
    with pytest.raises(UserError, match="must decay to the end of its own budget"):
        cells_of(recipe, "1x8", "5120", f"train.schedule={schedule}")


def test_only_language_models_are_swept() -> None:
    with pytest.raises(UserError, match="need a language model"):
        plan("numbers", [], [Size(1, 8)], [1000], [], Path("sweep"))


def test_folder_is_locked_by_one_sweep(tmp_path: Path) -> None:
    with sweep_folder(tmp_path / "sweep"):
        with pytest.raises(UserError, match="another process is training") as error, sweep_folder(tmp_path / "sweep"):
            pass
        assert error.value.todo is not None and "-o" in error.value.todo
    with sweep_folder(tmp_path / "sweep"):
        pass


def test_fitted_run_cannot_be_predicted(recipe: str) -> None:
    with pytest.raises(UserError, match="cannot be one of those that are fitted"):
        plan(recipe, [], [Size(1, 8)], [5120], [(Size(1, 8), 5120)], Path("sweep"))


def test_parallel_runs_fit_cores_and_memory(recipe: str) -> None:
    cells = cells_of(recipe, "1x8,1x16,1x24")
    assert parallel_runs(cells, 2, None) == 2
    assert parallel_runs(cells, 8, None) == 3
    assert parallel_runs(cells, 8, 2 * cells[-1].memory) == 1
    assert parallel_runs(cells, 8, 1) == 1


# ------------------------------------------------------------------ outcomes
def recorded(cell: Cell, loss: float, before: float = 4.0, progress: float = 1.0) -> None:
    (cell.folder / "model").mkdir(parents=True)
    (cell.folder / "model" / "model.safetensors").touch()
    step = {"kind": "step", "step": 1, "epoch": 0, "loss": before, "tokens": 10, "progress": 0.1}
    last = {**step, "step": 9, "tokens": 5120, "progress": progress}
    valid = {"kind": "evaluated", "split": "valid", "step": 9, "loss": loss}
    text = "\n".join(json.dumps(event) for event in (step, last, valid))
    (cell.folder / "metrics.jsonl").write_text(text + '\n{"kind": "st')  # a line that is still being written


def test_diverged_and_incomplete_runs_are_excluded(recipe: str) -> None:
    good, nan, worse, half, absent = cells_of(recipe, "1x8,1x16,1x24,1x32,1x40")
    recorded(good, 2.5)
    recorded(nan, float("nan"))
    recorded(worse, 4.5)
    recorded(half, 2.5, progress=0.5)
    runs, left_out = completed_runs([good, nan, worse, half, absent])
    assert list(runs) == [good.name] and runs[good.name].loss == 2.5 and runs[good.name].tokens == 5120
    assert left_out[nan.name].startswith("diverged: loss nan")
    assert left_out[worse.name].startswith("diverged: loss 4.5")
    assert left_out[half.name] == left_out[absent.name] == "not complete"


# ------------------------------------------------------------------ processes
class Idle(Sweep):
    """A sweep whose runs only wait for a signal."""

    def _command(self, cell: Cell) -> list[str]:
        script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); print('up'); time.sleep(600)"
        return [sys.executable, "-u", "-c", script]


def test_stopping_a_sweep_stops_its_runs(recipe: str) -> None:
    cells = cells_of(recipe, "1x8,1x16,1x24")
    Path("sweep").mkdir()
    sweep = Idle(recipe, cells, jobs=2, threads=1, gpus=0)
    begun, ended = [], []
    for event in sweep.events():
        begun += [event.cell.name] * isinstance(event, Started)
        ended += [event] * isinstance(event, Ended)
        if len(begun) == 2 and not sweep.stopping:
            until(lambda: all(log_of(cell).read_text() for cell in cells[1:]))
            sweep.stop()
    assert begun == [cells[2].name, cells[1].name]  # the longest first
    assert [event.error for event in ended] == ["", ""]
    assert not sweep.running


def test_each_run_uses_one_gpu(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(recipe, cells_of(recipe), jobs=4, threads=1, gpus=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [sweep._environment(place)["CUDA_VISIBLE_DEVICES"] for place in range(4)] == ["0", "1", "0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [sweep._environment(place)["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["5", "7", "5"]


def verb(recipe: str, sizes: str, tokens: str, *overrides: str) -> None:
    scaling_command(recipe, overrides, sizes, tokens, None, True, Path("sweep"), 2, False)


@pytest.mark.slow
def test_killed_sweep_resumes_to_the_same_losses(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [sys.executable, "-m", "heedful", "scaling", recipe, "--sizes", "1x8,1x16", "--tokens", "51200"]
    killed = subprocess.Popen([*words, "-o", "sweep", "--jobs", "2"], stderr=subprocess.DEVNULL)
    cells = cells_of(recipe, "1x8,1x16", "51200")
    until(lambda: list(Path("sweep").glob("*/checkpoints/step-*")))
    killed.kill()
    assert killed.wait() == -signal.SIGKILL

    def is_free() -> bool:
        try:
            with sweep_folder(Path("sweep")):
                return True
        except UserError:
            return False

    until(is_free)  # its runs save their step and end, and hold the folder until then
    assert list(Path("sweep").glob("*/checkpoints/step-*"))
    assert any(cell.outcome() is None for cell in cells), "its runs did not end with it"
    verb(recipe, "1x8,1x16", "51200")
    assert "| 1x16-51200 |" in capsys.readouterr().out
    found = json.loads(Path("sweep/scaling.json").read_text())
    for cell, row in zip(cells, found["runs"], strict=True):
        for _ in train(cell.recipe, Path("alone") / cell.name):
            pass
        assert row["L"] == cell.__class__(**{**vars(cell), "folder": Path("alone") / cell.name}).outcome().loss
    assert "needs 3" in found["lines"]["N"]["missing"]
    assert Path("sweep/scaling.png").stat().st_size > 1000
    assert "<svg" in Path("sweep/scaling.svg").read_text()

    before = {path: path.stat().st_mtime_ns for path in Path("sweep").glob("*/metrics.jsonl")}
    verb(recipe, "1x8,1x16", "51200")  # nothing is left to train
    assert before == {path: path.stat().st_mtime_ns for path in Path("sweep").glob("*/metrics.jsonl")}
    with pytest.raises(UserError, match="another recipe") as error:
        verb(recipe, "1x8,1x16", "51200", "train.seed=1")
    assert error.value.todo is not None and "-o" in error.value.todo


@pytest.mark.slow
def test_failed_run_does_not_affect_the_others(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs("sweep/1x8-5120")
    Path("sweep/1x8-5120/mine.txt").write_text("something else")
    with pytest.raises(UserError, match="1 of 2 runs failed") as error:
        verb(recipe, "1x8,1x16", "5120")
    assert error.value.exit_code == 1
    assert "this folder is not a run" in str(error.value)
    out = capsys.readouterr().out
    assert "| 1x16-5120 |" in out
    assert "1x8-5120 is left out: " in out
    assert Path("sweep/1x8-5120/mine.txt").read_text() == "something else"
    assert [row["name"] for row in json.loads(Path("sweep/scaling.json").read_text())["runs"]] == ["1x16-5120"]
