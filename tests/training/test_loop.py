"""The training loop: exact resume, non-finite values, budgets, schedules and fp16."""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss, weighted_sum
from heedful.cli.display import facts
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import Batch, PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.tasks.translation.predictor import translation_loss
from heedful.tasks.translation.task import TranslationTask
from heedful.training import loop
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.configs import Budget, TrainConfig
from heedful.training.loop import (
    Counters,
    Due,
    Event,
    Saved,
    Step,
    choose_device,
    epochs_to_steps,
    first_batch_of,
    fit,
    half_precision,
)
from heedful.training.optim import AdamW, Constant, Cosine, Linear, Noam
from heedful.training.seeds import reseed
from scaled_gradients import ScaledGradient
from tolerance import near

CPU = torch.device("cpu")
PAIRS = NumberWords(train=90, valid=1, test=1).pairs("train")[:90]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=60)
MODEL = TransformerConfig(
    vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=1, hidden=32, context=60, dropout=0.2
)


def settings(steps: int = 12, **changes: Any) -> TrainConfig:
    usual = {"batch_tokens": 512, "log_every": 1, "evaluate_every": 5, "save_every": 5, "optimizer": AdamW(lr=1e-2)}
    return TrainConfig(**{"budget": Budget(steps=steps), **usual, **changes})


@dataclass
class Trial:
    """A run of the training loop, resumed from its folder if it has a checkpoint."""

    folder: Path
    config: TrainConfig
    packed: bool = False
    wrap: Callable[[Loss], Loss] = lambda loss: loss
    seen: list[int] = field(default_factory=list)  # the samples, in the order they were learned from
    model: nn.Module = field(init=False)
    counters: Counters = field(init=False)

    def events(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        torch.manual_seed(self.config.seed)
        self.model = build(MODEL)
        torch.manual_seed(torch.seed())  # the loop must not depend on the global random state
        model: Any = self.model
        learn = partial(translation_loss, model)

        def loss_of(batch: Batch) -> Loss:
            self.seen += [index for index in batch.indices.tolist() if index >= 0]
            return self.wrap(learn(batch, 0.1))

        batches = PairBatches(ENCODED, self.config.seed, self.config.batch_tokens, self.packed)
        with RunFolder.create_or_open(self.folder, "a: 1\n", keep=self.config.keep) as folder:
            checkpoint = folder.latest()
            self.counters = Counters(**checkpoint.state) if checkpoint else Counters()
            tensors = {stem: checkpoint.load(stem) for stem in ("model", "optimizer")} if checkpoint else None
            saver = Saver(folder, self.config.save_behind)
            yield from fit(self.model, loss_of, batches, self.config, CPU, saver, {}, self.counters, tensors, stop)

    def until(self, step: int) -> list[Event]:
        """The events of a run that is asked to stop after a step."""
        return list(self.events(lambda: self.counters.step >= step))


def saved(folder: Path) -> dict[int, bytes]:
    """The bytes of weights and optimizer of each checkpoint."""
    names = ("model.safetensors", "optimizer.safetensors")
    return {
        point.step: b"".join((point.path / name).read_bytes() for name in names) for point in newest(folder, 100)[0]
    }


def steps_of(events: list[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


# ------------------------------------------------------------------ order and random seeds
@pytest.mark.parametrize(
    ("packed", "accumulate"),
    [
        (False, 1),
        (True, 3),
        pytest.param(False, 3, marks=pytest.mark.slow),
        pytest.param(True, 1, marks=pytest.mark.slow),
    ],
)
def test_interrupted_run_equals_the_uninterrupted_one(tmp_path: Path, packed: bool, accumulate: int) -> None:
    config = settings(accumulate=accumulate)
    whole = Trial(tmp_path / "whole", config, packed)
    logged = steps_of(list(whole.events()))
    again = Trial(tmp_path / "again", config, packed)
    list(again.events())
    assert saved(tmp_path / "again") == saved(tmp_path / "whole")

    broken: list[Event] = []
    samples: list[int] = []
    for step in (1, 3, 4, 8, 11, 99):
        part = Trial(tmp_path / "broken", config, packed)
        broken += part.until(step)
        samples += part.seen
    assert samples == whole.seen
    assert saved(tmp_path / "broken")[12] == saved(tmp_path / "whole")[12]
    assert [replace(step, tokens_per_second=0) for step in steps_of(broken)] == [
        replace(step, tokens_per_second=0) for step in logged
    ]
    assert {step.epoch for step in logged} >= ({0, 1} if accumulate == 1 else {0, 1, 2, 3})


@pytest.mark.claim("M24")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_parts_of_a_loss_are_reported_and_resume(tmp_path: Path, accumulate: int) -> None:
    def in_parts(loss: Loss) -> Loss:
        return weighted_sum(loss.count, {"words": (0.5, loss.total), "again": (2.0, 3 * loss.total)})

    config = settings(accumulate=accumulate)
    steps = steps_of(list(Trial(tmp_path / "whole", config, wrap=in_parts).events()))
    for step in steps:
        assert step.parts.keys() == {"words", "again"}
        assert step.loss == near(0.5 * step.parts["words"] + 2 * step.parts["again"])
        assert step.parts["again"] == near(3 * step.parts["words"])
        assert f"(words {step.parts['words']:.4f}, again {step.parts['again']:.4f})" in facts(
            step, TranslationTask.words
        )
    broken = [
        step for last in (2, 7, 99) for step in steps_of(Trial(tmp_path / "b", config, wrap=in_parts).until(last))
    ]
    assert [step.parts for step in broken] == [step.parts for step in steps]
    plain = steps_of(list(Trial(tmp_path / "plain", settings(steps=2)).events()))
    assert [step.parts for step in plain] == [{}, {}]


@pytest.mark.parametrize(
    ("packed", "changes"),
    [
        (False, {"workers": 1}),
        (True, {"workers": 2}),
        (False, {"save_behind": True}),
        pytest.param(True, {"workers": 1}, marks=pytest.mark.slow),
        pytest.param(False, {"workers": 2}, marks=pytest.mark.slow),
        pytest.param(True, {"save_behind": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_workers_and_background_saves_change_no_bit(tmp_path: Path, packed: bool, changes: dict[str, Any]) -> None:
    config = settings(accumulate=3)
    whole = Trial(tmp_path / "whole", config, packed)
    list(whole.events())
    events: list[Event] = []
    seen: list[int] = []
    for step in (2, 4, 9, 99):
        part = Trial(tmp_path / "parts", settings(accumulate=3, **changes), packed)
        events += part.until(step)
        seen += part.seen
    assert seen == whole.seen
    assert saved(tmp_path / "parts")[12] == saved(tmp_path / "whole")[12]
    assert [event.step for event in events if isinstance(event, Saved)] == [2, 4, 5, 9, 10, 12]
    assert not multiprocessing.active_children()


def test_background_save_is_reported_once_committed(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", settings(save_behind=True))
    for event in trial.events():
        if isinstance(event, Saved):
            assert Path(event.path).is_dir()
            assert newest(tmp_path / "run", 1)[0][0].step >= event.step


def test_seed_decides_dropout_and_order(tmp_path: Path) -> None:
    runs = [Trial(tmp_path / str(seed), settings(2, seed=seed)) for seed in (0, 1)]
    for run in runs:
        list(run.events())
    assert runs[0].seen != runs[1].seen
    assert saved(tmp_path / "0") != saved(tmp_path / "1")


def test_epoch_has_every_sample_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", settings())
    events = trial.events()
    first = list(itertools.takewhile(lambda event: not isinstance(event, Step) or event.epoch == 0, events))
    assert len(first) > 3
    assert sorted(trial.seen[: len(PAIRS)]) == list(range(len(PAIRS)))
    assert set(trial.seen[len(PAIRS) :]) < set(range(len(PAIRS)))


# ------------------------------------------------------------------ budgets, rates, norms
def test_token_budget_ends_at_the_step_that_reaches_it(tmp_path: Path) -> None:
    full = steps_of(list(Trial(tmp_path / "steps", settings(9)).events()))
    limit = full[4].tokens - 1  # reached within step 5
    logged = steps_of(list(Trial(tmp_path / "tokens", settings(budget=Budget(tokens=limit, steps=100))).events()))
    assert [step.tokens for step in logged] == [step.tokens for step in full[:5]]
    assert [step.progress for step in logged] == [min(1.0, step.tokens / limit) for step in full[:5]]
    assert list(saved(tmp_path / "tokens")) == [5]


def test_minutes_budget_counts_over_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1000.0, 5.0)  # each reading of the clock adds five seconds
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    config = settings(budget=Budget(minutes=3), schedule=Constant(), evaluate_every=50, save_every=50)
    first = Trial(tmp_path / "run", config)
    head = steps_of(first.until(3))
    spent = first.counters.seconds
    assert [step.step for step in head] == [1, 2, 3]
    assert 0 < spent < 180
    rest = Trial(tmp_path / "run", config)
    tail = steps_of(list(rest.events()))
    assert tail[0].step == 4
    assert tail[0].progress > head[-1].progress
    assert tail[-1].progress == 1
    assert 180 <= rest.counters.seconds < 200
    assert all(step.progress < 1 for step in tail[:-1])
    assert steps_of(list(Trial(tmp_path / "run", config).events())) == []


@pytest.mark.parametrize(
    "schedule", [Noam(warmup=4, width=16), Cosine(warmup=3), Linear(warmup=2, floor=0.1), Constant()], ids=repr
)
def test_learning_rate_follows_the_schedule(tmp_path: Path, schedule: Noam | Cosine | Linear | Constant) -> None:
    config = settings(8, schedule=schedule, save_every=3)
    trial = Trial(tmp_path / "run", config)
    logged = steps_of([*trial.until(5), *trial.events()])
    assert [step.rate for step in logged] == [1e-2 * schedule.factor(step, (step - 1) / 8) for step in range(1, 9)]


def test_learning_rate_is_applied_and_the_norm_is_reported_before_clipping(tmp_path: Path) -> None:
    config = settings(
        1, schedule=Noam(warmup=3, width=7), clip=0.01, optimizer=AdamW(lr=0.5, weight_decay=0, eps=1e-20)
    )
    trial = Trial(tmp_path / "run", config)
    events = trial.events()
    step = next(events)
    assert isinstance(step, Step)
    torch.manual_seed(0)
    before = build(MODEL).state_dict()
    moved = max(float((value - before[name]).abs().max()) for name, value in trial.model.state_dict().items())
    assert moved == pytest.approx(step.rate, rel=1e-3)  # Adam's first step moves each weight by the rate itself
    list(events)
    state = newest(tmp_path / "run", 1)[0][0].load("optimizer")
    first = torch.cat([value.flatten() for name, value in state.items() if name.startswith("exp_avg.")])
    assert float(first.norm()) == pytest.approx(0.1 * 0.01, rel=1e-4)  # one minus beta, of the clipped gradient
    assert step.norm > 0.1


def test_without_clip_the_gradient_is_unchanged(tmp_path: Path) -> None:
    events = list(Trial(tmp_path / "run", settings(1, clip=None)).events())
    state = newest(tmp_path / "run", 1)[0][0].load("optimizer")
    first = torch.cat([value.flatten() for name, value in state.items() if name.startswith("exp_avg.")])
    assert float(first.norm()) == pytest.approx(0.1 * steps_of(events)[0].norm, rel=1e-4)


def test_loss_and_norm_are_over_all_tokens_of_a_step(tmp_path: Path) -> None:
    logged = steps_of(list(Trial(tmp_path / "run", settings(1, accumulate=3)).events()))[0]
    torch.manual_seed(0)
    model: Any = build(MODEL).train()
    batches = PairBatches(ENCODED, 0, 512)
    losses = []
    for index in range(3):
        reseed(CPU, 0, 1, index)
        losses.append(translation_loss(model, batches.at(index), 0.1))
    counts = [int(loss.count) for loss in losses]
    assert max(counts) > 1.1 * min(counts)  # so that a mean of means would differ
    (torch.stack([loss.total for loss in losses]).sum() / sum(counts)).backward()
    assert logged.tokens == sum(counts)
    assert logged.loss == pytest.approx(sum(float(loss.plain) for loss in losses) / sum(counts), rel=1e-6)
    norm = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()
    assert logged.norm == pytest.approx(float(norm), rel=1e-5)


# ------------------------------------------------------------------ evaluating, saving, stopping
def test_evaluations_and_saves_are_on_schedule(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", settings(11, evaluate_every=4, save_every=3, keep=3))
    logged: list[tuple[str, int]] = []
    for event in trial.events():
        logged.append((type(event).__name__, event.step))
        assert trial.model.training == (not isinstance(event, Due))
        if isinstance(event, Due):
            assert event.saved == (event.step == 11)
        if isinstance(event, Saved):
            assert Path(event.path).is_dir()
    assert [one for one in logged if one[0] != "Step"] == [
        ("Saved", 3), ("Epoch", 4), ("Due", 4), ("Saved", 6), ("Epoch", 8), ("Due", 8), ("Saved", 9), ("Due", 11),
        ("Saved", 11),
    ]  # fmt: skip
    assert list(saved(tmp_path / "run")) == [11, 9, 6]


def test_due_event_says_whether_it_is_saved(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", settings(6, evaluate_every=2, save_every=4))
    assert [event.saved for event in trial.events() if isinstance(event, Due)] == [False, True, True]


def test_stop_request_is_followed_after_the_step(tmp_path: Path) -> None:
    assert Trial(tmp_path / "none", settings()).until(0) == []
    assert saved(tmp_path / "none") == {}
    kinds = [type(event).__name__ for event in Trial(tmp_path / "run", settings()).until(3)]
    assert kinds == ["Step"] * 3 + ["Saved"]
    between = [type(event).__name__ for event in Trial(tmp_path / "run", settings()).until(5)]
    assert between == ["Step", "Epoch", "Step", "Due", "Saved"]
    assert list(saved(tmp_path / "run")) == [5, 3]


def test_evaluation_and_saving_do_not_count_as_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=tick))
    trial = Trial(tmp_path / "run", settings(4, evaluate_every=2, save_every=2))
    speeds: dict[int, float] = {}
    before = 0
    for event in trial.events():
        if isinstance(event, Due):
            now[0] += 1e6
        elif isinstance(event, Step):
            speeds[event.step] = event.tokens_per_second / (event.tokens - before)
            before = event.tokens
    assert speeds[3] == pytest.approx(speeds[2], rel=0.6)


# ------------------------------------------------------------------ fp16
def overflowing_gradient(*steps: int) -> Callable[[Loss], Loss]:
    """A finite loss whose gradients overflow in some steps, counted from 1."""
    calls = itertools.count(1)
    return lambda loss: (
        replace(loss, total=ScaledGradient.apply(loss.total, math.nan)) if next(calls) in steps else loss
    )


def test_fp16_scales_its_gradients(tmp_path: Path) -> None:
    rough = steps_of(list(Trial(tmp_path / "fp16", settings(6, precision="fp16")).events()))
    exact = steps_of(list(Trial(tmp_path / "fp32", settings(6)).events()))
    assert [step.loss for step in rough] == pytest.approx([step.loss for step in exact], rel=0.01)
    assert [step.norm for step in rough] == pytest.approx([step.norm for step in exact], rel=0.05)
    assert rough[-1].skipped == 0


def test_overflowing_fp16_steps_are_skipped_counted_and_resumed(tmp_path: Path) -> None:
    config = settings(8, precision="fp16", save_every=2, keep=9)
    whole = Trial(tmp_path / "whole", config, wrap=overflowing_gradient(3, 4, 6))
    logged = steps_of(list(whole.events()))
    assert [step.skipped for step in logged] == [0, 0, 1, 2, 2, 3, 3, 3]
    assert whole.counters.scale == 2.0**16 / 8
    assert (whole.counters.steady, whole.counters.skipped_in_a_row) == (2, 0)
    first, second = Trial(tmp_path / "parts", config, wrap=overflowing_gradient(3)), Trial(tmp_path / "parts", config)
    second.wrap = overflowing_gradient(1, 3)
    parts = steps_of([*first.until(3), *second.events()])
    assert [replace(step, tokens_per_second=0) for step in parts] == [
        replace(step, tokens_per_second=0) for step in logged
    ]
    assert saved(tmp_path / "parts")[8] == saved(tmp_path / "whole")[8]
    two, four = (point.load("model") for point in newest(tmp_path / "whole", 9)[0] if point.step in (4, 2))
    assert all(torch.equal(two[name], four[name]) for name in two)  # both steps between them were skipped


def test_loss_scale_grows_after_good_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GROWTH_INTERVAL", 3)
    trial = Trial(tmp_path / "run", settings(7, precision="fp16"))
    list(trial.events())
    assert (trial.counters.scale, trial.counters.steady) == (2.0**18, 1)


def test_fifty_overflows_in_row_are_error(tmp_path: Path) -> None:
    trial = Trial(
        tmp_path / "run", settings(99, precision="fp16", save_every=2), wrap=overflowing_gradient(*range(2, 99))
    )
    with pytest.raises(UserError, match="overflowed in fp16 in 50 steps in a row") as error:
        list(trial.events())
    assert error.value.exit_code == 3
    assert error.value.where == "step 51"
    assert "bf16" in str(error.value.todo)


def test_non_finite_loss_is_not_a_scaling_overflow(tmp_path: Path) -> None:
    trial = Trial(
        tmp_path / "run", settings(precision="fp16"), wrap=lambda loss: replace(loss, plain=loss.plain * math.nan)
    )
    with pytest.raises(UserError, match="not finite at step 1"):
        list(trial.events())


# ------------------------------------------------------------------ non-finite values
def refused(trial: Trial) -> UserError:
    """The error of a run whose next step has a non-finite value, with everything else unchanged."""
    good = saved(trial.folder)
    with pytest.raises(UserError) as error:
        list(trial.events())
    assert error.value.exit_code == 3
    assert saved(trial.folder) == good
    assert trial.counters.step == 5
    return error.value


def test_non_finite_values_never_reach_weights_or_disk(tmp_path: Path) -> None:
    config = settings()
    assert isinstance(Trial(tmp_path / "run", config).until(5)[-1], Saved)
    point = newest(tmp_path / "run", 1)[0][0]
    weights = point.load("model")
    spoilt: dict[str, Callable[[Loss], Loss]] = {
        "nan": lambda loss: replace(loss, total=loss.total * math.nan, plain=loss.plain * math.nan),
        "infinity": lambda loss: replace(loss, total=loss.total + math.inf, plain=loss.plain + math.inf),
        "reported": lambda loss: replace(loss, plain=loss.plain * math.nan),
        "overflow": lambda loss: replace(loss, total=loss.total * 1e38 * 1e38),
        "gradients": lambda loss: replace(loss, total=ScaledGradient.apply(loss.total, math.nan)),
    }
    for name, wrap in spoilt.items():
        trial = Trial(tmp_path / "run", config, wrap=wrap)
        error = refused(trial)
        assert "at step 6" in error.message, name
        assert "first bad tensor: " in str(error.found)
        samples = ", ".join(map(str, trial.seen[:8]))
        assert error.where == f"training samples {samples} ..."
        for key, value in trial.model.state_dict().items():
            assert torch.equal(value, weights[key]), (name, key)


@pytest.mark.parametrize("bad", [math.nan, math.inf, pytest.param(-math.inf, marks=pytest.mark.slow)])
def test_non_finite_gradient_is_named(tmp_path: Path, bad: float) -> None:
    config = settings()
    Trial(tmp_path / "run", config).until(5)
    names = [name for name, _ in build(MODEL).named_parameters()]
    assert len(names) > 30
    for name in names:
        trial = Trial(tmp_path / "run", config)

        def spoil(loss: Loss, trial: Trial = trial, name: str = name) -> Loss:
            def one(grad: Tensor) -> Tensor:
                grad = grad.clone()
                grad.view(-1)[-1] = bad
                return grad

            trial.model.get_parameter(name).register_hook(one)
            return loss

        trial.wrap = spoil
        error = refused(trial)
        assert str(error.found).endswith(f"first bad tensor: the gradient of {name}")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_weight_is_named_in_the_next_step(tmp_path: Path, bad: float) -> None:
    trial = Trial(tmp_path / "run", settings(evaluate_every=50, save_every=50))
    events = trial.events()
    assert [next(events).step for _ in range(3)] == [1, 2, 3]
    weights = trial.model.state_dict()  # the very tensors, not copies
    weights["decoder.0.mlp.down.weight"].view(-1)[3] = bad
    before = {name: value.clone() for name, value in weights.items()}
    with pytest.raises(UserError, match="not finite at step 4, and the step was not taken") as error:
        next(events)
    assert "first bad tensor: the weight decoder.0.mlp.down.weight" in str(error.value.found)
    assert error.value.exit_code == 3
    assert all(torch.equal(value.nan_to_num(), before[name].nan_to_num()) for name, value in weights.items())
    assert saved(tmp_path / "run") == {}


@pytest.mark.parametrize("every", [{"evaluate_every": 1}, {"save_every": 1, "evaluate_every": 50}])
def test_infinite_weights_are_neither_evaluated_nor_saved(tmp_path: Path, every: dict[str, int]) -> None:
    trial = Trial(tmp_path / "run", settings(3, **every))
    logged: list[Event] = []

    def spoil() -> None:
        for event in trial.events():
            logged.append(event)
            with torch.no_grad():
                trial.model.get_parameter("decoder.0.mlp.down.weight").view(-1)[3] = math.inf

    with pytest.raises(UserError, match="a weight is not finite after step 1") as error:
        spoil()
    assert error.value.exit_code == 3
    assert error.value.found == "first bad tensor: decoder.0.mlp.down.weight"
    assert [type(event) for event in logged] == [Step]
    assert saved(tmp_path / "run") == {}


# ------------------------------------------------------------------ devices
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_rejected() -> None:
    assert choose_device(settings()) == choose_device(settings(device="cpu")) == CPU
    with pytest.raises(UserError, match="no GPU") as error:
        choose_device(settings(device="cuda"))
    assert error.value.where == "train.device"


def test_bfloat16_is_used_when_requested(tmp_path: Path) -> None:
    asked = [half_precision(settings(precision=precision), CPU) for precision in ("auto", "fp32", "bf16", "fp16")]
    assert asked == [None, None, torch.bfloat16, torch.float16]
    rough = steps_of(list(Trial(tmp_path / "bf16", settings(6, precision="bf16")).events()))
    exact = steps_of(list(Trial(tmp_path / "fp32", settings(6)).events()))
    assert [step.loss for step in rough] == pytest.approx([step.loss for step in exact], rel=0.03)
    assert [step.loss for step in rough] != [step.loss for step in exact]
    assert {value.dtype for value in newest(tmp_path / "bf16", 1)[0][0].load("model").values()} == {torch.float32}


# ------------------------------------------------------------------ a budget in epochs
@pytest.mark.parametrize("packed", [False, True])
def test_first_batch_of_an_epoch(packed: bool) -> None:
    batches = PairBatches(ENCODED, 1, 300, packed)
    for epoch in range(1, 6):
        position = first_batch_of(epoch, batches)
        assert (batches.epoch_of(position - 1), batches.epoch_of(position)) == (epoch - 1, epoch)


@pytest.mark.parametrize(("accumulate", "epochs"), [(1, 1), (1, 3), (4, 2)])
def test_epoch_budget_ends_after_all_samples(accumulate: int, epochs: int) -> None:
    batches = PairBatches(ENCODED, 0, 512)
    config = settings(budget=Budget(epochs=epochs), accumulate=accumulate)
    steps = epochs_to_steps(config, batches).budget.steps
    assert steps is not None
    assert steps * accumulate >= first_batch_of(epochs, batches) > (steps - 1) * accumulate
    assert epochs_to_steps(settings(budget=Budget(epochs=epochs, steps=2)), batches).budget == Budget(steps=2)
    assert epochs_to_steps(settings(budget=Budget(steps=7)), batches).budget == Budget(steps=7)
