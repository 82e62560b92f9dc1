"""The explorer's server on a real socket under attack; benchmarks/explorer_load.py is the long form."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import pytest
from fastapi import FastAPI, Request, Response

from heedful.errors import UserError
from heedful.explore.server import app as server
from heedful.explore.subjects import Explorer
from heedful.http.answers import SECURITY
from heedful.http.guard import Policy, read_json, serve, serving
from patience import LONG

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from explorer_load import (  # found only since the line above
    JSON,
    SERVE,
    Reply,
    ask_offline,
    connected,
    crowd,
    half_body,
    half_head,
    memory,
    reply,
    request,
    send,
    siege,
    started,
    visitors,
)

if sys.platform != "linux":
    pytest.skip("memory and sockets as Linux has them", allow_module_level=True)

T = TypeVar("T")

# A server in its own process that echoes what it is sent, after a moment.
ECHO = """
import time
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from heedful.http.guard import Policy, read_json, serve
app = FastAPI(openapi_url=None)

@app.post("/api/heads/tokens")
async def echo(request: Request) -> Response:
    body = await request.body()
    read_json(body)
    await run_in_threadpool(time.sleep, 0.001)
    return Response(body[::-1], media_type="application/octet-stream")

@app.post("/api/sleep")
def sleep() -> None:
    print("at work", flush=True)
    time.sleep(600)

@app.post("/api/nap")
def nap() -> str:
    print("at work", flush=True)
    time.sleep(0.7)
    return "well rested"

serve(app, Policy(), lambda url: print(url, flush=True))
"""

# A page of one file, for a server in another process.
PAGE = "from heedful.explore.server import app as server\nserver.built = lambda: {'index.html': b'the page'}\n"


def port_of(url: str) -> int:
    return int(url.rstrip("/").rpartition(":")[2])


def finished(story: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, run in its own thread, since an open browser has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, story).result()


def ask(port: int, raw: bytes) -> Reply:
    """One request, which must be answered."""
    got = finished(send(port, raw))
    assert got is not None, "closed without an answer"
    return got


def ask_all(port: int, raws: list[bytes]) -> list[Reply | None]:
    """Many requests, a few at a time."""

    async def run() -> list[Reply | None]:
        gate = asyncio.Semaphore(8)

        async def one(raw: bytes) -> Reply | None:
            async with gate:
                return await send(port, raw)

        return await asyncio.gather(*map(one, raws))

    return finished(run())


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one public file, and a secret beside the folder."""
    root = tmp_path_factory.mktemp("disk") / "assets"
    root.mkdir()
    (root / "a.js").write_text("public")
    (root.parent / "secret.txt").write_text("SECRET")
    return root


@pytest.fixture(scope="module")
def careless(outside: Path) -> FastAPI:
    """An application that opens any path it is given, as none should."""
    app = FastAPI(openapi_url=None)

    @app.get("/assets/{name:path}")
    def asset(name: str) -> Response:
        try:
            return Response((outside / name).read_bytes())
        except (OSError, ValueError):
            return Response(status_code=404)

    @app.get("/")
    def index() -> Response:
        return Response("the page", media_type="text/html")

    @app.post("/api/fails")
    def fails() -> None:
        raise ValueError(str(outside))

    @app.post("/api/large")
    def large() -> Response:
        return Response(bytes(20_000_000))

    @app.post("/api/echo")
    async def echo(request: Request) -> Response:
        body = await request.body()
        read_json(body)
        return Response(body)

    return app


@pytest.fixture(scope="module")
def port(careless: FastAPI) -> Iterator[int]:
    """The careless application behind the guard."""
    with serving(careless, Policy()) as url:
        yield port_of(url)


@pytest.fixture(scope="module")
def real(run: Callable[[str], Path]) -> Iterator[int]:
    """The explorer's own routes behind the guard, with a page of two files, on a trained model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "built", lambda: {"index.html": b"the page", "assets/a.js": b"public"})
        app = server.application(Explorer([run("translation")]))
    with serving(app, Policy()) as url:
        yield port_of(url)


NAMES = """
evil.example a.localhost localhost.evil.example 127.0.0.1.nip.io localtest.me 0.0.0.0 [::] 127.0.0.2 127.1 127.0.1
0177.0.0.1 0x7f.0.0.1 2130706433 017700000001 127.0.0.01 [::2] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::1%25lo] ::1
10.0.0.1 192.168.0.1 169.254.169.254 local localhos localhostt loca1host xn--localhost ip6-localhost [fe80::1] 1.1.1.1
localhost.localdomain metadata.google.internal host.docker.internal l\xf6calhost \xb9\xb2\xb7.0.0.1
"""
TWISTS = """
{name} {name}. {name}.:{port} {name}: {name}:0{port} {name}:{port}1 {name}:80 {name}:443 {host}. {host}/ {host}/x
{host}?x {host}#x {host}\\ {host}:{port} user@{host} user:pw@{host} {host}@evil.example evil.example@{host} http://{host}
//{host} {host},evil.example evil.example,{host} {host};x {host}%00 {host}%20 %31{host} {name}%2e:{port} {name}:+{port}
.{host} {name}:{port}.0 {name}:0x{port:x} *.{host} -{host} {host}' "{host}" <{host}>
"""
UPWARDS = """
.. %2e%2e %2E%2e .%2e %2e. %252e%252e %25252e%25252e ..; ..;x=y .... ..%00 ..%0d ..%09 %c0%ae%c0%ae %e0%80%ae%e0%80%ae
%uff0e%uff0e %ef%bc%8e%ef%bc%8e ..%ff ...
"""
SLASHES = ["/", "//", "\\", "%2f", "%2F", "%5c", "%252f", "%255c", "%c0%af", "%ef%bc%8f", "/./"]


def foreign(port: int) -> list[str]:
    """Names that are not this server's, near and far."""
    here = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"]
    variants = [f"{name}:{port}" for name in NAMES.split()] + NAMES.split()
    for host in here:
        name = host.rpartition(":")[0]
        variants += [twist.format(name=name, host=host, port=port) for twist in TWISTS.split()]
        variants += [f"{host} evil.example", f"evil.example {host}", f"{host}\tx", f"{host}\xa0", f"\xa0{host}"]
    return [*variants, "", ":", f":{port}", "*", "null", "/", "..", "a" * 5000]


def test_other_host_headers_are_rejected(port: int) -> None:
    hosts = foreign(port)
    assert len(set(hosts)) >= 200
    replies = ask_all(port, [request(port, host="@").replace(b"@", host.encode("latin-1"), 1) for host in hosts])
    answered = {
        host: got.status
        for host, got in zip(hosts, replies, strict=True)
        if got is None or got.status not in (400, 403)
    }
    assert answered == {}


def test_other_origins_are_rejected(port: int) -> None:
    here = f"http://127.0.0.1:{port}"
    origins = [f"http://{host}" for host in foreign(port)]
    origins += ["null", "", "file://", "about:blank", "data:", f"https://127.0.0.1:{port}", f"ws://127.0.0.1:{port}"]
    origins += [f"{here}/", f"{here} {here}", f"{here}, {here}", f"{here}, null", f"null {here}"]
    raws = [request(port, "/api/echo", "POST", b"{}", [("Origin", origin)]) for origin in origins]
    taken = {
        origin: got
        for origin, got in zip(origins, ask_all(port, raws), strict=True)
        if not got or got.status not in (400, 403)
    }
    assert len(set(origins)) >= 200 and taken == {}


def test_own_host_names_are_accepted(port: int) -> None:
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert ask(port, request(port, host=host)).body == b"the page"
        assert ask(port, request(port, "/api/echo", "POST", b"{}", [("Origin", f"http://{host}")], host)).body == b"{}"


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {here}\r\nHost: {here}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {here}\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: {here}\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {here}\r\n evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : {here}\r\n\r\n",
        "GET / HTTP/1.1\r\nX-Forwarded-Host: {here}\r\nHost: evil.example\r\n\r\n",
        "GET http://{here}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: {here}\r\n\r\n",
        "GET //evil.example/ HTTP/1.1\r\nHost: {here}\r\n\r\n",
        "GET /?@evil.example/ HTTP/1.1\r\nHost: {here}/?\r\n\r\n",
        "CONNECT {here} HTTP/1.1\r\nHost: {here}\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: {here}\r\n\r\n",
        "POST /api/echo HTTP/1.1\r\nHost: {here}\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}",
        "GET / HTTP/1.1\r\nHost: {here}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: http://evil.example\r\n\r\n",
        "POST /api/echo HTTP/1.1\r\nHost: {here}\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /api/echo HTTP/1.1\r\nHost: {here}\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_ambiguous_request_heads_are_rejected(port: int, head: str) -> None:
    assert 400 <= ask(port, head.format(here=f"127.0.0.1:{port}").encode()).status < 500


def traversals(outside: Path) -> list[str]:
    """Ways to ask for a file beside the folder, or anywhere."""
    secret, ups = outside.parent / "secret.txt", UPWARDS.split()
    paths = [f"/assets/{up}{slash}secret.txt" for up, slash in product(ups, SLASHES)]
    paths += [f"/assets/a/{up}{slash}{up}{slash}secret.txt" for up, slash in product(ups, SLASHES)]
    paths += [f"/{up}{slash}assets{slash}{up}{slash}secret.txt" for up, slash in product(ups[:8], SLASHES)]
    paths += [f"/assets/{(up + slash) * 12}{str(secret)[1:]}" for up, slash in product(ups[:5], SLASHES[:6])]
    for whole in (str(secret), "/etc/passwd", "/proc/self/environ"):
        paths += [f"/assets{before}{whole}" for before in ("/", "", "/.", "/file://", "/C:", "/~", "/\\\\host")]
        paths += [f"/{whole}", f"/assets/%2f{whole[1:]}", f"/assets/%252f{whole[1:]}"]
    return list(dict.fromkeys(paths))


def test_path_traversal_opens_no_file(port: int, outside: Path, careless: FastAPI) -> None:
    paths = traversals(outside)
    assert len(paths) >= 500
    for path, got in zip(paths, ask_all(port, [request(port, path) for path in paths]), strict=True):
        assert got is not None and got.status in (400, 404, 414), (path, got)
        assert b"SECRET" not in got.body and b"root:" not in got.body and b"PATH=" not in got.body
    assert ask(port, request(port, "/assets/a.js")).body == b"public"
    assert sum(opened(outside, path) for path in paths) >= 20, "without the guard many of them open the secret"


def opened(root: Path, path: str) -> bool:
    """Whether the careless application would give the secret away, were it asked directly."""
    plain = unquote(path)
    try:
        return plain.startswith("/assets/") and b"SECRET" in (root / plain.removeprefix("/assets/")).read_bytes()
    except (OSError, ValueError):
        return False


def test_path_traversal_in_routes_opens_no_file(real: int, outside: Path) -> None:
    paths = traversals(outside)
    for path, got in zip(paths, ask_all(real, [request(real, path) for path in paths]), strict=True):
        assert got is not None and got.status in (400, 404, 414), (path, got)
    assert ask(real, request(real)).body == b"the page"
    assert ask(real, request(real, "/assets/a.js")).body == b"public"
    for path in ("/index.html", "/docs", "/openapi.json", "/assets/index.html", "/assets/", "/api/heads/tokens"):
        assert ask(real, request(real, path)).status in (404, 405), path


def test_routes_reject_invalid_requests(real: int) -> None:
    bodies = [b"", b"[", b"[" * 10**5, b"NaN", b'{"text": 1e999}', b"\xff", b'{"a": 1, "a": 2}', b"{}", b"[]", b'"x"',
              b'{"model": "../../etc/passwd", "text": "a"}', b'{"model": "x", "text": "\\ud800"}',
              json.dumps({"model": "<script>", "text": "a" * 30_000}).encode(), b"1" * 5000]  # fmt: skip
    for path in (
        "/api/heads/tokens",
        "/api/heads/layer",
        "/api/export",
        "/api/x/y",
        "/api/__init__/x",
        "/api/os/system",
    ):
        for body in bodies:
            got = ask(real, request(real, path, "POST", body))
            assert got.status in (400, 404, 422), (path, body[:50], got)
            assert b"Traceback" not in got.body and b"heedful/" not in got.body and b".py" not in got.body


def test_every_response_has_security_headers_and_no_paths(
    port: int, outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raws = {
        200: request(port), 404: request(port, "/nothing"), 403: request(port, host="evil.example"),
        405: request(port, method="PUT"), 431: request(port, headers=[("X-Long", "a" * 20_000)]),
        413: request(port, "/api/echo", "POST", headers=[("Content-Length", "999999999"), JSON]),
        414: request(port, "/" + "a" * 999),
        415: request(port, "/api/echo", "POST", b"{}", [("Content-Type", "text/plain")]),
        400: b"nonsense\r\n\r\n", 500: request(port, "/api/fails", "POST", b"{}"),
    }  # fmt: skip
    for status, raw in raws.items():
        got = ask(port, raw)
        assert got.status == status
        assert {name.decode(): got.headers[name.decode()] for name, _ in SECURITY} == {
            k.decode(): v.decode() for k, v in SECURITY
        }
        assert "server" not in got.headers and got.headers["cache-control"] == "no-store"
        for word in (str(outside).encode(), b"Traceback", b"site-packages", b".py"):
            assert word not in got.body
        if status in (400, 403, 413, 414, 415, 431, 500):
            assert list(json.loads(got.body)) == ["error"]
    assert str(outside) in capfd.readouterr().err, "the terminal says what went wrong"


def test_limit_of_the_request_head(port: int) -> None:
    room = Policy().head - len(f"Host: 127.0.0.1:{port}\r\nX-Long: \r\n")
    assert ask(port, request(port, headers=[("X-Long", "a" * room)])).status == 200
    assert ask(port, request(port, headers=[("X-Long", "a" * (room + 1))])).status == 431
    assert ask(port, request(port, headers=[("X-Long", "a" * 500_000)])).status in (400, 431)


def test_limit_of_the_request_body(port: int) -> None:
    longest = json.dumps("a" * (Policy().body - 2)).encode()
    assert ask(port, request(port, "/api/echo", "POST", longest)).body == longest
    assert ask(port, request(port, "/api/echo", "POST", longest + b" ")).status == 413
    for extra, status in ((b"", 200), (b" ", 413)):
        parts = [longest[:500_000], longest[500_000:], extra]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
        head = request(port, "/api/echo", "POST", headers=[("Transfer-Encoding", "chunked"), JSON])
        assert ask(port, head + chunks + b"0\r\n\r\n").status == status


def test_keep_alive_and_pipelined_requests(port: int) -> None:
    async def story() -> list[bytes]:
        wire = await connected(port)
        loop, bodies = asyncio.get_running_loop(), []
        for number in range(3):
            await loop.sock_sendall(wire, request(port, "/api/echo", "POST", b"%d" % number))
            got = await reply(wire, 0.0)
            bodies.append(got.body if got else b"none")
        wire.close()
        return bodies

    assert finished(story()) == [b"0", b"1", b"2"]


def test_slow_clients_are_disconnected_and_others_are_served(careless: FastAPI) -> None:
    async def story(port: int) -> None:
        raw = request(port, "/api/echo", "POST", b"{}")
        (_, statuses), closed = await asyncio.gather(visitors(port, raw, 1.5), siege(port, 60, LONG, "/api/echo", 0.2))
        assert all(one is not None for one in closed), "each is closed, in the end"
        assert set(statuses) == {200}

    with serving(careless, Policy(arriving=1.0)) as url:
        finished(story(port_of(url)))


def test_deadline_is_not_extended_by_earlier_requests(careless: FastAPI) -> None:
    """Silence, a request after a good one, and half a request right behind a good one are all closed."""

    async def until_closed(port: int, first: bytes, then: bytes) -> None:
        loop, wire = asyncio.get_running_loop(), await connected(port)
        await loop.sock_sendall(wire, first + then)
        async with asyncio.timeout(LONG):
            while await loop.sock_recv(wire, 2**16):
                pass
        wire.close()

    async def story(port: int) -> None:
        good = request(port, "/api/echo", "POST", b"{}")
        starts = [(b"", b""), (b"", b"G"), (good, b""), (good, half_head(port)), (good, half_body(port, "/api/echo")),
                  (good + good, b"POST")]  # fmt: skip
        await asyncio.gather(*(until_closed(port, *start) for start in starts))

    with serving(careless, Policy(arriving=0.5, idle=1)) as url:
        finished(story(port_of(url)))


def test_idle_connections_do_not_block_others(careless: FastAPI) -> None:
    async def story(port: int) -> None:
        silent = [await connected(port) for _ in range(30)]
        async with asyncio.timeout(LONG):
            while (first := await send(port, request(port))) is None or first.status == 503:  # all came at once
                pass
        for _ in range(20):
            got = await send(port, request(port))
            assert got is not None and got.status == 200
        closed: set[int] = set()
        async with asyncio.timeout(LONG):
            while len(closed) < 22:  # as many as there are places are left
                await asyncio.sleep(0.01)
                for number, wire in enumerate(silent):
                    with suppress(BlockingIOError):
                        if number not in closed and (wire.recv(2**16) == b"" or wire.recv(1) == b""):
                            closed.add(number)
        for wire in silent:
            wire.close()

    with serving(careless, Policy(connections=8)) as url:
        finished(story(port_of(url)))


def test_active_connections_are_not_closed_for_others() -> None:
    app, end, started = FastAPI(openapi_url=None), threading.Event(), threading.Semaphore(0)

    @app.post("/api/wait")
    def wait() -> str:
        started.release()
        end.wait(LONG)
        return "done"

    async def story(port: int) -> None:
        asking = [asyncio.create_task(send(port, request(port, "/api/wait", "POST", b"{}"))) for _ in range(3)]
        for _ in asking:
            assert await asyncio.to_thread(started.acquire, timeout=LONG)
        refused = await send(port, request(port))
        assert refused is not None and refused.status == 503 and refused.headers["retry-after"] == "1"
        end.set()
        assert [got and got.body for got in await asyncio.gather(*asking)] == [b'"done"'] * 3

    with serving(app, Policy(connections=1)) as url:
        finished(story(port_of(url)))


def test_client_that_does_not_read_is_disconnected(careless: FastAPI) -> None:
    async def story(port: int) -> None:
        loop, wire = asyncio.get_running_loop(), await connected(port)
        await loop.sock_sendall(wire, request(port, "/api/large", "POST", b"{}"))
        await asyncio.sleep(1.5)
        began = time.perf_counter()
        assert await reply(wire, began) is None, "the answer ends before its end"
        whole = await send(port, request(port, "/api/large", "POST", b"{}"))
        assert whole is not None and len(whole.body) == 20_000_000

    with serving(careless, Policy(leaving=0.5)) as url:
        finished(story(port_of(url)))


@pytest.fixture
def echo() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in its own process."""
    process, port = started("-c", ECHO)
    yield process, port
    process.kill()
    process.wait()


def test_long_bodies_are_rejected_unread(echo: tuple[subprocess.Popen[str], int]) -> None:
    process, port = echo
    head = request(port, "/api/heads/tokens", "POST", headers=[("Content-Length", "300000000"), JSON])
    chunked = request(port, "/api/heads/tokens", "POST", headers=[("Transfer-Encoding", "chunked"), JSON])
    assert ask(port, request(port, "/api/heads/tokens", "POST", b"[1]")).body == b"]1["
    before = memory(process.pid)
    assert ask(port, head).status == 413
    assert ask(port, head + b"a" * 30_000_000).status == 413
    assert ask(port, chunked + (b"10000\r\n" + b"a" * 2**16 + b"\r\n") * 500).status == 413
    assert memory(process.pid) - before < 20


def test_rejection_reaches_a_client_that_is_still_sending(careless: FastAPI) -> None:
    """A socket that is closed with unread bytes resets the connection, whether or not its answer was read."""
    with serving(careless, Policy(lingering=LONG)) as url:
        port = port_of(url)
        head = request(port, "/api/echo", "POST", headers=[("Content-Length", "300000000"), JSON])
        with socket.create_connection(("127.0.0.1", port), timeout=LONG) as wire:
            wire.sendall(head)
            answer = wire.recv(2**16)
            for _ in range(64):
                wire.sendall(b"a" * 2**14)
            wire.shutdown(socket.SHUT_WR)
            while more := wire.recv(2**16):
                answer += more
    assert answer.startswith(b"HTTP/1.1 413 ") and answer.endswith(b"}")


def test_rejected_client_that_keeps_sending_is_disconnected(careless: FastAPI) -> None:
    def send_on(wire: socket.socket) -> None:
        while True:
            wire.sendall(b"a" * 2**14)

    with serving(careless, Policy(lingering=0.2)) as url:
        port = port_of(url)
        head = request(port, "/api/echo", "POST", headers=[("Content-Length", "300000000"), JSON])
        with socket.create_connection(("127.0.0.1", port), timeout=LONG) as wire:
            wire.sendall(head)
            with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
                send_on(wire)


def test_many_clients_are_served_while_some_send_garbage(run: Callable[[str], Path]) -> None:
    questions = ask_offline(run("translation"))
    process, port = started("-c", PAGE + SERVE, str(run("translation")))
    try:
        finished(crowd(port, questions, 200))
        before = memory(process.pid)
        good, wild = finished(crowd(port, questions, 600, seed=1))
        assert process.poll() is None
        assert memory(process.pid) - before < 20
    finally:
        process.kill()
        process.wait()
    assert set(good.statuses) <= {200, 503} and good.wrong == 0 and good.silent == 0
    assert set(wild.statuses) <= {*range(400, 500), 503} and wild.silent == 0
    assert good.statuses[200] + sum(wild.statuses.values()) == 600


@pytest.mark.parametrize(
    ("number", "path"), [(signal.SIGINT, None), (signal.SIGINT, "/api/sleep"), (signal.SIGTERM, None)]
)
def test_ctrl_c_stops_the_server_without_a_traceback(number: signal.Signals, path: str | None) -> None:
    process, port = started("-c", ECHO)
    assert process.stdout is not None
    with socket.create_connection(("127.0.0.1", port)) as wire:
        if path:
            wire.sendall(request(port, path, "POST", b"{}"))
            assert process.stdout.readline() == "at work\n"
        process.send_signal(number)
        code = process.wait(LONG)  # the work would take longer
    assert code == ({None: 0, "/api/sleep": 130}[path] if number == signal.SIGINT else -signal.SIGTERM)


def test_sigterm_waits_for_running_requests(echo: tuple[subprocess.Popen[str], int]) -> None:
    process, port = echo
    assert process.stdout is not None
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, port, request(port, "/api/nap", "POST", b"{}"))
        assert process.stdout.readline() == "at work\n"
        process.terminate()
        assert asking.result().body == b'"well rested"'
    assert process.wait(LONG) == -signal.SIGTERM


def test_error_for_a_port_in_use_suggests_a_command(port: int, careless: FastAPI) -> None:
    with pytest.raises(UserError, match=f"port {port} is in use.*\n.*\n*.*--port 0"):
        serve(careless, Policy(port=port), lambda url: pytest.fail("it does not listen"))
    with pytest.raises(UserError, match="not an address of this machine"):
        serve(careless, Policy.open("192.0.2.1"), lambda url: pytest.fail("it does not listen"))


def test_other_addresses_need_a_token_which_is_never_shown(
    careless: FastAPI, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = Policy.open("0.0.0.0")
    assert policy.token is not None
    with serving(careless, policy) as url:
        port = port_of(url)
        assert policy.token not in url
        assert b"/login.js" in ask(port, request(port)).body
        assert ask(port, request(port, "/api/echo", "POST", b"{}")).status == 401
        assert ask(port, request(port, "/assets/a.js")).status == 401
        assert ask(port, request(port, "/login", "POST", b'{"token": "wrong"}')).status == 401
        entered = ask(port, request(port, "/login", "POST", json.dumps({"token": policy.token}).encode()))
        assert entered.status == 204
        cookie = ("Cookie", entered.headers["set-cookie"].partition(";")[0])
        assert ask(port, request(port, headers=[cookie])).body == b"the page"
        assert ask(port, request(port, "/api/echo", "POST", b"{}", [cookie])).body == b"{}"
        assert ask(port, request(port, headers=[cookie], host="evil.example")).status == 403
    assert policy.token not in "".join(capfd.readouterr())


def test_browser_logs_in_and_returns_by_a_link(chromium: Any, careless: FastAPI) -> None:
    token, elsewhere = "a-token-that-nobody-guesses", FastAPI(openapi_url=None)

    @elsewhere.get("/")
    def lecture(to: str) -> Response:
        return Response(f'<a href="{to}">look</a>', media_type="text/html")

    context = chromium.new_context()
    context.set_default_timeout(1000 * LONG)
    with serving(careless, Policy(token=token)) as url, serving(elsewhere, Policy()) as lectures:
        page, wanted = context.new_page(), f"{url}?a=b#view=heads"
        page.goto(wanted)
        page.fill("input", "not the token, but long")
        page.click("button")
        page.get_by_text("wrong token").wait_for()
        page.fill("input", token)
        page.press("input", "Enter")
        page.get_by_text("the page", exact=True).wait_for()
        assert page.url == wanted
        for there in (wanted, f"{url}#view=heads", url):
            page.goto(f"{lectures.replace('127.0.0.1', 'localhost')}?to={quote(there, safe='')}")
            page.click("a")
            page.get_by_text("the page", exact=True).wait_for()
            assert page.url == there
        assert context.cookies()[0]["value"] != token
    context.close()


def test_file_descriptors_are_closed(careless: FastAPI) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    with serving(careless, Policy(arriving=0.3)) as url:
        port = port_of(url)
        finished(siege(port, 20, 5.0, "/api/echo", 0.1))
        ask_all(port, [request(port)] * 50)
    assert files() <= before + 1
