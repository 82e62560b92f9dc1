"""The login of an explorer that other machines can reach: a token once, then a cookie."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from starlette.types import Scope

from heedful.files.reading import read_file
from heedful.http.answers import Answer, Refused
from heedful.http.checks import header
from heedful.http.policy import Policy
from heedful.http.strict_json import read_json
from heedful.http.tokens import Tokens, address, bearer

COOKIE = b"heedful"
TYPES = {"html": b"text/html", "js": b"text/javascript", "css": b"text/css"}


def login_file(kind: str) -> Answer:
    """A file of the login page."""
    headers = [(b"content-type", TYPES[kind] + b"; charset=utf-8")]
    return Answer(200, headers, read_file(Path(__file__).with_name(f"login.{kind}")))


FILES = {"/login.js": login_file("js"), "/login.css": login_file("css")}
PAGE = login_file("html")


class Login:
    """Checks tokens and cookies; the cookie is derived from the token and a secret of this process."""

    def __init__(self, token: str, policy: Policy) -> None:
        self.tokens = Tokens((token,), policy)
        self.cookie = hmac.new(secrets.token_bytes(32), token.encode(), "sha256").hexdigest().encode()

    async def is_logged_in(self, scope: Scope) -> bool:
        """Whether a request has the cookie or the token."""
        for part in (header(scope, b"cookie") or b"").split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name == COOKIE and hmac.compare_digest(value, self.cookie):
                return True
        given = bearer(scope)
        if given is None:
            return False
        await self.tokens.compare(given, address(scope))
        return True

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
        await self.tokens.compare(given["token"].encode(), address(scope))
        cookie = COOKIE + b"=" + self.cookie + b"; HttpOnly; SameSite=Strict; Path=/"
        return Answer(204, [(b"set-cookie", cookie)])
