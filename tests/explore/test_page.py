"""The page around the views: URL, keyboard, an unreachable server, and HTML in texts."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest

from heedful.explore.packets import pack
from heedful.explore.server.app import application
from heedful.explore.subjects import Explorer
from heedful.explore.views.heads import InputRequest
from heedful.files.yaml import write_yaml
from heedful.http.guard import Policy, serving
from patience import until
from tolerance import near

TEXT = "The animal didn't cross the street because it was too tired"
OTHER = "It was late"
WEB = Path(__file__).parents[2] / "web"


def address(page: Any) -> dict[str, str]:
    """What the page's address says."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).fragment).items()}


def test_page_shows_the_weights_of_a_published_model(browse: Callable[..., Any], minilm: Path) -> None:
    """Pointing, clicking, heads on and off, sentences A and B, and every number as Python has it."""
    browsing = browse(minilm)
    page = browsing.go("heads", text=TEXT, other=OTHER, token="all", lines="all")
    (name,) = browsing.explorer.subjects
    trace = browsing.explorer.subject(name).trace(InputRequest(model=name, text=TEXT, other=OTHER))
    (look,) = trace.attentions
    pieces = [token.piece for token in trace.reading.sides["text"]]
    assert page.locator("[data-token^=ask]").all_inner_texts() == pieces
    assert page.locator("[data-token^=see]").all_inner_texts() == pieces

    def shares(side: str) -> list[float]:
        names = f"[data-token^={side}]"
        return [float(x) for x in page.locator(names).evaluate_all("all => all.map((one) => one.dataset.share)")]

    page.get_by_test_id("layer").press("ArrowRight")
    page.locator('[data-figure][data-layer="1"][data-ready="true"]').wait_for()
    assert address(page)["layer"] == "1"
    weights = trace.weights(look, 1).half().float()
    page.get_by_test_id("ask-4").hover()
    assert shares("see") == near(weights[:, 4].mean(0).tolist(), 16)
    shown = page.locator(".see .share").all_inner_texts()
    assert shown == [f"{x:.2f}" for x in shares("see") if x >= 0.005]
    page.get_by_test_id("see-0").click()  # kept in the address
    page.get_by_test_id("layer").hover()
    assert shares("ask") == near(weights[:, :, 0].mean(0).tolist(), 16)
    assert address(page)["token"] == "see-0"
    page.get_by_test_id("head-2").dblclick()
    assert address(page)["heads"] == "2"
    page.get_by_test_id("head-5").click()
    assert address(page)["heads"] == "2,5"
    assert shares("ask") == near(weights[[2, 5], :, 0].mean(0).tolist(), 16)
    page.get_by_test_id("part").select_option("ab")
    dim = page.locator("button.dim").evaluate_all("all => all.map((one) => one.dataset.token)")
    second = [place for place, token in enumerate(trace.reading.sides["text"]) if token.part == 1]
    first = [place for place, token in enumerate(trace.reading.sides["text"]) if token.part == 0]
    assert dim == [*(f"ask-{place}" for place in second), *(f"see-{place}" for place in first)]
    page.get_by_test_id("see-0").click()
    page.get_by_test_id("layer").hover()
    # The lines that are drawn are those of the heads and sentences that are shown: their ends are not empty.
    inked = """canvas => { const pen = canvas.getContext("2d"); const row = canvas.height / %d;
      return Array.from({length: %d}, (_, place) =>
        pen.getImageData(1, Math.round(place * row), 1, Math.round(row)).data.some((byte) => byte > 0)); }"""
    browsing.ready()
    drawn = page.locator("canvas.base").evaluate(inked % (len(pieces), len(pieces)))
    assert all(drawn[place] for place in first)
    assert not any(drawn[place] for place in second)


def test_url_holds_the_whole_state(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"), run("gpt"))
    asked: list[str] = []
    browsing.page.on("request", lambda request: asked.append(request.url))
    page = browsing.go("heads", text="five six")
    page.get_by_test_id("look").select_option(index=2)
    page.keyboard.press("Tab")
    page.locator("h2").click()
    page.keyboard.press("]")
    page.locator('[data-layer="1"][data-ready="true"]').wait_for()
    page.get_by_test_id("head-0").click()
    page.keyboard.press("t")
    here, dark = page.url, address(page)["theme"] == "dark"
    words = page.locator("[data-figure]").inner_text()
    assert page.locator("html").get_attribute("data-theme") == ("dark" if dark else "light")
    page.reload()
    browsing.ready()
    assert page.url == here
    assert page.locator("[data-figure]").inner_text() == words
    assert page.get_by_test_id("head-0").get_attribute("aria-pressed") == "false"
    # Another view keeps the input and leaves what was the first one's; the way back leads to it.
    page.get_by_test_id("view-grid").click()
    page.get_by_test_id("grid").wait_for()
    assert address(page)["text"] == "five six"
    assert "heads" not in address(page)
    page.go_back()
    browsing.ready()
    assert page.url == here
    page.locator("h2").click()
    page.keyboard.press("j")
    assert address(page)["view"] == "grid"
    page.keyboard.press("k")
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    until(lambda: page.get_by_role("dialog").count() == 0)
    # Another model begins with its own text.
    page.get_by_test_id("model").select_option("gpt")
    browsing.ready()
    assert address(page)["model"] == "gpt"
    assert "text" not in address(page)
    assert page.get_by_test_id("text").input_value() == browsing.explorer.subject("gpt").sample["text"]
    page.get_by_test_id("text").fill("two words")
    page.get_by_test_id("text").press("Enter")
    page.wait_for_url(re.compile("text=two"))
    assert asked
    assert all(one.startswith(browsing.url) for one in asked), "something was asked of another machine"


def test_tokens_are_reachable_by_keyboard(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    page = browse(run("translation")).go("heads", text="five six seven")
    page.get_by_test_id("ask-0").focus()
    page.keyboard.press("ArrowDown")
    until(lambda: page.locator("button.on").get_attribute("data-token") == "ask-1")
    page.keyboard.press("Enter")
    assert address(page)["token"] == "ask-1"
    page.get_by_test_id("head-1").focus()
    page.keyboard.press("Shift+Enter")
    assert address(page)["heads"] == "1"


def test_page_reports_that_the_server_does_not_answer(chromium: Any, run: Callable[[str], Path]) -> None:
    context = chromium.new_context()
    page = context.new_page()
    with serving(application(Explorer([run("translation")])), Policy(port=0)) as url:
        page.goto(f"{url}#view=heads&text=five")
        page.locator('[data-ready="true"]').wait_for()
        page.route("**/api/heads/layer", lambda route: route.fulfill(status=500, body="<h1>oh</h1>"))
        page.get_by_test_id("text").fill("five six")
        page.get_by_test_id("trouble").wait_for()
        assert page.get_by_test_id("trouble").inner_text() == "the explorer returned status 500"
        page.unroute("**/api/heads/layer")
        page.get_by_test_id("text").fill("five " * 200)
        page.get_by_text("this text is too long for the model").wait_for()
    page.get_by_test_id("text").fill("six")
    page.get_by_text("the explorer is not responding").wait_for()
    assert "restart it" in page.get_by_test_id("trouble").inner_text()
    page.get_by_test_id("export-html").click()
    page.get_by_text("the explorer is not responding").first.wait_for()
    context.close()


# ------------------------------------------------------------------ HTML in texts
HIT = "window.hit=1"
VECTORS = [
    f"<script>{HIT}</script>",
    f"<SCRIPT>{HIT}</SCRIPT >",
    f"<script src=data:,{HIT}></script>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<svg><animate onbegin={HIT} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{HIT}'><text y=20>x</text></a></svg>",
    f"<img src=x onerror={HIT}>",
    f"<img src=x onerror={HIT}//",
    f"<image href=x onerror={HIT}>",
    f"<body onload={HIT}>",
    f"<input autofocus onfocus={HIT}>",
    f"<select autofocus onfocus={HIT}>",
    f"<textarea autofocus onfocus={HIT}>",
    f"<details open ontoggle={HIT}>",
    f"<video><source onerror={HIT}>",
    f"<audio src onloadstart={HIT}>",
    f"<marquee onstart={HIT}>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'>",
    f"<iframe src=javascript:parent.{HIT}>",
    f"<object data=javascript:{HIT}>",
    f"<embed src=javascript:{HIT}>",
    f"<a href=javascript:{HIT} autofocus>x</a>",
    f"<form action=javascript:{HIT}><button>",
    f"<math><mtext><table><mglyph><style><!--</style><img src=x onerror={HIT}>",
    f"<math href=javascript:{HIT}>x</math>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'>",
    f"<template><script>{HIT}</script></template>",
    f"<style>@import 'javascript:{HIT}'</style>",
    f"<link rel=stylesheet href=javascript:{HIT}>",
    f"<base href=javascript:{HIT}//>",
    f"<meta http-equiv=refresh content='0;url=javascript:{HIT}'>",
    f"javascript:{HIT}",
    f"data:text/html,<script>{HIT}</script>",
    f"{{{{constructor.constructor('{HIT}')()}}}}",
    f"${{{HIT}}}",
    f"<%= {HIT} %>",
    f"#{{{HIT}}}",
    f"{{@html '<img src=x onerror={HIT}>'}}",
    f"';{HIT};//",
    f'";{HIT};//',
    f"\\u003cscript\\u003e{HIT}\\u003c/script\\u003e",
    f"&lt;script&gt;{HIT}&lt;/script&gt;",
    f"\u2028{HIT}\u2029",
    f"\u202e<script>{HIT}</script>\u202c",
    f"<scr\u200bipt>{HIT}</scr\u200bipt>",
    f"\ufeff<script>{HIT}</script>",
    f"<!--<script>{HIT}</script>-->",
    f"]]><script>{HIT}</script>",
    f"<![CDATA[<script>{HIT}</script>]]>",
    f"__proto__.{HIT}",
]
WRAPPERS = ["{}", '">{}', "</script>{}", "--></textarea></title>{}"]
HOSTILE = [wrapper.format(vector) for vector in VECTORS for wrapper in WRAPPERS]
WATCH = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(event.blockedURI + " " + event.violatedDirective));
  for (const name of ["alert", "confirm", "prompt", "print"]) window[name] = () => { window.hit = 1; };
"""


def unharmed(page: Any) -> None:
    """No script ran, no element was created from the text, and nothing of the page itself was blocked."""
    page.wait_for_timeout(50)
    assert page.evaluate("window.hit") is None
    assert page.evaluate("window.violations") == []
    made = "script:not([type=module]):not(#held), iframe, object, embed, form, base, math, [onload], [onerror]"
    assert page.locator(made).count() == 0
    assert page.locator("#app svg a, #app marquee, #app template, #app noscript, #app style").count() == 0


def test_html_in_a_text_is_escaped(browse: Callable[..., Any], run: Callable[[str], Path], tmp_path: Path) -> None:
    """As names of folders, as both texts, as tokens, in errors, and in a file that was written of them."""
    assert len(set(HOSTILE)) >= 200
    folders = []
    for number, words in enumerate(HOSTILE):  # a folder's name has no slash and is not long
        folder = tmp_path / str(number) / words.replace("/", "\u2215")[:80]
        folder.mkdir(parents=True)
        folders.append(folder)
    evil = tmp_path / "evil" / "<img src=x onerror=window.hit=1><svg onload=alert(1)>"
    shutil.copytree(run("gpt"), evil)
    browsing = browse(evil, *folders)
    page = browsing.page
    page.add_init_script(WATCH)
    names = list(browsing.explorer.subjects)
    assert names[0] == evil.name
    page.goto(f"{browsing.url}#{urlencode({'view': 'heads', 'text': HOSTILE[0], 'other': HOSTILE[1]})}")
    browsing.ready()
    assert page.get_by_test_id("model").locator("option").evaluate_all("all => all.map((one) => one.value)") == names
    assert evil.name in page.locator("header").inner_text()
    assert page.title().endswith(f"{evil.name} (Heedful)")
    unharmed(page)

    # Every one of them as a token, and in an error.
    tokens = [{"piece": words, "id": 0, "part": 0} for words in HOSTILE]
    look = {
        "name": HOSTILE[2],
        "title": HOSTILE[3],
        "kind": "self",
        "asks": "text",
        "sees": "text",
        "layers": 1,
        "heads": 1,
    }
    packets = {
        "tokens": pack({"sides": {"text": tokens}, "looks": [look, {**look, "name": HOSTILE[4]}]}),
        "layer": pack({}, weights=np.full((1, len(tokens), len(tokens)), 1 / len(tokens), "float16")),
    }
    page.route("**/api/heads/*", lambda route: route.fulfill(body=packets[route.request.url.rpartition("/")[2]]))
    page.get_by_test_id("text").fill(" ".join(HOSTILE[:40]))
    page.get_by_test_id("text").press("Enter")
    page.get_by_test_id(f"ask-{len(tokens) - 1}").wait_for()
    browsing.ready()
    shown = page.locator("[data-token^=ask]").evaluate_all("all => all.map((one) => one.textContent)")
    assert shown == HOSTILE
    assert page.get_by_test_id("text").input_value() == " ".join(HOSTILE[:40])
    unharmed(page)
    page.route(
        "**/api/heads/tokens", lambda route: route.fulfill(status=422, json={"error": HOSTILE[0], "more": HOSTILE})
    )
    page.get_by_test_id("text").fill("another")
    page.get_by_test_id("trouble").wait_for()
    assert (
        page.get_by_test_id("trouble").locator("div").evaluate_all("all => all.map((one) => one.textContent)")
        == HOSTILE
    )
    unharmed(page)
    page.unroute_all()


def test_html_in_a_run_is_escaped(browse: Callable[..., Any], tmp_path: Path) -> None:
    """In its recipe, among its samples and scores, and in what it says of its machine; shown live and in a picture."""
    folder = tmp_path / "run"
    folder.mkdir()
    fields = {f"field {number}": words for number, words in enumerate(HOSTILE)}
    (folder / "recipe.yaml").write_text(write_yaml({"model": {"kind": HOSTILE[0]}, **fields}), encoding="utf-8")
    (folder / "env.json").write_text(json.dumps(fields))
    parts = [HOSTILE[at : at + 3] for at in range(0, len(HOSTILE), 3)]
    evaluations = [
        {"kind": "evaluated", "step": at + 1, "split": HOSTILE[at], "loss": 1.0, "samples": parts[at : at + 20],
         "scores": {HOSTILE[at + 1]: {"value": 1.0, "signature": HOSTILE[at + 2]}}}
        for at in range(0, len(parts), 20)
    ]  # fmt: skip
    steps = [{"kind": "step", "step": at, "loss": 1 / at} for at in range(1, 60)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (*steps, *evaluations)))
    browsing = browse(folder)
    browsing.page.add_init_script(WATCH)
    page = browsing.go("run")
    page.get_by_text(HOSTILE[0]).first.wait_for(state="attached")
    unharmed(page)
    with page.expect_download() as download:
        page.get_by_test_id("export-svg").click()
    ET.parse(download.value.path())
    unharmed(page)


def test_html_in_a_saved_file_is_escaped(chromium: Any, run: Callable[[str], Path], tmp_path: Path) -> None:
    from heedful.explore.export import show

    evil = tmp_path / "<script>alert(1)<\u2215script><!--<script>"
    shutil.copytree(run("gpt"), evil)
    text = VECTORS[0] + "<!--"
    file = show(evil, text=text, heads=HOSTILE[2], theme=HOSTILE[3], palm="".join(HOSTILE)).save(tmp_path / "view.html")
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(file.as_uri())
    page.locator('[data-ready="true"]').wait_for()
    assert page.get_by_test_id("text").input_value() == text
    assert evil.name in page.locator("header").inner_text()
    unharmed(page)
    # The rule in the file holds: what others put into it does not run.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hit=1>')")
    until(lambda: page.evaluate("window.violations.length") > 0)
    assert page.evaluate("window.hit") is None
    context.close()


MAKERS = ["{@html", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]


@pytest.mark.parametrize("pattern", [*MAKERS, ' style="', "http://", "https://"])
def test_page_has_no_raw_html_and_no_external_requests(pattern: str) -> None:
    files = [WEB / "index.html", *(file for file in (WEB / "src").rglob("*") if file.is_file())]
    assert len(files) > 10
    text = {file.name: file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "") for file in files}
    assert [name for name, lines in text.items() if pattern in lines] == []
