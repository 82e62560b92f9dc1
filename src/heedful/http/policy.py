"""The address of a server, its access rules, and its limits."""

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
SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class Policy:
    """Address, access and limits; the loopback address needs no token or key, every other address must have one."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: the system chooses
    token: str | None = field(default=None, repr=False)
    keys: tuple[str, ...] = field(default=(), repr=False)  # of an API
    names: tuple[str, ...] = ()  # host names that are accepted besides addresses
    head: int = 2**14  # bytes of all headers
    path: int = 512
    query: int = 2**13
    body: int = 2**20
    file: int = 12 * 2**20  # bytes of a body that holds a file: a path that ends in /read
    held: int = 2**24  # bytes of the bodies of all pending requests
    connections: int = 256  # beyond which idle and slow ones are closed
    at_work: int = 4  # concurrent requests to /api
    waiting: int = 32  # waiting requests to /api
    arriving: float = 10.0  # seconds for a request to arrive
    longest: float = 60.0  # seconds to answer it
    leaving: float = 30.0  # seconds for the answer to be read
    lingering: float = 2.0  # seconds for which the rest of a refused request is discarded
    idle: int = 5  # seconds of silence between two requests
    guesses: int = 20  # wrong tokens per minute
    pause: float = 0.5  # seconds of delay after a wrong token
    drain: float = 8.0  # seconds for running requests after SIGTERM

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UserError("invalid port", where="port", found=str(self.port), expected="0 to 65535")
        if self.token is not None and len(self.token) < SHORTEST:
            raise UserError(
                "the token is too short", where="token", found=f"{len(self.token)} characters",
                expected=f"at least {SHORTEST}", todo="leave it out, and one is generated",
            )  # fmt: skip
        if self.token is None and not self.keys and not self.loopback:
            raise UserError(
                "other machines could read the models at this address", where="host", found=shown(self.host),
                expected="a token for any address but 127.0.0.1",
            )  # fmt: skip
        for name in self.names:
            if not NAME.fullmatch(name.lower()):
                raise UserError("invalid host name", where="names", found=shown(name))

    @classmethod
    def open(cls, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Policy:
        """The policy of an address, with a generated token where it needs one and none is given."""
        if is_loopback(host):
            return cls(host, port, token)
        return cls(host, port, secrets.token_urlsafe(32) if token is None else token, names=own_names())

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The accepted values of the Host header; beyond loopback, any IP address is accepted too."""
        known = {*LOCAL, bracketed(self.host).lower(), *(name.lower() for name in self.names)}
        return frozenset(f"{name}:{self.port}" for name in known) | (known if self.port == 80 else set())

    def longest_body(self, path: str) -> int:
        """The greatest length of the body of a request."""
        return self.file if path.startswith("/api/") and path.endswith("/read") else self.body

    def answers_to(self, host: bytes) -> bool:
        """Whether a Host header names this server, apart from case; with keys, any name will do.

        A page that is reached by DNS rebinding does not know a key.
        """
        if self.keys:
            return True
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
    """Whether only this machine can reach an address; of all host names, only localhost is trusted."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(text: str) -> bool:
    """Whether a text is an IP address of a Host header: version 6 in brackets and without a zone."""
    try:
        if text.startswith("[") and text.endswith("]") and "%" not in text:
            ipaddress.IPv6Address(text[1:-1])
        else:
            ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def bracketed(host: str) -> str:
    """An address as in a URL."""
    return f"[{host}]" if ":" in host else host


def own_names() -> tuple[str, ...]:
    """The host names of this machine: full, short and .local, without a network lookup."""
    full = socket.gethostname().lower()
    short = full.partition(".")[0]
    return tuple(name for name in dict.fromkeys((full, short, f"{short}.local")) if NAME.fullmatch(name))
