"""The guard of the server: rejected requests, login, limits, and responses."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from heedful.errors import UserError
from heedful.http.answers import SECURITY
from heedful.http.guard import Guard, Policy, Refused, read_json
from heedful.http.login import PAGE, Login
from heedful.http.tokens import ADDRESSES, address

TOKEN = "a-token-that-nobody-guesses"
HERE = (b"host", b"127.0.0.1:8000")
JSON = (b"content-type", b"application/json")
T = TypeVar("T")
Headers = Iterable[tuple[bytes, bytes]]


class Reply:
    """What a guard sent."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        start, *bodies = messages
        self.status: int = start["status"]
        self.headers: dict[bytes, bytes] = dict(start["headers"])
        assert len(self.headers) == len(start["headers"]), "a header is there twice"
        self.body = b"".join(body["body"] for body in bodies)

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


async def ask(
    guard: Guard, path: str = "/", method: str = "GET", headers: Headers = (HERE,), body: bytes | list[bytes] = b"",
    gone: asyncio.Event | None = None,
) -> Reply | None:  # fmt: skip
    """Put a request to a guard; nothing comes back to a client that has gone."""
    parts = body if isinstance(body, list) else [body]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    target, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "path": target, "raw_path": target.encode("latin-1"),
        "query_string": query.encode(), "headers": list(headers),
    }  # fmt: skip
    await guard(scope, receive, send)
    return Reply(sent) if sent else None


def finished(story: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, run in its own thread, since an open browser has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, story).result()


def request(guard: Guard, *args: Any, **options: Any) -> Reply:
    """The same, for a test that asks one thing at a time."""
    reply = finished(ask(guard, *args, **options))
    assert reply is not None
    return reply


def post(guard: Guard, body: bytes | list[bytes] = b"{}", *headers: tuple[bytes, bytes], path: str = "/api/x") -> Reply:
    return request(guard, path, "POST", (HERE, JSON, *headers), body)


def answering(work: Callable[[Any], Awaitable[bytes]] | None = None) -> Any:
    """An application that answers with what it was sent, or with what some work gives."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"] if work is None else await work(scope)
        headers = [(b"content-type", b"text/plain"), (b"server", b"x"), (b"content-security-policy", b"none at all")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.fixture
def guard() -> Guard:
    return Guard(answering(), Policy(port=8000))


@pytest.fixture
def locked() -> Guard:
    return Guard(answering(), Policy(port=8000, token=TOKEN, pause=0.0))


def test_accepted_requests_reach_the_application_unchanged(guard: Guard) -> None:
    reply = post(guard, [b'{"a":', b" 1}"])
    assert (reply.status, reply.body) == (200, b'{"a": 1}')


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert Policy(host, 8000).token is None and Policy.open(host, 8000).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.nip.io", "127.1", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(UserError, match="could read the models"):
        Policy(host, 8000)
    first, second = Policy.open(host, 8000), Policy.open(host, 8000)
    assert first.token and second.token and len(first.token) >= 43 and first.token != second.token
    assert first.token not in repr(first)
    assert Policy.open(host, 8000, TOKEN).token == TOKEN


def test_printed_address_is_accepted() -> None:
    for host in ("127.0.0.1", "::1", "192.168.1.5", "Lab.example.org"):
        policy = Policy.open(host, 8000)
        assert policy.answers_to(policy.url.removeprefix("http://").rstrip("/").encode())


@pytest.mark.parametrize("token", ["", "x" * 15])
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_short_tokens_are_rejected(host: str, token: str) -> None:
    with pytest.raises(UserError, match="too short"):
        Policy.open(host, 8000, token)
    assert Policy.open(host, 8000, "x" * 16).token == "x" * 16


@pytest.mark.parametrize("port", [-1, 65536])
def test_invalid_ports_are_rejected(port: int) -> None:
    with pytest.raises(UserError, match="invalid port"):
        Policy(port=port)


def test_port_may_be_omitted_only_if_it_is_the_default() -> None:
    assert Policy(port=80).answers_to(b"localhost") and Policy(port=80).answers_to(b"localhost:80")
    assert not Policy(port=8000).answers_to(b"localhost")
    assert Policy.open("0.0.0.0", 80).answers_to(b"10.1.2.3")
    assert not Policy.open("0.0.0.0", 8000).answers_to(b"10.1.2.3")


def test_server_on_all_addresses_accepts_ip_addresses_and_its_own_name() -> None:
    policy = Policy.open("0.0.0.0", 8000)
    name = socket.gethostname()
    for host in ("10.1.2.3:8000", "[fe80::1]:8000", "[::ffff:1.2.3.4]:8000", "localhost:8000", f"{name.upper()}:8000"):
        assert policy.answers_to(host.encode()), host
    for host in (
        "evil.example:8000", "10.1.2.3:8001", "10.1.2.3.:8000", "010.1.2.3:8000", "10.1.2:8000", "0x7f.0.0.1:8000",
        "2130706433:8000", "fe80::1:8000", "[fe80::1%25eth0]:8000", "[10.1.2.3]:8000", "10.1.2.3:08000",
        "10.1.2.3:8000:8000",
        f"{name}.evil.example:8000", "user@10.1.2.3:8000", " 10.1.2.3:8000", "\xb9.1.2.3:8000", "",
    ):  # fmt: skip
        assert not policy.answers_to(host.encode("latin-1")), host


def test_duplicate_security_headers_are_rejected(guard: Guard) -> None:
    for name, value in ((b"host", b"127.0.0.1:8000"), (b"origin", b"http://127.0.0.1:8000"), JSON):
        headers = [HERE, JSON, (b"origin", b"http://127.0.0.1:8000"), (name, value)]
        assert request(guard, "/api/x", "POST", headers, b"{}").status == 400, name
    assert request(guard, headers=()).error == "there is no Host header"


def test_origin_must_match_the_host(guard: Guard) -> None:
    assert post(guard, b"{}", (b"origin", b"http://127.0.0.1:8000")).status == 200
    assert post(guard, b"{}", (b"origin", b"HTTP://127.0.0.1:8000")).status == 200
    for origin in (b"null", b"http://localhost:8000", b"http://127.0.0.1", b"https://127.0.0.1:8000", b""):
        assert post(guard, b"{}", (b"origin", origin)).status == 403, origin


@pytest.mark.parametrize(
    ("site", "mode", "dest", "method", "path", "status"),
    [
        (b"same-origin", b"cors", b"empty", "POST", "/api/x", 200),
        (b"none", b"navigate", b"document", "GET", "/assets/a.js", 200),
        (b"cross-site", b"navigate", b"document", "GET", "/", 200),  # a link in a lecture
        (b"cross-site", b"navigate", b"document", "GET", "/?view=heads", 200),
        (b"same-site", b"navigate", b"document", "GET", "/", 200),
        (b"cross-site", b"navigate", b"iframe", "GET", "/", 403),
        (b"cross-site", b"no-cors", b"script", "GET", "/", 403),
        (b"cross-site", b"navigate", b"document", "GET", "/assets/a.js", 403),
        (b"cross-site", b"navigate", b"document", "GET", "/api/x", 403),
        (b"cross-site", b"navigate", b"document", "POST", "/", 403),
        (b"cross-site", b"cors", b"empty", "POST", "/api/x", 403),
        (b"same-site", b"cors", b"empty", "POST", "/api/x", 403),  # another port of this machine
        (b"SAME-ORIGIN", b"cors", b"empty", "POST", "/api/x", 403),
        (b"anything", b"cors", b"empty", "GET", "/assets/a.js", 403),
    ],
)
def test_cross_site_requests_are_rejected_except_links(
    guard: Guard, site: bytes, mode: bytes, dest: bytes, method: str, path: str, status: int
) -> None:
    headers = [(b"sec-fetch-site", site), (b"sec-fetch-mode", mode), (b"sec-fetch-dest", dest)]
    kind = [JSON] if method == "POST" else []
    assert request(guard, path, method, [HERE, *kind, *headers]).status == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "X"])
def test_other_methods_are_rejected(guard: Guard, method: str) -> None:
    reply = request(guard, method=method)
    assert reply.status == 405 and reply.headers[b"allow"] == b"GET, HEAD, POST"


@pytest.mark.parametrize(
    "kind", [b"text/plain", b"application/json5", b"multipart/form-data", b"", b"text/json", b"*/*"]
)
def test_only_json_bodies_are_accepted(guard: Guard, kind: bytes) -> None:
    assert request(guard, "/api/x", "POST", (HERE, (b"content-type", kind)), b"{}").status == 415
    assert request(guard, "/api/x", "POST", (HERE,), b"{}").status == 415


@pytest.mark.parametrize("kind", [b"application/json; charset=utf-8", b"Application/JSON", b"application/json ;a=b"])
def test_json_content_types_may_have_parameters(guard: Guard, kind: bytes) -> None:
    assert request(guard, "/api/x", "POST", (HERE, (b"content-type", kind)), b"{}").status == 200


def test_body_sizes_are_checked_before_and_while_reading(guard: Guard) -> None:
    limit = guard.policy.body
    assert post(guard, b"a" * limit, (b"content-length", b"%d" % limit)).status == 200
    assert post(guard, b"", (b"content-length", b"%d" % (limit + 1))).status == 413
    chunks = [b"a" * (limit // 4)] * 4
    assert post(guard, chunks, (b"transfer-encoding", b"chunked")).status == 200
    assert post(guard, [*chunks, b"a"], (b"transfer-encoding", b"chunked")).status == 413
    assert guard.held == 0


def test_body_that_holds_a_file_may_be_longer(guard: Guard) -> None:
    limit = guard.policy.file
    for path, length, status in (
        ("image/read", limit, 200),
        ("image/read", limit + 1, 413),
        ("image/maps", limit, 413),
    ):
        size = (b"content-length", b"%d" % length)
        assert request(guard, f"/api/{path}", "POST", (HERE, JSON, size), b"a" * length).status == status
    assert request(guard, "/login/read", "POST", (HERE, JSON), b"a" * limit).status == 413


def test_total_size_of_bodies_is_limited() -> None:
    async def story() -> list[int]:
        halt = asyncio.Event()

        async def work(scope: Any) -> bytes:
            await halt.wait()
            return b""

        guard = Guard(answering(work), Policy(port=8000, body=100, held=250))
        asking = [asyncio.create_task(ask(guard, "/api/x", "POST", (HERE, JSON), b"a" * 100)) for _ in range(4)]
        await settle()
        halt.set()
        replies = await asyncio.gather(*asking)
        assert guard.held == 0
        return [reply.status for reply in replies if reply]

    assert sorted(finished(story())) == [200, 200, 503, 503]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"2"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"-1")],
        [(b"content-length", b"1_0")],
        [(b"content-length", b"2"), (b"content-length", b"3")],
    ],
)
def test_ambiguous_content_length_is_rejected(guard: Guard, headers: Headers) -> None:
    assert post(guard, b"{}", *headers).status == 400


def test_only_post_requests_have_a_body(guard: Guard) -> None:
    assert request(guard, headers=(HERE, (b"content-length", b"2"))).status == 400
    assert request(guard, headers=(HERE, (b"transfer-encoding", b"chunked"))).status == 400
    assert request(guard, headers=(HERE, (b"content-length", b"0"))).status == 200


def test_length_of_urls_is_limited(guard: Guard) -> None:
    path, query = guard.policy.path, guard.policy.query
    assert request(guard, "/" + "a" * (path - 1)).status == 200
    assert request(guard, "/" + "a" * path).status == 414
    assert request(guard, "/?" + "a" * query).status == 200
    assert request(guard, "/?" + "a" * (query + 1)).status == 414


@pytest.mark.parametrize(
    "path",
    ["", "*", "assets/a", "http://127.0.0.1:8000/", "//evil.example", "/a//b", "/a/./b", "/a/..", "/..a", "/a\\b",
     "/a%5cb",
     "/a%2fb", "/a%2Fb", "/%2e%2e/a", "/%252e", "/a%00b", "/a%0ab", "/a%zz", "/a%", "/a;b", "/a:b", "/a\x7f", "/a\xe9",
     "/%c3%a9", "/a#b", '/a"b', "/<b>"],
)  # fmt: skip
def test_unusual_paths_are_rejected(guard: Guard, path: str) -> None:
    assert request(guard, path).status == 400


@pytest.mark.parametrize("path", ["/", "/assets/index-Ab_3.js", "/api/heads/layer", "/a%20b", "/%61pi/x"])
def test_ordinary_paths_are_accepted(guard: Guard, path: str) -> None:
    assert request(guard, path).status == 200


def test_websockets_are_rejected(guard: Guard) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    finished(guard({"type": "websocket", "headers": [HERE]}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 33 + b"]" * 33, "nested"),
        (b"[" * 10**6, "nested"),
        (b'{"a":' * 10**5, "nested"),
        (b'["]]]]", ' * 40, "nested"),
        (b"NaN", "NaN is not"),
        (b"[-Infinity]", "-Infinity is not"),
        (b"1e999", "too large"),
        (b"-1e999", "too large"),
        (b"9223372036854775808", "too large"),
        (b"1" * 10**5, "too large"),
        (b'{"a": 1, "a": 2}', "duplicate key"),
        (b'{"b": {"a": 1, "\\u0061": 2}}', "duplicate key"),
        (b'"\\ud800"', "unpaired surrogate"),
        (b'{"\\uDC00": 1}', "unpaired surrogate"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_json_is_strict(body: bytes, said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        read_json(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "value",
    [{}, [1, -2.5, "x", None, True], {"a": {"b": [[]]}}, "[[[[" * 50, '\\"[' * 50, "😀\0é", 2**63 - 1, -(2**63)],
)
def test_valid_json_is_parsed(value: Any) -> None:
    assert read_json(json.dumps(value).encode()) == value
    assert read_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_limit_of_json_nesting() -> None:
    assert read_json(b"[" * 32 + b"]" * 32) is not None
    assert read_json(b'[{"a": []}]', deepest=3) == [{"a": []}]
    assert read_json(b'[{}, [], "[[["]', deepest=2) == [{}, [], "[[["]
    with pytest.raises(Refused, match="more than 2 deep"):
        read_json(b'[{"a": []}]', deepest=2)


def test_limit_of_lists_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.http.strict_json.MOST_LISTS", 40)
    assert len(read_json(json.dumps([[], *[{}] * 38, "[" * 99]).encode())) == 40
    with pytest.raises(Refused, match="more than 40 lists and objects"):
        read_json(json.dumps([[], *[{}] * 39]).encode())


def test_megabyte_of_quotes_is_parsed_fast() -> None:
    for body in (b'\\"' * 2**19, b'"\\' * 2**19, b'"' * 2**20, b'["' + b'\\"' * 2**19, b'"a' * 2**19):
        with pytest.raises(Refused):
            read_json(body)  # hours, if each of a million quotes were followed to the end


def test_every_response_has_security_headers(locked: Guard, guard: Guard) -> None:
    async def fails(scope: Any) -> bytes:
        raise ValueError

    replies = {
        200: request(guard), 400: request(guard, "/.."), 401: request(locked, "/api/x"),
        403: request(guard, headers=[(b"host", b"x")]), 405: request(guard, method="PUT"),
        413: post(guard, b"", (b"content-length", b"99999999")),
        414: request(guard, "/" + "a" * 999), 415: request(guard, "/", "POST"),
        500: request(Guard(answering(fails), guard.policy)),
    }  # fmt: skip
    for status, reply in replies.items():
        assert reply.status == status
        assert {name: reply.headers[name] for name, _ in SECURITY} == dict(SECURITY)
        assert reply.headers[b"cache-control"] == b"no-store"
        assert b"server" not in reply.headers
    assert (
        b"default-src 'none'; script-src 'self'; style-src 'self';" in replies[200].headers[b"content-security-policy"]
    )


def test_only_static_files_may_be_cached(guard: Guard, locked: Guard) -> None:
    assert b"cache-control" not in request(guard, "/assets/a.js").headers
    assert request(guard, "/api/x").headers[b"cache-control"] == b"no-store"
    assert request(locked, "/assets/a.js").headers[b"cache-control"] == b"no-store"  # it says that one must log in


def test_internal_errors_are_printed_to_the_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    async def fails(scope: Any) -> bytes:
        raise ValueError("in /home/someone/secret \x1b[31m")

    reply = request(Guard(answering(fails), Policy(port=8000)), "/api/x")
    assert reply.status == 500 and json.loads(reply.body) == {
        "error": "internal error; the traceback is in the terminal"
    }
    printed = capsys.readouterr().err
    assert "Traceback" in printed and "/home/someone/secret" in printed and "\x1b" not in printed


def test_application_without_a_response_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        return

    assert request(Guard(app, Policy(port=8000))).status == 500


def test_application_may_reject_a_request(guard: Guard) -> None:
    async def refuses(scope: Any) -> bytes:
        raise Refused(418, "no tea")

    reply = request(Guard(answering(refuses), guard.policy), "/api/x")
    assert (reply.status, reply.error) == (418, "no tea")


def test_without_a_token_only_the_login_page_is_shown(locked: Guard) -> None:
    assert request(locked).body == PAGE.body
    for path, kind in (("/login.js", b"text/javascript"), ("/login.css", b"text/css")):
        assert request(locked, path).headers[b"content-type"].startswith(kind) and path.encode() in PAGE.body
    for path in ("/api/x", "/assets/a.js", "/login", "/index.html"):
        assert request(locked, path).status == 401, path
    assert post(locked).status == 401
    assert post(locked, path="/login.js").status == 401 and post(locked, path="/").status == 401


def log_in(guard: Guard, token: str = TOKEN) -> Reply:
    return post(guard, json.dumps({"token": token}).encode(), path="/login")


def test_token_gives_a_session_cookie(locked: Guard) -> None:
    reply = log_in(locked)
    assert reply.status == 204
    cookie, *flags = reply.headers[b"set-cookie"].split(b"; ")
    assert set(flags) == {b"HttpOnly", b"SameSite=Strict", b"Path=/"}
    assert TOKEN.encode() not in cookie and cookie.startswith(b"heedful=") and len(cookie) == len("heedful=") + 64
    assert request(locked, "/", headers=(HERE, (b"cookie", cookie))).body == b""
    assert post(locked, b"{}", (b"cookie", b"other=1; " + cookie + b"; more=2")).status == 200
    assert request(locked, "/login", headers=(HERE, (b"cookie", cookie))).status == 204
    again = Guard(answering(), locked.policy)
    assert post(again, b"{}", (b"cookie", cookie)).status == 401, "a cookie of another process"


@pytest.mark.parametrize(
    "cookie", [b"", b"heedful", b"heedful=", b"heedful=" + TOKEN.encode(), b"Heedful=x", b"heedful=\xff"]
)
def test_other_cookies_are_rejected(locked: Guard, cookie: bytes) -> None:
    assert post(locked, b"{}", (b"cookie", cookie)).status == 401


def test_program_may_send_the_token_in_a_header(locked: Guard) -> None:
    for words in (b"Bearer ", b"bearer "):
        assert post(locked, b"{}", (b"authorization", words + TOKEN.encode())).status == 200
    for words in (b"Basic ", b"", b"Bearer x"):
        assert post(locked, b"{}", (b"authorization", words + TOKEN.encode())).status == 401, words
    assert post(locked, path="/api/x?token=" + TOKEN).status == 401


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b'"x"', b'{"token": 1}', b'{"token": null}', b"x", b'{"token": "\\ud800"}']
)
def test_invalid_login_request_is_not_counted_as_a_guess(locked: Guard, body: bytes) -> None:
    assert post(locked, body, path="/login").status == 400
    assert locked.login is not None and not locked.login.tokens.wrong


def test_login_requests_have_a_small_limit(locked: Guard) -> None:
    assert post(locked, b"a" * 4097, path="/login").status == 413


def test_guesses_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("heedful.http.tokens.asyncio", SimpleNamespace(sleep=sleep))
    guard = Guard(answering(), Policy(port=8000, token=TOKEN, pause=0.2, guesses=3))
    for guess in ("", "é" * 20, TOKEN[:-1]):
        assert log_in(guard, guess).status == 401
    assert pauses == [0.2] * 3
    assert log_in(guard, "x").status == 429
    assert log_in(guard).status == 429, "a right guess after too many wrong ones is not accepted"
    assert post(guard, b"{}", (b"authorization", b"Bearer " + TOKEN.encode())).status == 429
    assert len(pauses) == 3, "what is refused at once is not slowed"
    assert guard.login is not None
    guard.login.tokens.wrong[""][0] -= 61
    assert log_in(guard).status == 204


def test_tokens_are_compared_in_constant_time(locked: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append({one, other})
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert log_in(locked, "whatever").status == 204
    assert post(locked, b"{}", (b"cookie", b"heedful=x")).status == 200
    assert locked.login is not None
    assert compared == [{b"whatever", TOKEN.encode()}, {b"x", locked.login.cookie}]


def test_every_start_has_another_cookie() -> None:
    policy = Policy(port=8000, token=TOKEN)
    assert Login(TOKEN, policy).cookie != Login(TOKEN, policy).cookie


def test_token_is_in_no_response_and_no_log(locked: Guard, capfd: pytest.CaptureFixture[str]) -> None:
    replies = [
        request(locked),
        request(locked, "/login.js"),
        request(locked, "/api/x"),
        log_in(locked),
        log_in(locked, "wrong"),
    ]
    replies.append(post(locked, b"{}", (b"authorization", b"Bearer " + TOKEN.encode())))
    for reply in replies:
        assert TOKEN.encode() not in reply.body + b"".join(reply.headers.values())
    assert TOKEN not in "".join(capfd.readouterr())


class Workshop:
    """An application whose work ends on demand, and the guard around it."""

    def __init__(self, **limits: Any) -> None:
        self.end = asyncio.Event()
        self.now = self.most = self.started = 0
        self.guard = Guard(answering(self.work), Policy(port=8000, **limits))

    async def work(self, scope: Any) -> bytes:
        self.now += 1
        self.started += 1
        self.most = max(self.most, self.now)
        await self.end.wait()
        self.now -= 1
        return b"done"

    def start(self, number: int, path: str = "/api/x", gone: asyncio.Event | None = None) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(ask(self.guard, path, gone=gone)) for _ in range(number)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_beyond_the_queue_are_rejected_at_once() -> None:
    async def story() -> None:
        shop = Workshop(at_work=2, waiting=3)
        busy = shop.start(5)
        await settle()
        assert shop.now == 2
        refused = await ask(shop.guard, "/api/x")
        assert shop.now == 2, "it is answered before any other work has ended"
        assert refused and refused.status == 503 and refused.headers[b"retry-after"] == b"1"
        page = asyncio.create_task(ask(shop.guard, "/"))
        await settle()
        assert shop.now == 3, "the page does not wait"
        shop.end.set()
        assert [reply.status for reply in await asyncio.gather(*busy, page)] == [200] * 6
        again = await ask(shop.guard, "/api/x")
        assert again and again.status == 200 and shop.started == 7 and shop.guard.api.free == 2

    finished(story())


def test_requests_are_answered_in_order() -> None:
    async def story() -> list[str]:
        order: list[str] = []

        async def work(scope: Any) -> bytes:
            order.append(scope["path"][-1])
            await asyncio.sleep(0)
            return b""

        guard = Guard(answering(work), Policy(port=8000, at_work=1, waiting=9))
        await asyncio.gather(*(ask(guard, f"/api/{name}") for name in "abcdef"))
        return order

    assert finished(story()) == list("abcdef")


def test_client_that_disconnects_leaves_the_queue() -> None:
    async def story() -> None:
        shop, gone = Workshop(at_work=1, waiting=1), asyncio.Event()
        working = shop.start(1)
        await settle()
        leaving = shop.start(1, gone=gone)
        await settle()
        full = await ask(shop.guard, "/api/x")
        assert full and full.status == 503
        gone.set()
        assert await leaving[0] is None
        waiting = shop.start(1)
        await settle()
        shop.end.set()
        replies = await asyncio.gather(*working, *waiting)
        assert [reply.status for reply in replies] == [200, 200] and shop.started == 2

    finished(story())


def test_request_that_times_out_keeps_its_slot_until_it_ends() -> None:
    async def story() -> None:
        shop = Workshop(at_work=1, waiting=1, longest=0.1)
        replies = await asyncio.gather(*shop.start(2))
        assert [reply.status for reply in replies] == [503, 503]
        assert shop.started == 1 and shop.guard.api.free == 0, "the one that waited never began"
        shop.end.set()
        await settle()
        assert shop.guard.api.free == 1 and shop.now == 0
        after = await ask(shop.guard, "/api/x")
        assert after and after.status == 200

    finished(story())


def test_application_is_notified_when_its_client_disconnects() -> None:
    async def story() -> list[str]:
        heard, gone = [], asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            heard.append((await receive())["type"])

        asking = asyncio.create_task(ask(Guard(app, Policy(port=8000)), "/api/x", gone=gone))
        await settle()
        gone.set()
        assert await asking is None
        await settle()
        return heard

    assert finished(story()) == ["http.disconnect"]


def test_guesses_from_one_address_do_not_block_others() -> None:
    login = Login(TOKEN, Policy(port=8000, token=TOKEN, pause=0.0, guesses=3))

    async def story() -> None:
        for _ in range(3):
            with pytest.raises(Refused, match="wrong token"):
                await login.tokens.compare(b"x", "10.0.0.1")
        with pytest.raises(Refused, match="too many"):
            await login.tokens.compare(TOKEN.encode(), "10.0.0.1")
        await login.tokens.compare(TOKEN.encode(), "10.0.0.2")
        for number in range(ADDRESSES + 50):
            with pytest.raises(Refused, match="wrong token"):
                await login.tokens.compare(b"x", f"stranger {number}")
        assert len(login.tokens.wrong) == ADDRESSES

    finished(story())


@pytest.mark.parametrize(
    ("client", "known"),
    [
        (("10.0.0.1", 5), "10.0.0.1"), (None, ""), (("2001:db8::1", 5), "2001:db8::/64"),
        (("2001:db8::ffff:2", 5), "2001:db8::/64"), (("/a/socket", None), "/a/socket"),
    ],
)  # fmt: skip
def test_guesses_are_counted_by_address(client: Any, known: str) -> None:
    assert address({"client": client}) == known
