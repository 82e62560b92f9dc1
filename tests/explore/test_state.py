"""What the reader chooses: every choice is in the address, and the browser's way back undoes the last one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = "The animal didn't cross the street because it was too tired"


def undone(browsing: Any, choice: Callable[[], object]) -> None:
    """Make a choice, see it in the address, and go back to where it was made."""
    page = browsing.page
    before = page.url
    choice()
    page.wait_for_function("before => location.href !== before", arg=before)
    browsing.ready()
    after = page.url
    page.go_back()
    page.wait_for_function("before => location.href === before", arg=before)
    browsing.ready()
    page.go_forward()
    page.wait_for_function("after => location.href === after", arg=after)
    browsing.ready()


def test_the_way_back_undoes_each_choice(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """Heads and tokens, kinds of attention, hidden heads, steps, points of a map: one entry of the history each."""
    browsing = browse(run("translation"))
    page, by = browsing.go("heads", text="five six"), browsing.page.get_by_test_id
    undone(browsing, by("head-1").click)
    page.go_back()
    assert by("head-1").get_attribute("aria-pressed") == "true"
    undone(browsing, by("ask-1").click)
    undone(browsing, lambda: by("look").select_option(index=2))
    undone(browsing, by("theme").click)
    undone(browsing, by("view-ablation").click)
    undone(browsing, page.locator(".switch").first.click)
    undone(browsing, by("sweep").click)
    undone(browsing, by("view-alignment").click)
    undone(browsing, by("marks").click)
    undone(browsing, lambda: page.keyboard.press("ArrowRight"))
    undone(browsing, by("view-steps").click)
    undone(browsing, by("query-0").click)
    undone(browsing, lambda: by("text").fill("five six seven"))
    undone(browsing, by("view-run").click)
    undone(browsing, by("linear").click)


def test_words_that_were_hidden_come_back(browse: Callable[..., Any], chemist: Path) -> None:
    browsing = browse(chemist)
    page = browsing.go("fill", text="CC(=O)O.OCC>>CC(=O)OCC")
    hidden = page.locator('.token[aria-pressed="true"]').count()
    undone(browsing, page.locator('.token[aria-pressed="false"]').first.click)
    assert page.locator('.token[aria-pressed="true"]').count() == hidden + 1
    undone(browsing, page.get_by_test_id("show-all").click)
    page.go_back()
    page.go_back()
    browsing.ready()
    assert page.locator('.token[aria-pressed="true"]').count() == hidden


def test_a_slider_that_is_drawn_along_is_one_choice(browse: Callable[..., Any], minilm: Path) -> None:
    """Its places on the way are not kept; nor is a choice that changes nothing."""
    browsing = browse(minilm)
    page = browsing.go("heads", text=TEXT)
    before, count = page.url, page.evaluate("history.length")
    for _ in range(4):
        page.get_by_test_id("layer").press("ArrowRight")
    page.locator('[data-figure][data-layer="4"][data-ready="true"]').wait_for()
    assert page.evaluate("history.length") == count + 1
    page.get_by_test_id("text").press("Enter")
    page.get_by_test_id("text").press("Tab")
    page.go_back()
    browsing.ready()
    assert page.url == before
    assert "layer" not in browsing.address
