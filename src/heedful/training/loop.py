"""Training as a generator of events: whoever wants to draw, record or stop writes a `for` loop.

Order and chance are functions of counters, so that a run resumed from a checkpoint is the run that was not broken off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.data.batches import Batch, Batches, PackedBatch
from heedful.errors import UserError
from heedful.training.checkpoint import Checkpoint, RunFolder
from heedful.training.configs import TrainConfig
from heedful.training.optim import load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.seeds import reseed
from heedful.training.step import GraphedStep, LossOf, PlainStep

EXIT_NOT_FINITE = 3  # the exit code when a number is no longer one


@dataclass(frozen=True)
class Step:
    """An optimizer step that was taken: the loss is the mean a token, without label smoothing."""

    step: int
    epoch: int
    loss: float
    rate: float
    norm: float
    tokens: int  # since the start of the run
    tokens_per_second: float
    progress: float  # share of the budget spent


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is now on the disk."""

    step: int
    path: str


@dataclass(frozen=True)
class Due:
    """The moment to evaluate: the model is in evaluation mode until the loop goes on."""

    step: int
    saved: bool  # whether a checkpoint of this very step follows


Event = Step | Saved | Due


@dataclass
class Counters:
    """Where a run stands; with the weights and the optimizer's state this is all there is to know."""

    step: int = 0
    position: int = 0  # batches taken
    tokens: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best_score: float | None = None


def fit(
    model: nn.Module,
    loss_of: LossOf,
    batches: Batches,
    config: TrainConfig,
    device: torch.device,
    folder: RunFolder,
    about: dict[str, Any],
    counters: Counters,
    checkpoint: Checkpoint | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train until the budget is spent or `stop` says so; `counters` is kept up to date for the caller."""
    bf16 = uses_bf16(config, device)
    optimizer = make_optimizer(config.optimizer, model, device)
    if checkpoint is not None:
        load_strictly(model, checkpoint.load("model"), checkpoint.path / "model.safetensors")
        load_optimizer(optimizer, model, checkpoint.load("optimizer"))
    model.train()
    plain, first = PlainStep(model, loss_of, optimizer, config, device, bf16), batches.at(counters.position)
    run = GraphedStep(plain, first) if device.type == "cuda" and isinstance(first, PackedBatch) else plain

    def save() -> Saved:
        require_sound(model, counters.step)
        tensors = {"model": weights_of(model), "optimizer": optimizer_tensors(optimizer, model)}
        path = folder.save(counters.step, tensors, vars(counters), about, counters.best_step)
        return Saved(counters.step, str(path))

    began, last_time, last_tokens = time.monotonic() - counters.seconds, time.monotonic(), counters.tokens
    while (progress := spent(config, counters)) < 1 and not stop():
        step = counters.step + 1
        micro = [batches.at(counters.position + index) for index in range(config.accumulate)]
        tokens = sum(batch.tokens for batch in micro)
        rate = config.optimizer.lr * config.schedule.factor(step, progress)
        total = torch.zeros((), device=device)
        for index, batch in enumerate(micro):
            reseed(device, config.seed, step, index)
            total += run.gradients(batch, tokens).plain
        loss_value, norm_value = torch.stack([total / tokens, run.norm()]).tolist()
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            raise _not_finite(model, step, micro, loss_value)
        run.update(rate)

        counters.step, counters.position = step, counters.position + config.accumulate
        counters.tokens, counters.seconds = counters.tokens + tokens, time.monotonic() - began
        now = time.monotonic()
        speed = (counters.tokens - last_tokens) / max(now - last_time, 1e-9)
        ends = spent(config, counters) >= 1
        if step % config.log_every == 0 or ends or step == 1:
            last_time, last_tokens = now, counters.tokens
        epoch = batches.epoch_of(counters.position - 1)
        yield Step(step, epoch, loss_value, rate, norm_value, counters.tokens, speed, spent(config, counters))
        saves, paused = step % config.save_every == 0 or ends, time.monotonic()
        if step % config.evaluate_every == 0 or ends:
            require_sound(model, step)
            model.eval()
            yield Due(step, saves)
            model.train()
        if saves:
            yield save()
        last_time += time.monotonic() - paused  # looking at the model and saving it are not its speed
    if counters.step and counters.step % config.save_every and spent(config, counters) < 1:
        yield save()  # stopped between two saves: nothing is lost


def spent(config: TrainConfig, counters: Counters) -> float:
    """The share of the budget that is used up, by whichever limit is nearest."""
    budget = config.budget
    shares = [
        (counters.step, budget.steps),
        (counters.tokens, budget.tokens),
        (counters.seconds / 60, budget.minutes),
    ]
    return min(1.0, max(used / limit for used, limit in shares if limit is not None))


def choose_device(config: TrainConfig) -> torch.device:
    """The device that the recipe asks for."""
    wanted = config.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "there is no GPU that torch can use",
            where="train.device",
            found="cuda",
            todo="write device: auto, or install a torch build for your GPU",
        )
    return torch.device("cuda" if torch.cuda.is_available() and wanted != "cpu" else "cpu")


def uses_bf16(config: TrainConfig, device: torch.device) -> bool:
    """Whether matrix products run in bfloat16."""
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return config.precision == "bf16" or (config.precision == "auto" and capable)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by name, on the CPU."""
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def load_strictly(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Put weights from a file into a model, all or none."""
    require_fit(model, tensors, file)
    model.load_state_dict(tensors)


def require_fit(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Say which weights are missing, unknown, or of another shape or type than the model's."""
    expected = {name: _kind(value) for name, value in model.state_dict().items()}
    given = {name: _kind(value) for name, value in tensors.items()}
    wrong = [f"{name}: not in the file" for name in expected.keys() - given.keys()]
    wrong += [f"{name}: not in the model" for name in given.keys() - expected.keys()]
    wrong += [
        f"{name}: {given[name]} in the file, {expected[name]} in the model"
        for name in expected.keys() & given.keys()
        if expected[name] != given[name]
    ]
    if wrong:
        more = f"\nand {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise UserError(
            "the weights do not fit the model",
            where=str(file),
            found="\n".join(sorted(wrong)[:10]) + more,
            expected=f"{len(expected)} tensors, each of its shape and type",
            todo="load them with the recipe or config they were made with",
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def require_sound(model: nn.Module, step: int) -> None:
    """Refuse to evaluate or to save a model whose weights the last steps have made too large to be numbers."""
    if not torch.stack([weight.isfinite().all() for weight in model.parameters()]).all():
        bad = next(name for name, weight in model.named_parameters() if not weight.isfinite().all())
        raise UserError(
            f"a weight is not finite after step {step}",
            found=f"first bad tensor: {bad}",
            todo="lower the learning rate or the clip; the last checkpoint is good",
            exit_code=EXIT_NOT_FINITE,
        )


def _not_finite(model: nn.Module, step: int, micro: list[Batch], loss: float) -> UserError:
    """Name the step, the samples and the first tensor that is not finite; nothing has been changed by this step."""
    bad = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    bad += [
        f"the gradient of {name}"
        for name, weight in model.named_parameters()
        if weight.grad is not None and not weight.grad.isfinite().all()
    ]
    samples = [int(index) for batch in micro for index in batch.indices if index >= 0]
    return UserError(
        f"a number is not finite at step {step}, and the step was not taken",
        found=f"loss {loss}; first bad tensor: {bad[0] if bad else 'the loss itself'}",
        where=f"training pairs {', '.join(map(str, samples[:8]))}{' ...' if len(samples) > 8 else ''}",
        todo="lower the learning rate or the clip, or use precision: fp32; the last checkpoint is good",
        exit_code=EXIT_NOT_FINITE,
    )
