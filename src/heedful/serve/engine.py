"""Continuous batching: requests join the running batch of decoding steps, and finished ones leave it.

A request gets the tokens that it would get alone: rows do not depend on each other, and each has random numbers of its
own. All methods but `submit` and `cancel` are called by one thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from heedful.decode.per_row import method_of
from heedful.decode.settings import Sampling
from heedful.serve.rows import Fetched, Joiner, Rows, rows_of
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.language_model.streaming import StreamDecoder

Ending = Literal["stop", "length", "cancelled", "timeout", "error"]
PREFILL = 4096  # tokens of prompts that are read between two steps, at least one prompt


class Full(Exception):  # noqa: N818  (it is not an error of ours)
    """The queue of waiting requests is full."""


@dataclass(eq=False)
class Completion:
    """A text to generate: `length` tokens at most, until `deadline`, a time of `time.monotonic`."""

    ids: list[int]
    settings: Sampling
    length: int
    seed: int
    deadline: float
    generated: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    ending: Ending | None = None
    cancelled: bool = False
    slot: int = -1
    left: int = 0  # tokens until the context is full or the text is long enough
    awaited: int = 0  # tokens that have not arrived

    def cancel(self) -> None:
        """Stop the text before the next step."""
        self.cancelled = True


@dataclass
class Counts:
    """What an engine has done."""

    steps: int = 0
    rows: int = 0  # of all steps
    prompt_tokens: int = 0
    tokens: int = 0


class Engine:
    """Generates the texts of all requests of one model."""

    def __init__(
        self,
        generator: TextGenerator,
        slots: int,
        longest: int,
        waiting: int,
        deliver: Callable[[Sequence[Completion]], None],
    ) -> None:
        """`deliver` is called with the requests that have new tokens or have ended."""
        self.generator, self.most, self.deliver = generator, waiting, deliver
        self.slots, self.longest = slots, longest
        self.end = generator.codec.end_id
        self.decoder = StreamDecoder(generator.tokenizer, generator.text_after, ())
        self.waiting: deque[Completion] = deque()
        self.counts = Counts()
        self.clear()

    def clear(self) -> None:
        """Begin with no rows."""
        with torch.inference_mode():
            self.rows: Rows = rows_of(self.generator, self.slots, self.longest)
        self.active: list[Completion] = []
        self.free = list(range(self.slots))[::-1]
        self.pending: deque[tuple[list[tuple[Completion, int]], Fetched]] = deque()  # texts with how many tokens each

    @torch.inference_mode()
    def warm(self) -> None:
        """Prepare what the first requests would wait for."""
        self.rows.warm()

    def submit(self, requests: Sequence[Completion]) -> None:
        """Queue requests; all of them, or none if there is no room."""
        if len(self.waiting) + len(requests) > self.most:
            raise Full
        self.waiting.extend(requests)

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit requests, begin a step, and deliver the tokens of an earlier one; false if there is nothing to do."""
        if not self.waiting and not self.active and not self.pending:
            return False
        try:
            self._drop()
            self._admit()
            if self.active:
                self._begin()
            touched = dict[Completion, None]()
            while len(self.pending) > (self.rows.ahead if self.active else 0):
                self._take(touched)
            if touched:
                self.deliver(list(touched))
        except Exception:
            self._fail()
            raise
        return True

    def _drop(self) -> None:
        """End requests that are cancelled or late."""
        now = time.monotonic()

        def over(request: Completion) -> bool:
            return request.cancelled or now > request.deadline

        if late := [request for request in (*self.active, *self.waiting) if over(request)]:
            for request in late:
                self._finish(request, "cancelled" if request.cancelled else "timeout")
            for _ in range(len(self.waiting)):  # `submit` may append meanwhile
                if (request := self.waiting.popleft()).ending is None:
                    self.waiting.append(request)
            self.deliver(late)

    def _admit(self) -> None:
        """Read the prompts of the next requests, as many as there are slots for."""
        joiners, read = list[Joiner](), 0
        while self.waiting and self.free and read < PREFILL:
            request = self.waiting.popleft()
            if request.cancelled:  # since `_drop`
                self.waiting.appendleft(request)
                break
            whole, context = [*request.ids, *request.generated], self.generator.context
            visible = whole[self.generator.context_start(len(whole)) :]
            used = len(request.generated)
            request.left = request.length - used
            if context is not None:
                request.left = min(request.left, context + 1 - len(visible))
            request.slot, request.awaited = self.free.pop(), 0
            self.active.append(request)
            limit = used + request.left
            joiners.append(Joiner(request.slot, visible, request.settings, request.seed, used, limit))
            read += len(visible)
        if joiners:
            self.rows.join(joiners)
            self.counts.prompt_tokens += read

    def _begin(self) -> None:
        """Begin the next tokens; texts that will not need others give their slots back."""
        count = self.rows.count
        some = [(request, min(count, request.left)) for request in self.active]
        method = method_of([request.settings for request in self.active])
        self.pending.append((some, self.rows.step([request.slot for request in self.active], method)))
        self.counts.steps += count
        self.counts.rows += count * len(some)
        for request, used in some:
            request.left -= used
            request.awaited += used
            if not request.left:
                self._leave(request)

    def _take(self, touched: dict[Completion, None]) -> None:
        """Take the oldest tokens."""
        some, fetched = self.pending.popleft()
        for (request, used), tokens, logs in zip(some, *fetched.result(), strict=True):
            request.awaited -= used
            for token, log in zip(tokens[:used], logs, strict=False):
                if request.ending is not None:
                    break
                request.generated.append(token)
                request.logs.append(log)
                self.counts.tokens += 1
                touched[request] = None
                if token == self.end:
                    self._finish(request, "stop")
                elif len(request.generated) >= request.length:
                    self._finish(request, "length")
            if request.ending is None and not request.left and not request.awaited:
                self.waiting.appendleft(request)  # the context is full: its newer half is read again

    def _finish(self, request: Completion, ending: Ending) -> None:
        request.ending = ending
        self._leave(request)

    def _leave(self, request: Completion) -> None:
        """Give a slot back; the last row takes its place, so that few rows move."""
        if request.slot >= 0:
            at = self.active.index(request)
            self.active[at] = self.active[-1]
            self.active.pop()
            self.free.append(request.slot)
            request.slot = -1

    def _fail(self) -> None:
        """End all texts of a batch that failed, and continue with an empty one."""
        lost = list(
            {id(one): one for one in (*self.active, *(one for some, _ in self.pending for one, _ in some))}.values()
        )
        lost = [request for request in lost if request.ending is None]
        for request in lost:
            request.ending, request.slot = "error", -1
        self.clear()
        self.deliver(lost)
