"""HTTP connections with timeouts: for a request to arrive, for its answer to be read, and a limit on open connections.

uvicorn's settings limit the size of headers, the idle time between requests and the time to shut down. This module adds
what they cannot: limits for requests that arrive slowly and connections that send nothing (`limit_concurrency` counts a
request once its headers are complete, and then refuses every client); answers that are not read; refusals that must
reach a client which is still sending; and security headers on the answer to invalid HTTP.
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
from heedful.http.answers import Refused, busy
from heedful.http.policy import Policy

INTERRUPTED = 1  # seconds for running requests after Ctrl-C
JOIN = 0.3  # seconds for idle threads to end
GRACE = 0.05  # seconds in which a request that was sent at once has been read, however many came with it
OVERLOAD = 3  # times the allowed number of connections, from which on new ones are refused
MAY_ANSWER = (h11.IDLE, h11.SEND_RESPONSE)
MAY_SEND_MORE = (h11.SEND_BODY, h11.ERROR)


class HalfClosing:
    """A transport whose `close` may leave the reading side open, until the client has read the answer.

    A socket that is closed with unread bytes resets the connection, and the reset may overtake the answer.
    """

    def __init__(self, inner: asyncio.Transport, half: Callable[[], bool]) -> None:
        self.inner = inner
        self.half = half  # called when closing: whether the reading side stays open
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def close(self) -> None:
        """Send what is buffered, then close the connection or its writing side."""
        if self.closed:
            return
        self.closed = True
        if not self.inner.is_closing() and self.half():
            self.inner.write_eof()
            self.inner.resume_reading()
        else:
            self.inner.close()

    def is_closing(self) -> bool:
        return self.closed or self.inner.is_closing()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.inner.write(data)

    def abort(self) -> None:
        self.closed = True
        self.inner.abort()

    def pause_reading(self) -> None:
        if not self.closed:  # afterwards, what arrives is discarded
            self.inner.pause_reading()


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
        self.arriving: asyncio.TimerHandle | None = None  # set while a request is expected or incomplete
        self.leaving: asyncio.TimerHandle | None = None  # set while an answer may be unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, HalfClosing(transport, self.linger)))
        self.arriving = self.loop.call_later(self.policy.arriving, self.too_slow)
        most = self.policy.connections
        if len(self.connections) > OVERLOAD * most:
            self.dismiss(busy("too many connections; try again"))
        elif len(self.connections) > most:
            self.loop.call_later(GRACE, self.make_room)

    def make_room(self) -> None:
        """Close the connection that has sent an incomplete request, or else been idle, for longest."""
        if len(self.connections) <= self.policy.connections:
            return
        every = [cast(Protocol, one) for one in self.connections]
        slow = [(one.arriving.when(), one) for one in every if one.arriving]
        idle = [
            (one.timeout_keep_alive_task.when(), one) for one in every if one.timeout_keep_alive_task and not one.unread
        ]
        if slow or idle:
            _, worst = min(slow or idle, key=lambda pair: pair[0])
            self.connections.discard(worst)
            worst.transport.abort()

    @property
    def unread(self) -> int:
        """The bytes of an answer that the client has not read."""
        return self.transport.get_write_buffer_size()

    def linger(self) -> bool:
        """Whether a closing connection is read from a little longer, since its request is incomplete."""
        self.stop_arriving()
        if self.conn.their_state not in MAY_SEND_MORE:
            return False
        self.arriving = self.loop.call_later(self.policy.lingering, self.transport.abort)
        return True

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; after a request was refused, the rest of it is discarded."""
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        """Start the timeout with the first byte of a request, and stop it with the last."""
        super().handle_events()
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        begun = state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0])
        if not begun:
            self.stop_arriving()
        elif self.arriving is None:
            self.arriving = self.loop.call_later(self.policy.arriving, self.too_slow)

    def too_slow(self) -> None:
        """Close a connection whose request did not arrive in time; one that sent nothing gets no answer."""
        self.arriving = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self.dismiss(Refused(408, "the request took too long to arrive"))

    def send_400_response(self, msg: str) -> None:
        """The answer to invalid HTTP."""
        self.dismiss(Refused(400, "invalid HTTP request"))

    def dismiss(self, refusal: Refused) -> None:
        """Send a refusal, if nothing has been sent yet, and close."""
        if self.conn.our_state in MAY_ANSWER:
            answer = refusal.answer()
            headers = [*answer.all_headers(), (b"connection", b"close")]
            for event in (
                h11.Response(status_code=answer.status, headers=headers),
                h11.Data(data=answer.body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Start the timeout for the client to read the answer."""
        if self.leaving:
            self.leaving.cancel()
        if self.unread:
            self.leaving = self.loop.call_later(self.policy.leaving, self.not_read)
        super().on_response_complete()

    def not_read(self) -> None:
        if self.unread:
            self.transport.abort()

    def stop_arriving(self) -> None:
        if self.arriving:
            self.arriving.cancel()
        self.arriving = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_arriving()
        if self.leaving:
            self.leaving.cancel()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """uvicorn with the policy's limits: one process, no logs, nothing but HTTP/1.1."""

    def __init__(self, app: ASGIApp, policy: Policy, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            cast(Any, app), http=cast(type[asyncio.Protocol], partial(Protocol, policy)),
            loop="asyncio", ws="none", lifespan="off",
            log_config=None, log_level="critical", access_log=False, proxy_headers=False, server_header=False,
            timeout_keep_alive=policy.idle, timeout_graceful_shutdown=INTERRUPTED,
            h11_max_incomplete_event_size=policy.head,
        )  # fmt: skip
        super().__init__(config)
        self.ready, self.drain = ready, policy.drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        threading.Thread(target=self.ready, daemon=True).start()  # it may open a browser, which must be answered

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        seconds = self.drain if sig == signal.SIGTERM else INTERRUPTED
        self.config.timeout_graceful_shutdown = seconds  # type: ignore[assignment]  # it is a float in use
        super().handle_exit(sig, frame)

    def run_until_signal(self, listener: socket.socket) -> None:
        """Run until Ctrl-C, which returns, or SIGTERM, which ends the process."""
        try:
            self.run([listener])
        except KeyboardInterrupt:
            exit_if_busy()


def exit_if_busy() -> None:
    """End the process if a worker thread is still running, since the interpreter would wait for it."""
    end = time.monotonic() + JOIN
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
        raise cannot_listen(policy, error) from None
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise cannot_listen(policy, error) from None
    return listener, replace(policy, port=listener.getsockname()[1])


def cannot_listen(policy: Policy, error: OSError) -> UserError:
    """The error of an address or port that cannot be used."""
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"port {policy.port} is in use, perhaps by another server of Heedful",
            where="port", todo="add --port 0 to use a free one",
        )  # fmt: skip
    if error.errno == errno.EACCES:
        return UserError(f"port {policy.port} needs administrator rights", where="port", todo="add --port 0")
    return UserError("this is not an address of this machine", where="host", found=shown(policy.host))
