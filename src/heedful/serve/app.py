"""The web application: predictions, completions, embeddings, and what operators need."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from heedful import __version__
from heedful.errors import UserError
from heedful.http.answers import Refused, busy, error_body
from heedful.serve.completions import Completions
from heedful.serve.engine import Engine, Full
from heedful.serve.inputs import fields_of, parse_inputs
from heedful.serve.mailbox import Mailbox, waiting_job
from heedful.serve.metrics import Metrics
from heedful.serve.models import Served, chosen
from heedful.serve.page import PAGE_CSS, page
from heedful.serve.requests import (
    B,
    Body,
    CompletionBody,
    EmbeddingsBody,
    PredictBody,
    bounded,
    finite_json,
    parse_body,
    user_message,
)
from heedful.serve.worker import Batcher, Late, Worker

UNREAD = 30.0  # seconds for the rest of a stream to be read after its deadline
LONG = 10_000  # characters
TEXT = {"type": "string"}
ERROR = {"message": TEXT, "type": TEXT, "param": {"type": "null"}, "code": {"type": "null"}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "An error, as OpenAI's API reports it",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"error": {"type": "object", "properties": ERROR, "required": ["message", "type"]}},
                    "required": ["error"],
                }
            }
        },
    }
}
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": TEXT}}}}
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


@dataclass
class Service:
    """What the routes share."""

    models: dict[str, Served]
    worker: Worker
    mailbox: Mailbox
    longest: float  # seconds to answer a request
    metrics: Metrics = field(default_factory=Metrics)

    def deadline(self, body: Body) -> float:
        """When the answer must be there."""
        return time.monotonic() + min(body.timeout or self.longest, self.longest)

    async def completions(self, engine: Engine, body: CompletionBody, deadline: float) -> Completions:
        """The completions of a request; long prompts are tokenized in another thread."""
        make = partial(Completions, engine, self.worker, self.mailbox, self.metrics, body, deadline)
        return await run_in_threadpool(make) if sum(map(len, body.prompts)) > LONG else make()

    async def together(self, batcher: Batcher, inputs: Sequence[Any], deadline: float) -> Sequence[Any]:
        """The results of inputs, predicted with those of other requests."""
        job, future = waiting_job(inputs, deadline)
        try:
            batcher.submit(job)
            self.worker.wake()
            return await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
        except Full:
            raise busy("too many requests; try again") from None
        except (Late, TimeoutError):
            raise Refused(504, "the request took too long") from None
        except (UserError, ValueError, TypeError) as error:
            raise Refused(422, user_message(error)) from None
        finally:
            job.cancel()


class Events(Response):
    """A response of server-sent events; the first one is awaited before the status is sent."""

    def __init__(self, events: AsyncGenerator[bytes, None], seconds: float) -> None:
        """After `seconds`, a client that does not read is cut off."""
        self.events, self.seconds, self.status_code, self.background = events, seconds, 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; an error after the first one is an event, and [DONE] is then missing."""
        async with aclosing(self.events):
            first = await anext(self.events)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
                    await send({"type": "http.response.body", "body": first, "more_body": True})
                    await self.rest(send)

    async def rest(self, send: Send) -> None:
        """Send all events after the first one."""
        try:
            async for one in self.events:
                await send({"type": "http.response.body", "body": one, "more_body": True})
        except Refused as error:
            text = b"data: " + error_body(error.status, error.message) + b"\n\n"
            await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def application(service: Service) -> FastAPI:
    """The routes."""
    app = FastAPI(
        title="Heedful",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses=ERRORS,
    )

    @app.post("/v1/predict", summary="Predict with a model of any task", **body_of(PredictBody))
    async def predict(request: Request) -> Response:
        body = await parsed(PredictBody, request)
        served, deadline = chosen(service.models, body.model), service.deadline(body)
        try:
            inputs = await run_in_threadpool(parse_inputs, served.predictor, body.inputs)
            usual = None if served.engine is None else usual_settings(served.engine, inputs)
        except (UserError, ValueError) as error:
            raise Refused(422, user_message(error)) from None
        if served.engine is not None and usual is not None:
            found = await service.completions(served.engine, usual, deadline)
            results: Sequence[Any] = await found.results()
        else:
            results = await service.together(served.predictions, inputs, deadline)
        plain = await run_in_threadpool(lambda: finite_json([one and one.to_dict() for one in results]))
        head = json.dumps({"model": served.name, "task": served.predictor.task})[:-1].encode()
        return Response(head + b', "predictions": ' + plain + b"}", media_type="application/json")

    @app.post("/v1/embeddings", summary="Embed texts", **body_of(EmbeddingsBody))
    async def embeddings(request: Request) -> Response:
        body = await parsed(EmbeddingsBody, request)
        served = chosen(service.models, body.model)
        if served.embeddings is None:
            raise Refused(422, f"{served.name} is no encoder of texts, but a model of the task {served.predictor.task}")
        texts = [body.input] if isinstance(body.input, str) else body.input
        found = await service.together(served.embeddings, texts, service.deadline(body))
        form = as_base64 if body.encoding_format == "base64" else list
        rows = [{"object": "embedding", "index": at, "embedding": form(one)} for at, (one, _) in enumerate(found)]
        count = sum(tokens for _, tokens in found)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return json_response({"object": "list", "model": served.name, "data": rows, "usage": usage})

    @app.post("/v1/completions", summary="Complete texts", responses=STREAM, **body_of(CompletionBody))
    async def completions(request: Request) -> Response:
        body = await parsed(CompletionBody, request)
        served = chosen(service.models, body.model)
        if served.engine is None:
            raise Refused(422, f"{served.name} is no language model, but a model of the task {served.predictor.task}")
        if body.echo and body.logprobs is not None:
            raise Refused(422, "logprobs: not supported with echo")
        if body.best_of not in (None, body.n):
            raise Refused(422, "best_of: not supported, unless it equals n")
        if body.max_tokens > served.engine.longest:
            raise Refused(422, f"max_tokens: at most {served.engine.longest:,} (see --max-tokens)")
        found = await service.completions(served.engine, body, service.deadline(body))
        if body.stream:
            return Events(found.events(served.name), service.longest + UNREAD)
        return json_response(await found.whole(served.name))

    @app.get("/v1/models", summary="The models, and the fields of their inputs")
    async def models() -> Response:
        found = [about(one) for one in service.models.values()]
        return json_response({"object": "list", "data": found})

    @app.get("/healthz", summary="Whether the server works")
    async def healthz() -> Response:
        healthy = service.worker.healthy
        return json_response({"status": "ok" if healthy else "failing"}, 200 if healthy else 503)

    @app.get("/metrics", summary="Metrics in Prometheus's text format", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.text(gauges(service.models)), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(page(app.openapi(), service.models), media_type="text/html; charset=utf-8")

    @app.get("/page.css", include_in_schema=False)
    async def style() -> Response:
        return Response(PAGE_CSS, media_type="text/css; charset=utf-8")

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> Response:
        headers = {name.decode(): value.decode() for name, value in error.headers}
        return Response(error_body(error.status, error.message), error.status, headers, "application/json")

    @app.exception_handler(404)
    async def not_found(request: Request, error: Any) -> Response:
        known = ", ".join(sorted(app.openapi()["paths"]))
        return Response(error_body(404, f"there is no such path; known: {known}"), 404, None, "application/json")

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: Any) -> Response:
        return Response(error_body(405, "this method is not allowed here"), 405, None, "application/json")

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:  # the guard prints it
        message = "internal error; the traceback is in the terminal"
        return Response(error_body(500, message), 500, None, "application/json")

    app.add_middleware(Measured, service=service)
    return app


class Measured:
    """Counts requests and their seconds."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.metrics = app, service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        start, status = time.monotonic(), 499  # the client has gone

        async def forward(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.open += 1
        try:
            await self.app(scope, receive, forward)
        finally:
            self.metrics.open -= 1
            path = scope["route"].path if "route" in scope else "other"
            self.metrics.ended(path, status, time.monotonic() - start)


async def parsed(kind: type[B], request: Request) -> B:
    """The body of a request; a long one is parsed in another thread, while others are answered."""
    body = await request.body()
    return await run_in_threadpool(parse_body, kind, body) if len(body) > LONG else parse_body(kind, body)


def usual_settings(engine: Engine, prompts: Sequence[str]) -> CompletionBody | None:
    """A generator's own settings as those of completions, which are generated beside others; None: they cannot be."""
    s = engine.generator.settings
    if s.beams > 1 or s.uses_history or s.min_length or s.samples > 1 or s.length > engine.longest:
        return None
    return CompletionBody(
        prompt=bounded(list(prompts)), max_tokens=s.length, temperature=s.temperature, top_k=s.top_k, top_p=s.top_p,
        seed=s.seed,
    )  # fmt: skip


def body_of(kind: type[Body]) -> dict[str, Any]:
    """The description of a request's body; it is parsed by `parse_body`, which is stricter than FastAPI."""
    schema = kind.model_json_schema()
    needed = schema.get("required", ())
    schema["properties"] = {
        name: about if name in needed else or_null(about) for name, about in schema["properties"].items()
    }
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}}


def or_null(about: dict[str, Any]) -> dict[str, Any]:
    """The description of a field that may also be null."""
    inside, found = dict(about), dict[str, Any]()
    for name in ("title", "description", "default"):
        if name in about:
            found[name] = inside.pop(name)
    kinds = [one for one in inside.get("anyOf", [inside]) if one != {"type": "null"}]
    return {"anyOf": [*kinds, {"type": "null"}], **found}


def as_base64(vector: Sequence[float]) -> str:
    """Little-endian float32 as base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def json_response(value: object, status: int = 200) -> Response:
    """A response in JSON."""
    return Response(finite_json(value), status, media_type="application/json")


def about(served: Served) -> dict[str, object]:
    """The description of a model."""
    return {
        "id": served.name, "object": "model", "created": 0, "owned_by": "heedful", "task": served.predictor.task,
        "fields": list(fields_of(served.predictor)), "completions": served.engine is not None,
        "embeddings": served.embeddings is not None,
    }  # fmt: skip


def gauges(models: dict[str, Served]) -> dict[str, tuple[str, str, dict[str, float]]]:
    """The metrics of each model."""
    engines = {name: one.engine for name, one in models.items() if one.engine is not None}

    def counted(about: str, values: dict[str, float], kind: str = "counter") -> tuple[str, str, dict[str, float]]:
        return kind, about, values

    return {
        "heedful_waiting_requests": counted(
            "Requests that wait.", {name: one.waiting for name, one in models.items()}, "gauge"
        ),
        "heedful_running_texts": counted(
            "Texts that are being generated.", {name: len(one.active) for name, one in engines.items()}, "gauge"
        ),
        "heedful_generated_tokens_total": counted(
            "Tokens generated.", {name: one.counts.tokens for name, one in engines.items()}
        ),
        "heedful_prompt_tokens_total": counted(
            "Tokens of prompts that were read.", {name: one.counts.prompt_tokens for name, one in engines.items()}
        ),
        "heedful_steps_total": counted("Decoding steps.", {name: one.counts.steps for name, one in engines.items()}),
        "heedful_step_rows_total": counted(
            "Rows of all decoding steps; divided by the steps, the mean size of a batch.",
            {name: one.counts.rows for name, one in engines.items()},
        ),
        "heedful_batches_total": counted(
            "Batches of predictions and embeddings.",
            {name: sum(part.batches for part in one.batchers) for name, one in models.items()},
        ),
        "heedful_inputs_total": counted(
            "Inputs of these batches.",
            {name: sum(part.inputs for part in one.batchers) for name, one in models.items()},
        ),
    }
