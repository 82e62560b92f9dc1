"""Completions as they arrive: their texts, stop sequences, and server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate

from heedful.http.answers import Refused, busy
from heedful.serve.engine import Completion, Engine, Full
from heedful.serve.mailbox import Mailbox
from heedful.serve.metrics import Metrics
from heedful.serve.requests import CompletionBody, finite_json
from heedful.serve.worker import Worker
from heedful.tasks.language_model.predictor import GeneratedText, TextGenerator, seed_of
from heedful.tasks.language_model.streaming import StreamDecoder

FAILED = "the model failed; the error is in the server's terminal"
LATE = "the request took too long"
LATER = 0.5  # seconds that the worker has to end a late request itself


@dataclass
class Writing:
    """One completion: the tokens so far, and the text that is final."""

    request: Completion
    decoder: StreamDecoder
    stops: Sequence[str]
    end: int | None  # the token that ends a text, which is not written
    one_by_one: bool  # whether it matters which token a piece of text belongs to
    taken: int = 0  # tokens that are decoded
    held: str = ""  # text in which a stop sequence may begin
    text: str = ""
    pieces: list[str] = field(default_factory=list)  # what each token writes
    stopped: bool = False
    sent: bool = field(default=False)  # whether its last event was sent

    def take(self) -> str:
        """The text that has become final since the last call."""
        request, last = self.request, self.request.ending  # the ending first: tokens come before it
        before, some = len(self.text), request.generated[self.taken :]
        for part in ([one] for one in some) if self.one_by_one else [some]:
            if not self.stopped:
                self.taken += len(part)
                self._write(self.decoder.extend(part[:-1] if part and part[-1] == self.end else part))
        if last is not None and not self.stopped:
            self._write(self.decoder.rest(), more=False)
        return self.text[before:]

    def _write(self, new: str, more: bool = True) -> None:
        """Add what a token has written, up to the stop sequence that is complete first, however tokens arrive."""
        self.held += new
        if more or not self.pieces:
            self.pieces.append(new)
        else:
            self.pieces[-1] += new
        found = [(self.held.find(stop), stop) for stop in self.stops]
        ends = [(at + len(stop), at) for at, stop in found if at >= 0]
        keep = max(map(len, self.stops)) - 1 if more and self.stops else 0
        ready = min(ends)[1] if ends else max(0, len(self.held) - keep)
        piece, self.held = self.held[:ready], self.held[ready:]
        self.text += piece
        if ends:
            self.stopped = True
            self.request.cancel()

    @property
    def ending(self) -> str | None:
        """Why it has ended, as OpenAI's API says it."""
        if self.stopped:
            return "stop"
        return self.request.ending


class Completions:
    """The completions of one request, which are generated beside those of others."""

    def __init__(
        self, engine: Engine, worker: Worker, mailbox: Mailbox, metrics: Metrics, body: CompletionBody, deadline: float
    ) -> None:
        generator: TextGenerator = engine.generator
        if len(body.prompts) * body.n > engine.most:
            raise Refused(422, f"prompt: at most {engine.most:,} completions in a request (see --waiting)")
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        self.engine, self.worker, self.mailbox, self.metrics, self.body = engine, worker, mailbox, metrics, body
        self.deadline = deadline
        self.writings: list[Writing] = []
        for number, prompt in enumerate(body.prompts):
            ids = generator.prompt_ids(prompt)
            for sample in range(body.n):
                own = seed_of(seed, number, sample)
                request = Completion(ids, body.sampling, body.max_tokens, own, deadline)
                one_by_one = bool(body.stops) or body.logprobs is not None
                self.writings.append(Writing(request, engine.decoder.fresh(ids), body.stops, engine.end, one_by_one))
        self.start = time.monotonic()

    async def pieces(self) -> AsyncGenerator[tuple[int, Writing, str], None]:
        """Each piece of text with the number of its completion; the last one of each when it has ended."""
        requests = [one.request for one in self.writings]
        wanted = asyncio.Event()
        for request in requests:
            self.mailbox.open(request, wanted)
        try:
            try:
                self.engine.submit(requests)
            except Full:
                raise busy("too many requests; try again") from None
            self.worker.wake()
            first = True
            while not all(one.sent for one in self.writings):
                try:
                    await asyncio.wait_for(wanted.wait(), max(0.0, self.deadline - time.monotonic()) + LATER)
                except TimeoutError:
                    raise Refused(504, LATE) from None
                wanted.clear()
                if first:
                    self.metrics.first.add(time.monotonic() - self.start)
                    first = False
                for number, one in enumerate(self.writings):
                    if one.sent:
                        continue
                    piece = one.take()
                    if one.ending in ("timeout", "error", "cancelled"):
                        raise Refused(504, LATE) if one.ending == "timeout" else Refused(500, FAILED)
                    one.sent = one.ending is not None
                    if piece or one.sent:
                        yield number, one, piece
        finally:  # also when the client has gone
            for request in requests:
                request.cancel()
                self.mailbox.close(request)

    async def whole(self, model: str) -> dict[str, object]:
        """The answer to a request that does not stream."""
        async for _ in self.pieces():
            pass
        choices = [
            self.choice(number, one, echo + one.text)
            for number, (one, echo) in enumerate(zip(self.writings, self.echoes, strict=True))
        ]
        return {**self.head(model), "choices": choices, "usage": self.usage}

    async def results(self) -> list[GeneratedText]:
        """The texts as `generate` returns them."""
        async for _ in self.pieces():
            pass
        prompts = [prompt for prompt in self.body.prompts for _ in range(self.body.n)]
        return [
            GeneratedText(prompt, one.text, sum(one.request.logs), one.request.generated, one.request.ending == "stop")
            for prompt, one in zip(prompts, self.writings, strict=True)
        ]

    def choice(self, number: int, one: Writing, text: str) -> dict[str, object]:
        """A completion in an answer."""
        return {"text": text, "index": number, "finish_reason": one.ending, "logprobs": self.logs(one, 0)}

    def logs(self, one: Writing, first: int) -> dict[str, object] | None:
        """The log-probabilities of the tokens from the first of these on, with what each writes."""
        if self.body.logprobs is None:
            return None
        pieces, start = one.pieces[first:], sum(map(len, one.pieces[:first]))
        return {
            "tokens": pieces, "token_logprobs": one.request.logs[first : one.taken], "top_logprobs": None,
            "text_offset": [start + length for length in accumulate(map(len, pieces[:-1]), initial=0)][: len(pieces)],
        }  # fmt: skip

    @staticmethod
    def head(model: str) -> dict[str, object]:
        """What all answers and events have."""
        number = f"cmpl-{secrets.token_hex(12)}"
        return {"id": number, "object": "text_completion", "created": int(time.time()), "model": model}

    @property
    def echoes(self) -> list[str]:
        """What is written before each completion."""
        return [prompt * self.body.echo for prompt in self.body.prompts for _ in range(self.body.n)]

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens; after a stop sequence, none is counted."""
        prompt = sum(len(one.request.ids) for one in self.writings[:: self.body.n])
        written = sum(one.taken for one in self.writings)
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    async def events(self, model: str) -> AsyncGenerator[bytes, None]:
        """Server-sent events: pieces of text, then [DONE]."""
        start, echoes, sent = json.dumps(self.head(model))[:-1], self.echoes, [0] * len(self.writings)
        async with aclosing(self.pieces()) as pieces:
            async for number, one, piece in pieces:
                logs, sent[number] = self.logs(one, sent[number]), len(one.pieces)
                found = event(start, number, echoes[number] + piece, one.ending if one.sent else None, logs)
                yield found + self.last(start) if all(one.sent for one in self.writings) else found
                echoes[number] = ""

    def last(self, start: str) -> bytes:
        """What follows the last piece of text: the numbers of tokens, if they are wanted, and [DONE]."""
        wanted = (self.body.stream_options or {}).get("include_usage")
        usage = f'data: {start}, "choices": [], "usage": {json.dumps(self.usage)}}}\n\n' if wanted else ""
        return f"{usage}data: [DONE]\n\n".encode()


def event(start: str, number: int, piece: str, ending: str | None, logs: object) -> bytes:
    """One event."""
    why = "null" if ending is None else f'"{ending}"'
    about = "null" if logs is None else finite_json(logs).decode()
    choice = f'{{"text": {json.dumps(piece)}, "index": {number}, "finish_reason": {why}, "logprobs": {about}}}'
    return f'data: {start}, "choices": [{choice}]}}\n\n'.encode()
