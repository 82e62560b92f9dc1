"""Building a model whose weights are loaded afterwards, without random numbers, which take longer than all else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

RANDOM = {Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}


class Unset(TorchFunctionMode):
    """In this context and thread, weights begin as zeros."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func not in RANDOM:
            return func(*args, **given)
        tensor: Tensor = given["tensor"] if "tensor" in given else args[0]
        with torch.no_grad():
            return tensor.zero_()
