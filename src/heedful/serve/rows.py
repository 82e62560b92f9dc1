"""The texts that are generated together, one token a step: rows that join and leave between any two steps.

`KernelRows` replays CUDA graphs over a fixed cache, whose kernels compute each row independently. `StateRows` works
for every causal model: it joins and selects rows of the model's own state.

R rows of a step, N slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.blocks.slots import join, keep, unread
from heedful.blocks.state import Ragged, WindowCache
from heedful.decode.graphs import Graphs
from heedful.decode.per_row import Method, RowSettings
from heedful.decode.settings import Sampling
from heedful.tasks.language_model.predictor import RowByRow, TextGenerator

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # numbers of rows that have a graph; then multiples of 32
METHODS: tuple[Method, ...] = ("greedy", "sample")  # whose graphs are captured before the first request
GRAPHS = 128


class Joiner(NamedTuple):
    """A text that joins: its tokens in the model's context, and how it continues."""

    slot: int
    ids: Sequence[int]
    settings: Sampling
    seed: int
    used: int  # tokens generated before
    limit: int  # the most tokens of the text, those included


class Fetched(Protocol):
    """The tokens of a step, which may still be computed."""

    def result(self) -> tuple[list[int], list[float]]:
        """The token of each row and its log-probability; waits for the device."""


class Rows(Protocol):
    """The texts that are generated together."""

    ahead: int  # steps that may be under way while their tokens are awaited

    def warm(self) -> None:
        """Prepare what the first requests would wait for."""

    def join(self, joiners: Sequence[Joiner]) -> None:
        """Read all tokens of these texts but the last."""

    def step(self, slots: Sequence[int], method: Method) -> Fetched:
        """The next token of the texts in these slots; texts in others have left."""


@dataclass(frozen=True)
class Here:
    """Tokens that are on the CPU."""

    tokens: Tensor
    logs: Tensor

    def result(self) -> tuple[list[int], list[float]]:
        return self.tokens.tolist(), self.logs.tolist()


@dataclass(frozen=True)
class Arriving:
    """Tokens and log-probabilities (2, R) on their way from the GPU."""

    found: Tensor
    count: int
    done: torch.cuda.Event

    def result(self) -> tuple[list[int], list[float]]:
        self.done.synchronize()
        tokens, logs = self.found.tolist()
        return [int(token) for token in tokens[: self.count]], logs[: self.count]


def rows_of(generator: TextGenerator, slots: int, longest: int) -> Rows:
    """The rows of a generator: by kernels where its model has them, on a GPU."""
    if generator.graphs is not None and isinstance(generator.model, RowByRow):
        decoder = generator.model.row_by_row()
        if decoder is not None:
            return KernelRows(generator, decoder, slots, longest)
    return StateRows(generator, slots, longest)


class StateRows:
    """Rows of the model's state, in the order of the last step."""

    ahead = 0

    def __init__(self, generator: TextGenerator, slots: int, longest: int) -> None:
        self.generator, self.rules = generator, generator.rules()
        self.net: Any = generator.model
        self.settings = RowSettings.empty(slots, longest, generator.device)
        self.token = torch.zeros(slots, dtype=torch.long, device=generator.device)
        self.state: Any = None
        self.order: list[int] = []  # the slot of each row

    def warm(self) -> None:
        """There is nothing to prepare."""

    def join(self, joiners: Sequence[Joiner]) -> None:
        """Each text is read alone, so that no other one changes the rounding of its state."""
        new = {one.slot for one in joiners}
        self._keep([slot for slot in self.order if slot not in new])
        for one in joiners:
            state = self._read(one.ids)
            self.state = join(self.state, state) if self.order else state
            self.order.append(one.slot)
        put(self.settings, self.token, joiners, self.net.config.vocab)

    def step(self, slots: Sequence[int], method: Method) -> Fetched:
        """One call of the model on the rows of these slots."""
        self._keep(slots)
        where = torch.tensor(slots, device=self.token.device)
        logits, self.state = self.net(self.token[where, None], self.state)
        tokens, logs = self.settings.next_token(logits[:, -1], where, method, self.rules)  # (R,)
        self.token[where] = tokens
        self.settings.chosen[where] += 1
        return Here(tokens, logs)

    def _read(self, ids: Sequence[int]) -> Any:
        """The state after all of these tokens but the last."""
        state: Any = self.generator.start(1)
        if isinstance(state, WindowCache):
            skip = torch.zeros(1, dtype=torch.long, device=self.token.device)
            state = replace(state, ragged=Ragged(skip, self.net.config.context))
        first = len(ids) == 1  # a cache has no shapes before its first token
        tokens = torch.tensor([ids if first else ids[:-1]], device=self.token.device)  # (1, T)
        read = self.net.features(tokens, state)[1]
        if not first:
            return read
        empty = unread(read)
        return empty if empty is not read else state

    def _keep(self, slots: Sequence[int]) -> None:
        if list(slots) != self.order:
            at = {slot: row for row, slot in enumerate(self.order)}
            self.state = keep(self.state, [at[slot] for slot in slots]) if slots else None
            self.order = list(slots)


class KernelRows:
    """Rows of a fixed cache on a GPU; the last slot is a spare one, which fills up a step's rows."""

    ahead = 2

    def __init__(self, generator: TextGenerator, decoder: Any, slots: int, longest: int) -> None:
        self.decoder, self.rules, self.vocab = decoder, generator.rules(), decoder.model.config.vocab
        self.graphs, device = Graphs(generator.model, GRAPHS), generator.device
        self.spare, self.state = slots, decoder.empty(slots + 1, decoder.model.config.context)
        self.settings = RowSettings.empty(slots + 1, longest, device)
        self.token, self.place = (torch.zeros(slots + 1, dtype=kind, device=device) for kind in (torch.long, torch.int))
        self.known: set[tuple[int, Method]] = set()
        self.loaded: tuple[list[int], Method] | None = None  # what the current graph computes
        sizes = sorted({bucket(count) for count in range(1, slots + 1)})
        self.arriving = [{rows: self._buffer(rows) for rows in sizes} for _ in range(self.ahead + 2)]
        self.turn = 0

    @staticmethod
    def _buffer(rows: int) -> tuple[Tensor, torch.cuda.Event]:
        return torch.zeros(2, rows, dtype=torch.float64, pin_memory=True), torch.cuda.Event()

    def warm(self) -> None:
        """Capture the graphs of all numbers of rows."""
        for method in METHODS:
            for rows in self.arriving[0]:
                self._load([self.spare] * rows, method)

    def join(self, joiners: Sequence[Joiner]) -> None:
        """Read all prompts together."""
        self.loaded = None
        for rows in self.decoder.prompt_rows([(one.slot, one.ids) for one in joiners], self.state.room):
            self.graphs.run("read", self._read, (rows,))
        where = put(self.settings, self.token, joiners, self.vocab)
        self.place[where] = torch.tensor([len(one.ids) - 1 for one in joiners], dtype=torch.int).to(self.place.device)

    def step(self, slots: Sequence[int], method: Method) -> Fetched:
        """Replay the graph for this number of rows; the tokens are copied while the next step runs."""
        padded = [*slots, *[self.spare] * (bucket(len(slots)) - len(slots))]
        if self.loaded != (padded, method):
            self._load(padded, method)
        into, done = self.arriving[self.turn][len(padded)]
        self.turn = (self.turn + 1) % len(self.arriving)
        into.copy_(self.graphs.replay(), non_blocking=True)
        done.record()
        return Arriving(into, len(slots), done)

    def _load(self, slots: list[int], method: Method) -> None:
        def advance(where: Tensor) -> tuple[Tensor, Tensor]:
            return where, self._advance(where, method)

        device = self.token.device
        if (len(slots), method) not in self.known:  # what is captured is also computed: in the spare slot
            self.graphs.load(method, advance, (torch.full((len(slots),), self.spare, device=device),))
            self.known.add((len(slots), method))
        self.graphs.load(method, advance, (torch.tensor(slots).to(device),))
        self.loaded = (slots, method)

    def _read(self, rows: Tensor) -> Any:
        return self.decoder.read(rows, self.state)

    def _advance(self, where: Tensor, method: Method) -> Tensor:
        """One step of the rows in these slots: their tokens and log-probabilities (2, R)."""
        place = self.place[where].clamp(max=self.state.room - 1)  # (R,)
        logits = self.decoder.logits(self.token[where], where.int(), place, self.state)  # (R, V)
        tokens, logs = self.settings.next_token(logits, where, method, self.rules)  # (R,)
        self.token[where] = tokens
        self.place[where] = torch.where(where == self.spare, 0, place + 1)
        self.settings.chosen[where] += 1
        return torch.stack([tokens.double(), logs.double()])


def put(settings: RowSettings, token: Tensor, joiners: Sequence[Joiner], vocab: int) -> Tensor:
    """Set what the next step of these texts needs; returns their slots."""
    where = torch.tensor([one.slot for one in joiners]).to(token.device)
    token[where] = torch.tensor([one.ids[-1] for one in joiners]).to(token.device)
    settings.put(where, [(one.settings, one.seed, one.used, one.limit) for one in joiners], vocab)
    return where


def bucket(rows: int) -> int:
    """The number of rows that a step computes for this number of texts."""
    return next((size for size in BUCKETS if size >= rows), -(-rows // 32) * 32)
