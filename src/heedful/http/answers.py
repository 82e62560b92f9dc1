"""Answers with their security headers, and refusals with a status and a message."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

Headers = list[tuple[bytes, bytes]]

# Only this server's own files may be run, loaded or connected to, whatever text an answer contains.
SECURITY: Headers = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        b"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
OURS = {name for name, _ in SECURITY} | {b"server", b"content-length"}
BODILESS = (204, 304)


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""

    def all_headers(self, cached: bool = False) -> Headers:
        """The headers to send, with the security headers; browsers may store it only if it is `cached`."""
        own = [(name, value) for name, value in self.headers if name not in OURS]
        if not cached:
            own = [*(pair for pair in own if pair[0] != b"cache-control"), (b"cache-control", b"no-store")]
        length = [] if self.status in BODILESS else [(b"content-length", b"%d" % len(self.body))]
        return [*own, *length, *SECURITY]


class Refused(Exception):  # noqa: N818  (it is not always an error of ours)
    """A request that is refused, with a status and a message."""

    def __init__(self, status: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or []

    def answer(self) -> Answer:
        """The refusal as an answer."""
        body = json.dumps({"error": self.message}).encode()
        return Answer(self.status, [(b"content-type", b"application/json"), *self.headers], body)

    def api_answer(self) -> Answer:
        """The same in the form of OpenAI's API."""
        return replace(self.answer(), body=error_body(self.status, self.message))


def busy(message: str) -> Refused:
    """A refusal that asks the client to retry."""
    return Refused(503, message, [(b"retry-after", b"1")])


KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(status: int, message: str) -> bytes:
    """An error as OpenAI's API reports it."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()
