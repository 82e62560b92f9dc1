"""Views saved as a file that works offline, and as images."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from PIL import Image

from heedful.errors import UserError
from heedful.explore.export import Export, PageCall, page_of, show
from heedful.explore.server.app import application
from heedful.explore.server.page import built
from heedful.explore.subjects import Explorer, parse_request
from heedful.explore.views import VIEWS, find
from heedful.http.guard import Policy, serving
from patience import until

# Views that are shown with another model than the first that fits.
SHOWN_ON = {"next": "gpt", "lens": "gpt", "map": "gpt", "source": "gpt", "recurrent": "recurrent"}
READY = '[data-figure][data-ready="true"]'
SMALLEST = 13  # dots that a letter is high, so that a lecture hall can read it
SVG = "{http://www.w3.org/2000/svg}"
WORDS = """figure => {
  const words = [];
  const walker = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const at = walker.currentNode.parentElement;
    const left = at.closest("input, select, textarea, option, title, [data-picture=none]");
    if (left || !at.getClientRects().length || getComputedStyle(at).visibility === "hidden") continue;
    words.push(...walker.currentNode.data.split(/\\s+/).filter(Boolean));
  }
  return words;
}"""


@pytest.fixture(scope="module")
def opened(run: Callable[[str], Path], chemist: Path, bigbird: Path) -> Iterator[tuple[Explorer, str]]:
    """An explorer of models of every kind, and its address."""
    names = ("translation", "recurrent", "gpt", "images", "vit", "captions")
    golden = Path(__file__).parents[1] / "golden" / "runs"
    recorded = [
        golden / name
        for name in (
            "paragraphs-paragraph_captioner", "image_classification-recurrent_attention",
            "story_answering-memory_network", "dialogue-hred", "control-policy",
            "classification-classifier",
        )
    ]  # fmt: skip
    explorer = Explorer([*(run(name) for name in names), chemist, bigbird, *recorded])
    with serving(application(explorer), Policy(port=0)) as url:
        yield explorer, url


@pytest.fixture(scope="module")
def contexts(chromium: Any) -> Iterator[tuple[Any, Any]]:
    """A browser with a network, and one without."""
    online = chromium.new_context(viewport={"width": 1280, "height": 860})
    offline = chromium.new_context(viewport={"width": 1280, "height": 860}, offline=True)
    yield online, offline
    online.close()
    offline.close()


def watched(context: Any) -> tuple[Any, list[str], list[str]]:
    """A page, the addresses that it asks for, and what goes wrong in it."""
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    return page, asked, wrong


def written(page: Any) -> str:
    """The words of the figure, without those that only a saved file needs, or only a page that can ask for more."""
    words = page.locator("[data-figure]").evaluate(
        """figure => {
          const copy = figure.cloneNode(true);
          for (const one of copy.querySelectorAll("[data-alone], [data-live]")) one.remove();
          return copy.textContent;
        }"""
    )
    return re.sub(r"\s+", " ", words)


def room(page: Any) -> int:
    """The width of the figure: some drawings leave out numbers where it is small."""
    width: int = page.locator("[data-figure]").evaluate("figure => Math.round(figure.getBoundingClientRect().width)")
    return width


def taken(page: Any, kind: str, folder: Path) -> Path:
    """The file that a button of the page downloads."""
    with page.expect_download() as download:
        page.get_by_test_id(f"export-{kind}").click()
    file = folder / f"view.{kind}"
    download.value.save_as(file)
    return file


SOME = ("heads", "beam", "run")  # the others are left to `make test-all`


@pytest.mark.parametrize("view", [pytest.param(one, marks=() if one in SOME else pytest.mark.slow) for one in VIEWS])
def test_view_is_saved_as_an_offline_file_and_as_images(
    view: str, opened: tuple[Explorer, str], contexts: tuple[Any, Any], tmp_path: Path
) -> None:
    explorer, url = opened
    fitting = [name for name, subject in explorer.subjects.items() if view in subject.views]
    model = SHOWN_ON[view] if SHOWN_ON.get(view) in fitting else fitting[0]
    page, asked, wrong = watched(contexts[0])
    page.goto(f"{url}#{urlencode({'view': view, 'model': model})}")
    page.locator(READY).wait_for()
    live, width = written(page), room(page)
    assert all(address.startswith((url, "data:", "blob:")) for address in asked)
    file = taken(page, "html", tmp_path)
    assert file.stat().st_size < 12_000_000
    svg, png = taken(page, "svg", tmp_path), taken(page, "png", tmp_path)
    assert_the_picture_holds(svg, png, page)
    assert_a_lecture_hall_can_read(page)
    assert not wrong
    page.close()

    page, asked, wrong = watched(contexts[1])
    page.goto(file.as_uri())
    page.locator(READY).wait_for()
    size = page.viewport_size
    page.set_viewport_size({"width": size["width"] + width - room(page), "height": size["height"]})
    until(lambda: written(page) == live)
    assert page.get_by_test_id("caption").locator("strong").inner_text().endswith(f": {model}")
    assert [address for address in asked if not address.startswith(("data:", "blob:"))] == [file.as_uri()]
    assert not wrong
    page.goto(svg.as_uri())
    assert page.evaluate("document.documentElement.tagName") == "svg"
    page.close()


def assert_the_picture_holds(svg: Path, png: Path, page: Any) -> None:
    """Every visible word of the figure is text in the SVG, and the PNG is the same picture at twice the size."""
    root = ET.fromstring(svg.read_text(encoding="utf-8"))
    letters = re.sub(r"\s+", "", "".join(text for each in root.iter(f"{SVG}text") for text in each.itertext()))
    seen = page.locator("[data-figure]").evaluate(WORDS)
    upper = letters.upper()
    assert [word for word in seen if word not in letters and word.upper() not in upper] == []
    size = tuple(round(float(root.attrib[name])) for name in ("width", "height"))
    with Image.open(png) as image:
        assert image.size == tuple(min(2, 16000 / max(size)) * side // 1 for side in size)
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 2


def assert_a_lecture_hall_can_read(page: Any) -> None:
    """No letter is too small, and nothing overflows a narrow window."""
    small = page.evaluate(
        """least => [...document.querySelectorAll("main *")].filter((one, _, all, at = one.getScreenCTM?.()) =>
          [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) && one.getClientRects().length
          && parseFloat(getComputedStyle(one).fontSize) * (at ? Math.hypot(at.a, at.b) : 1) < least - 0.01)
          .map((one) => one.outerHTML.slice(0, 120))""",
        SMALLEST,
    )
    assert small == []
    page.set_viewport_size({"width": 1024, "height": 768})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_content_security_policy_of_a_file_has_hashes(run: Callable[[str], Path]) -> None:
    html = show(run("translation"), text="five six").html
    scripts = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    (policy,) = re.findall(r'content-security-policy" content="([^"]*)"', html)
    names = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (*scripts, *styles)]
    assert len(scripts) == len(styles) == 1
    assert policy.startswith(f"default-src 'none'; script-src {names[0]}; style-src {names[1]}; img-src data: blob:;")
    assert "unsafe" not in policy
    assert html.isascii() or "\u2028" not in html


def test_script_can_be_inlined() -> None:
    """A script that held these two could not be ended by its own end tag."""
    assert b"<script" not in built()["assets/app.js"]
    assert b"</style" not in built()["assets/app.css"]


def test_page_is_small() -> None:
    files = built()
    assert sum(len(gzip.compress(data, 9)) for data in files.values()) <= 200_000
    assert set(files) == {"index.html", "assets/app.js", "assets/app.css"}


def test_notebook_shows_the_view_in_an_iframe(
    run: Callable[[str], Path], contexts: tuple[Any, Any], tmp_path: Path
) -> None:
    shown = show(run("translation"), view="heads", text="five six", layer=1, heads=[0, 2], height=500)
    page, asked, wrong = watched(contexts[1])
    page.set_content(f"<p>a cell</p>{shown._repr_html_()}")
    frame = page.frame_locator("iframe")
    frame.locator(READY).wait_for()
    assert frame.locator("[data-figure]").get_attribute("data-layer") == "1"
    pressed = [frame.get_by_test_id(f"head-{head}").get_attribute("aria-pressed") for head in range(4)]
    assert pressed == ["true", "false", "true", "false"]
    frame.get_by_test_id("layer").fill("0")  # all layers are in it
    frame.locator('[data-layer="0"][data-ready="true"]').wait_for()
    assert not wrong
    assert asked == []
    page.close()
    assert shown.save(tmp_path / "view.html").read_text(encoding="utf-8") == shown.html
    for name in ("view.svg", "view.png", "view", "view.pdf"):
        with pytest.raises(UserError, match="a view is saved as HTML") as error:
            shown.save(tmp_path / name)
        assert "for SVG or PNG, use the buttons" in str(error.value.todo)
    with pytest.raises(UserError):
        shown.save(tmp_path / "nowhere" / "view.html")
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("view")] == ["view.html"]


def test_invalid_view_or_state_is_rejected(run: Callable[[str], Path]) -> None:
    with pytest.raises(UserError, match="no model to open"):
        show()
    with pytest.raises(UserError, match="no such view"):
        show(run("images"), view="palm")
    with pytest.raises(UserError, match="does not fit") as caught:
        show(run("images"), view="heads")
    assert "heads" not in str(caught.value.expected)
    with pytest.raises(UserError, match="this model is not open"):
        show(run("translation"), model="another")
    with pytest.raises(UserError, match="not an integer"):
        show(run("translation"), text="five", layer="first")
    with pytest.raises(UserError):
        show(run("translation"), text="five " * 10_000)


def test_file_has_the_first_fitting_model_and_its_sample(run: Callable[[str], Path]) -> None:
    html = show(run("images"), run("translation"), view="heads").html
    (held,) = re.findall(r'<script id="held" type="application/json">(.*?)</script>', html, re.DOTALL)
    state = json.loads(held)["state"]
    assert state["model"] == "translation"
    assert state["text"]


def test_file_answers_the_calls_of_its_page(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("translation")])
    asked = {"model": "translation", "text": "seven"}
    extra = PageCall(view="heads", call="tokens", asked=asked)
    html = page_of(explorer, Export(view="heads", state={"text": "five"}, questions=(extra,)))
    (held,) = re.findall(r'<script id="held" type="application/json">(.*?)</script>', html, re.DOTALL)
    answers = json.loads(held)["answers"]
    assert [one["asked"] for one in answers if one["asked"].get("text") == "seven"] == [asked]
    many = [{"view": "heads", "call": "tokens", "asked": {**asked, "text": str(n)}} for n in range(101)]
    with pytest.raises(UserError, match="at most 100"):
        parse_request(Export, json.dumps({"view": "heads", "questions": many}).encode())
    with pytest.raises(UserError, match="too long for a file"):
        page_of(explorer, Export(view="heads", state={"text": "five"}), seconds=0.0)


def test_default_view_is_the_first_that_fits(run: Callable[[str], Path]) -> None:
    (held,) = re.findall(
        r'<script id="held" type="application/json">(.*?)</script>', show(run("images")).html, re.DOTALL
    )
    assert json.loads(held)["view"] == Explorer([run("images")]).subjects["images"].views[0]


def test_file_of_a_long_text_has_the_neighbouring_layers(
    run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from heedful.explore.views import heads

    explorer = Explorer([run("translation")])
    state = {"model": "translation", "text": "five six", "look": "encoder.*.attention.weights", "layer": "1"}
    attentions = (
        explorer.subject("translation").trace(heads.InputRequest(model="translation", text="five six")).attentions
    )
    state["look"] = attentions[0].name
    everything = find("heads").calls(explorer.subject(state["model"]), state)
    assert len(everything) == 2 + sum(len(look.taps) for look in attentions)
    monkeypatch.setattr(heads, "MAX_WEIGHTS", 1)
    assert [one.settings.get("layer") for one in find("heads").calls(explorer.subject(state["model"]), state)] == [
        None,
        None,
        1,
    ]
