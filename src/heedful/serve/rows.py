"""The texts that are generated together, one token a step: rows that join and leave between any two steps.

`KernelRows` replays CUDA graphs over a fixed cache, whose kernels compute each row independently. `StateRows` works
for every causal model: it joins and selects rows of the model's own state.

R rows of a step, P tokens of prompts, C tokens of a row that are chosen at once, N slots, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.blocks.slots import join, keep, unread
from heedful.blocks.state import Ragged, WindowCache
from heedful.decode.graphs import Captured, Graphs
from heedful.decode.per_row import Method, Row, RowSettings, numbers_of, pinned, upload
from heedful.decode.settings import Sampling
from heedful.tasks.language_model.predictor import RowByRow, TextGenerator

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # numbers of rows that have a graph; then multiples of 32
Joined = tuple[int, int, int, float, float, float, float]  # slot, last token, its position, `RowSettings.numbers`
METHODS: tuple[Method, ...] = ("greedy", "sample")  # whose graphs are captured before the first request
PROMPTS = tuple(16 << power for power in range(9))  # numbers of tokens of prompts that have a graph


class Joiner(NamedTuple):
    """A text that joins: its tokens in the model's context, and how it continues."""

    slot: int
    ids: Sequence[int]
    settings: Sampling
    seed: int
    used: int  # tokens generated before
    limit: int  # the most tokens of the text, those included

    @property
    def row(self) -> Row:
        """What its next token depends on besides the model."""
        return self.settings, self.seed, self.used, self.limit


Chosen = tuple[list[list[int]], list[list[float]]]  # the tokens of each row, and their log-probabilities


class Fetched(Protocol):
    """Tokens that may still be computed."""

    def result(self) -> Chosen:
        """Waits for the device."""


class Rows(Protocol):
    """The texts that are generated together."""

    ahead: int  # calls of `step` that may be under way while their tokens are awaited
    count: int  # tokens of each row that a call gives

    def warm(self) -> None:
        """Prepare what the first requests would wait for."""

    def join(self, joiners: Sequence[Joiner]) -> None:
        """Read all tokens of these texts but the last."""

    def step(self, slots: Sequence[int], method: Method) -> Fetched:
        """The next tokens of the texts in these slots; texts in others have left."""


@dataclass(frozen=True)
class Here:
    """Tokens that are on the CPU."""

    tokens: Tensor
    logs: Tensor

    def result(self) -> Chosen:
        return self.tokens[:, None].tolist(), self.logs[:, None].tolist()


@dataclass(frozen=True)
class Arriving:
    """Tokens and log-probabilities (2, R, C) on their way from the GPU."""

    found: Tensor
    rows: int
    done: torch.cuda.Event

    def result(self) -> Chosen:
        self.done.synchronize()
        tokens, logs = self.found.tolist()
        return [list(map(int, row)) for row in tokens[: self.rows]], logs[: self.rows]


def rows_of(generator: TextGenerator, slots: int, longest: int) -> Rows:
    """The rows of a generator: by kernels where its model has them, on a GPU."""
    if generator.graphs is not None and isinstance(generator.model, RowByRow):
        decoder = generator.model.row_by_row()
        if decoder is not None:
            return KernelRows(generator, decoder, slots, longest)
    return StateRows(generator, slots, longest)


class StateRows:
    """Rows of the model's state, in the order of the last step."""

    ahead, count = 0, 1

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
        slots = [one.slot for one in joiners]
        self.token[slots] = torch.tensor([one.ids[-1] for one in joiners], device=self.token.device)
        self.settings.put(slots, [one.row for one in joiners], self.net.config.vocab)

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
    """Rows of a fixed cache on a GPU; the last slot is a spare one, which fills up a step's rows.

    Prompts are read within the step that continues them: it has a row for each of their tokens, beside those of the
    texts that are under way, and takes little longer than without them. A graph has some steps, whose tokens arrive
    together, so that the CPU has less to do.
    """

    ahead, count = 1, 3

    def __init__(self, generator: TextGenerator, decoder: Any, slots: int, longest: int) -> None:
        self.decoder, self.rules, self.vocab = decoder, generator.rules(), decoder.model.config.vocab
        self.graphs, device = Graphs(generator.model), generator.device
        self.spare, self.state = slots, decoder.empty(slots + 1, decoder.model.config.context)
        self.settings = RowSettings.empty(slots + 1, longest, device)
        self.token, self.place = torch.zeros(2, slots + 1, dtype=torch.long, device=device)
        self.kept: dict[tuple[int, int, Method], Captured] = {}  # by the numbers of rows and of tokens of prompts
        self.loaded: tuple[list[int], Method] | None = None  # what the current graph computes
        self.joining: tuple[Tensor, list[Joined]] | None = None  # texts that have joined, and their prompts (P, 3)
        self.nobody: Joined = (slots, 0, 0, 0.0, 1.0, 0.0, 0)  # joins in the spare slot
        self.sizes = sorted({bucket(count) for count in range(1, slots + 1)})
        self.arriving = [{rows: self._buffer(rows) for rows in self.sizes} for _ in range(self.ahead + 2)]
        self.turn = 0

    @staticmethod
    def _buffer(rows: int) -> tuple[Tensor, torch.cuda.Event]:
        return torch.zeros(2, rows, KernelRows.count, dtype=torch.float64, pin_memory=True), torch.cuda.Event()

    def warm(self) -> None:
        """Capture the graphs of all numbers of rows."""
        for method in METHODS:
            for rows in self.sizes:
                self._graph(rows, 0, method)
            for tokens in PROMPTS:
                self._graph(self.sizes[-1], tokens, method)

    def join(self, joiners: Sequence[Joiner]) -> None:
        """Prompts that are too long for the next step are read before it, but for their last tokens."""
        parts = list(self.decoder.prompt_rows([(one.slot, one.ids) for one in joiners], (self.spare, 0)))
        for rows in parts[:-1]:
            self.graphs.run("read", self._read, (upload(rows, self.token.device),))
        rows = [one.row for one in joiners]
        ends = [(one.slot, one.ids[-1], len(one.ids) - 1) for one in joiners]
        joined = [(*end, *numbers) for end, numbers in zip(ends, numbers_of(rows, self.vocab), strict=True)]
        self.joining = parts[-1] if parts else self._nothing(PROMPTS[0]), joined
        self.settings.draw([one.slot for one in joiners], rows)

    def step(self, slots: Sequence[int], method: Method) -> Fetched:
        """Replay the graph for this number of rows; the tokens are copied while the next step runs."""
        rows = bucket(len(slots)) if self.joining is None else self.sizes[-1]
        padded = [*slots, *[self.spare] * (rows - len(slots))]
        if self.joining is not None or self.loaded != (padded, method):
            self._load(padded, method)
        into, done = self.arriving[self.turn][rows]
        self.turn = (self.turn + 1) % len(self.arriving)
        into.copy_(self.graphs.replay(), non_blocking=True)
        done.record()
        return Arriving(into, len(slots), done)

    def _load(self, slots: list[int], method: Method) -> None:
        """Select the graph for these rows, and give it what it needs."""
        prompts, joined = self.joining or (None, [])
        graph = self._graph(len(slots), 0 if prompts is None else len(prompts), method)
        self.graphs.select(graph, (pinned(self._packed(slots, prompts, joined), self.token.device),))
        self.loaded = None if self.joining else (slots, method)
        self.joining = None

    def _packed(self, slots: Sequence[int], prompts: Tensor | None, joined: Sequence[Joined]) -> Tensor:
        """What a step needs in one tensor (R + 3P + 7N,): each call of torch lets other threads take the interpreter.

        float32 has all whole numbers below 2^24 exactly.
        """
        found = array("f", slots)
        if prompts is not None:
            found.extend(prompts.flatten().tolist())
            found.extend(chain(*joined, self.nobody * (self.spare - len(joined))))
        return torch.frombuffer(found, dtype=torch.float32)

    def _graph(self, rows: int, tokens: int, method: Method) -> Captured:
        """The graph for these numbers. A capture also computes it: in the spare slot."""
        key = rows, tokens, method
        if key not in self.kept:
            nothing = self._packed([self.spare] * rows, self._nothing(tokens) if tokens else None, [])

            def advance(packed: Tensor) -> tuple[Tensor, Tensor]:
                return packed, self._advance(packed, rows, tokens, method)

            self.kept[key] = self.graphs.capture(advance, (nothing.to(self.token.device),))
        return self.kept[key]

    def _nothing(self, tokens: int) -> Tensor:
        """Prompts (P, 3) of nobody."""
        return torch.tensor([[0, self.spare, 0]], dtype=torch.int32).repeat(tokens, 1)

    def _read(self, rows: Tensor) -> Any:
        return self.decoder.read(rows, self.state)

    def _advance(self, packed: Tensor, rows: int, tokens: int, method: Method) -> Tensor:
        """Some steps, the first of which reads tokens of prompts: the rows' tokens and log-probabilities (2, R, C)."""
        where, prompts, joined = packed.tensor_split((rows, rows + 3 * tokens))
        where = where.long()  # (R,)
        if tokens:
            put = joined.view(-1, 7)  # (N, 7)
            slots, token, place = put[:, :3].long().unbind(1)  # (N,)
            self.token[slots], self.place[slots], self.settings.numbers[slots] = token, place, put[:, 3:]
        first = self._step(where, prompts.view(-1, 3).int(), method)
        return torch.stack([first, *(self._step(where, None, method) for _ in range(1, self.count))], -1)

    def _step(self, where: Tensor, prompts: Tensor | None, method: Method) -> Tensor:
        """One step of the rows in these slots: their tokens and log-probabilities (2, R). Prompts (P, 3) are read."""
        place = self.place[where].clamp(max=self.state.room - 1)  # (R,)
        inputs = [self.token[where], where.int(), place.int()]
        if prompts is not None and len(prompts):
            inputs = [torch.cat(pair) for pair in zip(inputs, prompts.unbind(1), strict=True)]  # (R + P,)
        logits = self.decoder.logits(*inputs, self.state, len(where))  # (R, V)
        token, logs = self.settings.next_token(logits, where, method, self.rules)  # (R,)
        self.token[where] = token
        self.place[where] = torch.where(where == self.spare, 0, place + 1)
        self.settings.chosen[where] += 1
        return torch.stack([token.double(), logs.double()])


def bucket(rows: int) -> int:
    """The number of rows that a step computes for this number of texts."""
    return next((size for size in BUCKETS if size >= rows), -(-rows // 32) * 32)
