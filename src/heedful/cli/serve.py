"""The command `serve`: answer requests for predictions over HTTP."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from heedful.cli.output import say
from heedful.errors import UserError, printable, shown
from heedful.files.reading import is_file, read_file
from heedful.files.yaml import has_lone_surrogate
from heedful.http.api_guard import ApiGuard
from heedful.http.guard import serve
from heedful.http.policy import Policy, is_loopback, own_names
from heedful.serve.app import Service, application
from heedful.serve.mailbox import Mailbox
from heedful.serve.models import Precision, open_models
from heedful.serve.worker import Worker

KEY = "HEEDFUL_API_KEY"
SHORTEST = 16  # characters of a key
MAKE = "`openssl rand -hex 24` makes one"
SWITCH = 1e-4  # seconds after which a thread that runs Python lets the next one run; a step on a GPU takes 1e-3


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    slots: int
    waiting: int
    tokens: int
    timeout: float
    drain: float


def serve_command(
    folders: Sequence[Path],
    host: str,
    port: int,
    names: Sequence[str],
    keys_file: Path | None,
    limits: Limits,
    precision: Precision,
) -> None:
    """Load the models and serve them until Ctrl-C or SIGTERM."""
    keys = read_keys(keys_file)
    if not keys and not is_loopback(host):
        raise UserError(
            "other machines could use the models at this address", where="--host", found=shown(host),
            expected="an API key for any address but 127.0.0.1", todo=f"set {KEY}, or --keys FILE; {MAKE}",
        )  # fmt: skip
    policy = Policy(
        host, port, keys=keys, names=(*names, *(() if is_loopback(host) else own_names())), drain=limits.drain,
        body=10 * 2**20, held=64 * 2**20, connections=1024,
    )  # fmt: skip
    with ended_by_sigterm():
        serve_models(folders, policy, limits, precision)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End at SIGTERM also as the first process of a container, for which it does nothing by default."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve_models(folders: Sequence[Path], policy: Policy, limits: Limits, precision: Precision) -> None:
    """Load the models and serve them."""
    mailbox = Mailbox()
    models = open_models(
        folders, limits.slots, limits.tokens, limits.waiting, precision, mailbox.deliver,
        lambda name: typer.echo(f"loading {printable(name)} ...", err=True),
    )  # fmt: skip
    for one in models.values():
        for part in one.parts:
            part.warm()
    worker = Worker([part for one in models.values() for part in one.parts])
    service = Service(models, worker, mailbox, limits.timeout)
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()  # a look for garbage among all that torch has loaded takes 0.2 seconds, in which no request is answered

    def ready(url: str) -> None:
        for name, one in models.items():
            say(f"model  {name} ({one.predictor.task}, on {one.predictor.device.type})")
        say(f"open   {url} for what it answers" + ("; every request needs an API key" if policy.keys else ""))
        say("       Ctrl-C stops the server")

    worker.start()
    try:
        serve(application(service), policy, ready, ApiGuard)
    finally:
        worker.stop()


def read_keys(file: Path | None) -> tuple[str, ...]:
    """The API keys of a file, one a line, and of the environment."""
    found = [(one, KEY) for one in [os.environ.get(KEY, "")] if one]
    if file is not None:
        if sys.platform != "win32" and is_file(file) and file.stat().st_mode & 0o077:
            typer.echo(f"note: other users can read {printable(str(file))}; chmod 600 makes it yours", err=True)
        lines = read_file(file, 2**20).decode("utf-8", "replace").splitlines()
        found += [(line.strip(), f"{file}:{number}") for number, line in enumerate(lines, 1)]
        found = [(key, where) for key, where in found if key and not key.startswith("#")]
        if not found:
            raise UserError("there is no key in this file", where=str(file), expected="a key a line", todo=MAKE)
    for key, where in found:
        if len(key) < SHORTEST or has_lone_surrogate(key) or not key.isascii() or " " in key:
            raise UserError(
                "this is no API key", where=where, found=f"{len(key)} characters",  # and not the key
                expected=f"{SHORTEST} or more letters and digits", todo=MAKE,
            )  # fmt: skip
    return tuple(key for key, _ in found)
