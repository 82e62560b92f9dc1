"""The explorer's server under attack: slow clients, then many users at once, a fifth of whom send invalid requests,
first with one kind of call, then with calls of every view, lesson and page.

    python benchmarks/explorer_load.py RUN    # on a run or a model folder with attention
    python benchmarks/explorer_load.py RUN --requests 1000 --slow 100

The server has a process of its own; the client uses bare sockets, so that nothing is made well-formed on
the way. Every good answer must be, byte for byte, the one that the same call gives without a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

RESULTS = ROOT / "benchmarks" / "results" / "explorer_load.json"
JSON = ("Content-Type", "application/json")
SERVE = """
import sys
from pathlib import Path
from heedful.http.guard import Policy, serve
from heedful.explore.server.app import application
from heedful.explore.subjects import Explorer
serve(application(Explorer([Path(sys.argv[1])])), Policy(), lambda url: print(url, flush=True))
"""


@dataclass(frozen=True)
class Reply:
    """What came back, to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


@dataclass(frozen=True)
class Question:
    """A request, of GET if it has no body, with the body that its answer must have."""

    path: str
    asked: bytes | None
    answer: bytes

    def raw(self, port: int) -> bytes:
        return request(port, self.path, "GET" if self.asked is None else "POST", self.asked)


@dataclass
class Tally:
    """Replies by status, the times of the good ones, and what must not be: silence, and wrong answers."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    silent: int = 0
    wrong: int = 0


def request(
    port: int,
    path: str = "/",
    method: str = "GET",
    body: bytes | None = None,
    headers: Sequence[tuple[str, str]] = (),
    host: str | None = None,
) -> bytes:
    """A well-formed request, but for what the arguments make of it."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}"]
    if body is not None:
        lines += [f"Content-Length: {len(body)}"]
        lines += (
            [] if any(name.lower() == "content-type" for name, _ in headers) else ["Content-Type: application/json"]
        )
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


async def connected(port: int) -> socket.socket:
    """A bare socket to the server."""
    wire = socket.socket()
    wire.setblocking(False)
    await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", port))
    return wire


async def send(port: int, raw: bytes, patience: float = 30.0) -> Reply | None:
    """The response of a server to some bytes; empty if it closes the connection."""
    began = time.perf_counter()
    wire = await connected(port)
    try:
        async with asyncio.timeout(patience):
            with suppress(ConnectionResetError, BrokenPipeError):  # what is refused half-way has its answer to be read
                await asyncio.get_running_loop().sock_sendall(wire, raw)
            return await reply(wire, began, raw.startswith(b"HEAD "))
    finally:
        wire.close()


async def reply(wire: socket.socket, began: float, bodiless: bool = False) -> Reply | None:
    """Read one reply from a socket: its head, and as many bytes as that promises."""
    loop = asyncio.get_running_loop()
    got = b""
    while b"\r\n\r\n" not in got:
        try:
            part = await loop.sock_recv(wire, 2**16)
        except ConnectionResetError:
            return None
        if not part:
            return None
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    length = 0 if bodiless else int(headers.get("content-length", 0))
    parts = [body]
    missing = length - len(body)
    while missing > 0:
        part = await loop.sock_recv(wire, 2**16)
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return Reply(int(first.split()[1]), headers, b"".join(parts), time.perf_counter() - began)


def nonsense(port: int, generator: random.Random) -> bytes:
    """A request that no page of the explorer would send, of one of many kinds."""
    post = "/api/heads/tokens"
    kinds = [
        lambda: generator.randbytes(generator.randint(1, 300)) + b"\r\n\r\n",
        lambda: b"GET / HTTP/9.9\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\n\r\n",
        lambda: request(port, host="evil.example"),
        lambda: request(port, headers=[("Origin", "http://evil.example")]),
        lambda: request(port, "/assets/../../../../etc/passwd"),
        lambda: request(port, "/assets/%2e%2e%2fserver.py"),
        lambda: request(port, "/" + "a" * 600),
        lambda: request(port, headers=[("X-Long", "a" * 20_000)]),
        lambda: request(port, post, "POST", b"[" * 1000),
        lambda: request(port, post, "POST", b'{"text": NaN}'),
        lambda: request(port, post, "POST", b'{"text": "\xff"}'),
        lambda: request(port, post, "POST", b"{}", [("Content-Type", "text/plain")]),
        lambda: request(port, post, "POST", b'{"model": ["x"], "text": 1e999}'),
        lambda: request(port, post, "POST", b"{}", [("Content-Length", "999999999999")]),
        lambda: request(port, post, "POST", headers=[("Content-Length", "999999999"), JSON]),
        lambda: request(port, post, "POST", headers=[("Transfer-Encoding", "chunked"), JSON]) + b"zz\r\n",
        lambda: request(port, post, "DELETE"),
        lambda: request(port, "/api/nothing/here", "POST", b"{}"),
        lambda: request(port, post, "POST", b'{"model": "../../etc", "text": "a"}'),
        lambda: request(port, "/api/heads/opening", "POST", b'{"model": "x", "text": ["a"]}'),
        lambda: request(port, "/api/heads/patterns", "POST", b'{"model": 1e999}'),
        lambda: request(port, "/api/lesson?name=../../etc/passwd&model=x"),
        lambda: request(port, "/api/lesson?model=" + "x" * 300),
        lambda: request(port, f"/api/lesson/step?name=coreference&at={10**300}&model=x"),
        lambda: request(port, "/api/lesson/step?name=%00&at=-1&model=%ff"),
        lambda: request(port, "/api/lesson", "POST", b"{}"),
        lambda: request(port, "/api/quiz/1e9"),
        lambda: request(port, "/api/catalogue/swaps?recipe=../secret"),
    ]  # fmt: skip
    return generator.choice(kinds)()


async def crowd(
    port: int, questions: Sequence[Question], requests: int, users: int = 64, bad: float = 0.2, seed: int = 0
) -> tuple[Tally, Tally]:
    """Concurrent users, each sending a request, valid or not, when its last is answered, and retrying when asked to."""
    good, wild = Tally(), Tally()
    generator = random.Random(seed)
    left = iter(range(requests))

    async def user() -> None:
        for _ in left:
            if generator.random() < bad:
                count(wild, await send(port, nonsense(port, generator)))
                continue
            question = generator.choice(questions)
            raw = question.raw(port)
            while (got := await send(port, raw)) is not None and got.status == 503:
                count(good, got)
                await asyncio.sleep(float(got.headers["retry-after"]))
            count(good, got)
            if got is not None and got.status == 200:
                good.seconds.append(got.seconds)
                good.wrong += got.body != question.answer

    await asyncio.gather(*(user() for _ in range(users)))
    return good, wild


def count(tally: Tally, got: Reply | None) -> None:
    """Write down a reply, or that there was none."""
    if got is None:
        tally.silent += 1
    else:
        tally.statuses[got.status] += 1


async def slow_sender(port: int, raw: bytes, every: float, patience: float) -> float | None:
    """Send some bytes, then one at a time for ever; the seconds until the server closes, or nothing if it does not."""
    loop = asyncio.get_running_loop()
    wire = await connected(port)
    began = time.perf_counter()

    async def drip() -> None:
        while True:
            await loop.sock_sendall(wire, b"a")
            await asyncio.sleep(every)

    dripping = None
    try:
        async with asyncio.timeout(patience):
            await loop.sock_sendall(wire, raw)
            dripping = asyncio.create_task(drip())
            while await loop.sock_recv(wire, 2**16):
                pass
    except OSError as error:
        if isinstance(error, TimeoutError):
            return None
    finally:
        if dripping is not None:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
        wire.close()
    return time.perf_counter() - began


def half_head(port: int) -> bytes:
    """A request whose headers never end."""
    return request(port)[:-2] + b"X-Slow: "


def half_body(port: int, path: str) -> bytes:
    """A request whose body never ends."""
    return request(port, path, "POST", headers=[("Content-Length", "1000000"), JSON]) + b'{"text": "'


async def siege(port: int, slow: int, patience: float, path: str, every: float = 0.5) -> list[float | None]:
    """Half-sent headers and slowly sent bodies at once; returns when each connection was closed."""
    senders = [slow_sender(port, half_head(port), every, patience) for _ in range(slow)]
    senders += [slow_sender(port, half_body(port, path), every, patience) for _ in range(slow)]
    return list(await asyncio.gather(*senders))


async def visitors(port: int, raw: bytes, seconds: float, users: int = 4) -> tuple[list[float], Counter[int]]:
    """A few users that ask one good thing again and again; how long each answer took, and the statuses."""
    took: list[float] = []
    statuses: Counter[int] = Counter()
    end = time.perf_counter() + seconds

    async def visitor() -> None:
        while time.perf_counter() < end:
            got = await send(port, raw)
            statuses[0 if got is None else got.status] += 1
            took.append(float("inf") if got is None else got.seconds)

    await asyncio.gather(*(visitor() for _ in range(users)))
    return took, statuses


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of all values is."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def started(*command: str) -> tuple[subprocess.Popen[str], int]:
    """A server in its own process, and its port."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the server did not start"
    return process, int(line.strip().rstrip("/").rpartition(":")[2])


def memory(process: int) -> float:
    """The megabytes of memory that a process has."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError("no VmRSS")


def ask_offline(folder: Path) -> list[Question]:
    """The first calls of the page about a model, with the expected answers."""
    from heedful.explore.subjects import Explorer

    explorer = Explorer([folder])
    [subject] = explorer.subjects.values()
    text = str(subject.sample["text"])
    questions = []
    for words in (text, text.rpartition(" ")[0] or text):
        asked = {"model": subject.name, "text": words}
        body = json.dumps(asked).encode()
        questions.append(Question("/api/heads/tokens", body, explorer.answer("heads", "tokens", body)))
        for look in subject.attentions:
            body = json.dumps({**asked, "look": look, "layer": 0}).encode()
            questions.append(Question("/api/heads/layer", body, explorer.answer("heads", "layer", body)))
    return questions


def ask_every_route(folder: Path) -> list[Question]:
    """Calls of every view of a model, as its page makes them, its lessons and their steps, and the other pages."""
    from heedful.explore.catalogue import stack
    from heedful.explore.lessons.answers import answer, steps_of
    from heedful.explore.subjects import Explorer
    from heedful.explore.views import find
    from heedful.lectures.decks import overview
    from heedful.lectures.quiz import quiz

    explorer = Explorer([folder])
    [subject] = explorer.subjects.values()
    asked: dict[tuple[str, str], dict[str, Any]] = {}
    for view in subject.views:
        for one in find(view).calls(subject, {**subject.sample, "model": subject.name}):
            asked.setdefault((one.view, one.call), dict(one.settings))
        if "opening" in find(view).CALLS:
            asked[view, "opening"] = {"model": subject.name}
    questions = []
    for (view, call), settings in asked.items():
        body = json.dumps(settings).encode()
        questions.append(Question(f"/api/{view}/{call}", body, explorer.answer(view, call, body)))
    pages: dict[str, Any] = {
        "about": explorer.about(),
        "lessons": [one.record() for one in explorer.lessons.values()],
        "lectures": overview(),
        "catalogue": stack(),
        **{f"quiz/{seed}": [one.record() for one in quiz(seed, 10)] for seed in range(5)},
    }
    for name, lesson in explorer.lessons.items():
        if set(lesson.views) <= set(subject.views) and not any("text" in step.state for step in lesson.steps):
            of = f"name={name}&model={quote(subject.name)}"
            pages[f"lesson?{of}"] = steps_of(explorer, lesson, subject.name)
            for at in range(len(lesson.steps)):
                pages[f"lesson/step?{of}&at={at}"] = answer(explorer, lesson, at, subject.name)
    return questions + [Question(f"/api/{path}", None, json.dumps(found).encode()) for path, found in pages.items()]


async def measure(
    port: int, process: int, questions: Sequence[Question], routes: Sequence[Question], requests: int, slow: int
) -> dict[str, Any]:
    """All figures, in the order of the measurements: calm, siege, crowd, every route."""
    first = questions[0]
    raw = first.raw(port)
    await crowd(port, questions, 300, 8, 0.0)  # until all is loaded
    calm, _ = await visitors(port, raw, 12.0)
    (besieged, statuses), closed = await asyncio.gather(
        visitors(port, raw, 12.0), siege(port, slow, 20.0, first.path, every=1.0)
    )
    figures = await crowded(port, process, questions, requests)
    await crowd(port, routes, 5 * len(routes), 8, 0.0)  # until all is loaded
    everywhere = await crowded(port, process, routes, requests // 5)
    return {
        "siege": {
            "half headers": slow,
            "dripping bodies": slow,
            "still open after 20 s": sum(one is None for one in closed),
            "last closed, s": round(max(one for one in closed if one is not None), 2),
            "good requests": {str(status): number for status, number in sorted(statuses.items())},
            "p99 of good requests, ms": round(1000 * quantile(besieged, 0.99), 2),
            "p99 without the siege, ms": round(1000 * quantile(calm, 0.99), 2),
        },
        "crowd": figures,
        "every route": {"routes": len({one.path.partition("?")[0] for one in routes}), **everywhere},
    }


async def crowded(port: int, process: int, questions: Sequence[Question], requests: int) -> dict[str, Any]:
    """The figures of a crowd."""
    before = memory(process)
    began = time.perf_counter()
    good, wild = await crowd(port, questions, requests)
    took = time.perf_counter() - began
    await asyncio.sleep(1)
    return {
        "users": 64,
        "requests": requests,
        "seconds": round(took, 1),
        "good requests": {str(status): number for status, number in sorted(good.statuses.items())},
        "nonsense": {str(status): number for status, number in sorted(wild.statuses.items())},
        "nonsense closed without a word": wild.silent,
        "good requests lost": good.silent,
        "answers that differ from the direct call": good.wrong,
        "p50 of good answers, ms": round(1000 * quantile(good.seconds, 0.5), 1),
        "p99 of good answers, ms": round(1000 * quantile(good.seconds, 0.99), 1),
        "growth of memory, MB": round(memory(process) - before, 1),
    }


def main() -> None:
    """Start the server on a folder, attack it, and write down what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=300, help="half headers, and as many dripping bodies")
    options = parser.parse_args()
    questions, routes = ask_offline(options.folder), ask_every_route(options.folder)
    process, port = started("-c", SERVE, str(options.folder))
    try:
        figures = asyncio.run(measure(port, process.pid, questions, routes, options.requests, options.slow))
        figures["server"] = {"alive at the end": process.poll() is None}
    finally:
        process.terminate()
        process.wait(15)
    for name, part in figures.items():
        print(name)
        for label, value in part.items():
            print(f"  {label:<42} {value}")
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
