"""Where the explorer listens, whom it answers, and the limits of what is asked of it."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, field
from functools import cached_property

from heedful.errors import UserError, shown

LOCAL = ("127.0.0.1", "localhost", "[::1]")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
SHORTEST = 16  # characters of a token that someone chose


@dataclass(frozen=True)
class Policy:
    """The loopback address needs no token; every other address must have one."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: the system chooses
    token: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()  # what a Host header may call this machine, besides its addresses
    head: int = 2**14  # bytes of all headers
    path: int = 512
    query: int = 2**13
    body: int = 2**20
    held: int = 2**24  # bytes of all bodies that wait for their answer
    connections: int = 256  # beyond which those that keep the server waiting are closed
    at_work: int = 4  # requests to /api at a time
    waiting: int = 32  # requests to /api that wait for their turn
    arriving: float = 10.0  # seconds that a whole request may take to come in
    longest: float = 60.0  # seconds until it must be answered
    leaving: float = 30.0  # seconds that the answer may take to be read
    lingering: float = 2.0  # seconds that the rest of a refused request is read and thrown away
    idle: int = 5  # seconds that a connection may be silent between two requests
    guesses: int = 20  # wrong tokens a minute
    pause: float = 0.5  # seconds until a wrong token is answered

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UserError("there is no such port", where="port", found=str(self.port), expected="0 to 65535")
        if self.token is not None and len(self.token) < SHORTEST:
            raise UserError(
                "the token is too short", where="token", found=f"{len(self.token)} characters",
                expected=f"at least {SHORTEST}", todo="leave it out, and a good one is made",
            )  # fmt: skip
        if self.token is None and not self.loopback:
            raise UserError(
                "whoever reaches this address could look at the models", where="host", found=shown(self.host),
                expected="a token, for any address but 127.0.0.1",
            )  # fmt: skip
        for name in self.names:
            if not NAME.fullmatch(name.lower()):
                raise UserError("this is not the name of a machine", where="names", found=shown(name))

    @classmethod
    def open(cls, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Policy:
        """The policy of an address, with a token made for it where it needs one and none is given."""
        if is_loopback(host):
            return cls(host, port, token)
        return cls(host, port, secrets.token_urlsafe(32) if token is None else token, own_names())

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The values of a Host header that are accepted; elsewhere than on loopback, any address besides."""
        known = {*LOCAL, bracketed(self.host).lower(), *(name.lower() for name in self.names)}
        return frozenset(f"{name}:{self.port}" for name in known) | (known if self.port == 80 else set())

    def answers_to(self, host: bytes) -> bool:
        """Whether a Host header names this server, byte for byte but for upper and lower case."""
        text = host.decode("latin-1").lower()
        if text in self.hosts:
            return True
        name = text.removesuffix(f":{self.port}")
        return not self.loopback and (name != text or self.port == 80) and is_address(name)

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else bracketed(self.host)
        return f"http://{host}:{self.port}/"


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone; of all names only localhost is trusted to be."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(text: str) -> bool:
    """Whether this is an IP address as a Host header writes it, version 6 in brackets and without a zone."""
    try:
        if text.startswith("[") and text.endswith("]") and "%" not in text:
            ipaddress.IPv6Address(text[1:-1])
        else:
            ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def bracketed(host: str) -> str:
    """An address as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def own_names() -> tuple[str, ...]:
    """What this machine calls itself, in full, in short, and on its own network; nobody is asked for it."""
    full = socket.gethostname().lower()
    short = full.partition(".")[0]
    return tuple(name for name in dict.fromkeys((full, short, f"{short}.local")) if NAME.fullmatch(name))
