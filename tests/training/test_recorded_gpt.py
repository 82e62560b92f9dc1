"""Recorded steps of a small GPT equal its plain steps, for all settings and batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.data.text.text_stream import TextCounts
from heedful.data.text.windows import EncodedText, TextBatches
from heedful.models import build
from heedful.models.gpt.config import GptConfig
from heedful.runs.recipe import load_recipe
from heedful.tasks import task_of
from heedful.tasks.language_model.perplexity import document_loss
from heedful.training import loop
from heedful.training.carry import stateless
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.team import ParallelLoss
from heedful.training.loop import Counters, Step, fit
from heedful.training.optim import AdamW, Constant, RMSprop, load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.replay import CannotRecordError
from heedful.training.step import AnyStep, PlainStep, RecordedStep

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "layers": 1, "context": 8, "dropout": 0, "attention_dropout": 0}
IDS = np.random.default_rng(3).integers(0, 11, 8 * 17 + 4)  # the last window is shorter, the last batch smaller
WHOLE, CUT = np.zeros(1, np.int64), np.array([0, 3, 4, 20, 41, 90])
EPSILON = 1e-3  # so large that gradients of keys' biases, which are zero but for rounding, move nothing


def settings(**changes: Any) -> TrainConfig:
    usual = {"optimizer": AdamW(lr=2e-3, eps=EPSILON, weight_decay=0.1), "schedule": Constant()}
    return TrainConfig(**{"budget": Budget(steps=20), **usual, **changes})


def batches_of(starts: Any = WHOLE) -> TextBatches:
    return TextBatches(EncodedText(IDS, starts, 8, TextCounts()), seed=1, batch_tokens=40)


def model_and_step(config: TrainConfig, **changes: Any) -> tuple[Any, PlainStep]:
    torch.manual_seed(1)
    model: Any = build(GptConfig(vocab=11, **(SMALL | changes))).train()
    loss_of: Any = partial(document_loss, model)
    return model, PlainStep(
        model, ParallelLoss(stateless(loss_of)), make_optimizer(config.optimizer, model, CPU), config, CPU, None
    )


def run_steps(step: AnyStep, batches: TextBatches, first: int, last: int) -> list[float]:
    """Losses and norms of some steps."""
    logged = list[float]()
    for position in range(first, last):
        batch, tokens = batches.at(position), batches.tokens(position)
        if position % 3:
            step.start(batch, tokens)
        logged += [float(step.gradients(batch, tokens).plain), float(step.norm())]
        step.update(2e-3)
    step.wait()
    step.close()
    return logged


def copies(model: Any) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm().clamp(min=1e-2)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("changes", "train", "threads", "starts"),
    [
        ({}, {}, 1, WHOLE),
        pytest.param(*({}, {}, 3, CUT), marks=pytest.mark.slow),
        pytest.param(*({}, {"clip": 0.01}, 2, WHOLE), marks=pytest.mark.slow),
        pytest.param(*({}, {"clip": None}, 2, CUT), marks=pytest.mark.slow),
        pytest.param(*({}, {"optimizer": RMSprop(eps=EPSILON)}, 2, WHOLE), marks=pytest.mark.slow),
        pytest.param(*({"norm": "post", "activation": "gelu"}, {}, 2, CUT), marks=pytest.mark.slow),
        ({"positions": "rotary", "activation": "swish"}, {}, 3, CUT),
        pytest.param(*({"positions": "alibi", "activation": "relu"}, {}, 2, WHOLE), marks=pytest.mark.slow),
        pytest.param(*({"positions": "alibi"}, {}, 2, CUT), marks=pytest.mark.slow),
        pytest.param(*({"positions": "none"}, {}, 2, WHOLE), marks=pytest.mark.slow),
    ],
    ids=lambda value: "documents" if value is CUT else "one text" if value is WHOLE else str(value),
)
def test_twenty_recorded_steps_equal_plain_steps(
    changes: dict[str, Any], train: dict[str, Any], threads: int, starts: Any
) -> None:
    config, batches = settings(**train), batches_of(starts)
    model, plain = model_and_step(config, **changes)
    initial = copies(model)
    logged = run_steps(plain, batches, 0, 20)
    torch.set_num_threads(threads)
    other, plain = model_and_step(config, **changes)
    step = RecordedStep(plain, batches.at(0))
    assert run_steps(step, batches, 0, 20) == pytest.approx(logged, rel=2e-6)
    assert largest_difference(copies(other), copies(model)) <= 2e-6
    assert largest_difference(copies(model), initial) > 5e-3
    assert len(step.shapes) > 1  # the last batch of an epoch is smaller


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_interrupted_steps_equal_uninterrupted_ones(threads: int) -> None:
    torch.set_num_threads(threads)
    config, batches = settings(), batches_of()
    whole, plain = model_and_step(config)
    logged = run_steps(RecordedStep(plain, batches.at(0)), batches, 0, 20)
    model, plain = model_and_step(config)
    first = run_steps(RecordedStep(plain, batches.at(0)), batches, 0, 7)
    kept, moments = model.state_dict(), optimizer_tensors(plain.optimizer, model)
    again, plain = model_and_step(config)
    again.load_state_dict(kept)
    load_optimizer(plain.optimizer, again, moments)
    assert first + run_steps(RecordedStep(plain, batches.at(7)), batches, 7, 20) == logged
    assert all(torch.equal(one, other) for one, other in zip(copies(again), copies(whole), strict=True))


def test_recorded_state_resumes_with_plain_steps() -> None:
    config, batches = settings(), batches_of()
    model, plain = model_and_step(config)
    logged = run_steps(plain, batches, 0, 12)
    other, plain = model_and_step(config)
    run_steps(RecordedStep(plain, batches.at(0)), batches, 0, 6)
    plain.skip()
    assert run_steps(plain, batches, 6, 12) == pytest.approx(logged[12:], rel=2e-6)
    assert largest_difference(copies(other), copies(model)) <= 2e-6


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"attention_dropout": 0.1}], ids=str)
def test_random_operations_are_not_recorded(changes: dict[str, Any]) -> None:
    _, plain = model_and_step(settings(), **changes)
    with pytest.raises(CannotRecordError):
        RecordedStep(plain, batches_of().at(0))


def test_unused_weight_is_not_recorded() -> None:
    model, _ = model_and_step(settings())
    model.more = torch.nn.Parameter(torch.ones(3))
    loss_of: Any = partial(document_loss, model)
    optimizer = make_optimizer(AdamW(), model, CPU)
    with pytest.raises(CannotRecordError, match="does not depend on"):
        RecordedStep(
            PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, settings(), CPU, None), batches_of().at(0)
        )


def test_run_uses_recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = list[RecordedStep]()

    class Counted(RecordedStep):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            kinds.append(self)

    monkeypatch.setattr(loop, "RecordedStep", Counted)
    logged = []
    for records in (False, task_of(load_recipe("gpt-shakespeare")).records):
        model, _ = model_and_step(settings())
        loss_of = partial(document_loss, model)
        events = fit(model, loss_of, batches_of(CUT), settings(), CPU, None, {}, Counters(), records=records)
        logged.append([event.loss for event in events if isinstance(event, Step)])
    assert len(kinds) == 1
    assert logged[1] == pytest.approx(logged[0], rel=2e-6)
    assert logged[0][-1] < logged[0][0]


@pytest.mark.parametrize("recipe", ["language-model", "gpt2", "elmo"])
def test_recurrent_and_large_models_use_plain_steps(recipe: str) -> None:
    assert not task_of(load_recipe(recipe)).records
