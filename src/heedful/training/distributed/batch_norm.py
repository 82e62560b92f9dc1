"""Batch norms over the processes that share a micro-batch: their statistics are those of the whole micro-batch.

B images of this process, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SharedBatchNorm(_BatchNorm):
    """(x - mean) / sqrt(var + eps) * weight + bias, with mean and variance over the processes of a group.

    Torch's own `SyncBatchNorm` needs a GPU.
    """

    group: Any  # the process group

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions, channels second."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        x = input.float()
        axes, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
        count = _sum(x.new_full((), x.numel() // x.shape[1]), self.group)
        mean = _sum(x.sum(axes), self.group) / count  # (C,)
        centred = x - mean.view(shape)
        var = _sum(centred.square().sum(axes), self.group) / count  # (C,)
        self._track(mean.detach(), var.detach() * count / (count - 1).clamp(min=1))
        y = centred * (var + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(var, factor)


def _sum(x: Tensor, group: Any) -> Tensor:
    """The sum of a tensor over the processes of a group; so is its gradient."""
    total: Tensor = _Sum.apply(x, group)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """The sum of a tensor over the processes of a group; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def share_statistics(model: nn.Module, rank: int, world: int, parts: int) -> None:
    """Replace the batch norms of a model by shared ones, where `parts` processes share each micro-batch."""
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if parts == 1 or not norms:
        return
    groups = [dist.new_group(range(first, first + parts)) for first in range(0, world, parts)]
    for name, norm in norms:
        shared = SharedBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        shared.group = groups[rank // parts]
        for key, weight in norm.named_parameters(recurse=False):
            shared.register_parameter(key, weight)
        for key, buffer in norm.named_buffers(recurse=False):
            shared.register_buffer(key, buffer)
        shared.training = norm.training
        parent, _, own = name.rpartition(".")
        model.get_submodule(parent).register_module(own, shared)
