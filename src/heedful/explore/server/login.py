"""The door of an explorer that others can reach: a token is asked for once, and a cookie remembers it."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import deque
from ipaddress import ip_address, ip_network

from starlette.types import Scope

from heedful.explore.server.answers import Answer, Refused
from heedful.explore.server.checks import header
from heedful.explore.server.policy import Policy
from heedful.explore.server.strict_json import read_json

COOKIE = b"heedful"
MINUTE = 60.0
ADDRESSES = 1000  # that are remembered for their wrong tokens
HTML = [(b"content-type", b"text/html; charset=utf-8")]
SCRIPT = [(b"content-type", b"text/javascript; charset=utf-8")]
STYLE = [(b"content-type", b"text/css; charset=utf-8")]

PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Heedful</title>
<link rel="stylesheet" href="/login.css">
<main>
<h1>Heedful</h1>
<p id="about">The terminal in which the explorer was started shows its token, unless one was chosen for it.</p>
<form>
<label for="token">Token</label>
<div>
<input id="token" type="password" autocomplete="current-password" aria-describedby="about" required autofocus>
<button>Open</button>
</div>
<p role="alert"></p>
</form>
</main>
<script src="/login.js" defer></script>
</html>
"""

# The colours and shapes of the page behind the door.
LOOK = b""":root { color-scheme: light dark; --paper: #f4f6f9; --card: #fff; --ink: #1d2430; --quiet: #5a6472;
  --line: #d9dfe7; --accent: #0b63a5; --on: #fff; --warm: #b5490b; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1319; --card: #171c24; --ink: #e6ebf2; --quiet: #9aa6b5;
  --line: #2d3642; --accent: #6fb8f2; --on: #0f1319; --warm: #f0a15e; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 Inter, system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { width: min(27rem, calc(100vw - 2rem)); padding: 1.8rem 2rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 12px; }
h1 { margin: 0 0 .4rem; font-size: 1.4rem; letter-spacing: -.01em; }
p { margin: 0; color: var(--quiet); }
label { display: block; margin: 1.2rem 0 .3rem; font-weight: 600; }
div { display: flex; gap: .5rem; }
input, button { font: inherit; border: 1px solid var(--line); border-radius: 8px; padding: .45rem .7rem; }
input { flex: 1; min-width: 0; background: var(--card); color: inherit; }
button { background: var(--accent); border-color: var(--accent); color: var(--on); font-weight: 600; cursor: pointer; }
button:disabled { opacity: .5; cursor: default; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
[role=alert] { min-height: 1.5em; margin-top: .5rem; color: var(--warm); }
"""

# A link from elsewhere comes without the cookie, which is asked for from here; the address that was wanted is opened by
# a navigation of this page's own, and another address in between makes it a new one even where only a fragment differs.
CODE = b"""const form = document.querySelector("form");
function enter() {
  const wanted = "/" + location.search + location.hash;
  history.replaceState(null, "", "/?" + Date.now());
  location.replace(wanted);
}
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, button, alert] = ["input", "button", "[role=alert]"].map((one) => form.querySelector(one));
  alert.textContent = "";
  button.disabled = true;
  try {
    const body = JSON.stringify({ token: field.value });
    const answer = await fetch("/login", { method: "POST", headers: { "content-type": "application/json" }, body });
    if (answer.ok) return enter();
    alert.textContent = (await answer.json()).error;
  } catch {
    alert.textContent = "the explorer does not answer";
  }
  button.disabled = false;
  field.select();
});
fetch("/login").then((answer) => answer.ok && enter(), () => {});
"""
FILES = {"/login.js": (SCRIPT, CODE), "/login.css": (STYLE, LOOK)}


def address(scope: Scope) -> str:
    """Where a request comes from: the address, or of IPv6 the network, in which one machine may have any number."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    return host if found.version == 4 else str(ip_network((found, 64), strict=False))


class Door:
    """Knows who has shown the token; what it hands out is made from the token, and is not the token."""

    def __init__(self, token: str, policy: Policy) -> None:
        self.token = token.encode()
        self.policy = policy
        self.mark = hmac.new(secrets.token_bytes(32), self.token, "sha256").hexdigest().encode()
        self.wrong: dict[str, deque[float]] = {}  # when wrong tokens came in the last minute, by address

    async def passes(self, scope: Scope) -> bool:
        """Whether a request carries the cookie or the token."""
        for part in (header(scope, b"cookie") or b"").split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name == COOKIE and hmac.compare_digest(value, self.mark):
                return True
        kind, _, given = (header(scope, b"authorization") or b"").partition(b" ")
        if kind.lower() != b"bearer":
            return False
        await self.compare(given.strip(), address(scope))
        return True

    async def compare(self, given: bytes, address: str) -> None:
        """Refuse a wrong token slowly, and any token after too many wrong ones from the same address."""
        now = time.monotonic()
        mine = self.wrong.get(address, deque())
        while mine and mine[0] < now - MINUTE:
            mine.popleft()
        if len(mine) >= self.policy.guesses:
            raise Refused(429, "too many wrong tokens; wait a minute", [(b"retry-after", b"60")])
        if not hmac.compare_digest(given, self.token):
            mine.append(now)
            self.wrong.pop(address, None)
            self.wrong[address] = mine  # the last to guess stands last
            while len(self.wrong) > ADDRESSES:
                del self.wrong[next(iter(self.wrong))]
            await asyncio.sleep(self.policy.pause)
            raise Refused(401, "this is not the token")

    async def stops(self, scope: Scope) -> Answer | None:
        """What a stranger gets: the page that asks for the token, and its files; nothing, for whoever may pass."""
        if scope["method"] != "POST" and scope["path"] in FILES:
            return Answer(200, *FILES[scope["path"]])
        if await self.passes(scope):
            return None
        if scope["method"] != "POST" and scope["path"] == "/":
            return Answer(200, HTML, PAGE)
        raise Refused(401, "log in first")

    async def admits(self, body: bytes, scope: Scope) -> Answer:
        """The cookie, for the token."""
        given = read_json(body)
        if not isinstance(given, dict) or not isinstance(given.get("token"), str):
            raise Refused(400, "a token is asked for")
        await self.compare(given["token"].encode(), address(scope))
        cookie = COOKIE + b"=" + self.mark + b"; HttpOnly; SameSite=Strict; Path=/"
        return Answer(204, [(b"set-cookie", cookie)])
