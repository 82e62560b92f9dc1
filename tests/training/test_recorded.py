"""Recorded steps equal plain steps for any number of threads: weights, resume, and errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from combinations import pairs_first
from heedful.blocks.losses import Loss
from heedful.data.images.batches import EncodedImages, ImageBatch, ImageBatches
from heedful.errors import UserError
from heedful.models import build
from heedful.models.autoencoder.config import AutoencoderConfig, dense
from heedful.models.autoencoder.layers import Conv, MaxPool, Upsample
from heedful.tasks.reconstruction.predictor import Noise, reconstruction_loss
from heedful.training import loop
from heedful.training.carry import stateless
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.team import ParallelLoss
from heedful.training.loop import Counters, Due, Epoch, Event, Step, fit
from heedful.training.nan_checks import NotFiniteError
from heedful.training.optim import AdamW, Constant, RMSprop, make_optimizer, optimizer_tensors
from heedful.training.replay import CannotRecordError
from heedful.training.step import AnyStep, PlainStep, RecordedStep, balanced_groups, samples_per_thread

CPU = torch.device("cpu")
MODEL = dense(12, 9, 4)
CONV = AutoencoderConfig(input=(1, 4, 4), encoder=(Conv(filters=2), MaxPool()), decoder=(Upsample(), Conv(filters=1)))
PIXELS = torch.rand(90, 1, 3, 4, generator=torch.Generator().manual_seed(3))  # the last batch of 20 has 10
NONE = Noise(0.0, None)


def settings(steps: int = 12, **changes: Any) -> TrainConfig:
    usual = {"batch_examples": 20, "log_every": 1, "evaluate_every": 5, "save_every": 5, "clip": None}
    usual |= {"optimizer": RMSprop(), "schedule": Constant()}
    return TrainConfig(**{"budget": Budget(steps=steps), **usual, **changes})


def batches_of(size: int, pixels: Tensor = PIXELS) -> ImageBatches:
    return ImageBatches(EncodedImages(pixels), seed=1, size=size)


# ------------------------------------------------------------------ a step
def model_and_step(config: TrainConfig) -> tuple[Any, PlainStep]:
    torch.manual_seed(1)
    model: Any = build(MODEL)
    loss_of: Any = partial(reconstruction_loss, model, noise=NONE)
    return model, PlainStep(
        model, ParallelLoss(stateless(loss_of)), make_optimizer(config.optimizer, model, CPU), config, CPU, None
    )


def run_steps(model: Any, step: AnyStep, size: int, steps: int, ahead: bool) -> tuple[list[float], list[Tensor]]:
    """Losses, norms and weights of a few steps; `ahead`: other threads get a batch before it is needed."""
    batches, logged = batches_of(size), list[float]()
    for position in range(steps):
        batch, tokens = batches.at(position), batches.tokens(position)
        if ahead and position % 3:
            step.start(batch, tokens)
        logged += [float(step.gradients(batch, tokens).plain), float(step.norm())]
        step.update(2e-3)
    step.close()
    return logged, [weight.detach().clone() for weight in model.parameters()]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("size", "threads", "changes"),  # batches of 20 end with 10, those of 11 with 2
    pairs_first([20, 11, 1], [1, 2, 3], [{}, {"optimizer": AdamW(lr=2e-3)}, {"clip": 0.05}]),
    ids=str,
)
def test_thirty_recorded_steps_equal_plain_steps(size: int, threads: int, changes: dict[str, Any]) -> None:
    config = settings(**changes)
    model, plain = model_and_step(config)
    expected = run_steps(model, plain, size, 30, ahead=False)
    torch.set_num_threads(threads)
    model, plain = model_and_step(config)
    found = run_steps(model, RecordedStep(plain, batches_of(size).at(0)), size, 30, ahead=True)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert largest_difference(found[1], expected[1]) <= 1e-6
    initial, _ = model_and_step(config)
    assert largest_difference(found[1], [weight.detach() for weight in initial.parameters()]) > 1e-2


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 20, 127, 128])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 16])
def test_samples_are_split_among_threads(rows: int, threads: int) -> None:
    sizes = samples_per_thread(rows, threads)
    assert sum(sizes) == rows
    assert min(sizes) >= 1
    assert len(sizes) == min(rows, threads)
    assert max(sizes[1:], default=rows) - min(sizes[1:], default=rows) <= 1
    assert sizes[0] <= max(sizes)


@pytest.mark.parametrize("sizes", [[1], [5, 5], [100, 3, 2, 1], [7, 7, 7, 7, 7], [1, 1000]])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_weights_are_split_among_threads(sizes: list[int], threads: int) -> None:
    tensors = [torch.full((size,), float(number)) for number, size in enumerate(sizes)]
    shares = balanced_groups(tensors, threads)
    assert sorted(float(tensor[0]) for share in shares for tensor in share) == list(map(float, range(len(sizes))))
    assert len(shares) == min(threads, len(sizes))
    largest = max(sum(map(len, share)) for share in shares)
    assert largest <= max(max(sizes), sum(sizes) / threads + max(sizes))


def test_gradients_stay_until_the_next_batch() -> None:
    torch.set_num_threads(2)
    model, plain = model_and_step(settings())
    step, batches = RecordedStep(plain, batches_of(20).at(0)), batches_of(20)
    step.gradients(batches.at(0), 20)
    kept = [weight.grad.clone() for weight in model.parameters()]
    step.start(batches.at(1), 20)
    time.sleep(0.05)
    assert all(torch.equal(weight.grad, old) for weight, old in zip(model.parameters(), kept, strict=True))
    other = batches.at(2)  # not the batch that was started
    step.gradients(other, 20)
    step.close()
    again, plain_again = model_and_step(settings())
    plain_again.gradients(other, 20)
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert largest_difference(*map(list, zip(*((a.grad, b.grad) for a, b in pairs), strict=True))) <= 1e-6


def test_loss_with_parts_is_not_recorded() -> None:
    _, step = model_and_step(settings())
    whole: Any = step.spread.loss_of

    def in_parts(batch: Any, carry: Any) -> Any:
        loss, _ = whole(batch, carry)
        return replace(loss, parts={"pixels": loss.plain}), carry

    step.spread = ParallelLoss(in_parts)
    with pytest.raises(CannotRecordError, match="a loss with parts"):
        RecordedStep(step, batches_of(20).at(0))


def test_failed_recording_leaves_no_threads() -> None:
    torch.set_num_threads(3)
    config, before = settings(), threading.active_count()
    model: Any = build(CONV)
    loss_of: Any = partial(reconstruction_loss, model, noise=NONE)
    plain = PlainStep(
        model, ParallelLoss(stateless(loss_of)), make_optimizer(config.optimizer, model, CPU), config, CPU, None
    )
    with pytest.raises(loop.CannotRecordError):
        RecordedStep(plain, batches_of(4, torch.rand(8, 1, 4, 4)).at(0))
    assert threading.active_count() == before
    assert torch.get_num_threads() == 3


# ------------------------------------------------------------------ a run
@dataclass
class Trial:
    """A run of the training loop, resumed from its folder if it has a checkpoint."""

    folder: Path
    config: TrainConfig
    threads: int = 2
    records: bool = True
    pixels: Tensor = PIXELS
    model_config: Any = MODEL
    wrap: Callable[[Any, ImageBatch], Loss] | None = None
    model: Any = field(init=False)
    counters: Counters = field(init=False)

    def events(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        torch.set_num_threads(self.threads)
        torch.manual_seed(self.config.seed)
        self.model = build(self.model_config)
        loss_of: Any = partial(self.wrap or partial(reconstruction_loss, noise=NONE), self.model)
        assert self.config.batch_examples
        batches: Any = batches_of(self.config.batch_examples, self.pixels)
        with RunFolder.create_or_open(self.folder, "a: 1\n", keep=self.config.keep) as folder:
            checkpoint = folder.latest()
            self.counters = Counters(**checkpoint.state) if checkpoint else Counters()
            tensors = {stem: checkpoint.load(stem) for stem in ("model", "optimizer")} if checkpoint else None
            saver = Saver(folder, self.config.save_behind)
            yield from fit(
                self.model, loss_of, batches, self.config, CPU, saver, {}, self.counters, tensors, stop,
                records=self.records,
            )  # fmt: skip

    def until(self, step: int) -> list[Event]:
        return list(self.events(lambda: self.counters.step >= step))


def saved(folder: Path) -> dict[int, bytes]:
    """The bytes of weights and optimizer of each checkpoint."""
    names = ("model.safetensors", "optimizer.safetensors")
    return {
        point.step: b"".join((point.path / name).read_bytes() for name in names) for point in newest(folder, 100)[0]
    }


def logged(events: list[Event]) -> list[Event]:
    """Steps and epochs without their speed."""
    steps = (event for event in events if isinstance(event, Step | Epoch))
    return [replace(event, tokens_per_second=0) if isinstance(event, Step) else event for event in steps]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of steps that the loop took."""
    seen: list[str] = []

    class Counted(RecordedStep):
        def __init__(self, plain: PlainStep, like: Any) -> None:
            super().__init__(plain, like)
            seen.append(f"recorded by {self.threads}")

    monkeypatch.setattr(loop, "RecordedStep", Counted)
    return seen


@pytest.mark.parametrize(
    ("threads", "optimizer"),
    [
        (1, RMSprop()),
        (2, AdamW(lr=1e-2)),
        (3, RMSprop()),
        pytest.param(2, RMSprop(), marks=pytest.mark.slow),
    ],
)
def test_interrupted_recorded_run_equals_the_uninterrupted_one(
    tmp_path: Path, kinds: list[str], threads: int, optimizer: Any
) -> None:
    config = settings(optimizer=optimizer)
    whole = list(Trial(tmp_path / "whole", config, threads).events())
    broken: list[Event] = []
    for step in (3, 4, 8, 99):
        broken += Trial(tmp_path / "broken", config, threads).until(step)
    assert kinds == [f"recorded by {threads}"] * 5
    assert saved(tmp_path / "broken")[12] == saved(tmp_path / "whole")[12]
    assert logged(broken) == logged(whole)
    assert sum(isinstance(event, Epoch) for event in whole) == 2  # of 5 batches each


def test_closed_run_resumes_from_its_last_checkpoint(tmp_path: Path, kinds: list[str]) -> None:
    config = settings()
    list(Trial(tmp_path / "whole", config).events())
    for stop_at in (3, 7, 12):
        events = Trial(tmp_path / "broken", config).events()
        for event in events:
            if isinstance(event, Step) and event.step == stop_at:
                events.close()  # type: ignore[attr-defined]
                break
    list(Trial(tmp_path / "broken", config).events())
    assert len(kinds) == 5
    assert saved(tmp_path / "broken")[12] == saved(tmp_path / "whole")[12]


def test_recorded_and_plain_runs_log_the_same(tmp_path: Path, kinds: list[str]) -> None:
    runs = [list(Trial(tmp_path / str(records), settings(), records=records).events()) for records in (False, True)]
    assert kinds == ["recorded by 2"]
    assert [type(event) for event in runs[0]] == [type(event) for event in runs[1]]
    for one, other in zip(*(logged(run) for run in runs), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{"save_behind": True}, {"workers": 1}], ids=str)
def test_evaluation_and_saving_during_the_next_batch_change_nothing(
    tmp_path: Path, kinds: list[str], changes: dict[str, Any]
) -> None:
    calm = settings(evaluate_every=1000, save_every=12)
    list(Trial(tmp_path / "calm", calm).events())
    busy = Trial(tmp_path / "busy", settings(evaluate_every=1, save_every=1, keep=20, **changes))
    for event in busy.events():
        if isinstance(event, Due):
            time.sleep(0.01)  # the threads have finished the next batch
            assert not busy.model.training
            with torch.inference_mode():
                busy.model(PIXELS.view(-1, 12))
    assert saved(tmp_path / "busy")[12] == saved(tmp_path / "calm")[12]
    assert len(kinds) == 2


def test_checkpoint_has_the_state_of_its_step(tmp_path: Path) -> None:
    list(Trial(tmp_path / "all", settings(save_every=1, keep=20)).events())
    short = Trial(tmp_path / "short", settings(steps=7))
    list(short.events())
    assert saved(tmp_path / "all")[7] == saved(tmp_path / "short")[7]


@pytest.mark.parametrize("end", ["spent", "closed", "stopped", "failed"])
def test_threads_end_and_their_number_is_restored(tmp_path: Path, kinds: list[str], end: str) -> None:
    before = threading.active_count()
    pixels = PIXELS.clone()
    if end == "failed":
        pixels[:] = torch.nan
    trial = Trial(tmp_path / "run", settings(), threads=3, pixels=pixels)
    events = trial.events(lambda: end == "stopped" and trial.counters.step == 2)
    try:
        for event in events:
            assert threading.active_count() == before + 2
            assert torch.get_num_threads() == 1
            if end == "closed" and isinstance(event, Step):
                events.close()  # type: ignore[attr-defined]
                break
    except UserError:
        assert end == "failed"
    assert len(kinds) == 1
    assert threading.active_count() == before
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("records", [False, True], ids=["plain", "recorded"])
def test_bad_pixel_stops_the_run_and_is_named(tmp_path: Path, records: bool) -> None:
    pixels = PIXELS.clone()
    batches = batches_of(20)
    bad = int(batches.at(3).indices[7])
    pixels[bad, 0, 1, 1] = torch.nan
    trial = Trial(tmp_path / "run", settings(save_every=1, keep=20), pixels=pixels, records=records)
    with pytest.raises(NotFiniteError) as raised:
        list(trial.events())
    assert "not finite at step 4" in raised.value.message
    assert "the input of" in (raised.value.found or "")
    named = (raised.value.where or "").removeprefix("training samples ").removesuffix(" ...").split(", ")
    assert named == [str(index) for index in batches.at(3).indices[:8].tolist()]
    assert raised.value.exit_code == loop.EXIT_NOT_FINITE
    assert max(saved(tmp_path / "run")) == 3
    assert all(weight.isfinite().all() for weight in trial.model.parameters())


def test_error_in_a_thread_is_raised_and_threads_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    def breaks(step: RecordedStep, batch: Any, tokens: int) -> None:
        step.pool.start([lambda: 1 / 0])
        step.started = (batch, step.shapes[next(iter(step.shapes))])

    before = threading.active_count()
    trial = Trial(tmp_path / "run", settings())
    events = trial.events()
    assert isinstance(next(events), Step)
    monkeypatch.setattr(RecordedStep, "start", breaks)
    with pytest.raises(ZeroDivisionError):
        list(events)
    assert threading.active_count() == before


def test_unrecordable_network_trains_with_plain_steps(tmp_path: Path, kinds: list[str]) -> None:
    before = threading.active_count()
    pixels = torch.rand(40, 1, 4, 4)
    trial = Trial(tmp_path / "run", settings(), pixels=pixels, model_config=CONV)
    for event in trial.events():
        if isinstance(event, Step):
            assert torch.get_num_threads() == 2
    assert kinds == []
    assert threading.active_count() == before
    assert trial.counters.step == 12


@pytest.mark.parametrize("changes", [{"accumulate": 2}, {"precision": "bf16"}], ids=str)
def test_accumulation_and_half_precision_are_not_recorded(
    tmp_path: Path, kinds: list[str], changes: dict[str, Any]
) -> None:
    list(Trial(tmp_path / "run", settings(steps=3, **changes)).events())
    assert kinds == []


# ------------------------------------------------------------------ epochs
@pytest.mark.parametrize(("accumulate", "ends"), [(1, [5, 10]), (2, [3, 5, 8]), (7, [1, 2, 3, 4])])
def test_epoch_loss_is_the_mean_over_samples(tmp_path: Path, accumulate: int, ends: list[int]) -> None:
    steps = {1: 12, 2: 8, 7: 4}[accumulate]
    trial = Trial(tmp_path / "run", settings(steps=steps, accumulate=accumulate), records=False)
    events = list(trial.events())
    found, gone, tokens, before = list[Epoch](), list[tuple[float, int]](), 0, 0
    for event in events:
        if isinstance(event, Step):
            gone.append((event.loss, event.tokens - before))
            before = event.tokens
        if isinstance(event, Epoch):
            found.append(event)
            total, tokens = sum(loss * count for loss, count in gone), sum(count for _, count in gone)
            assert event.loss == pytest.approx(total / tokens)
            assert event.epoch == event.step * accumulate // 5
            gone = []
    assert [epoch.step for epoch in found] == ends


def test_interrupted_epoch_keeps_its_sums(tmp_path: Path) -> None:
    whole = [event for event in Trial(tmp_path / "whole", settings()).events() if isinstance(event, Epoch)]
    parts: list[Event] = []
    for step in (2, 6, 12):
        parts += Trial(tmp_path / "parts", settings()).until(step)
    assert [event for event in parts if isinstance(event, Epoch)] == whole
    assert [(epoch.step, epoch.epoch) for epoch in whole] == [(5, 1), (10, 2)]


def test_optimizer_state_has_the_names_and_shapes_of_plain_steps(tmp_path: Path) -> None:
    config = settings()
    model, plain = model_and_step(config)
    step = RecordedStep(plain, batches_of(20).at(0))
    step.gradients(batches_of(20).at(0), 20)
    step.update(1e-3)
    step.close()
    kept = optimizer_tensors(plain.optimizer, model)
    assert {name: value.shape for name, value in kept.items()} == {
        f"square.{name}": weight.shape for name, weight in model.named_parameters()
    }
    assert all(np.isfinite(value.numpy()).all() for value in kept.values())
