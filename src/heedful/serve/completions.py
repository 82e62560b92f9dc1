"""Completions as they arrive: their texts, stop sequences, and server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from heedful.http.answers import Refused, busy
from heedful.serve.engine import Completion, Engine, Full
from heedful.serve.mailbox import Mailbox
from heedful.serve.metrics import Metrics
from heedful.serve.requests import CompletionBody
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
    taken: int = 0  # tokens that are decoded
    held: str = ""  # text in which a stop sequence may begin
    text: str = ""
    stopped: bool = False
    sent: bool = field(default=False)  # whether its last event was sent

    def take(self) -> str:
        """The text that has become final since the last call."""
        request, last = self.request, self.request.ending  # the ending first: tokens come before it
        some = request.generated[self.taken :]
        if self.stopped:
            return ""
        self.taken += len(some)
        self.held += self.decoder.extend(some[:-1] if some and some[-1] == self.end else some)
        if last is not None:
            self.held += self.decoder.rest()
        places = [at for at in (self.held.find(stop) for stop in self.stops) if at >= 0]
        keep = 0 if last is not None or not self.stops else max(map(len, self.stops)) - 1
        ready = min(places) if places else max(0, len(self.held) - keep)
        piece, self.held = self.held[:ready], self.held[ready:]
        if places:
            self.stopped = True
            request.cancel()
        self.text += piece
        return piece

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
                self.writings.append(Writing(request, engine.decoder.fresh(ids), body.stops, engine.end))
                if body.echo:
                    self.writings[-1].text = prompt
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
        choices = [self.choice(number, one, one.text) for number, one in enumerate(self.writings)]
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
        logs: object = None
        if self.body.logprobs is not None:
            logs = {"token_logprobs": one.request.logs, "tokens": one.request.generated}
        return {"text": text, "index": number, "finish_reason": one.ending, "logprobs": logs}

    @staticmethod
    def head(model: str) -> dict[str, object]:
        """What all answers and events have."""
        number = f"cmpl-{secrets.token_hex(12)}"
        return {"id": number, "object": "text_completion", "created": int(time.time()), "model": model}

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens."""
        prompt = sum(len(one.request.ids) for one in self.writings[:: self.body.n])
        written = sum(len(one.request.generated) for one in self.writings)
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    async def events(self, model: str) -> AsyncGenerator[bytes, None]:
        """Server-sent events: pieces of text, then [DONE]."""
        start = json.dumps(self.head(model))[:-1]
        if self.body.echo:
            for number, one in enumerate(self.writings):
                yield event(start, number, one.text, None)
        async with aclosing(self.pieces()) as pieces:
            async for number, one, piece in pieces:
                yield event(start, number, piece, one.ending if one.sent else None)
        if (self.body.stream_options or {}).get("include_usage"):
            yield f'data: {start}, "choices": [], "usage": {json.dumps(self.usage)}}}\n\n'.encode()
        yield b"data: [DONE]\n\n"


def event(start: str, number: int, piece: str, ending: str | None) -> bytes:
    """One event."""
    why = "null" if ending is None else f'"{ending}"'
    choice = f'{{"text": {json.dumps(piece)}, "index": {number}, "finish_reason": {why}, "logprobs": null}}'
    return f'data: {start}, "choices": [{choice}]}}\n\n'.encode()
