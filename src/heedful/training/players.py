"""Players of adversarial training: parts of a model with an optimizer of their own, such as a discriminator.

All players move at once, by gradients of one backward pass. It is for the loss to give each player the gradient of its
own loss alone: see `frozen`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.training.configs import PlayerConfig
from heedful.training.optim import clip, load_optimizer, make_optimizer, optimizer_tensors


@dataclass(frozen=True)
class Player:
    """The weights of a part of the model, their optimizer, and the settings of both."""

    config: PlayerConfig
    weights: list[nn.Parameter]
    optimizer: torch.optim.Optimizer

    def clip(self) -> Tensor:
        """Clip the gradients; returns their norm before clipping."""
        return clip(self.weights, self.config.clip)

    def update(self, factor: float) -> None:
        """Update the weights at the learning rate times this factor of the schedule."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.lr * factor
        self.optimizer.step()


def make_players(configs: Mapping[str, PlayerConfig], model: nn.Module, device: torch.device) -> list[Player]:
    """The players of a model, by the names of their parts."""
    players = []
    for name, config in configs.items():
        part = model.get_submodule(name)
        weights = [weight for weight in part.parameters() if weight.requires_grad]
        players.append(Player(config, weights, make_optimizer(config.optimizer, part, device)))
    return players


@contextmanager
def frozen(part: nn.Module) -> Iterator[None]:
    """What is computed inside gives no gradient to this part of a model, but passes gradients through it."""
    weights = [weight for weight in part.parameters() if weight.requires_grad]
    part.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def states(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The states of all optimizers of a model, as flat names."""
    return {name: value for one in optimizers for name, value in optimizer_tensors(one, model).items()}


def load_states(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load what `states` gave of the same model; refuses tensors that do not fit."""
    names = {weight: name for name, weight in model.named_parameters()}
    remaining = dict(tensors)
    for one in optimizers[1:]:
        own = {names[weight] for group in one.param_groups for weight in group["params"]}
        load_optimizer(one, model, {key: remaining.pop(key) for key in tensors if key.partition(".")[2] in own})
    load_optimizer(optimizers[0], model, remaining)
