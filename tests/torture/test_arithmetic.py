"""Gradients that must not depend on how a batch is split, and values that are not finite."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
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
from heedful.training.carry import stateless
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.shards import whole
from heedful.training.distributed.team import Team
from heedful.training.loop import Counters, Event, Step, fit
from heedful.training.optim import make_optimizer, optimizer_tensors
from heedful.training.step import PlainStep
from scaled_gradients import overflowing_gradient
from torture.report import FULL, counted
from training.test_distributed import run_team

CPU = torch.device("cpu")
PAIRS = NumberWords(train=90, valid=1, test=1).pairs("train")[:101]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=60)
MODEL = TransformerConfig(
    vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=2, hidden=32, context=60, dropout=0.1
)
MICRO = 2  # batches of a step
rng = random.Random(10)


# ------------------------------------------------------------------ gradients
def gradients(team: Team, how: Any, micro: list[Batch], tokens: int) -> list[float]:
    """The gradients of this process's batches, added up over the team."""
    torch.manual_seed(0)
    model: Any = build(MODEL.model_copy(update={"dropout": 0.0})).train()
    config = TrainConfig(budget=Budget(steps=1), clip=None)
    spread = team.parallelize(model, stateless(partial(translation_loss, model, label_smoothing=0.1)), how)
    step = PlainStep(model, spread, make_optimizer(config.optimizer, model, CPU), config, CPU, None)
    for index, batch in enumerate(micro):
        step.gradients(batch, tokens, last=index == len(micro) - 1)
    return [value for weight in model.parameters() for value in whole(weight.grad).flatten().tolist()]


def test_accumulated_gradients_are_those_of_one_large_batch(tmp_path: Path) -> None:
    kinds = itertools.product(("alone", "ddp", "fsdp"), (1, 2, 4), (False, True))
    with counted("gradients") as row:
        worst = 0.0
        for how, count, packed in kinds if FULL else list(kinds)[3::4]:
            batches = PairBatches(ENCODED, 0, 256, packed)
            tokens = [batches.tokens(3 + number) for number in range(count)]
            rows = [row for number in range(count) for row in batches.at(3 + number).indices.tolist() if row >= 0]
            big = np.array(gradients(Team(), "ddp", [ENCODED.batch(np.array(rows))], sum(tokens)))

            def share(team: Team) -> list[float]:
                micro = [batches.at(*place) for _, place in team.batch_indices(3, count)]  # noqa: B023
                return gradients(team, how, micro, sum(tokens))  # noqa: B023

            with row.trial(f"{how}, {count} batches, {'packed' if packed else 'padded'}"):
                assert len(set(tokens)) == count, "the batches have the same number of tokens"
                found = [share(Team())] if how == "alone" else run_team(2, share, tmp_path)
                apart = max(float(np.linalg.norm(np.array(one) - big) / np.linalg.norm(big)) for one in found)
                worst = max(worst, apart)
                assert apart <= 1e-6, f"{apart:.1e} apart"
        row.worst = f"{worst:.1e} apart, relative to their norm"


# ------------------------------------------------------------------ not finite
class Spoil(NamedTuple):
    """A non-finite value: where it is injected, and how the report must name it."""

    kind: str
    at: str
    value: float
    called: str


WEIGHTS = ["tokens.weight", "encoder.0.mlp.down.bias", "decoder.0.cross.kv.weight"]
OUTPUTS = ["tokens", "encoder.0.attention.out", "decoder.1.cross.q"]
INPUTS = ["positions", "decoder.1", "decoder.0.mlp.up"]
VALUES = [math.nan, math.inf, -math.inf]


def spoils() -> list[Spoil]:
    """Each kind of injection at each place, with each value."""
    found = []
    for value in VALUES:
        found += [Spoil("loss", part, value, "the loss itself") for part in ("total", "plain", "both")]
        found += [Spoil("gradient", name, value, f"the gradient of {name}") for name in WEIGHTS]
        found += [Spoil("weight", name, value, f"the weight {name}") for name in WEIGHTS]
        found += [Spoil("output", path, value, f"the output of {path}") for path in OUTPUTS]
        found += [Spoil("input", path, value, f"the input of {path}") for path in INPUTS]
        found += [
            Spoil("overflow", path, 1e38 if value != -math.inf else -1e38, f"the output of {path}") for path in OUTPUTS
        ]
    return found


def put(x: Tensor, value: float) -> Tensor:
    """The same with a value in its first place."""
    first = torch.zeros_like(x, dtype=torch.bool)
    first.view(-1)[0] = True
    return x.masked_fill(first, value)


@dataclass
class Scene:
    """A run of the training loop with one batch to be made non-finite."""

    folder: Path
    packed: bool
    step: int  # in which
    micro: int  # and which of its batches
    spoil: Spoil
    armed: bool = False
    poisoned: bool = False  # whether that batch is at work
    model: Any = field(init=False)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.model = build(MODEL)
        self.batches = PairBatches(ENCODED, 0, 128, self.packed)
        self.victim = self.samples(self.micro)

    def samples(self, *micro: int) -> list[int]:
        """The samples of some batches of the step."""
        positions = [(self.step - 1) * MICRO + number for number in micro]
        return [row for position in positions for row in self.batches.at(position).indices.tolist() if row >= 0]

    def loss_of(self, batch: Batch) -> Loss:
        rows = [row for row in batch.indices.tolist() if row >= 0]
        self.poisoned = self.armed and rows == self.victim
        loss = translation_loss(self.model, batch, 0.1)
        if self.poisoned and self.spoil.kind == "loss":
            parts = ("total", "plain") if self.spoil.at == "both" else (self.spoil.at,)
            return replace(loss, **{part: getattr(loss, part) * self.spoil.value for part in parts})
        return loss

    def arm(self) -> None:
        """Install the injection."""
        kind, at, value, _ = self.spoil
        self.armed = True
        if kind == "weight":
            with torch.no_grad():
                self.model.get_parameter(at).view(-1)[0] = value
        elif kind == "gradient":
            self.model.get_parameter(at).register_hook(lambda grad: put(grad, value) if self.poisoned else None)
        elif kind == "input":

            def before(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
                return (put(given[0], value), *given[1:]) if self.poisoned else None

            self.model.get_submodule(at).register_forward_pre_hook(before)
        elif kind in ("output", "overflow"):
            edit = partial(put, value=value) if kind == "output" else (lambda x: x * value * 1e38)
            self.model.get_submodule(at).register_forward_hook(
                lambda module, given, x: edit(x) if self.poisoned else None
            )

    def bits(self) -> list[bytes]:
        """Weights and the optimizer's state."""
        states = [self.model.state_dict(), optimizer_tensors(self.optimizers[0], self.model)]
        return [value.numpy().tobytes() for state in states for _, value in sorted(state.items())]

    def refused(self) -> UserError:
        """The error of the step, which must change nothing; what was saved before must be finite."""
        config = TrainConfig(
            budget=Budget(steps=9), batch_tokens=128, save_every=1, evaluate_every=99, accumulate=MICRO, device="cpu"
        )
        counters = Counters()
        with RunFolder.create_or_open(self.folder, "a: 1\n", keep=2) as folder:
            events = fit(self.model, self.loss_of, self.batches, config, CPU, Saver(folder), {}, counters)
            for event in events:
                if isinstance(event, Step) and event.step == self.step - 1:
                    break
            next(events)  # its save
            self.arm()
            before = self.bits()
            with pytest.raises(UserError) as error:
                list(events)
        assert self.bits() == before, "weights or optimizer have moved"
        points = newest(self.folder, 9)[0]
        assert points[0].step == counters.step == self.step - 1
        values = [value for point in points for stem in ("model", "optimizer") for value in point.load(stem).values()]
        assert all(bool(value.isfinite().all()) for value in values), "what is saved is not finite"
        return error.value


@pytest.mark.slow
def test_nan_and_inf_are_reported_in_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(itertools.product(spoils(), (False, True)))
    with counted("not finite") as row:
        for number, (spoil, packed) in enumerate(cases if FULL else rng.sample(cases, row.wanted)):
            scene = Scene(tmp_path / f"{number}", packed, rng.randint(2, 5), rng.randrange(MICRO), spoil)
            remember = partial(remembered, scene.optimizers)
            monkeypatch.setattr(loop, "make_optimizer", remember)
            with row.trial(f"{spoil}, {'packed' if packed else 'padded'}, step {scene.step}"):
                error = scene.refused()
                assert error.message == f"a number is not finite at step {scene.step}, and the step was not taken"
                assert error.exit_code == 3
                assert str(error.found).partition("; first bad tensor: ")[2] == spoil.called, error.found
                samples = scene.samples(*range(MICRO)) if spoil.kind == "weight" else scene.victim
                named = f"{', '.join(map(str, samples[:8]))}{' ...' if len(samples) > 8 else ''}"
                assert error.where == f"training samples {named}", f"{error.where}, not {named}"
        row.worst = "all in that step, none saved"


def remembered(optimizers: list[torch.optim.Optimizer], *given: Any) -> torch.optim.Optimizer:
    """An optimizer as the loop makes it, of which the test knows too."""
    optimizers.append(make_optimizer(*given))
    return optimizers[-1]


# ------------------------------------------------------------------ fp16
def half(folder: Path, steps: int, bad: set[int]) -> Iterator[tuple[Event, list[bytes]]]:
    """The events of a run in fp16, with the weights after each, whose gradients are too large in some steps."""
    torch.manual_seed(1)
    model: Any = build(MODEL)
    counters = Counters()
    config = TrainConfig(
        budget=Budget(steps=steps), batch_tokens=128, evaluate_every=99, save_every=99, precision="fp16"
    )

    def loss_of(batch: Batch) -> Loss:
        loss = translation_loss(model, batch, 0.1)
        return replace(loss, total=overflowing_gradient(loss.total)) if counters.step + 1 in bad else loss

    with RunFolder.create_or_open(folder, "a: 1\n", keep=2) as run:
        for event in fit(model, loss_of, PairBatches(ENCODED, 0, 128), config, CPU, Saver(run), {}, counters):
            yield event, [value.numpy().tobytes() for value in model.state_dict().values()]


@pytest.mark.slow
def test_steps_that_overflow_in_fp16_are_skipped_and_counted(tmp_path: Path) -> None:
    with counted("fp16") as row:
        for number in range(row.wanted):
            folder = tmp_path / f"{number}"
            if number % 4 == 3 or (not FULL and number == 2):
                first = rng.randint(1, 20)
                with row.trial(f"fifty from step {first} on"):
                    assert_fifty(folder, first)
            else:
                bad = {step for step in range(1, 21) if rng.random() < 0.3}
                with row.trial(f"skips at {sorted(bad)}"):
                    assert_skipped(folder, bad)
        row.worst = "none changed a weight"


def assert_skipped(folder: Path, bad: set[int]) -> None:
    """Steps that are too large move no weight and are counted; the others move all."""
    former: list[bytes] = []
    for event, weights in half(folder, 20, bad):
        if isinstance(event, Step):
            assert event.skipped == len([step for step in bad if step <= event.step])
            assert (event.norm == 0) == (event.step in bad)
            assert (weights == former) == (event.step in bad and event.step > 1)
            shown = facts(event, TranslationTask.words)
            assert (f"{event.skipped:,} skipped" in shown) == (event.skipped > 0), shown
            former = weights


def assert_fifty(folder: Path, first: int) -> None:
    """Fifty steps in a row that are too large are an error that says what helps."""
    taken = []
    with pytest.raises(UserError) as error:
        taken += [event.step for event, _ in half(folder, 99, set(range(first, 99))) if isinstance(event, Step)]
    assert error.value.where == f"step {first + 49}"
    assert error.value.message == "the gradients overflowed in fp16 in 50 steps in a row"
    assert re.search("bf16 or fp32", str(error.value.todo)) and error.value.exit_code == 3
