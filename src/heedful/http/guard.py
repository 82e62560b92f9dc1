"""Guards around an application: access, limits of size and time, and security headers.

A request passes `checks`. The guard of the explorer's page then asks for a login where there is a token, waits for a
free slot, and buffers answers whole. That of an API (`api_guard`) asks for a key, and streams.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.errors import printable
from heedful.http.answers import Answer, Headers, Refused, busy
from heedful.http.checks import check, too_long
from heedful.http.login import Login
from heedful.http.policy import Policy
from heedful.http.protocol import Server, listen
from heedful.http.strict_json import read_json

__all__ = ["Guard", "Policy", "Refused", "read_json", "serve", "serving"]

CLOSE = (b"connection", b"close")
LOGIN = 4096  # bytes of a login request


class Disconnected(Exception):  # noqa: N818  (it never reaches a user)
    """The client has disconnected."""


class RequestGuard(ABC):
    """ASGI middleware: checks the raw request, limits the work, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self.app = app
        self.policy = policy
        self.held = 0  # bytes of the bodies of all pending requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request; refuse websockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        try:
            answer = await self.answer(scope, receive, send)
        except Disconnected:
            return
        except asyncio.CancelledError:
            answer = self.refusal(busy("the server is shutting down"))
        except Exception:
            answer = self.refusal(internal_error())
        if answer is None:
            return
        cached = answer.status == 200 and scope["path"].startswith("/assets/")
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.all_headers(cached)}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    @staticmethod
    def refusal(error: Refused) -> Answer:
        """The answer to a request that is refused."""
        return error.answer()

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The answer to a request, or None if it has been sent."""

    async def read(self, receive: Receive, body: bytearray, longest: int) -> None:
        """Read a body to its end; refuse one that is too long."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            body += part
            self.held += len(part)
            if len(body) > longest:
                raise too_long(longest)
            if self.held > self.policy.held:
                raise busy("the pending requests are too large; try again")


class Guard(RequestGuard):
    """The guard of the explorer's page: a login, and a limit on concurrent requests."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        super().__init__(app, policy)
        self.login = None if policy.token is None else Login(policy.token, policy)
        self.api = Slots(policy.at_work, policy.waiting)
        self.files = Slots(policy.connections, 0)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The answer to a request; one that is refused before its body is read closes the connection."""
        body, unread = bytearray(), [CLOSE]
        try:
            check(scope, self.policy)
            logging_in = self.login is not None and (scope["method"], scope["path"]) == ("POST", "/login")
            if self.login is not None and not logging_in and (answer := await self.login.challenge(scope)) is not None:
                return answer
            await self.read(receive, body, LOGIN if logging_in else self.policy.longest_body(scope["path"]))
            unread = []
            if self.login is not None and scope["path"] == "/login":
                return await self.login.log_in(bytes(body), scope) if logging_in else Answer(204)
            return await self.in_turn(scope, bytes(body), receive)
        except Refused as error:
            refusal = error.answer()
            return replace(refusal, headers=[*refusal.headers, *unread])
        finally:
            self.held -= len(body)

    async def in_turn(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        """The application's answer, once there is a free slot, unless the client disconnects or it takes too long.

        A thread cannot be stopped: abandoned work keeps its slot until it ends.
        """
        slots = self.api if scope["path"].startswith("/api/") else self.files
        slot = slots.acquire()
        gone = asyncio.ensure_future(disconnection(receive))
        end = asyncio.get_running_loop().time() + self.policy.longest
        work: asyncio.Task[Answer] | None = None
        try:
            await first(slot, gone, end)
            if slot.done() and not gone.done():
                work = asyncio.create_task(collect(self.app, scope, body, gone))
                work.add_done_callback(lambda _: slots.release(slot))
                await first(work, gone, end)
            if work is not None and work.done():
                return work.result()
            raise Disconnected if gone.done() else busy("this took too long; try again with a shorter input")
        finally:
            gone.cancel()
            if work is None:
                slots.release(slot)


class Slots:
    """A limit on concurrent and on waiting requests, first come, first served; further ones are refused at once."""

    def __init__(self, at_work: int, waiting: int) -> None:
        self.free = at_work
        self.waiting = waiting
        self.queue: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> asyncio.Future[None]:
        """A slot, which is done when its turn has come."""
        slot = asyncio.get_running_loop().create_future()
        if self.free:
            self.free -= 1
            slot.set_result(None)
        elif len(self.queue) < self.waiting:
            self.queue.append(slot)
        else:
            raise busy("too many requests; try again")
        return slot

    def release(self, slot: asyncio.Future[None]) -> None:
        """Give a slot back; the request that has waited longest gets it."""
        if not slot.done():
            self.queue.remove(slot)
        elif self.queue:
            self.queue.popleft().set_result(None)
        else:
            self.free += 1


async def first(one: asyncio.Future[None] | asyncio.Task[Answer], gone: asyncio.Future[None], end: float) -> None:
    """Wait for either of two, until a time."""
    left = end - asyncio.get_running_loop().time()
    await asyncio.wait({one, gone}, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)


async def disconnection(receive: Receive) -> None:
    """Returns when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(app: ASGIApp, scope: Scope, body: bytes, gone: asyncio.Future[None]) -> Answer:
    """The whole answer of an application to a request whose body is known; it never raises."""
    requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    started: list[tuple[int, Headers]] = []
    parts: list[bytes] = []

    async def receive() -> Message:
        if not requests:
            await asyncio.wait({gone})
            return {"type": "http.disconnect"}
        return requests.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.append((message["status"], [(name.lower(), value) for name, value in message.get("headers", [])]))
        else:
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
        [(status, headers)] = started
    except Refused as error:
        return error.answer()
    except Exception:
        return internal_error().answer()
    return Answer(status, headers, b"".join(parts))


def internal_error() -> Refused:
    """The refusal after an unexpected exception, whose traceback is printed in the terminal only."""
    sys.stderr.write(printable(traceback.format_exc()))
    return Refused(500, "internal error; the traceback is in the terminal")


def serve(
    app: ASGIApp, policy: Policy, ready: Callable[[str], None], guard: Callable[[ASGIApp, Policy], ASGIApp] = Guard
) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is called with the address once the server is up."""
    listener, policy = listen(policy)
    Server(guard(app, policy), policy, lambda: ready(policy.url)).run_until_signal(listener)


@contextmanager
def serving(app: ASGIApp, policy: Policy, guard: Callable[[ASGIApp, Policy], ASGIApp] = Guard) -> Iterator[str]:
    """Serve in a thread while the block runs; yields the address."""
    listener, policy = listen(policy)
    ready = threading.Event()
    server = Server(guard(app, policy), policy, ready.set)
    thread = threading.Thread(target=server.run, args=([listener],), name="heedful server", daemon=True)
    thread.start()
    try:
        while not ready.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
        yield policy.url
    finally:
        server.should_exit = True
        thread.join()
