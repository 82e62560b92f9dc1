"""What a decoder carries from one token to the next: plain values, batch rows first.

R rows (sentences times hypotheses), B sentences, H heads, S keys, K width of one head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from heedful.blocks.attention import KV
from heedful.blocks.masks import Mask, Visible, causal

Value = TypeVar("Value")


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """What all hypotheses of a sentence read: stored once for each sentence."""

    value: Value


class Slot(Protocol):
    """The past of one layer while the next queries are read."""

    def append(self, kv: KV, /) -> KV:
        """All keys and values, those of the queries last; the slot keeps what comes after them will need."""


class Past(Protocol):
    """Keys and values of all layers so far."""

    @property
    def length(self) -> int | Tensor: ...

    def reach(self, queries: int, /) -> int:
        """How long a sequence may be after the next queries."""

    def places(self, queries: int, device: torch.device, /) -> Tensor:
        """The positions of the next queries."""

    def visible(self, queries: int, /) -> Visible:
        """Which of the keys so far, and of their own, they may attend to."""

    def slots(self, queries: int, /) -> Sequence[Slot]:
        """A slot a layer, for the next queries."""

    def after(self, slots: Sequence[Any], /) -> "Past":
        """The past once these slots of its own have taken the queries' keys and values."""


@dataclass(frozen=True)
class Ragged:
    """Texts of different lengths that end together: the first `skip` (R,) keys of each row hold nothing.

    A row ends before it has more than `most` positions; what is computed there while others continue does not matter.
    """

    skip: Tensor
    most: int

    def places(self, columns: Tensor) -> Tensor:
        """The positions of queries in some columns in their own texts."""
        return (columns - self.skip[:, None]).clamp(0, self.most - 1)  # (R, T)

    @property
    def begun(self) -> Mask:
        """Keys that are not padding."""
        return Mask(lambda b, h, q, k: k >= self.skip[b])


def _columns(length: int | Tensor, queries: int, device: torch.device) -> Tensor:
    """The columns of the cache for keys and values of the next queries."""
    return length + torch.arange(queries, device=device)  # (T,)


def _placed(length: int | Tensor, queries: int, device: torch.device, ragged: Ragged | None) -> Tensor:
    """The positions of the next queries, (T,) or (R, T)."""
    columns = _columns(length, queries, device)  # (T,)
    return columns if ragged is None else ragged.places(columns)


def _reached(length: int, ragged: Ragged | None) -> int:
    """The number of positions that may be needed: those of the longest open row."""
    return length if ragged is None else min(length, ragged.most)


@dataclass
class GrowingSlot:
    """A slot that grows by copying."""

    held: KV | None

    def append(self, kv: KV) -> KV:
        self.held = kv if self.held is None else self.held.append(kv)
        return self.held


@dataclass(frozen=True)
class Cache:
    """Keys and values so far, two (R, H, S, K) a layer, or None before the first token; never written in place."""

    layers: tuple[KV | None, ...]
    ragged: Ragged | None = None

    @property
    def length(self) -> int:
        first = self.layers[0]
        return 0 if first is None else first.k.shape[2]

    def reach(self, queries: int) -> int:
        return _reached(self.length + queries, self.ragged)

    def places(self, queries: int, device: torch.device) -> Tensor:
        return _placed(self.length, queries, device, self.ragged)

    def visible(self, queries: int) -> Visible:
        return causal(self.length) if self.ragged is None else causal(self.length) & self.ragged.begun

    def slots(self, queries: int) -> Sequence[Slot]:
        return [GrowingSlot(layer) for layer in self.layers]

    def after(self, slots: Sequence[GrowingSlot]) -> "Cache":
        return Cache(tuple(slot.held for slot in slots), self.ragged)


class EmptySlot:
    """A slot of texts that nothing follows."""

    def append(self, kv: KV) -> KV:
        return kv


@dataclass(frozen=True)
class AllAtOnce:
    """The past of texts that come as a whole, none longer than `longest`: no token follows, so nothing is cached."""

    layers: int
    longest: int
    at: Tensor  # (T,) or (B, T)
    mask: Visible
    length: int = 0

    def reach(self, queries: int) -> int:
        return self.longest

    def places(self, queries: int, device: torch.device) -> Tensor:
        return self.at

    def visible(self, queries: int) -> Visible:
        return self.mask

    def slots(self, queries: int) -> Sequence[Slot]:
        return [EmptySlot()] * self.layers

    def after(self, slots: Sequence[Slot]) -> Past:
        return Cache(())  # which no token can follow


@dataclass
class PreallocatedSlot:
    """A slot of a `PreallocatedCache`."""

    room: KV
    length: int

    def append(self, kv: KV) -> KV:
        begin, self.length = self.length, self.length + kv.k.shape[2]
        end = self.length
        self.room.k[:, begin:end] = kv.k.transpose(1, 2)
        self.room.v[:, begin:end] = kv.v.transpose(1, 2)
        return KV(self.room.k[:, :end].transpose(1, 2), self.room.v[:, :end].transpose(1, 2))  # (R, H, S, K)


@dataclass(frozen=True)
class PreallocatedCache:
    """A cache for a CPU, preallocated, (R, room, H, K) a layer, and written in place, so that it has one owner only.

    Reordering hypotheses copies what is used into the spare buffers, and the two are swapped: nothing is allocated.
    """

    layers: tuple[KV, ...]
    spare: tuple[KV, ...]
    length: int
    ragged: Ragged | None = None

    def reach(self, queries: int) -> int:
        return _reached(self.length + queries, self.ragged)

    def places(self, queries: int, device: torch.device) -> Tensor:
        return _placed(self.length, queries, device, self.ragged)

    def visible(self, queries: int) -> Visible:
        return causal(self.length) if self.ragged is None else causal(self.length) & self.ragged.begun

    def slots(self, queries: int) -> Sequence[Slot]:
        return [PreallocatedSlot(layer, self.length) for layer in self.layers]

    def after(self, slots: Sequence[PreallocatedSlot]) -> "PreallocatedCache":
        return replace(self, length=slots[0].length)

    def regroup(self, rows: Tensor) -> "PreallocatedCache":
        for before, after in zip(self.layers, self.spare, strict=True):
            torch.index_select(before.k[:, : self.length], 0, rows, out=after.k[:, : self.length])
            torch.index_select(before.v[:, : self.length], 0, rows, out=after.v[:, : self.length])
        return PreallocatedCache(self.spare, self.layers, self.length, regroup(self.ragged, rows))

    @classmethod
    def of(cls, layers: Sequence[KV], room: int, ragged: Ragged | None = None) -> "PreallocatedCache":
        """A cache of keys and values (R, H, S, K) a layer, with room for this many."""
        length = layers[0].k.shape[2]

        def roomy(x: Tensor) -> Tensor:
            grown = x.new_empty(x.shape[0], room, x.shape[1], x.shape[3])  # (R, room, H, K)
            grown[:, :length] = x.transpose(1, 2)
            return grown

        first, second = (tuple(KV(roomy(kv.k), roomy(kv.v)) for kv in layers) for _ in range(2))
        return cls(first, second, length, ragged)


def make_room(state: Any, count: int) -> Any:
    """The same state with room in every cache for `count` more keys; caches that grow at least double."""
    if isinstance(state, Cache) and all(state.layers):
        return PreallocatedCache.of([kv for kv in state.layers if kv], 2 * max(state.length + count, 16), state.ragged)
    if isinstance(state, PreallocatedCache):
        if state.length + count <= state.layers[0].k.shape[1]:
            return state
        used = [
            KV(kv.k[:, : state.length].transpose(1, 2), kv.v[:, : state.length].transpose(1, 2)) for kv in state.layers
        ]
        return PreallocatedCache.of(used, 2 * (state.length + count), state.ragged)
    return _map(state, lambda part: make_room(part, count))


@dataclass(frozen=True)
class StaticSlot:
    """A slot that writes in place."""

    room: KV
    at: Tensor

    def append(self, kv: KV) -> KV:
        self.room.k.index_copy_(2, self.at, kv.k.to(self.room.k.dtype))
        self.room.v.index_copy_(2, self.at, kv.v.to(self.room.v.dtype))
        return self.room


@dataclass(frozen=True)
class StaticCache:
    """A preallocated cache for captured graphs: written in place, so that it has one owner only.

    `length` is a tensor, since a captured step must not know it. Keys never move: `rows` (R, S) says in which row each
    key of a hypothesis stands, and reordering hypotheses reorders that table alone.
    """

    layers: Shared[tuple[KV, ...]]
    rows: Tensor
    length: Tensor
    ragged: Ragged | None = None

    def reach(self, queries: int) -> int:
        return queries  # unknown here: the caller that reserves the room checks it

    def places(self, queries: int, device: torch.device) -> Tensor:
        return _placed(self.length, queries, device, self.ragged)

    def visible(self, queries: int) -> Visible:
        keys = torch.arange(self.rows.shape[1], device=self.rows.device)  # (S,)
        seen = keys <= _columns(self.length, queries, self.rows.device)[:, None]  # (T, S)
        return seen if self.ragged is None else seen & (keys >= self.ragged.skip[:, None, None, None])

    def slots(self, queries: int) -> Sequence[Slot]:
        at, own = (
            _columns(self.length, queries, self.rows.device),
            torch.arange(len(self.rows), device=self.rows.device),
        )
        rows = self.rows.index_copy(1, at, own[:, None].expand(-1, queries))  # (R, S)
        length, skip = self.length + queries, None if self.ragged is None else self.ragged.skip
        return [StaticSlot(KV(layer.k, layer.v, rows, length, skip), at) for layer in self.layers.value]

    def after(self, slots: Sequence[StaticSlot]) -> "StaticCache":
        rows, length = slots[0].room.rows, slots[0].room.length
        assert rows is not None and length is not None
        return StaticCache(self.layers, rows, length, self.ragged)


def reserve(state: Any, room: int) -> Any:
    """The same state with every cache moved into static room for `room` keys."""
    if isinstance(state, Cache):
        first = state.layers[0]
        assert first is not None, "shapes are known after the first token"
        rows = torch.arange(len(first.k), device=first.k.device)[:, None].expand(-1, room).contiguous()  # (R, S)
        length = torch.tensor(state.length, device=first.k.device)
        return StaticCache(Shared(tuple(_roomy(kv, room) for kv in state.layers if kv)), rows, length, state.ragged)
    if isinstance(state, StaticCache):
        more = state.rows.new_zeros(len(state.rows), room - state.rows.shape[1])
        layers = tuple(_roomy(kv, room) for kv in state.layers.value)
        return StaticCache(Shared(layers), torch.cat([state.rows, more], 1), state.length, state.ragged)
    return _map(state, lambda part: reserve(part, room))


def cached_length(state: Any) -> int:
    """The number of keys in each row of the longest cache of a state."""
    if isinstance(state, Cache | PreallocatedCache | StaticCache):
        return int(state.length)
    if is_dataclass(state) and not isinstance(state, type):
        return max((cached_length(getattr(state, field.name)) for field in fields(state)), default=0)
    return max(map(cached_length, state), default=0) if isinstance(state, tuple) else 0


def _roomy(kv: KV, room: int) -> KV:
    k, v = (x.new_zeros(*x.shape[:2], room, x.shape[3]) for x in (kv.k, kv.v))  # (R, H, S, K)
    k[:, :, : kv.k.shape[2]], v[:, :, : kv.v.shape[2]] = kv.k, kv.v
    return KV(k, v)


def select(state: Any, rows: Tensor) -> Any:
    """Keep, repeat or reorder batch rows in every part of the state."""
    return map_tensors(state, lambda x: x.index_select(0, rows) if x.dim() else x)


def regroup(state: Any, rows: Tensor) -> Any:
    """`select` among the hypotheses of each sentence: what they share stays as it is."""
    if isinstance(state, Shared):
        return state
    if isinstance(state, PreallocatedCache):
        return state.regroup(rows)
    if isinstance(state, Tensor):
        return state.index_select(0, rows) if state.dim() else state
    return _map(state, lambda part: regroup(part, rows))


def map_tensors(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same state with a function applied to every tensor."""
    return change(state) if isinstance(state, Tensor) else _map(state, lambda part: map_tensors(part, change))


def reset_rows(state: Any, fresh: Tensor) -> Any:
    """The same state with zeros in the batch rows (B,) that start over."""
    return map_tensors(state, lambda x: x.masked_fill(fresh.view(-1, *(1,) * (x.dim() - 1)), 0))


def tensors(state: Any) -> list[Tensor]:
    """Every tensor of the state, in a fixed order."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_tensors(state, note)
    return found


def _map(state: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with each direct part changed."""
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{field.name: change(getattr(state, field.name)) for field in fields(state)})
    if isinstance(state, tuple):
        parts = [change(part) for part in state]
        return tuple(parts) if type(state) is tuple else type(state)(*parts)
    return state
