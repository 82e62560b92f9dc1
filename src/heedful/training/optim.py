"""Optimizers, learning-rate schedules and gradient clipping; torch is imported only by the functions that need it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError
from heedful.errors import UserError
from heedful.training.distributed.shards import local, shard_like, whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


STATE = {"AdamW": ("exp_avg", "exp_avg_sq"), "RootMeanSquare": ("square",), "Momentum": ("velocity",)}  # by optimizer
Decay = Annotated[float, Field(ge=0, lt=1)]


class Noam(Config):
    """width^-0.5 * min(step^-0.5, step * warmup^-1.5), multiplied by lr, which is 1 in the paper."""

    kind: Literal["noam"] = "noam"
    warmup: int = Field(4000, ge=1, description="steps until the rate peaks")
    width: int = Field(512, ge=1, description="model width in the formula; a wider model gets a lower rate")

    def factor(self, step: int, progress: float) -> float:
        """The factor at a step counted from 1; independent of progress."""
        return float(self.width**-0.5 * min(step**-0.5, step * self.warmup**-1.5))


class Cosine(Config):
    """min(1, step / warmup) * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)."""

    kind: Literal["cosine"] = "cosine"
    warmup: int = Field(0, ge=0, description="steps in which the rate also rises from 0, multiplied by the cosine")
    floor: float = Field(0.0, ge=0, le=1, description="fraction of lr at the end of the budget")

    def factor(self, step: int, progress: float) -> float:
        """The factor of lr at a step counted from 1; see `ramp` for progress."""
        return ramp(step, self.warmup) * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2)


class Linear(Config):
    """min(1, step / warmup) * (floor + (1 - floor) * (1 - progress))."""

    kind: Literal["linear"] = "linear"
    warmup: int = Field(0, ge=0, description="steps in which the rate also rises from 0, multiplied by the decay")
    floor: float = Field(0.0, ge=0, le=1, description="fraction of lr at the end of the budget")

    def factor(self, step: int, progress: float) -> float:
        """The factor of lr at a step counted from 1; see `ramp` for progress."""
        return ramp(step, self.warmup) * (self.floor + (1 - self.floor) * (1 - progress))


class Stepwise(Config):
    """min(1, step / warmup) * factor^k, after k of the places in `at`."""

    kind: Literal["stepwise"] = "stepwise"
    warmup: int = Field(0, ge=0, description="steps in which the rate also rises from 0")
    at: tuple[Decay, ...] = Field(
        (1 / 3, 2 / 3), min_length=1, max_length=100, description="fractions of the budget after which the rate falls"
    )
    drop: float = Field(0.1, gt=0, lt=1, description="what the rate is multiplied by there")

    def factor(self, step: int, progress: float) -> float:
        """The factor of lr at a step counted from 1; see `ramp` for progress."""
        return float(ramp(step, self.warmup) * self.drop ** sum(progress >= place for place in self.at))


class Constant(Config):
    """min(1, step / warmup)."""

    kind: Literal["constant"] = "constant"
    warmup: int = Field(0, ge=0, description="steps in which the rate rises from 0")

    def factor(self, step: int, progress: float) -> float:
        """The factor of lr at a step counted from 1; independent of progress."""
        return ramp(step, self.warmup)


def ramp(step: int, warmup: int) -> float:
    """The warmup factor of a schedule, 1 from step `warmup` on.

    The decay depends on `progress` in [0, 1], the fraction of the budget spent before this step, since a budget may be
    in steps, tokens or minutes. With a budget in minutes, a run cannot be reproduced exactly.
    """
    return min(1.0, step / warmup) if warmup else 1.0


class AdamW(Config):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    kind: Literal["adamw"] = "adamw"
    lr: float = Field(3e-4, gt=0, description="learning rate, multiplied by the schedule")
    betas: tuple[Decay, Decay] = Field((0.9, 0.98), description="decay of the two running averages, each in [0, 1)")
    eps: float = Field(1e-9, gt=0, description="added to the denominator")
    weight_decay: float = Field(0.01, ge=0, description="decay of weight matrices; biases and norms have none")


class RMSprop(Config):
    """Steps by the gradient over the root of a running average of its square (Tieleman and Hinton, 2012)."""

    kind: Literal["rmsprop"] = "rmsprop"
    lr: float = Field(1e-3, gt=0, description="learning rate, multiplied by the schedule")
    rho: float = Field(0.9, gt=0, lt=1, description="decay of the running average")
    eps: float = Field(1e-7, gt=0, description="keeps the step finite if gradients vanish")
    eps_place: Literal["after_root", "under_root"] = Field(
        "after_root", description="sqrt(average) + eps, as in torch and Keras up to 2.10; or sqrt(average + eps)"
    )


class SGD(Config):
    """Stochastic gradient descent with momentum, as ConvNets are usually published with."""

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(0.1, gt=0, description="learning rate, multiplied by the schedule")
    momentum: float = Field(0.9, ge=0, lt=1, description="decay of the velocity, the running sum of gradients")
    nesterov: bool = Field(False, description="Nesterov's momentum: the gradient counts once more")
    weight_decay: float = Field(
        1e-4, ge=0, description="part of a weight added to its gradient; biases and norms have none"
    )

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise FieldError("Nesterov's momentum needs momentum: 0.9, say", "nesterov")
        return self


def make_optimizer(
    config: AdamW | RMSprop | SGD, model: nn.Module, device: torch.device, without: Collection[str] = ()
) -> torch.optim.Optimizer:
    """The optimizer of the trainable parameters, in name order; parts in `without` have optimizers of their own."""
    others = tuple(f"{part}." for part in without)
    trained = ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
    named = sorted((name, weight) for name, weight in trained if not name.startswith(others))
    if isinstance(config, RMSprop):
        from heedful.training.rmsprop import RootMeanSquare

        under, after = (config.eps, 0.0) if config.eps_place == "under_root" else (0.0, config.eps)
        return RootMeanSquare(named, config.lr, config.rho, under, after)
    if isinstance(config, SGD):
        from heedful.training.sgd import Momentum

        return Momentum(_groups(config.weight_decay, named), config.lr, config.momentum, config.nesterov)
    return _adamw(config, named, device)


def _groups(weight_decay: float, named: list[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Two groups of parameters: matrices decay, biases and norms do not; one group if nothing decays."""
    if not weight_decay:
        return [{"params": named, "weight_decay": 0.0}]
    matrices = [(name, weight) for name, weight in named if weight.dim() >= 2]
    vectors = [(name, weight) for name, weight in named if weight.dim() < 2]
    decays = ((matrices, weight_decay), (vectors, 0.0))
    return [{"params": group, "weight_decay": decay} for group, decay in decays if group]


def _adamw(config: AdamW, named: list[tuple[str, nn.Parameter]], device: torch.device) -> torch.optim.AdamW:
    import torch

    fused = device.type == "cuda"
    return torch.optim.AdamW(
        _groups(config.weight_decay, named),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=fused,
        foreach=not fused,
    )


def clip(parameters: Iterable[Tensor], limit: float | None, rule: Literal["norm", "squared"] = "norm") -> Tensor:
    """Clip gradients to a maximum norm and return their norm before that; None only measures.

    `squared` compares with and divides by the squared norm, a frequent misprint: (3, 4) at limit 5 becomes (0.6, 0.8),
    although its norm of 5 needs no clipping. There is no synchronization with a GPU, and gradients whose norm is not
    finite are left unchanged, so that the caller can name the first bad one.
    """
    import torch

    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if limit is not None and gradients:
        measure = norm.square() if rule == "squared" else norm
        if measure.is_cpu and not measure > limit:
            return norm
        scale = torch.where(norm.isfinite(), (limit / measure).clamp(max=1.0), 1.0)
        torch._foreach_mul_([local(gradient) for gradient in gradients], scale)
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as flat names, such as `exp_avg.<parameter>` and `step.<parameter>` of AdamW."""
    states = ((name, optimizer.state.get(weight, {})) for name, weight in model.named_parameters())
    return {f"{key}.{name}": value for name, state in states for key, value in state.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the state from `optimizer_tensors` of the same model; refuses tensors that do not fit."""
    import torch

    adam = isinstance(optimizer, torch.optim.AdamW)
    kept = STATE[type(optimizer).__name__]
    names = {weight: name for name, weight in model.named_parameters()}
    ordered = [weight for group in optimizer.param_groups for weight in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    unused = dict(tensors)
    for index, weight in enumerate(ordered):
        expected = {f"{key}.{names[weight]}": weight.shape for key in kept}
        expected |= {f"step.{names[weight]}": weight.new_empty(()).shape} if adam else {}
        given = {name: unused.pop(name) for name in expected if name in unused}
        if not given:
            continue  # a parameter without a gradient so far has no state
        if {name: value.shape for name, value in given.items()} != expected:
            raise _misfit(given, ", ".join(f"{name} {tuple(shape)}" for name, shape in expected.items()))
        # Cloned, since the optimizer changes its state in place.
        states[index] = {name.partition(".")[0]: shard_like(value, weight).clone() for name, value in given.items()}
    if unused:
        raise _misfit(unused, "parameters that this model has and trains")
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _misfit(tensors: dict[str, Tensor], expected: str) -> UserError:
    named = [f"{name} {tuple(value.shape)}" for name, value in sorted(tensors.items())]
    return UserError(
        "the saved optimizer state does not fit this model",
        where=named[0].partition(" ")[0],
        found=", ".join(named[:10]) + (f" and {len(named) - 10} more" if len(named) > 10 else ""),
        expected=expected,
        todo="resume with the recipe that wrote the checkpoint",
    )
