"""Tensors of which each process may hold a shard only (DTensor): whole, local, and cut like another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds a part only."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; for shards every process must ask, in the same order."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, in the same memory."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor cut into shards as another of its shape is, with no word between the processes."""
    if not is_sharded(other) or tensor.shape != other.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    like: Any = other
    return distribute_tensor(tensor.to(other.device), like.device_mesh, like.placements, src_data_rank=None)
