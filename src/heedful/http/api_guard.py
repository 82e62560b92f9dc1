"""The guard of an API: keys in place of a login, and answers that may be streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.http.answers import SECURITY, Answer, Refused
from heedful.http.checks import check
from heedful.http.guard import CLOSE, Disconnected, RequestGuard, disconnection, internal_error
from heedful.http.policy import Policy
from heedful.http.tokens import Tokens, address, bearer

OPEN = ("/healthz",)  # paths that need no key
NO_STORE = (b"cache-control", b"no-store")


class ApiGuard(RequestGuard):
    """Lets requests with a key pass, and cancels the work for a client that disconnects."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        super().__init__(app, policy)
        self.keys = Tokens(policy.keys, policy, "API key")

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """Pass a request on; one that is refused before its body is read closes the connection."""
        body, unread = bytearray(), [CLOSE]
        try:
            check(scope, self.policy)
            await self.check_key(scope)
            await self.read(receive, body, self.policy.body)
            unread = []
            return await self.respond(scope, bytes(body), receive, send)
        except Refused as error:
            refusal = self.refusal(error)
            return replace(refusal, headers=[*refusal.headers, *unread])
        finally:
            self.held -= len(body)

    @staticmethod
    def refusal(error: Refused) -> Answer:
        """A refusal in the form of OpenAI's API."""
        return error.api_answer()

    async def check_key(self, scope: Scope) -> None:
        """Refuse a request without one of the keys, if there are any."""
        if not self.policy.keys or scope["path"] in OPEN:
            return
        given = bearer(scope)
        if given is None:
            raise Refused(401, "send an API key: Authorization: Bearer KEY", [(b"www-authenticate", b"Bearer")])
        await self.keys.compare(given, address(scope))

    async def respond(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> Answer | None:
        """Let the application send its answer; None if it has. A stream that fails is cut off; the client sees it."""
        requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.ensure_future(disconnection(receive))
        started: list[bool] = []

        async def replay() -> Message:
            if requests:
                return requests.pop()
            await asyncio.wait({gone})
            return {"type": "http.disconnect"}

        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(True)
                message = {**message, "headers": with_security(message.get("headers", []))}
            await send(message)

        async def run() -> None:
            await self.app(scope, replay, forward)

        work = asyncio.create_task(run())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Disconnected
            work.result()
        except Refused:
            raise
        except (Disconnected, asyncio.CancelledError):
            if started:
                return None
            raise
        except Exception:
            error = internal_error()
            return None if started else self.refusal(error)
        finally:
            gone.cancel()
            work.cancel()
        return None


def with_security(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer, with the security headers; no cache may store it."""
    own = [(name.lower(), value) for name, value in headers]
    known = {name for name, _ in SECURITY} | {b"cache-control"}
    return [*(pair for pair in own if pair[0] not in known), NO_STORE, *SECURITY]
