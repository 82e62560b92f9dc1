"""Training as a generator of events: to plot, record or stop, write a `for` loop.

The order of samples and all random numbers follow from counters, so that a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.pairs.batches import Batch, PairBatches
from heedful.data.workers import BatchIndex, BatchSource, load_batches
from heedful.errors import UserError
from heedful.training.carry import checked, lane_count, own_lanes, restored, saved_form, stateless
from heedful.training.checkpoint.saver import Saver
from heedful.training.checkpoint.tensors import EXIT_NOT_FINITE
from heedful.training.checkpoint.weights import weights_of, whole_of
from heedful.training.configs import TrainConfig
from heedful.training.distributed.team import Carry, LossOf, Team
from heedful.training.environment import keep_memory
from heedful.training.nan_checks import not_finite, require_sound
from heedful.training.optim import load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.replay import CannotRecordError
from heedful.training.seeds import reseed
from heedful.training.step import AnyStep, GraphedStep, PlainStep, RecordedStep

SCALE = 2.0**16  # of fp16 gradients at first
STEADY = 2000  # good steps after which the scale is doubled
MOST_SKIPPED = 50  # steps in a row without which fp16 does not work


@dataclass(frozen=True)
class Step:
    """An optimizer step that was taken: the loss is the mean a token, without label smoothing."""

    step: int
    epoch: int
    loss: float
    rate: float
    norm: float  # 0 for a step that was skipped
    tokens: int  # since the start of the run
    tokens_per_second: float
    progress: float  # share of the budget spent
    skipped: int = 0  # steps so far whose gradients were too large for fp16, which moved no weight


@dataclass(frozen=True)
class Epoch:
    """The end of an epoch; the loss is the mean over its steps, while the model was learning."""

    step: int
    epoch: int  # counted from 1
    loss: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is now on the disk."""

    step: int
    path: str


@dataclass(frozen=True)
class Due:
    """The moment to evaluate: the model is in evaluation mode until the loop continues."""

    step: int
    saved: bool  # whether a checkpoint of this very step follows


Event = Step | Epoch | Saved | Due


@dataclass
class Counters:
    """Where a run stands; with the weights and the optimizer's state this is all there is to know."""

    step: int = 0
    position: int = 0  # batches taken
    tokens: int = 0
    seconds: float = 0.0
    best: list[tuple[int, float]] = field(default_factory=list)  # steps with their scores, the best first
    highest: float | None = None  # score of any evaluation so far
    waited: int = 0  # evaluations since then
    scale: float = SCALE  # of fp16 gradients
    steady: int = 0  # good steps since the scale last changed
    skipped: int = 0  # steps whose gradients were too large for fp16
    skipped_in_a_row: int = 0
    epoch_loss: float = 0.0  # summed since the epoch began
    epoch_tokens: int = 0
    regular: list[int] = field(default_factory=list)  # steps saved on schedule, as many as are averaged at the end

    @classmethod
    def restored(cls, state: dict[str, Any], config: TrainConfig) -> Counters:
        """The counters of a checkpoint, those of an older version with what it did not record."""
        step, every = state.get("step", 0), config.save_every
        known = {"regular": list(range(every, step + 1, every))[-config.average :], **state}
        former, score = known.pop("best_step", None), known.pop("best_score", None)
        known = {"best": [] if former is None else [(former, score)], "highest": score, **known}
        return cls(**known | {"best": [(step, score) for step, score in known["best"]]})

    def add_score(self, step: int, score: float, saves: bool, config: TrainConfig) -> None:
        """Record the score of an evaluation, and which checkpoints are the best ones to keep."""
        known = math.isfinite(score)  # a correlation is undefined where all answers are the same
        better = known and (self.highest is None or score > self.highest)
        self.highest, self.waited = (score, 0) if better else (self.highest, self.waited + 1)
        if known and (saves or not self.patient(config)):
            self.best = sorted([*self.best, (step, score)], key=lambda one: (-one[1], one[0]))[: config.keep_best]

    def patient(self, config: TrainConfig) -> bool:
        """Whether training may continue although the last evaluations brought no improvement."""
        return config.patience is None or self.waited < config.patience

    @property
    def kept(self) -> set[int]:
        """The steps whose checkpoints are still needed."""
        return {*self.regular, *(step for step, _ in self.best)}


def fit(
    model: nn.Module,
    loss_of: Callable[[Any], Loss] | LossOf,
    batches: PairBatches,
    config: TrainConfig,
    device: torch.device,
    saver: Saver | None,
    about: dict[str, Any],
    counters: Counters,
    saved: dict[str, dict[str, Tensor]] | None = None,
    stop: Callable[[], bool] = lambda: False,
    team: Team | None = None,
    records: bool = False,
    carry: Carry = None,
    captures: bool = True,
) -> Iterator[Event]:
    """Train until the budget is spent or `stop` says so; `counters` is kept up to date for the caller.

    `saved` holds the tensors of a checkpoint, under `model`, `optimizer` and, if there is one, `carry`, and is emptied.
    Of a team, every process calls this, and the leader alone has a saver. `records` says that steps on a CPU are worth
    being recorded, `captures` that those on a GPU may be captured as graphs. Where `carry` is given, the loss is
    `loss(batch, carry) -> (Loss, carry)`: see `training/carry.py`. It is what the first batch finds, with the lanes of
    all processes. Such steps are neither recorded nor captured.
    """
    team = team or Team()
    half = half_precision(config, device)
    if saved:
        model.load_state_dict(saved.pop("model"))
    learn: Any = loss_of
    spread = team.spread(model, stateless(learn) if carry is None else learn, config.parallel)
    optimizer = make_optimizer(config.optimizer, model, device)
    if saved:
        load_optimizer(optimizer, model, saved.pop("optimizer"))
        if "carry" in saved:
            carry = restored(carry, saved.pop("carry"))
    mine, lanes = own_lanes(carry, team), lane_count(carry)
    if over(config, counters):
        return
    if device.type == "cpu":
        keep_memory()
    model.train()
    share = Share(team, batches, config, counters.position, lanes > 0)
    micro = share.next()
    plain, first = PlainStep(model, spread, optimizer, config, device, half, mine), micro[0]
    alone = not (team.together or lanes)
    run: AnyStep = plain
    if device.type == "cuda" and batches.few_shapes and alone and captures:
        run = GraphedStep(plain, first, batches.one_shape)
    elif device.type == "cpu" and records and alone and not (half or config.compile or config.accumulate > 1):
        with suppress(CannotRecordError):
            run = RecordedStep(plain, first)
    if team.together:
        # Torch arranges what it sends after the first backward pass. It is made to do so before the first step, not
        # after it, so that a resumed run adds up in the same order as an uninterrupted one.
        plain.gradients(micro[0], 1)
        plain.skip()
        plain.carry = mine

    def save() -> None:
        require_sound(model, counters.step)
        if counters.step % config.save_every == 0:
            counters.regular = [*counters.regular, counters.step][-config.average :]
        moments = optimizer_tensors(optimizer, model)
        groups = {"model": weights_of(model, team), "optimizer": whole_of(moments, team)}
        if lanes:
            groups["carry"] = saved_form(plain.carry, team, lanes)
        if saver:
            saver.save(counters.step, groups, vars(counters), about, counters.kept)
        team.wait()

    def done() -> Iterator[Saved]:
        yield from (Saved(step, str(path)) for step, path in (saver.finished() if saver else []))

    began, last_time, last_tokens = time.monotonic() - counters.seconds, time.monotonic(), counters.tokens
    wished = False
    try:
        while not over(config, counters) and not wished:
            progress = spent(config, counters)
            wish = stop()
            if wish and not team.together:
                break
            step, began_in = counters.step + 1, batches.epoch_of(counters.position)
            team.at_step(step)
            tokens = share.tokens(counters.position)
            rate = config.optimizer.lr * config.schedule.factor(step, progress)
            if half is torch.float16:
                plain.scale.fill_(counters.scale)
            losses, found = [], []
            for index, batch in enumerate(micro):
                if not run.helped:  # recorded steps use no random numbers
                    share.seed(device, step, index)
                found.append(plain.carry)
                losses.append(run.gradients(batch, tokens, last=index == len(micro) - 1).plain.clone())
            *own, norm_value = torch.stack([*losses, run.norm()]).tolist()
            total, wishes, seconds = team.sums([sum(own), float(wish), time.monotonic() - began if team.leads else 0.0])
            loss_value, wished = total / tokens, wishes > 0
            if half is torch.float16 and math.isfinite(loss_value):
                moved = rescaled(counters, math.isfinite(norm_value))
            elif not (math.isfinite(loss_value) and math.isfinite(norm_value)):
                raise _blamed(team, model, step, micro, own, plain, share, found)
            else:
                moved = True
            if moved:
                run.update(rate)
            else:
                run.skip()

            counters.step, counters.position = step, counters.position + config.accumulate
            counters.tokens, counters.seconds = counters.tokens + tokens, seconds
            counters.epoch_loss, counters.epoch_tokens = counters.epoch_loss + total, counters.epoch_tokens + tokens
            now = time.monotonic()
            speed = (counters.tokens - last_tokens) / max(now - last_time, 1e-9)
            ends = spent(config, counters) >= 1
            if step % config.log_every == 0 or ends or step == 1:
                last_time, last_tokens = now, counters.tokens
            epoch = batches.epoch_of(counters.position - 1)
            if not ends:
                micro = share.next()
                run.begin(micro[0], share.tokens(counters.position))
                if run.helped:
                    share.ahead()
            else:
                run.settle()
            yield Step(
                step, epoch, loss_value, rate, norm_value if moved else 0.0, counters.tokens, speed,
                spent(config, counters), counters.skipped,
            )  # fmt: skip
            if (epochs := batches.epoch_of(counters.position)) > began_in:
                yield Epoch(step, epochs, counters.epoch_loss / counters.epoch_tokens)
                counters.epoch_loss, counters.epoch_tokens = 0.0, 0
            yield from done()
            saves, paused = step % config.save_every == 0 or ends, time.monotonic()
            if step % config.evaluate_every == 0 or ends:
                require_sound(model, step)
                model.eval()
                yield Due(step, saves)
                model.train()
                if config.patience is not None and any(team.sums([float(not counters.patient(config))])):
                    counters.waited, saves = (
                        max(counters.waited, config.patience),
                        True,
                    )  # only the leader knew
                team.wait()
            if saves:
                save()
                yield from done()
            last_time += time.monotonic() - paused  # evaluating and saving do not count as training time
        if counters.step and counters.step % config.save_every and not over(config, counters):
            save()  # stopped between two saves: nothing is lost
        if saver:
            saver.wait()
        yield from done()
    finally:
        run.close()
        share.close()


class Share:
    """This process's part of every step: its batches, and the random seed of each."""

    def __init__(self, team: Team, batches: PairBatches, config: TrainConfig, position: int, lanes: bool) -> None:
        self.batches, self.config = batches, config
        self.turns = list(team.places(0, config.accumulate, lanes))
        self.source = load_batches(batches, partial(_places, team, position, config.accumulate, lanes), config.workers)
        self.waiting: list[Batch] | None = None

    def next(self) -> list[Batch]:
        """The batches of the next step."""
        self.ahead()
        assert self.waiting is not None
        micro, self.waiting = self.waiting, None
        return micro

    def ahead(self) -> None:
        """Prepare them before they are needed."""
        if self.waiting is None:
            self.waiting = [next(self.source) for _ in self.turns]

    def close(self) -> None:
        """Stop the workers."""
        self.source.close()

    def tokens(self, position: int) -> int:
        """The tokens of the whole step that begins at a position, those of other processes included."""
        return sum(self.batches.tokens(position + index) for index in range(self.config.accumulate))

    def seed(self, device: torch.device, step: int, index: int) -> None:
        """Set the random seed of one of its batches, which depends on the batch, not on the process."""
        number, place = self.turns[index]
        reseed(device, self.config.seed, step, number, place.part)


def _places(team: Team, start: int, accumulate: int, lanes: bool) -> Iterator[BatchIndex]:
    """Where a process's batches are found, from a position on without end."""
    for position in itertools.count(start, accumulate):
        yield from (place for _, place in team.places(position, accumulate, lanes))


def rescaled(counters: Counters, finite: bool) -> bool:
    """Whether fp16 gradients can be used; the scale is halved where they cannot, and doubled after many that can."""
    if finite:
        counters.steady, counters.skipped_in_a_row = counters.steady + 1, 0
        if counters.steady == STEADY:
            counters.scale, counters.steady = min(2 * counters.scale, 2.0**24), 0
        return True
    counters.scale, counters.steady = counters.scale / 2, 0
    counters.skipped, counters.skipped_in_a_row = counters.skipped + 1, counters.skipped_in_a_row + 1
    if counters.skipped_in_a_row == MOST_SKIPPED:
        raise UserError(
            f"the gradients were too large for fp16 in {MOST_SKIPPED} steps in a row",
            where=f"step {counters.step + 1}",
            found=f"{counters.skipped} steps skipped in all; the scale of the loss is down to {counters.scale:g}",
            todo="use precision: bf16 or fp32, or lower the learning rate",
            exit_code=EXIT_NOT_FINITE,
        )
    return False


def spent(config: TrainConfig, counters: Counters) -> float:
    """The share of the budget that is used up, by whichever limit is nearest; epochs come as steps: see `in_steps`."""
    budget = config.budget
    shares = [
        (counters.step, budget.steps),
        (counters.tokens, budget.tokens),
        (counters.seconds / 60, budget.minutes),
    ]
    return min(1.0, max(used / limit for used, limit in shares if limit is not None))


def over(config: TrainConfig, counters: Counters) -> bool:
    """Whether training has ended: the budget is spent, or the model has got no better for too long."""
    return spent(config, counters) >= 1 or not counters.patient(config)


def averaged(config: TrainConfig, counters: Counters, end: int) -> list[int]:
    """The steps whose weights are averaged where training ends at a step: this one, and those saved before it."""
    every, step = config.save_every, counters.step
    to_come = range(step - step % every + every, end, every)
    return [*(step for step in counters.regular if step < end), *to_come, end][-config.average :]


def in_steps(config: TrainConfig, batches: BatchSource) -> TrainConfig:
    """The same settings with a budget in epochs as one in steps, which may take some of the next epoch's batches."""
    budget = config.budget
    if budget.epochs is None:
        return config
    steps = -(-first_of(budget.epochs, batches) // config.accumulate)
    limit = min(steps, budget.steps or steps)
    return config.model_copy(update={"budget": budget.model_copy(update={"epochs": None, "steps": limit})})


def first_of(epoch: int, batches: BatchSource) -> int:
    """The position of an epoch's first batch."""
    beyond = 1
    while batches.epoch_of(beyond) < epoch:
        beyond *= 2
    return bisect_left(range(beyond), epoch, key=batches.epoch_of)


def choose_device(config: TrainConfig, local_rank: int = 0) -> torch.device:
    """The device that the recipe asks for, each process of a machine taking its own GPU."""
    wanted = config.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "there is no GPU that torch can use",
            where="train.device",
            found="cuda",
            todo="write device: auto, or install a torch build for your GPU",
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() == 1 and "SLURM_STEP_NUM_TASKS" in os.environ:
        local_rank = 0  # SLURM can show each task its own GPU alone
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            "there are more processes on this machine than GPUs",
            where=f"the process with local rank {local_rank}",
            found=f"{torch.cuda.device_count()} GPUs",
            todo="give torchrun --nproc-per-node as many as there are, or write train.device=cpu",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def repeat_exactly(config: TrainConfig) -> None:
    """Let the GPU use only what gives the same bits again, if the recipe asks for it."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(config.deterministic)


def half_precision(config: TrainConfig, device: torch.device) -> torch.dtype | None:
    """The type in which matrix products run, if it is not float32."""
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported()
    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "auto": torch.bfloat16 if capable else None}
    return named.get(config.precision)


def _blamed(
    team: Team,
    model: nn.Module,
    step: int,
    micro: list[Batch],
    losses: list[float],
    plain: PlainStep,
    share: Share,
    carries: list[Carry],
) -> UserError:
    """The report on a step that is not finite, by the first process that has something bad of its own."""

    def rerun(index: int) -> Loss:
        share.seed(plain.device, step, index)
        return checked(*plain.loss(micro[index], carries[index]))

    report = not_finite(model, step, micro, losses, rerun, plain.half is not None)
    bad = [0.0] * team.world
    bad[team.rank] = float(report.own)
    guilty = [rank for rank, is_bad in enumerate(team.sums(bad)) if is_bad] or [0]
    if team.rank != guilty[0]:
        team.wait()  # until that process has spoken, which ends this one too
    return report
