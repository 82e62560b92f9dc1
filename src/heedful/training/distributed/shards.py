"""Sharded tensors (DTensor): gathering, the local shard, and sharding like another tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has only a shard."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The full tensor; a collective call for sharded ones."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """The local shard of a tensor, sharing its memory."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A full tensor sharded like another one of its shape, without communication."""
    if not is_sharded(other) or tensor.shape != other.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    like: Any = other
    return distribute_tensor(tensor.to(other.device), like.device_mesh, like.placements, src_data_rank=None)
