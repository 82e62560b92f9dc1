"""States whose rows come and go: sequences join a running batch, and leave it when they are finished.

`join` puts the rows of one state behind those of another, and `keep` selects and reorders rows. Rows may have any
lengths: the caches of a Transformer then have a length for each row.

R rows, N rows that there is room for, H heads, S keys, K width of one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.attention import KV
from heedful.blocks.state import Cache, LayerCache, Memory, WindowCache, select, tensors

EVEN = 64  # keys are allocated in multiples of this


@dataclass
class SlotLayerCache:
    """The layer cache of a `SlotCache`."""

    room: KV
    lengths: Tensor
    longest: int

    def append(self, kv: KV) -> KV:
        """Write the key and value of one token to the end of each row."""
        rows, end = torch.arange(len(self.lengths), device=self.lengths.device), self.longest + 1
        for room, new in zip(self.room[:2], kv[:2], strict=True):
            room[rows, :, self.lengths] = new[:, :, 0].to(room.dtype)
        return KV(self.room.k[: len(rows), :, :end], self.room.v[: len(rows), :, :end])  # (R, H, S, K)


@dataclass(frozen=True)
class SlotCache:
    """A cache with a length for each row, for one token at a time; written in place, so never shared."""

    layers: tuple[KV, ...]  # (N, H, room, K) each
    lengths: Tensor  # (R,)
    longest: int

    @classmethod
    def of(cls, cache: Cache) -> SlotCache:
        """A cache whose rows have one length."""
        layers = tuple(kv for kv in cache.layers if kv is not None)
        rows = len(layers[0].k)
        lengths = torch.full((rows,), cache.length, device=layers[0].k.device)
        return cls(layers, lengths, cache.length)

    @property
    def length(self) -> Tensor:
        """The lengths, broadcast to the scores (R, H, T, S)."""
        return self.lengths[:, None, None, None]

    def max_length(self, queries: int) -> int:
        return self.longest + queries

    def positions(self, queries: int, device: torch.device) -> Tensor:
        return self.lengths[:, None]  # (R, 1)

    def attention_mask(self, queries: int) -> Tensor:
        return torch.arange(self.longest + 1, device=self.lengths.device) <= self.length  # (R, 1, 1, S)

    def layer_caches(self, queries: int) -> Sequence[LayerCache]:
        assert queries == 1, "rows of several lengths grow by one token at a time"
        whole = self.with_room(len(self.lengths), self.longest + 1)
        return [SlotLayerCache(layer, self.lengths, self.longest) for layer in whole.layers]

    def after(self, caches: Sequence[SlotLayerCache]) -> SlotCache:
        return SlotCache(tuple(cache.room for cache in caches), self.lengths + 1, self.longest + 1)

    def with_room(self, rows: int, keys: int) -> SlotCache:
        """The same cache with room for this number of rows and keys; what must grow at least doubles."""
        have, _, room, _ = self.layers[0].k.shape
        if rows <= have and keys <= room:
            return self
        more = max(0, max(rows, 2 * have) - have) if rows > have else 0
        longer = max(-(-keys // EVEN) * EVEN, 2 * room) - room if keys > room else 0
        layers = tuple(KV(*(F.pad(x, (0, 0, 0, longer, 0, 0, 0, more)) for x in layer[:2])) for layer in self.layers)
        return replace(self, layers=layers)

    def join(self, other: Cache) -> SlotCache:
        """The rows of another cache behind these."""
        new, rows = SlotCache.of(other), len(self.lengths)
        end = rows + len(new.lengths)
        whole = self.with_room(end, new.longest)
        for layer, more in zip(whole.layers, new.layers, strict=True):
            for room, x in zip(layer[:2], more[:2], strict=True):
                room[rows:end, :, : new.longest] = x
        lengths = torch.cat([self.lengths, new.lengths])
        return SlotCache(whole.layers, lengths, max(self.longest, new.longest))

    def keep(self, rows: Sequence[int]) -> SlotCache:
        """These rows, in this order; only those that move are copied."""
        moved = [place for place, row in enumerate(rows) if row != place]
        if moved:
            device = self.lengths.device
            to, source = torch.tensor(moved, device=device), torch.tensor([rows[at] for at in moved], device=device)
            for layer in self.layers:
                for x in layer[:2]:
                    x[to, :, : self.longest] = x[source, :, : self.longest]
        lengths = self.lengths[torch.tensor(rows, dtype=torch.long, device=self.lengths.device)]
        return SlotCache(self.layers, lengths, int(lengths.max()) if len(rows) else 0)


def join(state: Any, other: Any) -> Any:
    """The rows of `other`, which are of one length, behind those of `state`."""
    if isinstance(state, Cache):
        state = SlotCache.of(state)
    if isinstance(state, SlotCache):
        return state.join(other)
    if isinstance(state, Memory):
        return join_memories(state, other)
    if isinstance(state, WindowCache):
        return join_windows(state, other)
    if isinstance(state, Tensor):
        return torch.cat([state, other]) if state.dim() else state
    if is_dataclass(state) and not isinstance(state, type):
        both = {field.name: (getattr(state, field.name), getattr(other, field.name)) for field in fields(state)}
        return replace(state, **{name: join(*pair) for name, pair in both.items()})
    if isinstance(state, tuple):
        return tuple(join(one, more) for one, more in zip(state, other, strict=True))
    return state


def keep(state: Any, rows: Sequence[int]) -> Any:
    """These rows of a state, in this order."""
    if isinstance(state, Cache):
        state = SlotCache.of(state)
    if isinstance(state, SlotCache):
        return state.keep(rows)
    kept = select(state, torch.tensor(rows, dtype=torch.long, device=tensors(state)[0].device))
    if isinstance(kept, WindowCache) and kept.ragged is not None and len(rows):
        return _begun_later(kept, -int(kept.ragged.skip.min()))  # so that columns do not grow for ever
    return kept


def unread(state: Any) -> Any:
    """The state before the first token, with the shapes of this one, if it is a cache."""
    if isinstance(state, Cache):
        return replace(state, layers=tuple(kv and KV(kv.k[:, :, :0], kv.v[:, :, :0]) for kv in state.layers))
    if isinstance(state, WindowCache):
        layers = tuple(kv and KV(kv.k[:, :, :0], kv.v[:, :, :0]) for kv in state.layers)
        return replace(state, layers=layers, columns=state.columns[:, :0], length=0)
    return state


def join_memories(one: Memory, other: Memory) -> Memory:
    """Memories of two lengths: the shorter one is padded in front."""
    longest = max(one.length, other.length)
    one, other = (
        Memory(
            tuple(F.pad(x, (0, 0, longest - memory.length, 0)) for x in memory.layers),
            F.pad(memory.seen, (longest - memory.length, 0)),
            memory.limit,
        )
        for memory in (one, other)
    )
    layers = tuple(torch.cat(pair) for pair in zip(one.layers, other.layers, strict=True))
    return Memory(layers, torch.cat([one.seen, other.seen]), one.limit)


def join_windows(one: WindowCache, other: WindowCache) -> WindowCache:
    """Windows of two lengths, as if the shorter rows had begun later: in a column of their own."""
    assert isinstance(one.length, int) and isinstance(other.length, int)
    length = max(one.length, other.length)
    one, other = _begun_later(one, length - one.length), _begun_later(other, length - other.length)
    width = max(one.columns.shape[1], other.columns.shape[1])
    one, other = (_padded(cache, width - cache.columns.shape[1]) for cache in (one, other))
    pairs = zip(one.layers, other.layers, strict=True)
    layers = tuple(KV(torch.cat([a.k, b.k]), torch.cat([a.v, b.v])) for a, b in pairs if a and b)
    assert one.ragged is not None and other.ragged is not None
    ragged = replace(one.ragged, skip=torch.cat([one.ragged.skip, other.ragged.skip]))
    return replace(one, layers=layers, columns=torch.cat([one.columns, other.columns]), length=length, ragged=ragged)


def _begun_later(cache: WindowCache, columns: int) -> WindowCache:
    """The same windows, of rows that begin some columns later."""
    assert cache.ragged is not None, "a row needs a beginning of its own"
    ragged = replace(cache.ragged, skip=cache.ragged.skip + columns)
    there = torch.where(cache.columns < 0, cache.columns, cache.columns + columns)
    return replace(cache, columns=there, length=cache.length + columns, ragged=ragged)


def _padded(cache: WindowCache, more: int) -> WindowCache:
    """The same windows with room for more keys, which are not there."""
    layers = tuple(KV(*(F.pad(x, (0, 0, 0, more)) for x in kv[:2])) for kv in cache.layers if kv)
    return replace(cache, layers=layers, columns=F.pad(cache.columns, (0, more), value=-1))
