"""For the room: projector mode, the keys of a presenter, and print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import until

BERT = Path(__file__).parents[1] / "golden" / "runs" / "pretraining-bert"


def test_presenter_needs_only_keys(browse: Callable[..., Any]) -> None:
    """Large type, larger and smaller, the next view and the one before, a blank screen, and back."""
    browsing = browse(BERT)
    page = browsing.go("heads")
    high = "document.querySelector('[data-figure] li').getBoundingClientRect().height"
    usual = page.evaluate(high)
    page.keyboard.press("f")
    until(lambda: page.locator("aside").count() == 0)
    large = page.evaluate(high)
    assert abs(large - 1.25 * usual) < 0.1
    page.keyboard.press("+")
    until(lambda: abs(page.evaluate(high) - 1.4 * usual) < 0.1)
    assert browsing.address["size"] == "140"
    page.keyboard.press("-")
    until(lambda: abs(page.evaluate(high) - large) < 0.1)
    page.get_by_test_id("ask-2").hover()  # the pointer still finds what it points at
    until(lambda: "on" in page.get_by_test_id("ask-2").get_attribute("class").split())
    page.keyboard.press("b")
    page.get_by_test_id("blank").wait_for()
    page.keyboard.press("PageDown")  # any key only shows the page again
    until(lambda: page.get_by_test_id("blank").count() == 0)
    assert browsing.address["view"] == "heads"
    page.keyboard.press("PageDown")
    until(lambda: browsing.address["view"] == "grid")
    page.keyboard.press("PageUp")
    until(lambda: browsing.address["view"] == "heads")
    page.keyboard.press("f")
    until(lambda: page.locator("aside").count() == 1)
    assert not {"room", "size"} & set(browsing.address)


def test_print_shows_the_figure_on_white_paper(browse: Callable[..., Any]) -> None:
    browsing = browse(BERT)
    page = browsing.go("heads", theme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert not page.locator("aside").is_visible()
    assert not page.get_by_test_id("export-svg").is_visible()
    assert page.locator("[data-figure]").is_visible() and page.get_by_test_id("text").is_visible()
    assert page.get_by_test_id("caption").locator("strong").inner_text() == f"Heads: {BERT.name}"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("html").get_attribute("data-theme") == "dark"
