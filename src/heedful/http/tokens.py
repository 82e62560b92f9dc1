"""Secrets that a request may carry: compared in constant time, and only so often a minute."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from starlette.types import Scope

from heedful.http.answers import Refused
from heedful.http.checks import header
from heedful.http.policy import Policy

MINUTE = 60.0
ADDRESSES = 1000  # whose wrong tokens are counted


def address(scope: Scope) -> str:
    """The address of a client, or its IPv6 network, in which one machine may have any number of addresses."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    return host if found.version == 4 else str(ip_network((found, 64), strict=False))


def bearer(scope: Scope) -> bytes | None:
    """The token in the Authorization header, if there is one."""
    kind, _, given = (header(scope, b"authorization") or b"").partition(b" ")
    return given.strip() if kind.lower() == b"bearer" else None


class Tokens:
    """The accepted tokens, and the times of wrong ones in the last minute, by address."""

    def __init__(self, accepted: Sequence[str], policy: Policy, what: str = "token") -> None:
        self.accepted = [token.encode() for token in accepted]
        self.policy = policy
        self.what = what
        self.wrong: dict[str, deque[float]] = {}

    async def compare(self, given: bytes, address: str) -> None:
        """Refuse a wrong token slowly, and any token after too many wrong ones from the same address."""
        now = time.monotonic()
        mine = self.wrong.get(address, deque())
        while mine and mine[0] < now - MINUTE:
            mine.popleft()
        if len(mine) >= self.policy.guesses:
            raise Refused(429, f"too many wrong {self.what}s; wait a minute", [(b"retry-after", b"60")])
        found = [hmac.compare_digest(given, token) for token in self.accepted]  # all of them: in constant time
        if not any(found):
            mine.append(now)
            self.wrong.pop(address, None)
            self.wrong[address] = mine  # most recent last
            while len(self.wrong) > ADDRESSES:
                del self.wrong[next(iter(self.wrong))]
            await asyncio.sleep(self.policy.pause)
            raise Refused(401, f"wrong {self.what}")
