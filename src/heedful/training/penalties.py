"""Penalties on weights as parts of the loss: L1 and L2 on the weights that a pattern names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.blocks.regularizers import l1, l2
from heedful.errors import UserError
from heedful.training.configs import Penalty

PENALTIES = {"l1": l1, "l2": l2}


def penalized(loss_of: Callable[..., Any], model: nn.Module, penalties: Sequence[Penalty]) -> Callable[..., Any]:
    """The same loss with penalties, each of which is a part; they count once a step, however many batches it has."""
    if not penalties:
        return loss_of
    chosen = [weights_named(model, one) for one in penalties]

    def loss(*given: Any) -> Any:
        found = loss_of(*given)
        if isinstance(found, Loss):
            return add_penalties(found, penalties, chosen)
        return add_penalties(found[0], penalties, chosen), found[1]

    return loss


def add_penalties(loss: Loss, penalties: Sequence[Penalty], chosen: Sequence[Sequence[Tensor]]) -> Loss:
    """The loss with the penalties on these weights, times its number of items."""
    total, plain, parts = loss.total, loss.plain, dict(loss.parts or {"data": loss.plain})
    for number, (penalty, weights) in enumerate(zip(penalties, chosen, strict=True), 1):
        value = PENALTIES[penalty.kind](weights) * loss.count
        total, plain = total + penalty.weight * value, plain + penalty.weight * value.detach()
        parts[f"{penalty.kind}_{number}" if len(penalties) > 1 else penalty.kind] = value.detach()
    return replace(loss, total=total, plain=plain, parts=parts)


def weights_named(model: nn.Module, penalty: Penalty) -> list[Tensor]:
    """The trained weights of a model whose names fit a pattern."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found: list[Tensor] = [weight for name, weight in named.items() if fnmatchcase(name, penalty.weights)]
    if not found:
        raise UserError(
            "no trained weight has such a name", where="train.regularize", found=f"weights: {penalty.weights}",
            expected=f"a pattern of names such as {', '.join(list(named)[:3])}",
        )  # fmt: skip
    return found
