"""The guard around the explorer's server: who may ask, how much, how long, and what every answer carries.

A request passes `checks`, the door of `login` where there is a token, and waits for its turn; the application sees only
what has passed. Answers are whole before they leave, so that the application cannot stream.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.errors import printable
from heedful.explore.server.answers import Answer, Headers, Refused, busy
from heedful.explore.server.checks import check, too_long
from heedful.explore.server.login import Door
from heedful.explore.server.policy import Policy
from heedful.explore.server.protocol import Server, listen
from heedful.explore.server.strict_json import read_json

__all__ = ["Guard", "Policy", "Refused", "read_json", "serve", "serving"]

CLOSE = (b"connection", b"close")
LOGIN = 4096  # bytes that a stranger may send


class Gone(Exception):  # noqa: N818  (nobody is told)
    """The client has left, and no answer is wanted."""


class Guard:
    """ASGI around an application: refuses on the raw request, bounds the work, and shields every answer."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self.app = app
        self.policy = policy
        self.door = None if policy.token is None else Door(policy.token, policy)
        self.api = Places(policy.at_work, policy.waiting)
        self.files = Places(policy.connections, 0)
        self.held = 0  # bytes of the bodies that wait for their answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; nothing else than HTTP is spoken."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        try:
            answer = await self.answer(scope, receive)
        except Gone:
            return
        except asyncio.CancelledError:
            answer = busy("the explorer is closing").answer()
        except Exception:
            answer = went_wrong()
        kept = answer.status == 200 and scope["path"].startswith("/assets/")
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.shielded(kept)}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def answer(self, scope: Scope, receive: Receive) -> Answer:
        """The answer to a request; what is refused before its body is read ends the connection."""
        body, unread = bytearray(), [CLOSE]
        try:
            check(scope, self.policy)
            entering = self.door is not None and (scope["method"], scope["path"]) == ("POST", "/login")
            if self.door is not None and not entering and (stopped := await self.door.stops(scope)) is not None:
                return stopped
            await self.read(receive, body, LOGIN if entering else self.policy.body)
            unread = []
            if self.door is not None and scope["path"] == "/login":
                return await self.door.admits(bytes(body), scope) if entering else Answer(204)
            return await self.in_turn(scope, bytes(body), receive)
        except Refused as error:
            refusal = error.answer()
            return replace(refusal, headers=[*refusal.headers, *unread])
        finally:
            self.held -= len(body)

    async def read(self, receive: Receive, body: bytearray, longest: int) -> None:
        """Read a body to its end, or refuse it where it gets too long."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part, more = message.get("body", b""), message.get("more_body", False)
            body += part
            self.held += len(part)
            if len(body) > longest:
                raise too_long(longest)
            if self.held > self.policy.held:
                raise busy("too much is being asked at once; try again")

    async def in_turn(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        """What the application answers, when its turn has come, unless the client leaves or it takes too long.

        A thread cannot be stopped from outside: work that nobody waits for any more keeps its place until it ends.
        """
        places = self.api if scope["path"].startswith("/api/") else self.files
        place = places.enter()
        gone = asyncio.ensure_future(departure(receive))
        end = asyncio.get_running_loop().time() + self.policy.longest
        work: asyncio.Task[Answer] | None = None
        try:
            await first(place, gone, end)
            if place.done() and not gone.done():
                work = asyncio.create_task(collect(self.app, scope, body, gone))
                work.add_done_callback(lambda _: places.leave(place))
                await first(work, gone, end)
            if work is not None and work.done():
                return work.result()
            raise Gone if gone.done() else busy("this took too long; try again, or ask for less")
        finally:
            gone.cancel()
            if work is None:
                places.leave(place)


class Places:
    """So many at work and so many that wait, first come, first served; whoever finds it full is told at once."""

    def __init__(self, at_work: int, waiting: int) -> None:
        self.free = at_work
        self.waiting = waiting
        self.line: deque[asyncio.Future[None]] = deque()

    def enter(self) -> asyncio.Future[None]:
        """A place, done when its turn has come."""
        place = asyncio.get_running_loop().create_future()
        if self.free:
            self.free -= 1
            place.set_result(None)
        elif len(self.line) < self.waiting:
            self.line.append(place)
        else:
            raise busy("too many ask at once; try again")
        return place

    def leave(self, place: asyncio.Future[None]) -> None:
        """Give a place back: to whoever has waited longest, if its turn had come."""
        if not place.done():
            self.line.remove(place)
        elif self.line:
            self.line.popleft().set_result(None)
        else:
            self.free += 1


async def first(one: asyncio.Future[None] | asyncio.Task[Answer], gone: asyncio.Future[None], end: float) -> None:
    """Wait for one of two, and not beyond the end."""
    left = end - asyncio.get_running_loop().time()
    await asyncio.wait({one, gone}, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)


async def departure(receive: Receive) -> None:
    """Ends when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(app: ASGIApp, scope: Scope, body: bytes, gone: asyncio.Future[None]) -> Answer:
    """What an application answers to a request whose body is known; it never raises."""
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
        return went_wrong()
    return Answer(status, headers, b"".join(parts))


def went_wrong() -> Answer:
    """The answer to what should not have happened; what it was is for the terminal alone."""
    sys.stderr.write(printable(traceback.format_exc()))
    return Refused(500, "something went wrong here; the terminal says what").answer()


def serve(app: ASGIApp, policy: Policy, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is told the address once it answers."""
    listener, policy = listen(policy)
    Server(Guard(app, policy), policy, lambda: ready(policy.url)).until_told(listener)


@contextmanager
def serving(app: ASGIApp, policy: Policy) -> Iterator[str]:
    """Serve from a thread of its own as long as the block runs; gives the address."""
    listener, policy = listen(policy)
    ready = threading.Event()
    server = Server(Guard(app, policy), policy, ready.set)
    thread = threading.Thread(target=server.run, args=([listener],), name="heedful explorer", daemon=True)
    thread.start()
    try:
        while not ready.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
        yield policy.url
    finally:
        server.should_exit = True
        thread.join()
