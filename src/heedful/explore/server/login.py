"""The login of an explorer that other machines can reach: a token once, then a cookie."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import deque
from ipaddress import ip_address, ip_network
from pathlib import Path

from starlette.types import Scope

from heedful.explore.server.answers import Answer, Refused
from heedful.explore.server.checks import header
from heedful.explore.server.policy import Policy
from heedful.explore.server.strict_json import read_json
from heedful.files.reading import read_file

COOKIE = b"heedful"
MINUTE = 60.0
ADDRESSES = 1000  # whose wrong tokens are counted
TYPES = {"html": b"text/html", "js": b"text/javascript", "css": b"text/css"}


def login_file(kind: str) -> Answer:
    """A file of the login page."""
    headers = [(b"content-type", TYPES[kind] + b"; charset=utf-8")]
    return Answer(200, headers, read_file(Path(__file__).with_name(f"login.{kind}")))


FILES = {"/login.js": login_file("js"), "/login.css": login_file("css")}
PAGE = login_file("html")


def address(scope: Scope) -> str:
    """The address of a client, or its IPv6 network, in which one machine may have any number of addresses."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    return host if found.version == 4 else str(ip_network((found, 64), strict=False))


class Login:
    """Checks tokens and cookies; the cookie is derived from the token and a secret of this process."""

    def __init__(self, token: str, policy: Policy) -> None:
        self.token = token.encode()
        self.policy = policy
        self.cookie = hmac.new(secrets.token_bytes(32), self.token, "sha256").hexdigest().encode()
        self.wrong: dict[str, deque[float]] = {}  # times of wrong tokens in the last minute, by address

    async def is_logged_in(self, scope: Scope) -> bool:
        """Whether a request has the cookie or the token."""
        for part in (header(scope, b"cookie") or b"").split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name == COOKIE and hmac.compare_digest(value, self.cookie):
                return True
        kind, _, given = (header(scope, b"authorization") or b"").partition(b" ")
        if kind.lower() != b"bearer":
            return False
        await self.compare(given.strip(), address(scope))
        return True

    async def compare(self, given: bytes, address: str) -> None:
        """Refuse a wrong token slowly, and any token after too many wrong ones from the same address."""
        now = time.monotonic()
        mine = self.wrong.get(address, deque())
        while mine and mine[0] < now - MINUTE:
            mine.popleft()
        if len(mine) >= self.policy.guesses:
            raise Refused(429, "too many wrong tokens; wait a minute", [(b"retry-after", b"60")])
        if not hmac.compare_digest(given, self.token):
            mine.append(now)
            self.wrong.pop(address, None)
            self.wrong[address] = mine  # most recent last
            while len(self.wrong) > ADDRESSES:
                del self.wrong[next(iter(self.wrong))]
            await asyncio.sleep(self.policy.pause)
            raise Refused(401, "wrong token")

    async def challenge(self, scope: Scope) -> Answer | None:
        """The login page and its files for a client that is not logged in; None for one that is."""
        if scope["method"] != "POST" and scope["path"] in FILES:
            return FILES[scope["path"]]
        if await self.is_logged_in(scope):
            return None
        if scope["method"] != "POST" and scope["path"] == "/":
            return PAGE
        raise Refused(401, "log in first")

    async def log_in(self, body: bytes, scope: Scope) -> Answer:
        """Set the cookie, if the body has the token."""
        given = read_json(body)
        if not isinstance(given, dict) or not isinstance(given.get("token"), str):
            raise Refused(400, "the body has no token")
        await self.compare(given["token"].encode(), address(scope))
        cookie = COOKIE + b"=" + self.cookie + b"; HttpOnly; SameSite=Strict; Path=/"
        return Answer(204, [(b"set-cookie", cookie)])
