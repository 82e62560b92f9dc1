"""What goes back over the wire: answers with the headers that all of them carry, and refusals in one sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

Headers = list[tuple[bytes, bytes]]

# Nothing but this server's own files may run, be loaded, framed or sent to, whatever text an answer has in it.
SHIELD: Headers = [
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
OURS = {name for name, _ in SHIELD} | {b"server", b"content-length"}
BODILESS = (204, 304)


@dataclass(frozen=True)
class Answer:
    """A whole answer: nothing of it leaves before all of it is known."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""

    def shielded(self, kept: bool = False) -> Headers:
        """The headers to send; only what may be kept is not forbidden to be stored."""
        own = [(name, value) for name, value in self.headers if name not in OURS]
        if not kept:
            own = [*(pair for pair in own if pair[0] != b"cache-control"), (b"cache-control", b"no-store")]
        length = [] if self.status in BODILESS else [(b"content-length", b"%d" % len(self.body))]
        return [*own, *length, *SHIELD]


class Refused(Exception):  # noqa: N818  (it is not always an error of ours)
    """A request that is not answered, with the status and the sentence that say why."""

    def __init__(self, status: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or []

    def answer(self) -> Answer:
        """The refusal as it is sent."""
        body = json.dumps({"error": self.message}).encode()
        return Answer(self.status, [(b"content-type", b"application/json"), *self.headers], body)


def busy(message: str) -> Refused:
    """A refusal of what can be asked again in a moment."""
    return Refused(503, message, [(b"retry-after", b"1")])
