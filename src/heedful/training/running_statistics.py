"""The running statistics of batch norms (Ioffe and Szegedy, 2015), which are updated once a step.

In training, a batch norm uses the mean and the variance of the micro-batch, and moves its running ones towards them.
Here every micro-batch of a step starts from the same running statistics, and the step ends with their mean over all
micro-batches of all processes. With one micro-batch, that is what torch computes; with several, it depends neither on
their order nor on the number of processes. A step that is not taken leaves them as they were.

All of them are copied at once: a ResNet has hundreds, and a copy of each would take a GPU longer to start than to do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from heedful.training.distributed.team import Team


class RunningStatistics:
    """The running means and variances of a model, and the number of steps that they are of; most models have none."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(running_buffers(model))
        self.before = self.copy()  # the step began with these
        self.sums, self.count = list[Tensor](), 0

    def __bool__(self) -> bool:
        return bool(self.buffers)

    def copy(self) -> list[Tensor]:
        """Copies, for `restore`."""
        copies = [torch.empty_like(buffer) for buffer in self.buffers]
        _copy_all(copies, self.buffers)
        return copies

    def restore(self, values: list[Tensor]) -> None:
        """Put values back."""
        _copy_all(self.buffers, values)

    def begin(self) -> None:
        """Begin a step."""
        if not self.buffers:
            return
        _copy_all(self.before, self.buffers)
        self.sums, self.count = [], 0

    def add(self) -> None:
        """Count what a micro-batch made of them, and let the next one start from the same."""
        if not self.buffers:
            return
        now = [buffer.double() for buffer in self.buffers]
        self.sums = [one + other for one, other in zip(self.sums, now, strict=True)] if self.count else now
        self.count += 1
        self.restore(self.before)

    def skip(self) -> None:
        """End a step that is not taken."""
        self.restore(self.before)

    def update(self, team: Team) -> None:
        """End a step that is taken: the mean over its micro-batches; a collective call.

        Without `add`, they stay as the only micro-batch of the step made them.
        """
        if not self.sums:
            return
        flat = torch.cat([*(total.flatten() for total in self.sums), self.sums[0].new_full((1,), self.count)])
        *sums, count = team.sum_tensor(flat).split([*(buffer.numel() for buffer in self.buffers), 1])
        self.restore([(total / count).view_as(buffer) for total, buffer in zip(sums, self.buffers, strict=True)])


def _copy_all(to: list[Tensor], values: list[Tensor]) -> None:
    """Copy all values at once; floats and counts apart, since one kernel copies one type."""
    for floats in (True, False):
        pairs = [pair for pair in zip(to, values, strict=True) if pair[0].is_floating_point() == floats]
        if pairs:
            torch._foreach_copy_([one for one, _ in pairs], [value for _, value in pairs])


def running_buffers(model: nn.Module) -> Iterator[Tensor]:
    """The running statistics of every batch norm."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            found = (module.running_mean, module.running_var, module.num_batches_tracked)
            yield from (buffer for buffer in found if buffer is not None)
