"""The state of the page is its URL, and the browser's back button undoes the last choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import until

TEXT = "The animal didn't cross the street because it was too tired"


def undone(browsing: Any, choice: Callable[[], object]) -> None:
    """Make a choice, see it in the address, and go back to where it was made."""
    page = browsing.page
    before = page.url
    choice()
    until(lambda: page.evaluate("location.href") != before)
    browsing.ready()
    after = page.url
    page.go_back()
    until(lambda: page.evaluate("location.href") == before)
    browsing.ready()
    page.go_forward()
    until(lambda: page.evaluate("location.href") == after)
    browsing.ready()


def test_back_button_undoes_each_choice(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
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


def test_masked_tokens_are_restored_from_the_url(browse: Callable[..., Any], chemist: Path) -> None:
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


def test_dragging_a_slider_is_one_history_entry(browse: Callable[..., Any], minilm: Path) -> None:
    """Its places on the way are not kept; nor is a choice that changes nothing."""
    browsing = browse(minilm)
    page = browsing.go("heads", text=TEXT, layer=0)
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
    assert browsing.address["layer"] == "0"


# ------------------------------------------------------------------ from view to view, and from model to model
def test_layer_head_and_token_are_kept_between_views(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"))
    page, by = browsing.go("heads", text="five six", layer=1, token="ask-2", heads=3), browsing.page.get_by_test_id
    by("view-steps").click()
    by("view-steps").and_(page.locator("[aria-current]")).wait_for()
    browsing.ready()
    assert {name: browsing.address[name] for name in ("layer", "head", "token")} == {
        "layer": "1", "head": "3", "token": "2",
    }  # fmt: skip
    assert by("query-2").get_attribute("aria-pressed") == "true"
    by("view-map").click()  # which has no heads: they are kept for the next one
    by("view-grid").click()
    browsing.ready()
    assert browsing.address["layer"] == "1" and browsing.address["head"] == "3"
    by("view-heads").click()
    browsing.ready()
    assert browsing.address["heads"] == "3" and browsing.address["token"] == "ask-2"
    by("view-alignment").click()  # where tokens are those that are written, and not of the source
    browsing.ready()
    assert browsing.address["aligned"] == "1" and browsing.address["alignhead"] == "3"
    assert "step" not in browsing.address
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: "step=1" in url)
    by("view-heads").click()
    browsing.ready()
    assert browsing.address["look"].endswith("cross.weights") and browsing.address["token"] == "ask-1"


def test_changing_the_model_keeps_the_valid_state(
    browse: Callable[..., Any], run: Callable[[str], Path], minilm: Path
) -> None:
    """The view, the layer and the head, or the last of them where there are fewer; a file is of what is seen."""
    browsing = browse(minilm, run("gpt"), run("images"))
    page, by = browsing.go("steps", text=TEXT, layer=5, head=11, token=3), browsing.page.get_by_test_id
    by("model").select_option("gpt")
    page.wait_for_url(lambda url: "model=gpt" in url)
    browsing.ready()
    assert browsing.address["view"] == "steps" and "token" not in browsing.address
    assert by("layer").input_value() == "1" and by("head").input_value() == "3"
    assert by("no-layer").inner_text() == "there is no layer 6; this is the last"
    with page.expect_download() as saved:
        by("export-html").click()
    assert Path(saved.value.path()).stat().st_size > 100_000
    by("model").select_option("images")
    browsing.ready()
    assert browsing.address["view"] == browsing.explorer.subject("images").views[0]


def test_invalid_link_is_reported(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """A model or a view that is not here, and a view that does not fit its model, with what there is."""
    browsing = browse(run("gpt"), run("images"))
    page = browsing.page
    for link, said, way in (
        ("model=nope&view=heads", "there is no model called nope here", "gpt"),
        ("model=gpt&view=nope", "there is no view called nope", "Heads"),
        ("model=images&view=heads", "“Heads” does not fit images", "Reconstructions"),
    ):
        page.goto("about:blank")
        page.goto(f"{browsing.url}#{link}")
        assert page.get_by_test_id("trouble").inner_text() == said
        page.locator("main").get_by_role("link", name=way, exact=True).click()
        browsing.ready()
        assert page.get_by_test_id("trouble").count() == 0
