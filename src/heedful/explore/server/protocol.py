"""HTTP on the socket: a deadline for every request to come in whole, for every answer to leave, and room for the next.

What uvicorn can limit, its settings do: the size of a head, the silence between requests, the time to shut down. Here
is what it cannot: a request that comes in too slowly, and connections that say nothing (its `limit_concurrency` counts
when the head of a request is whole, and then refuses everybody); an answer that nobody reads; a refusal that must reach
a client which is still sending; and headers that shield the answer to what is no HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from heedful.errors import UserError, shown
from heedful.explore.server.answers import Refused, busy
from heedful.explore.server.policy import Policy

DRAIN = {signal.SIGINT: 1, signal.SIGTERM: 8}  # seconds for what is at work when the server is told to stop
PATIENCE = 0.3  # seconds for threads that have nothing to do to see that it is over
BREATH = 0.05  # seconds in which a request that was sent at once has been read, however many came with it
CROWD = 3  # times as many connections as there should be, and none is taken any more
MAY_ANSWER = (h11.IDLE, h11.SEND_RESPONSE)
MAY_SEND_MORE = (h11.SEND_BODY, h11.ERROR)


class HalfClosing(asyncio.Transport):
    """A transport whose `close` may leave the reading side open, until the client has read the answer.

    A socket that is closed with unread bytes resets the connection, and the reset may overtake the answer.
    """

    def __init__(self, inner: asyncio.Transport, half: Callable[[], bool]) -> None:
        super().__init__()
        self.inner = inner
        self.half = half  # asked when closing: whether the reading side stays open
        self.closed = False

    def close(self) -> None:
        """Send what is left; close, or only say that nothing more will be sent."""
        if self.closed:
            return
        self.closed = True
        if not self.inner.is_closing() and self.half():
            self.inner.write_eof()
            self.inner.resume_reading()
        else:
            self.inner.close()

    def is_closing(self) -> bool:
        """Whether nothing can be answered any more."""
        return self.closed or self.inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, unless it is closed."""
        if not self.closed:
            self.inner.write(data)

    def abort(self) -> None:
        """Close at once, whatever is left to send or to read."""
        self.closed = True
        self.inner.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the socket."""
        return self.inner.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """The bytes that the client has not taken yet."""
        return self.inner.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Read nothing for a while, unless what comes is thrown away anyway."""
        if not self.closed:
            self.inner.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.inner.resume_reading()


class Protocol(H11Protocol):
    """One connection, which is closed if it keeps the server waiting."""

    def __init__(
        self,
        policy: Policy,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.policy = policy
        self.arriving: asyncio.TimerHandle | None = None  # set while a request is due or on its way
        self.leaving: asyncio.TimerHandle | None = None  # set while an answer may still be on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(HalfClosing(transport, self.linger))
        self.arriving = self.loop.call_later(self.policy.arriving, self.too_slow)
        most = self.policy.connections
        if len(self.connections) > CROWD * most:
            self.dismiss(busy("too many are connected; try again"))
        elif len(self.connections) > most:
            self.loop.call_later(BREATH, self.make_room)

    def make_room(self) -> None:
        """Close the connection whose request has been on its way for longest, or else one that only stays open."""
        if len(self.connections) <= self.policy.connections:
            return
        everyone = [cast(Protocol, one) for one in self.connections]
        slow = [(one.arriving.when(), one) for one in everyone if one.arriving]
        resting = [
            (one.timeout_keep_alive_task.when(), one)
            for one in everyone
            if one.timeout_keep_alive_task and not one.unread
        ]
        if slow or resting:
            _, worst = min(slow or resting, key=lambda pair: pair[0])
            self.connections.discard(worst)
            worst.transport.abort()

    @property
    def unread(self) -> int:
        """The bytes of an answer that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def linger(self) -> bool:
        """Whether a connection that is being closed is read from a little longer: its request has not come in whole."""
        stop(self.arriving)
        self.arriving = None
        if self.conn.their_state not in MAY_SEND_MORE:
            return False
        self.arriving = self.loop.call_later(self.policy.lingering, self.transport.abort)
        return True

    def data_received(self, data: bytes) -> None:
        """Take what comes in; after the answer to a request that was refused, the rest of it is thrown away."""
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        """Start the clock with the first byte of a request, and stop it with the last."""
        super().handle_events()
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        begun = state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0])
        if not begun:
            stop(self.arriving)
            self.arriving = None
        elif self.arriving is None:
            self.arriving = self.loop.call_later(self.policy.arriving, self.too_slow)

    def too_slow(self) -> None:
        """Close a connection whose request is not here in time; one that never said a word is told nothing."""
        self.arriving = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self.dismiss(Refused(408, "the request took too long to come in"))

    def send_400_response(self, msg: str) -> None:
        """What uvicorn says to something that is not HTTP."""
        self.dismiss(Refused(400, "this is not HTTP as it is understood here"))

    def dismiss(self, refusal: Refused) -> None:
        """Refuse, if nothing has been answered yet, and close."""
        if self.conn.our_state in MAY_ANSWER:
            answer = refusal.answer()
            headers = [*answer.shielded(), (b"connection", b"close")]
            for event in (
                h11.Response(status_code=answer.status, headers=headers),
                h11.Data(data=answer.body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Give the client some time to read the answer, which would else be kept for it for ever."""
        stop(self.leaving)
        if self.unread:
            self.leaving = self.loop.call_later(self.policy.leaving, self.not_read)
        super().on_response_complete()

    def not_read(self) -> None:
        if self.unread:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        stop(self.arriving)
        stop(self.leaving)
        self.arriving = self.leaving = None
        super().connection_lost(exc)


def stop(clock: asyncio.TimerHandle | None) -> None:
    """Let a clock not ring, if there is one."""
    if clock is not None:
        clock.cancel()


class Server(uvicorn.Server):
    """uvicorn with the policy's limits: one process, no logs, nothing but HTTP/1.1."""

    def __init__(self, app: ASGIApp, policy: Policy, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            cast(Any, app),
            http=cast(type[asyncio.Protocol], partial(Protocol, policy)),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=policy.idle,
            timeout_graceful_shutdown=DRAIN[signal.SIGINT],
            h11_max_incomplete_event_size=policy.head,
        )
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        threading.Thread(target=self.ready, daemon=True).start()  # it may open a browser, which is to be answered

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.timeout_graceful_shutdown = DRAIN[signal.Signals(sig)]
        super().handle_exit(sig, frame)

    def until_told(self, listener: socket.socket) -> None:
        """Run until Ctrl-C, which ends quietly, or SIGTERM, which ends the process."""
        try:
            self.run([listener])
        except KeyboardInterrupt:
            leave_threads()


def leave_threads() -> None:
    """End the process if a thread is still at work, since the interpreter would wait for it, however long it takes."""
    end = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if thread.name == "AnyIO worker thread":
            thread.join(max(end - time.monotonic(), 0.0))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(128 + signal.SIGINT)


def listen(policy: Policy) -> tuple[socket.socket, Policy]:
    """A socket at the policy's address, and the policy with the port that it got."""
    host = "127.0.0.1" if policy.host == "localhost" else policy.host
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, policy.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise no_place(policy, error) from None
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise no_place(policy, error) from None
    return listener, replace(policy, port=listener.getsockname()[1])


def no_place(policy: Policy, error: OSError) -> UserError:
    """Why an address cannot be listened at, and what to type instead."""
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"port {policy.port} is in use: something else listens there, perhaps another explorer",
            where="port", todo="add --port 0, and a free one is taken",
        )  # fmt: skip
    if error.errno == errno.EACCES:
        return UserError(f"port {policy.port} needs special rights", where="port", todo="add --port 0")
    return UserError(
        "this machine cannot listen at the address", where="host", found=shown(policy.host), expected="one of its own"
    )
