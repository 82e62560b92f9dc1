"""Training as a generator of events: to plot, record or stop, write a `for` loop.

The order of samples and all random numbers follow from counters, so that a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.memory import keep_memory
from heedful.data.pairs.batches import Batch, PairBatches
from heedful.data.workers import BatchIndex, BatchSource, load_batches
from heedful.errors import UserError
from heedful.training.carry import gather_lanes, lane_count, local_lanes, propagate_nan, restore, stateless
from heedful.training.checkpoint.saver import Saver
from heedful.training.checkpoint.tensors import EXIT_NOT_FINITE
from heedful.training.checkpoint.weights import gather_tensors, gather_weights
from heedful.training.configs import PlayerConfig, TrainConfig
from heedful.training.distributed.batch_norm import share_statistics
from heedful.training.distributed.team import Carry, LossOf, Team
from heedful.training.nan_checks import not_finite, require_sound
from heedful.training.optim import make_optimizer
from heedful.training.players import load_states, make_players, states
from heedful.training.replay import CannotRecordError
from heedful.training.seeds import reseed
from heedful.training.step import AnyStep, GraphedStep, PlainStep, RecordedStep

INITIAL_SCALE = 2.0**16  # of the loss in fp16
GROWTH_INTERVAL = 2000  # finite steps after which the loss scale is doubled
MAX_SKIPPED = 50  # steps in a row with overflow, after which training stops


@dataclass(frozen=True)
class Step:
    """An optimizer step; the loss is the mean per token, without label smoothing."""

    step: int
    epoch: int
    loss: float
    rate: float
    norm: float  # of the gradients; 0 for a skipped step
    tokens: int  # since the start of the run
    tokens_per_second: float
    progress: float  # fraction of the budget spent
    skipped: int = 0  # steps so far without an update, since their gradients overflowed in fp16
    parts: dict[str, float] = field(default_factory=dict)  # the losses that `loss` is a weighted sum of, by name


@dataclass(frozen=True)
class Epoch:
    """The end of an epoch; the loss is the mean over its training steps."""

    step: int
    epoch: int  # counted from 1
    loss: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint has been written to disk."""

    step: int
    path: str


@dataclass(frozen=True)
class Due:
    """An evaluation is due: the model is in evaluation mode until the loop continues."""

    step: int
    saved: bool  # whether a checkpoint of this step follows


Event = Step | Epoch | Saved | Due


@dataclass
class Counters:
    """The progress of a run; with the weights and the optimizer's state, all that resuming needs."""

    step: int = 0
    position: int = 0  # batches taken
    tokens: int = 0
    seconds: float = 0.0
    best: list[tuple[int, float]] = field(default_factory=list)  # steps and their scores, best first
    highest: float | None = None  # best score so far
    waited: int = 0  # evaluations since the best score
    scale: float = INITIAL_SCALE  # of the loss in fp16
    steady: int = 0  # finite steps since the scale last changed
    skipped: int = 0  # steps whose gradients overflowed in fp16
    skipped_in_a_row: int = 0
    epoch_loss: float = 0.0  # summed since the start of the epoch
    epoch_tokens: int = 0
    regular: list[int] = field(default_factory=list)  # the last steps saved on schedule, to be averaged at the end

    @classmethod
    def restored(cls, state: dict[str, Any], config: TrainConfig) -> Counters:
        """The counters of a checkpoint; those of older versions are completed."""
        step, every = state.get("step", 0), config.save_every
        known = {"regular": list(range(every, step + 1, every))[-config.average :], **state}
        former, score = known.pop("best_step", None), known.pop("best_score", None)
        known = {"best": [] if former is None else [(former, score)], "highest": score, **known}
        return cls(**known | {"best": [(step, score) for step, score in known["best"]]})

    def add_score(self, step: int, score: float, saves: bool, config: TrainConfig) -> None:
        """Record the score of an evaluation, and which checkpoints are the best ones to keep."""
        known = math.isfinite(score)  # a correlation is undefined if all predictions are equal
        better = known and (self.highest is None or score > self.highest)
        self.highest, self.waited = (score, 0) if better else (self.highest, self.waited + 1)
        if known and (saves or not self.patient(config)):
            self.best = sorted([*self.best, (step, score)], key=lambda one: (-one[1], one[0]))[: config.keep_best]

    def patient(self, config: TrainConfig) -> bool:
        """Whether to continue after the last evaluations without improvement."""
        return config.patience is None or self.waited < config.patience

    @property
    def kept(self) -> set[int]:
        """The steps whose checkpoints must be kept."""
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
    players: Mapping[str, PlayerConfig] = MappingProxyType({}),
) -> Iterator[Event]:
    """Train until the budget is spent or `stop()` is true; `counters` is updated in place.

    `saved` holds the tensors of a checkpoint, under `model`, `optimizer` and possibly `carry`, and is emptied. With
    several processes, each calls this, and only the leader has a saver. `records` allows recorded steps on a CPU,
    `captures` CUDA graphs on a GPU. With a `carry`, the initial one with the lanes of all processes, the loss is
    `loss(batch, carry) -> (Loss, carry)` (see `training/carry.py`), and steps are neither recorded nor captured; nor
    are they with `players`, parts of the model that have optimizers of their own (see `training/players.py`).
    """
    team = team or Team()
    half = half_precision(config, device)
    if saved:
        model.load_state_dict(saved.pop("model"))
    loss_function: Any = loss_of
    if team.distributed:
        share_statistics(model, team.rank, team.world, team.parts(config.accumulate))
    parallel = team.parallelize(model, stateless(loss_function) if carry is None else loss_function, config.parallel)
    optimizer, others = make_optimizer(config.optimizer, model, device, players), make_players(players, model, device)
    optimizers = [optimizer, *(player.optimizer for player in others)]
    if saved:
        load_states(optimizers, model, saved.pop("optimizer"))
        if "carry" in saved:
            carry = restore(carry, saved.pop("carry"))
    own_carry, lanes = local_lanes(carry, team), lane_count(carry)
    if is_finished(config, counters):
        return
    if device.type == "cpu":
        keep_memory()
    model.train()
    if device.type == "cuda" and batches.few_shapes:
        torch.backends.cudnn.benchmark = not config.deterministic  # times convolutions once per shape
    local = LocalBatches(team, batches, config, counters.position, lanes > 0)
    micro = local.next()
    plain, first = PlainStep(model, parallel, optimizer, config, device, half, own_carry, others), micro[0]
    statistics, averages = plain.statistics, team.distributed or config.accumulate > 1
    alone, records = not (team.distributed or lanes or others), records and not statistics
    run: AnyStep = plain
    if device.type == "cuda" and batches.few_shapes and alone and captures:
        run = GraphedStep(plain, first, batches.one_shape)
    elif device.type == "cpu" and records and alone and not (half or config.compile or config.accumulate > 1):
        with suppress(CannotRecordError):
            run = RecordedStep(plain, first)
    if team.distributed:
        # DDP rearranges its buckets after the first backward pass. An extra one makes it do so before the first step,
        # so that a resumed run sums gradients in the same order as an uninterrupted one.
        plain.gradients(micro[0], 1)
        plain.skip()
        plain.carry = own_carry
        statistics.restore(statistics.before)

    def save() -> None:
        require_sound(model, counters.step)
        if counters.step % config.save_every == 0:
            counters.regular = [*counters.regular, counters.step][-config.average :]
        moments = states(optimizers, model)
        groups = {"model": gather_weights(model, team), "optimizer": gather_tensors(moments, team)}
        if lanes:
            groups["carry"] = gather_lanes(plain.carry, team, lanes)
        if saver:
            saver.save(counters.step, groups, vars(counters), about, counters.kept)
        team.wait()

    def done() -> Iterator[Saved]:
        yield from (Saved(step, str(path)) for step, path in (saver.finished() if saver else []))

    started, last_time, last_tokens = time.monotonic() - counters.seconds, time.monotonic(), counters.tokens
    stopping = False
    try:
        while not is_finished(config, counters) and not stopping:
            progress = spent(config, counters)
            stop_here = stop()
            if stop_here and not team.distributed:
                break
            step, start_epoch = counters.step + 1, batches.epoch_of(counters.position)
            team.report_step(step)
            tokens = local.tokens(counters.position)
            rate = config.optimizer.lr * config.schedule.factor(step, progress)
            if half is torch.float16:
                plain.scale.fill_(counters.scale)
            losses, parts, carries = [], list[Tensor](), []
            statistics.begin()
            for index, batch in enumerate(micro):
                if not run.uses_threads:  # recorded steps have no dropout
                    local.seed(device, step, index)
                carries.append(plain.carry)
                loss = run.gradients(batch, tokens, last=index == len(micro) - 1)
                losses.append(loss.plain.clone())
                parts += [part.clone() for part in loss.parts.values()]
                if averages:
                    statistics.add()
            found = torch.stack([*losses, *parts, run.norm()])
            if run.copies_ahead and step != config.budget.steps:  # while the device computes this step
                run.start(local.prefetch()[0], local.tokens(counters.position + config.accumulate))
            *own, norm_value = found.tolist()
            own, own_parts = own[: len(losses)], own[len(losses) :]
            elapsed = time.monotonic() - started if team.leads else 0.0
            sums = [sum(own_parts[number :: len(loss.parts)]) for number in range(len(loss.parts))]
            total, stops, seconds, *sums = team.sum([sum(own), float(stop_here), elapsed, *sums])
            loss_value, stopping = total / tokens, stops > 0
            if half is torch.float16 and math.isfinite(loss_value):
                updates = update_loss_scale(counters, math.isfinite(norm_value))
            elif not (math.isfinite(loss_value) and math.isfinite(norm_value)):
                raise _non_finite_error(team, model, step, micro, own, plain, local, carries)
            else:
                updates = True
            if updates:
                run.update(rate)
                statistics.update(team)
            else:
                run.skip()
                statistics.skip()

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
                micro = local.next()
                run.start(micro[0], local.tokens(counters.position))
                if run.uses_threads:
                    local.prefetch()
            else:
                run.wait()
            yield Step(
                step, epoch, loss_value, rate, norm_value if updates else 0.0, counters.tokens, speed,
                spent(config, counters), counters.skipped,
                {name: part / tokens for name, part in zip(loss.parts, sums, strict=True)},
            )  # fmt: skip
            if (epochs := batches.epoch_of(counters.position)) > start_epoch:
                yield Epoch(step, epochs, counters.epoch_loss / counters.epoch_tokens)
                counters.epoch_loss, counters.epoch_tokens = 0.0, 0
            yield from done()
            saves, paused = step % config.save_every == 0 or ends, time.monotonic()
            if step % config.evaluate_every == 0 or ends:
                require_sound(model, step)
                model.eval()
                yield Due(step, saves)
                model.train()
                if config.patience is not None and any(team.sum([float(not counters.patient(config))])):
                    counters.waited = max(counters.waited, config.patience)  # only the leader counts evaluations
                    saves = True
                team.wait()
            if saves:
                save()
                yield from done()
            last_time += time.monotonic() - paused  # without the time for evaluating and saving
        if counters.step and counters.step % config.save_every and not is_finished(config, counters):
            save()  # stopped between two checkpoints
        if saver:
            saver.wait()
        yield from done()
    finally:
        run.close()
        local.close()


class LocalBatches:
    """The batches of this process, and the random seed of each."""

    def __init__(self, team: Team, batches: PairBatches, config: TrainConfig, position: int, lanes: bool) -> None:
        self.batches, self.config = batches, config
        self.indices = list(team.batch_indices(0, config.accumulate, lanes))
        self.source = load_batches(
            batches, partial(_batch_indices, team, position, config.accumulate, lanes), config.workers
        )
        self.prefetched: list[Batch] | None = None

    def next(self) -> list[Batch]:
        """The batches of the next step."""
        micro, self.prefetched = self.prefetch(), None
        return micro

    def prefetch(self) -> list[Batch]:
        """Load the batches of the next step ahead of time."""
        if self.prefetched is None:
            self.prefetched = [next(self.source) for _ in self.indices]
        return self.prefetched

    def close(self) -> None:
        """Stop the workers."""
        self.source.close()

    def tokens(self, position: int) -> int:
        """The number of tokens in the step that starts at a position, over all processes."""
        return sum(self.batches.tokens(position + index) for index in range(self.config.accumulate))

    def seed(self, device: torch.device, step: int, index: int) -> None:
        """Set the random seed of a batch; it depends on the batch, not on the process."""
        number, batch = self.indices[index]
        reseed(device, self.config.seed, step, number, batch.part)


def _batch_indices(team: Team, start: int, accumulate: int, lanes: bool) -> Iterator[BatchIndex]:
    """The indices of this process's batches from a position on, without end."""
    for position in itertools.count(start, accumulate):
        yield from (index for _, index in team.batch_indices(position, accumulate, lanes))


def update_loss_scale(counters: Counters, finite: bool) -> bool:
    """Adapt the fp16 loss scale: halve it after an overflow, double it after many finite steps; returns `finite`."""
    if finite:
        counters.steady, counters.skipped_in_a_row = counters.steady + 1, 0
        if counters.steady == GROWTH_INTERVAL:
            counters.scale, counters.steady = min(2 * counters.scale, 2.0**24), 0
        return True
    counters.scale, counters.steady = counters.scale / 2, 0
    counters.skipped, counters.skipped_in_a_row = counters.skipped + 1, counters.skipped_in_a_row + 1
    if counters.skipped_in_a_row == MAX_SKIPPED:
        raise UserError(
            f"the gradients overflowed in fp16 in {MAX_SKIPPED} steps in a row",
            where=f"step {counters.step + 1}",
            found=f"{counters.skipped} steps skipped in total; the loss scale is down to {counters.scale:g}",
            todo="use precision: bf16 or fp32, or lower the learning rate",
            exit_code=EXIT_NOT_FINITE,
        )
    return False


def spent(config: TrainConfig, counters: Counters) -> float:
    """The fraction of the budget that is spent, by the limit that is nearest; see `epochs_to_steps` for epochs."""
    budget = config.budget
    shares = [
        (counters.step, budget.steps),
        (counters.tokens, budget.tokens),
        (counters.seconds / 60, budget.minutes),
    ]
    return min(1.0, max(used / limit for used, limit in shares if limit is not None))


def is_finished(config: TrainConfig, counters: Counters) -> bool:
    """Whether the budget is spent, or early stopping applies."""
    return spent(config, counters) >= 1 or not counters.patient(config)


def steps_to_average(config: TrainConfig, counters: Counters, end: int) -> list[int]:
    """The steps whose weights are averaged if training ends at step `end`: this one, and those saved before it."""
    every, step = config.save_every, counters.step
    to_come = range(step - step % every + every, end, every)
    return [*(step for step in counters.regular if step < end), *to_come, end][-config.average :]


def epochs_to_steps(config: TrainConfig, batches: BatchSource) -> TrainConfig:
    """The same settings with the budget in steps instead of epochs; rounded up to whole steps."""
    budget = config.budget
    if budget.epochs is None:
        return config
    steps = -(-first_batch_of(budget.epochs, batches) // config.accumulate)
    limit = min(steps, budget.steps or steps)
    return config.model_copy(update={"budget": budget.model_copy(update={"epochs": None, "steps": limit})})


def first_batch_of(epoch: int, batches: BatchSource) -> int:
    """The position of an epoch's first batch."""
    beyond = 1
    while batches.epoch_of(beyond) < epoch:
        beyond *= 2
    return bisect_left(range(beyond), epoch, key=batches.epoch_of)


def choose_device(config: TrainConfig, local_rank: int = 0) -> torch.device:
    """The device of this process: each process on a machine has its own GPU."""
    wanted = config.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "torch finds no GPU",
            where="train.device",
            found="cuda",
            todo="write device: auto, or install a torch build for your GPU",
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() == 1 and "SLURM_STEP_NUM_TASKS" in os.environ:
        local_rank = 0  # SLURM may show each task only its own GPU
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            "more processes than GPUs on this machine",
            where=f"the process with local rank {local_rank}",
            found=f"{torch.cuda.device_count()} GPUs",
            todo="set torchrun --nproc-per-node to the number of GPUs, or train.device=cpu",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def set_deterministic(config: TrainConfig) -> None:
    """Use deterministic GPU algorithms only, if the recipe asks for it."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(config.deterministic)


def half_precision(config: TrainConfig, device: torch.device) -> torch.dtype | None:
    """The data type of matrix products; None: float32."""
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported()
    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "auto": torch.bfloat16 if capable else None}
    return named.get(config.precision)


def _non_finite_error(
    team: Team,
    model: nn.Module,
    step: int,
    micro: list[Batch],
    losses: list[float],
    plain: PlainStep,
    local: LocalBatches,
    carries: list[Carry],
) -> UserError:
    """The error about a step that is not finite, from the first process with a non-finite value of its own."""

    def rerun(index: int) -> Loss:
        local.seed(plain.device, step, index)
        loss = propagate_nan(*plain.loss(micro[index], carries[index]))
        plain.statistics.restore(plain.statistics.before)
        return loss

    report = not_finite(model, step, micro, losses, rerun, plain.half is not None)
    bad = [0.0] * team.world
    bad[team.rank] = float(report.own)
    affected = [rank for rank, is_bad in enumerate(team.sum(bad)) if is_bad] or [0]
    if team.rank != affected[0]:
        team.wait()  # until that process raises its error, which ends this one too
    return report
