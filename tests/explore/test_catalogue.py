"""The catalogue's page: the stack, the parts of a box, a swap with its lines, shapes and counts, and a misfit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from heedful.catalogue.parts import parts
from heedful.catalogue.stack import boxes
from heedful.catalogue.swaps import Swappable
from heedful.errors import UserError
from heedful.explore.catalogue import layers, recipe_swaps, stack, swap_detail
from heedful.models.tracing import summary
from heedful.runs.named import find_model
from heedful.runs.recipe import load_recipe, shipped

RUN = Path(__file__).parents[1] / "golden" / "runs" / "translation-transformer"
FETCHED = "path => fetch(path).then(async (response) => [response.status, await response.text()])"


def test_stack_has_every_box_with_its_parts() -> None:
    found = json.loads(json.dumps(stack()))
    listed = [box for row in found["rows"] for group in row for box in group["boxes"]]
    assert [box["name"] for box in listed] == [box.name for box in boxes()]
    assert [[found["parts"][at]["name"] for at in box["parts"]] for box in listed] == [
        [part.name for part in box.parts] for box in boxes()
    ]
    assert len(found["parts"]) == len(parts()) and len(found["recipes"]) == len(shipped())


def test_swap_detail_has_the_lines_shapes_and_counts_of_both_recipes() -> None:
    found = swap_detail("numbers-rnn", "model.attention.score", "dot")
    changed = [(line["mark"], line["text"].strip()) for line in found["lines"] if line["mark"] != " "]
    assert changed == [("-", "score: additive"), ("+", "score: dot")]
    after = load_recipe("numbers-rnn", ["model.attention.score=dot"])
    assert found["parameters"] == after.size
    rows = summary(find_model("numbers-rnn", ["model.attention.score=dot"]))
    assert [(row["name"], row["shape"], row["parameters"]) for row in found["after"]] == [
        (row.name, row.output, row.parameters) for row in rows
    ]
    assert sum(row["parameters"] for row in found["before"]) == load_recipe("numbers-rnn").size


def test_misfit_is_said_and_builds_nothing() -> None:
    found = swap_detail("captions", "model.decoder.attention.score", "dot")
    assert found["problem"].startswith("model.decoder.attention.score: the score dot compares vectors of one width")
    assert found["before"] is found["after"] is None and not found["fits"]


def test_large_models_are_not_built() -> None:
    assert layers(load_recipe("bert-base")) is None
    assert swap_detail("transformer-base", "model.norm", "pre")["after"] is None


@pytest.mark.parametrize("name", ["../numbers", "/etc/passwd", "numbers.yaml", "", "src/heedful/recipes/numbers.yaml"])
def test_only_shipped_recipes_are_opened(name: str) -> None:
    with pytest.raises(UserError, match="no such shipped recipe"):
        recipe_swaps(name)
    with pytest.raises(UserError, match="no such shipped recipe"):
        swap_detail(name, "model.kind", "seq2seq")


def test_no_file_that_a_recipe_names_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a file was looked for")

    monkeypatch.setattr("heedful.catalogue.swaps.check_recipe", refuse)
    recipe_swaps.__wrapped__("digits-lenet")
    with pytest.raises(AssertionError):
        list(Swappable("digits-lenet").swaps("data.kind"))


@pytest.fixture
def browsing(browse: Callable[..., Any]) -> Any:
    found = browse(RUN)
    found.page.goto(found.url)
    found.ready()
    return found


def test_server_refuses_what_is_no_recipe_key_or_part(browsing: Any) -> None:
    page = browsing.page
    status, text = page.evaluate(FETCHED, "/api/catalogue")
    assert status == 200 and json.loads(text) == json.loads(json.dumps(stack()))
    status, text = page.evaluate(FETCHED, "/api/catalogue/swaps?recipe=numbers")
    assert status == 200 and json.loads(text) == json.loads(json.dumps(recipe_swaps("numbers")))
    for asked in (
        {"recipe": "../numbers", "key": "model.kind", "to": "seq2seq"},
        {"recipe": "numbers", "key": "model.width", "to": "8"},
        {"recipe": "numbers", "key": "model.kind", "to": "{kind: gpt}"},
        {"recipe": "numbers" * 20, "key": "k" * 500, "to": ""},
        {"recipe": "numbers", "key": "train.device", "to": "cuda"},
    ):
        status, text = page.evaluate(FETCHED, f"/api/catalogue/swap?{urlencode(asked)}")
        assert status == 422 and str(Path.home()) not in text and "src/heedful" not in text
    assert page.evaluate(FETCHED, "/api/catalogue/swap?recipe=numbers")[0] == 422


@pytest.mark.claim("M1")
def test_click_a_box_swap_a_part_see_what_changes(browsing: Any) -> None:
    page = browsing.page
    page.get_by_test_id("page-catalogue").click()
    page.get_by_test_id("stack").wait_for()
    assert page.locator("[data-testid^=box-]").count() == len(list(boxes()))
    page.get_by_test_id("recipe").select_option("numbers-rnn")
    page.get_by_test_id("box-Attention").click()
    page.get_by_test_id("swap-model.attention.score-general").click()
    page.get_by_test_id("lines").wait_for()
    assert page.locator("[data-testid=lines] .gone").inner_text().strip() == "-     score: additive"
    assert page.locator("[data-testid=lines] .added").inner_text().strip() == "+     score: general"
    found = swap_detail("numbers-rnn", "model.attention.score", "general")
    before, after = load_recipe("numbers-rnn").size, found["parameters"]
    assert page.get_by_test_id("count").inner_text() == f"{before:,} → {after:,} parameters (−{before - after:,})"
    assert page.get_by_test_id("layers").locator("tbody tr").count() == len(found["after"])
    assert "heedful train numbers-rnn model.attention.score=general" in page.get_by_test_id("swap").inner_text()
    page.go_back()
    page.get_by_test_id("swap").wait_for(state="detached")
    page.get_by_test_id("recipe").select_option("captions")
    page.get_by_test_id("swap-model.decoder.attention.score-cosine").click()
    assert "compares vectors of one width" in page.get_by_test_id("misfit").inner_text()
    assert page.get_by_test_id("layers").count() == 0


def test_page_by_keyboard_on_a_telephone_and_in_the_dark(browse: Callable[..., Any]) -> None:
    found = browse(RUN, color_scheme="dark")
    page = found.page
    page.set_viewport_size({"width": 390, "height": 844})
    state = {"page": "catalogue", "recipe": "numbers", "box": "Embedder", "key": "model.positions", "to": "rotary"}
    page.goto(f"{found.url}#{urlencode(state)}")
    page.get_by_test_id("lines").wait_for()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    page.get_by_test_id("box-Optimizer").focus()
    page.keyboard.press("Enter")
    page.get_by_test_id("swap-train.optimizer.kind-sgd").focus()
    page.keyboard.press("Space")
    page.locator("[data-testid=swap]", has_text="adamw → sgd").wait_for()
    assert page.get_by_test_id("swap-train.optimizer.kind-sgd").get_attribute("aria-pressed") == "true"
    small = page.evaluate(
        "() => [...document.querySelectorAll('main button')]"
        ".filter((one) => one.getBoundingClientRect().height < 24).length"
    )
    assert small == 0, "each is large enough to touch"
