"""What a computation costs, counted instead of measured: multiplications and additions, and the bytes held at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from heedful.blocks.sparse import attend_blocks, attend_blocks_backward


def products(q: Tensor, k: Tensor) -> int:
    """The operations of one matrix product of attention, in all heads."""
    return 2 * q.shape[:-1].numel() * k.shape[-2] * q.shape[-1]


def steps(x: Tensor, into: Tensor, between: Tensor) -> int:
    """The operations of the two matrix products of a recurrent layer."""
    return 2 * x.shape[:-1].numel() * (into.numel() + between.numel())


# By operator; those of CPUs are not known to torch's own counter.
FORMULAS: dict[str, Callable[..., int]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": lambda q, k, *_: 2 * products(q, k),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": lambda _, q, k, *__: 5 * products(q, k),
    "mkldnn::_linear_pointwise": lambda x, weight, *_: 2 * x.numel() * len(weight),
    "aten::mkldnn_rnn_layer": lambda x, into, between, *_: steps(x, into, between),
    "aten::mkldnn_rnn_layer_backward": lambda x, into, between, *_: 2 * steps(x, into, between),
}
KNOWN = {str(operator).replace(".", "::"): formula for operator, formula in flop_registry.items()}


class Counted(TorchDispatchMode):
    """Counts what is computed within the block: `operations`, and `peak`, the most bytes of new tensors at a time.

    The operators of block-sparse attention are looked into. Both numbers are the same on every run.
    """

    definitions: dict[Any, Callable[..., Any]]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.held = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}  # storages by address
        ops = torch.ops.heedful
        self.definitions = {ops.blocks.default: attend_blocks, ops.blocks_backward.default: attend_blocks_backward}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves(args):  # those from outside cost nothing
            if isinstance(x, Tensor) and id(x.untyped_storage()) not in self._known:
                self._hold(x, 0)
        with self:
            if func in self.definitions:
                return self.definitions[func](*args)
            parts = func.decompose(*args, **(kwargs or {}))  # those of a composite operator
        if parts is not NotImplemented:
            return parts
        found = func(*args, **(kwargs or {}))
        name = func.name().partition(".")[0]
        if name in FORMULAS:
            self.operations += FORMULAS[name](*args)
        elif name in KNOWN:
            self.operations += KNOWN[name](*args, **(kwargs or {}), out_val=found)
        for x in tree_leaves(found):
            if isinstance(x, Tensor) and id(x.untyped_storage()) not in self._known:
                self._hold(x, x.untyped_storage().nbytes())
        return found

    def _hold(self, x: Tensor, size: int) -> None:
        storage = x.untyped_storage()
        self.held += size
        self.peak = max(self.peak, self.held)
        self._known[id(storage)] = weakref.ref(storage, partial(self._release, id(storage), size))

    def _release(self, address: int, size: int, _: object) -> None:
        self.held -= size
        self._known.pop(address, None)
