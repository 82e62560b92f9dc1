"""The state of a decoder between steps: caches of keys and values, and functions on nested states.

R rows (sentences times hypotheses), B sentences, H heads, S keys, M of them that stay, K width of one head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from heedful.blocks.attention import KV
from heedful.blocks.masks import AnyMask, Local, Mask, causal, real

Value = TypeVar("Value")


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value that all hypotheses of a sentence share, stored once for each sentence (an encoder's output)."""

    value: Value


class LayerCache(Protocol):
    """The cache of one layer during a forward pass."""

    def append(self, kv: KV, /) -> KV:
        """Store the keys and values of the new queries, and return all so far, the new ones last."""


class Past(Protocol):
    """The cached keys and values of all layers, and where the next queries stand."""

    @property
    def length(self) -> int | Tensor: ...

    def max_length(self, queries: int, /) -> int:
        """The length of the longest sequence after the next queries."""

    def positions(self, queries: int, device: torch.device, /) -> Tensor:
        """The positions of the next queries."""

    def attention_mask(self, queries: int, /) -> AnyMask:
        """The attention mask of the next queries, over the cached keys and their own."""

    def layer_caches(self, queries: int, /) -> Sequence[LayerCache]:
        """The cache of each layer, for the next queries."""

    def after(self, caches: Sequence[Any], /) -> "Past":
        """The past after a forward pass with these layer caches."""


@dataclass(frozen=True)
class Ragged:
    """Texts of different lengths, padded on the left: the first `skip` (R,) keys of each row are padding.

    Positions are at most `most - 1`: a row that is finished is computed on with the others, and its output is ignored.
    """

    skip: Tensor
    most: int

    def positions(self, columns: Tensor) -> Tensor:
        """The positions, within their own texts, of queries in these columns (T,)."""
        return (columns - self.skip[:, None]).clamp(0, self.most - 1)  # (R, T)

    @property
    def real_keys(self) -> Mask:
        """The mask of keys that are not padding."""
        return Mask(lambda b, h, q, k: k >= self.skip[b])


def _columns(length: int | Tensor, queries: int, device: torch.device) -> Tensor:
    """The columns of the cache that the next queries take."""
    return length + torch.arange(queries, device=device)  # (T,)


def _positions(length: int | Tensor, queries: int, device: torch.device, ragged: Ragged | None) -> Tensor:
    """The positions of the next queries, (T,) or (R, T)."""
    columns = _columns(length, queries, device)  # (T,)
    return columns if ragged is None else ragged.positions(columns)


def _longest(length: int, ragged: Ragged | None) -> int:
    """The length of the longest unfinished row."""
    return length if ragged is None else min(length, ragged.most)


@dataclass
class GrowingLayerCache:
    """The layer cache of a `Cache`: appending concatenates."""

    held: KV | None

    def append(self, kv: KV) -> KV:
        self.held = kv if self.held is None else self.held.append(kv)
        return self.held


@dataclass(frozen=True)
class Cache:
    """Keys and values (R, H, S, K) of each layer, None before the first token; never written in place."""

    layers: tuple[KV | None, ...]
    ragged: Ragged | None = None

    @property
    def length(self) -> int:
        first = self.layers[0]
        return 0 if first is None else first.k.shape[2]

    def max_length(self, queries: int) -> int:
        return _longest(self.length + queries, self.ragged)

    def positions(self, queries: int, device: torch.device) -> Tensor:
        return _positions(self.length, queries, device, self.ragged)

    def attention_mask(self, queries: int) -> AnyMask:
        return causal(self.length) if self.ragged is None else causal(self.length) & self.ragged.real_keys

    def layer_caches(self, queries: int) -> Sequence[LayerCache]:
        return [GrowingLayerCache(layer) for layer in self.layers]

    def after(self, caches: Sequence[GrowingLayerCache]) -> "Cache":
        return Cache(tuple(cache.held for cache in caches), self.ragged)


@dataclass
class WindowLayerCache:
    """The layer cache of a `WindowCache`: appending drops the keys that no later query attends to."""

    held: KV | None
    kept: Tensor | None  # (R, M) the keys that stay, of those held and the new ones; None: all
    added: int = 0

    def append(self, kv: KV) -> KV:
        self.added = kv.k.shape[2]
        whole = kv if self.held is None else self.held.append(kv)
        self.held = whole if self.kept is None else whole.take(self.kept)
        return whole


@dataclass(frozen=True)
class WindowCache:
    """A cache for attention to a window and a sink, which holds no more keys than they see (Xiao et al., 2024).

    Keys and values (R, H, S, K) of each layer, None before the first token; columns (R, S) are where these tokens stood
    in their rows, -1 where a row has fewer. `length` is that of a row, a tensor if shapes may no longer change.
    """

    layers: tuple[KV | None, ...]
    local: Local
    columns: Tensor
    length: int | Tensor = 0
    ragged: Ragged | None = None

    @classmethod
    def empty(cls, layers: int, local: Local, rows: int, device: torch.device) -> "WindowCache":
        """The cache before the first token."""
        return cls((None,) * layers, local, torch.zeros(rows, 0, dtype=torch.long, device=device))

    def max_length(self, queries: int) -> int:
        return _longest(self.length + queries, self.ragged) if isinstance(self.length, int) else queries

    def positions(self, queries: int, device: torch.device) -> Tensor:
        return _positions(self.length, queries, device, self.ragged)

    @property
    def begun(self) -> bool:
        """Whether there are tokens before the next queries: keys are then not where their tokens stood."""
        return not isinstance(self.length, int) or self.length > 0

    def with_next(self, queries: int) -> Tensor:
        """The columns of the keys so far, and of the next queries."""
        new = _columns(self.length, queries, self.columns.device)  # (T,)
        return torch.cat([self.columns, new.expand(self.columns.shape[0], -1)], 1)  # (R, S)

    def attention_mask(self, queries: int) -> AnyMask:
        columns, begin = self.with_next(queries), None if self.ragged is None else self.ragged.skip
        if self.begun:
            return Mask(
                lambda b, h, q, k: self.local.seen(self.length + q, columns[b, k], 0 if begin is None else begin[b])
            )
        if begin is None:
            return self.local.mask()
        at = columns - begin[:, None]  # (R, S)
        return self.local.mask(at) & real(at >= 0, gaps=False)

    def layer_caches(self, queries: int) -> Sequence[LayerCache]:
        columns, kept = self.with_next(queries), None  # (R, S)
        if columns.shape[1] > self.local.most:
            kept = self.gone(columns, queries).int().argsort(dim=1, stable=True)[:, : self.local.most]  # (R, M)
        return [WindowLayerCache(layer, kept) for layer in self.layers]

    def gone(self, columns: Tensor, queries: int) -> Tensor:
        """The keys that no query after the next ones attends to."""
        begin = 0 if self.ragged is None else self.ragged.skip[:, None]
        return ~self.local.seen(_columns(self.length + queries, 1, columns.device), columns, begin)  # (R, S)

    def after(self, caches: Sequence[WindowLayerCache]) -> "WindowCache":
        kept, added = caches[0].kept, caches[0].added
        columns = self.with_next(added)  # (R, S)
        if kept is not None:
            columns = columns.masked_fill(self.gone(columns, added), -1).gather(1, kept)  # (R, M)
        layers = tuple(cache.held for cache in caches)
        return replace(self, layers=layers, columns=columns, length=self.length + added)

    def fill(self) -> "WindowCache":
        """The same cache with room for all keys that may be seen: its shapes no longer change."""
        more = max(0, self.local.most - self.columns.shape[1])
        layers = tuple(_extend(kv, kv.k.shape[2] + more) for kv in self.layers if kv)
        columns = torch.nn.functional.pad(self.columns, (0, more), value=-1)  # (R, S)
        length = torch.as_tensor(self.length, device=columns.device)
        return replace(self, layers=layers, columns=columns, length=length)


class NoLayerCache:
    """A layer cache that stores nothing."""

    def append(self, kv: KV) -> KV:
        return kv


@dataclass(frozen=True)
class NoCache:
    """Whole sequences in one forward pass, as in training, none longer than `longest`: nothing is cached."""

    layers: int
    longest: int
    at: Tensor  # (T,) or (B, T)
    mask: AnyMask
    length: int = 0

    def max_length(self, queries: int) -> int:
        return self.longest

    def positions(self, queries: int, device: torch.device) -> Tensor:
        return self.at

    def attention_mask(self, queries: int) -> AnyMask:
        return self.mask

    def layer_caches(self, queries: int) -> Sequence[LayerCache]:
        return [NoLayerCache()] * self.layers

    def after(self, caches: Sequence[LayerCache]) -> Past:
        return Cache(())  # a cache of no layers: no further step is possible


@dataclass
class PreallocatedLayerCache:
    """The layer cache of a `PreallocatedCache`."""

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
    """A cache for the CPU: preallocated, (R, room, H, K) for each layer, and written in place, so never shared.

    Reordering hypotheses copies the used columns into the spare buffers and swaps the two, without allocation.
    """

    layers: tuple[KV, ...]
    spare: tuple[KV, ...]
    length: int
    ragged: Ragged | None = None

    def max_length(self, queries: int) -> int:
        return _longest(self.length + queries, self.ragged)

    def positions(self, queries: int, device: torch.device) -> Tensor:
        return _positions(self.length, queries, device, self.ragged)

    def attention_mask(self, queries: int) -> AnyMask:
        return causal(self.length) if self.ragged is None else causal(self.length) & self.ragged.real_keys

    def layer_caches(self, queries: int) -> Sequence[LayerCache]:
        return [PreallocatedLayerCache(layer, self.length) for layer in self.layers]

    def after(self, caches: Sequence[PreallocatedLayerCache]) -> "PreallocatedCache":
        return replace(self, length=caches[0].length)

    def regroup(self, rows: Tensor) -> "PreallocatedCache":
        for before, after in zip(self.layers, self.spare, strict=True):
            torch.index_select(before.k[:, : self.length], 0, rows, out=after.k[:, : self.length])
            torch.index_select(before.v[:, : self.length], 0, rows, out=after.v[:, : self.length])
        return PreallocatedCache(self.spare, self.layers, self.length, regroup(self.ragged, rows))

    @classmethod
    def of(cls, layers: Sequence[KV], room: int, ragged: Ragged | None = None) -> "PreallocatedCache":
        """A cache with room for `room` keys, which begins with these keys and values (R, H, S, K) of each layer."""
        length = layers[0].k.shape[2]

        def preallocate(x: Tensor) -> Tensor:
            grown = x.new_empty(x.shape[0], room, x.shape[1], x.shape[3])  # (R, room, H, K)
            grown[:, :length] = x.transpose(1, 2)
            return grown

        first, second = (tuple(KV(preallocate(kv.k), preallocate(kv.v)) for kv in layers) for _ in range(2))
        return cls(first, second, length, ragged)


def make_room(state: Any, count: int) -> Any:
    """The state with room in every cache for `count` more keys; a cache that must grow at least doubles."""
    if isinstance(state, Cache) and all(state.layers):
        return PreallocatedCache.of([kv for kv in state.layers if kv], 2 * max(state.length + count, 16), state.ragged)
    if isinstance(state, WindowCache):
        return state
    if isinstance(state, PreallocatedCache):
        if state.length + count <= state.layers[0].k.shape[1]:
            return state
        used = [
            KV(kv.k[:, : state.length].transpose(1, 2), kv.v[:, : state.length].transpose(1, 2)) for kv in state.layers
        ]
        return PreallocatedCache.of(used, 2 * (state.length + count), state.ragged)
    return _map(state, lambda part: make_room(part, count))


@dataclass(frozen=True)
class StaticLayerCache:
    """The layer cache of a `StaticCache`."""

    room: KV
    at: Tensor

    def append(self, kv: KV) -> KV:
        self.room.k.index_copy_(2, self.at, kv.k.to(self.room.k.dtype))
        self.room.v.index_copy_(2, self.at, kv.v.to(self.room.v.dtype))
        return self.room


@dataclass(frozen=True)
class StaticCache:
    """A preallocated cache for CUDA graphs, written in place, so never shared.

    `length` is a tensor, so that a captured graph does not depend on its value. Keys never move: `rows` (R, S) has the
    row in which each key of a hypothesis is stored, and reordering hypotheses reorders only this table.
    """

    layers: Shared[tuple[KV, ...]]
    rows: Tensor
    length: Tensor
    ragged: Ragged | None = None

    def max_length(self, queries: int) -> int:
        return queries  # the length is on the GPU: the caller of `reserve` checks the limit

    def positions(self, queries: int, device: torch.device) -> Tensor:
        return _positions(self.length, queries, device, self.ragged)

    def attention_mask(self, queries: int) -> AnyMask:
        keys = torch.arange(self.rows.shape[1], device=self.rows.device)  # (S,)
        seen = keys <= _columns(self.length, queries, self.rows.device)[:, None]  # (T, S)
        return seen if self.ragged is None else seen & (keys >= self.ragged.skip[:, None, None, None])

    def layer_caches(self, queries: int) -> Sequence[LayerCache]:
        at, own = (
            _columns(self.length, queries, self.rows.device),
            torch.arange(len(self.rows), device=self.rows.device),
        )
        rows = self.rows.index_copy(1, at, own[:, None].expand(-1, queries))  # (R, S)
        length, skip = self.length + queries, None if self.ragged is None else self.ragged.skip
        return [StaticLayerCache(KV(layer.k, layer.v, rows, length, skip), at) for layer in self.layers.value]

    def after(self, caches: Sequence[StaticLayerCache]) -> "StaticCache":
        rows, length = caches[0].room.rows, caches[0].room.length
        assert rows is not None and length is not None
        return StaticCache(self.layers, rows, length, self.ragged)


@dataclass(frozen=True)
class Memory:
    """The inputs (R, S, D) of each layer for the last S tokens, at most `limit`; `seen` (R, S) are those in use.

    Unlike a cache of keys and values, it outlives a change of the weights: these compute keys and values anew.
    """

    layers: tuple[Tensor, ...]
    seen: Tensor
    limit: int

    @classmethod
    def empty(cls, layers: int, rows: int, width: int, limit: int, like: Tensor) -> "Memory":
        """The memory before the first token, on the device and in the precision of `like`."""
        nothing = like.new_zeros(rows, 0, width)  # (R, S, D)
        return cls((nothing,) * layers, nothing.new_zeros(rows, 0, dtype=torch.bool), limit)

    @property
    def length(self) -> int:
        return self.seen.shape[1]

    def fill(self) -> "Memory":
        """The same memory with `limit` tokens, those in front not in use: its shape no longer changes."""
        more = self.limit - self.length
        layers = tuple(torch.nn.functional.pad(x, (0, 0, more, 0)) for x in self.layers)
        return Memory(layers, torch.nn.functional.pad(self.seen, (more, 0)), self.limit)

    def after(self, layers: Sequence[Tensor], seen: Tensor) -> "Memory":
        """The memory of the last tokens of layers (R, S, D), without gradients to them."""
        first = max(0, seen.shape[1] - self.limit)
        return Memory(tuple(x[:, first:].detach() for x in layers), seen[:, first:], self.limit)


def reserve(state: Any, room: int) -> Any:
    """The state with every cache as a `StaticCache` with room for `room` keys, and memories and windows filled."""
    if isinstance(state, Memory | WindowCache):
        return state.fill()
    if isinstance(state, Cache):
        first = state.layers[0]
        assert first is not None, "a static cache needs the shapes of a first token"
        rows = torch.arange(len(first.k), device=first.k.device)[:, None].expand(-1, room).contiguous()  # (R, S)
        length = torch.tensor(state.length, device=first.k.device)
        return StaticCache(Shared(tuple(_extend(kv, room) for kv in state.layers if kv)), rows, length, state.ragged)
    if isinstance(state, StaticCache):
        more = state.rows.new_zeros(len(state.rows), room - state.rows.shape[1])
        layers = tuple(_extend(kv, room) for kv in state.layers.value)
        return StaticCache(Shared(layers), torch.cat([state.rows, more], 1), state.length, state.ragged)
    return _map(state, lambda part: reserve(part, room))


def cached_length(state: Any) -> int:
    """The number of tokens in the longest cache of a state."""
    if isinstance(state, Cache | PreallocatedCache | StaticCache | WindowCache):
        return int(state.length)
    if is_dataclass(state) and not isinstance(state, type):
        return max((cached_length(getattr(state, field.name)) for field in fields(state)), default=0)
    return max(map(cached_length, state), default=0) if isinstance(state, tuple) else 0


def _extend(kv: KV, room: int) -> KV:
    k, v = (x.new_zeros(*x.shape[:2], room, x.shape[3]) for x in (kv.k, kv.v))  # (R, H, S, K)
    k[:, :, : kv.k.shape[2]], v[:, :, : kv.v.shape[2]] = kv.k, kv.v
    return KV(k, v)


def select(state: Any, rows: Tensor) -> Any:
    """Select, repeat or reorder batch rows in every tensor of the state."""
    return map_tensors(state, lambda x: x.index_select(0, rows) if x.dim() else x)


def regroup(state: Any, rows: Tensor) -> Any:
    """`select` among the hypotheses of each sentence; `Shared` values are not touched."""
    if isinstance(state, Shared):
        return state
    if isinstance(state, PreallocatedCache):
        return state.regroup(rows)
    if isinstance(state, Tensor):
        return state.index_select(0, rows) if state.dim() else state
    return _map(state, lambda part: regroup(part, rows))


def map_tensors(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The state with a function applied to every tensor."""
    return change(state) if isinstance(state, Tensor) else _map(state, lambda part: map_tensors(part, change))


def reset_rows(state: Any, fresh: Tensor) -> Any:
    """The state with zeros in the batch rows where `fresh` (B,) is true: those that start a new sequence."""
    return map_tensors(state, lambda x: x.masked_fill(fresh.view(-1, *(1,) * (x.dim() - 1)), 0))


def tensors(state: Any) -> list[Tensor]:
    """Every tensor of the state, in a fixed order."""
    collected: list[Tensor] = []

    def collect(x: Tensor) -> Tensor:
        collected.append(x)
        return x

    map_tensors(state, collect)
    return collected


def _map(state: Any, change: Callable[[Any], Any]) -> Any:
    """The state with a function applied to each field of a dataclass or item of a tuple."""
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{field.name: change(getattr(state, field.name)) for field in fields(state)})
    if isinstance(state, tuple):
        parts = [change(part) for part in state]
        return tuple(parts) if type(state) is tuple else type(state)(*parts)
    return state
