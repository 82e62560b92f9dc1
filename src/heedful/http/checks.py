"""Checks of a request's method, address and headers, before its body is read."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from heedful.http.answers import Refused
from heedful.http.policy import Policy

METHODS = ("GET", "HEAD", "POST")
PRINTABLE = re.compile(rb"[\x21-\x7e]*")
# A decoded path: plain names between slashes, without what could end, split or leave a path.
PLAIN = re.compile(rb"/(?:[A-Za-z0-9 ._~!$&'()*+,=@-]+/)*[A-Za-z0-9 ._~!$&'()*+,=@-]*")


def check(scope: Scope, policy: Policy) -> None:
    """Refuse a request that neither a page of this server nor a program would send."""
    check_target(scope, policy)
    host = check_host(scope, policy)
    check_origin(scope, host)
    check_site(scope)
    check_body(scope, policy)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header, which must not occur twice."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise Refused(400, f"there is more than one {name.decode()} header")
    return found[0] if found else None


def check_target(scope: Scope, policy: Policy) -> None:
    """Check the method, the lengths, and the path: plain names between slashes, without `..`."""
    if scope["method"] not in METHODS:
        raise Refused(405, "only GET, HEAD and POST are allowed", [(b"allow", b"GET, HEAD, POST")])
    if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > policy.head:
        raise Refused(431, "the headers are too long")
    raw: bytes = scope["raw_path"]
    if len(raw) > policy.path or len(scope["query_string"]) > policy.query:
        raise Refused(414, "the address is too long")
    path = unquote_to_bytes(raw)
    plain = PRINTABLE.fullmatch(raw) and PRINTABLE.fullmatch(scope["query_string"]) and PLAIN.fullmatch(path)
    if not plain or b"%2f" in raw.lower() or b".." in path or b"." in path.split(b"/"):
        raise Refused(400, "the address is not a plain path")


def check_host(scope: Scope, policy: Policy) -> bytes:
    """Check the Host header, against DNS rebinding."""
    host = header(scope, b"host")
    if host is None:
        raise Refused(400, "there is no Host header")
    if not policy.answers_to(host):
        raise Refused(403, f"unknown host name; open {policy.url}")
    return host


def check_origin(scope: Scope, host: bytes) -> None:
    """Check the Origin header, if there is one: only pages of this server may send requests."""
    origin = header(scope, b"origin")
    if origin is not None and origin.lower() != b"http://" + host.lower():
        raise Refused(403, "only pages of this server may send requests")


def check_site(scope: Scope) -> None:
    """Check the Fetch Metadata headers: other sites may link to the page and do nothing else."""
    site = header(scope, b"sec-fetch-site")
    if site in (None, b"same-origin", b"none"):  # none: typed by the user
        return
    linked = header(scope, b"sec-fetch-mode") == b"navigate" and header(scope, b"sec-fetch-dest") == b"document"
    if not (linked and scope["method"] == "GET" and scope["raw_path"] == b"/"):
        raise Refused(403, "other sites may only link to this server")


def check_body(scope: Scope, policy: Policy) -> None:
    """Check the type and the declared length of a body."""
    length, coding = header(scope, b"content-length"), header(scope, b"transfer-encoding")
    if length is not None and (coding is not None or not length.isdigit()):
        raise Refused(400, "the length of the body is ambiguous")
    if scope["method"] != "POST":
        if coding is not None or int(length or 0) > 0:
            raise Refused(400, "only a POST request may have a body")
        return
    kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refused(415, "the body must be application/json")
    if int(length or 0) > (longest := policy.longest_body(scope["path"])):
        raise too_long(longest)


def too_long(longest: int) -> Refused:
    """The refusal of a body that is too long."""
    return Refused(413, f"the body is longer than {longest:,} bytes")
