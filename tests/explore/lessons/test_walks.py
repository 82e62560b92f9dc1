"""Each shipped lesson from its first step to its last in a browser, on trained models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from heedful.errors import UserError
from heedful.explore.export import Export, page_of
from heedful.explore.lessons.answers import answer
from heedful.explore.lessons.lesson import Lesson
from heedful.explore.lessons.reading import read_lesson, shipped
from heedful.explore.subjects import Explorer
from patience import until

RUNS = {  # the model that each lesson names
    "coreference": "minilm", "heads": "minilm", "fluent": "numbers", "root-of-d": "numbers", "decoding": "numbers",
    "mask": "gpt-prose", "window": "gpt-prose", "temperature": "gpt-prose", "lstm": "prose", "autoencoder": "digits",
    "positions": "numbers", "captioner": "drawn-scenes", "both-sides": "bert-prose", "patches": "digits-vit",
}  # fmt: skip
SHORT = ("coreference",)  # the others are left to `make test-all`: their runs train for minutes

# What the student does, where a step says so: the same as the sentence, by its place in the lesson.
CLICKS: dict[tuple[str, int], tuple[str, ...]] = {
    ("both-sides", 4): ("token-3",),
    ("both-sides", 6): ("moved-1-0",),
    ("captioner", 1): ("word-2",),
    ("captioner", 5): ("image-0",),
    ("coreference", 0): ("ask-10",),
    ("coreference", 3): ("see-2",),
    ("decoding", 5): ("node-1",),
    ("fluent", 4): ("layer-2-0", "layer-2-1"),
    ("heads", 2): ("ask-13",),
    ("heads", 5): ("pattern-first-token",),
    ("lstm", 5): ("token-2",),
    ("patches", 5): ("image-1",),
    ("positions", 2): ("show-similarity",),
    ("root-of-d", 4): ("query-1",),
}
FIELDS: dict[tuple[str, int], tuple[str, str]] = {  # sliders and lists
    ("autoencoder", 3): ("unit-0", "2"),
    ("autoencoder", 5): ("noise", "0"),
    ("captioner", 4): ("attention", "hard"),
    ("coreference", 5): ("layer", "3"),
    ("decoding", 2): ("k", "3"),
    ("fluent", 1): ("look", "decoder.*.cross.weights"),
    ("mask", 1): ("mask-kind", "causal"),
    ("mask", 3): ("near", "1"),
    ("patches", 3): ("block", "3"),
    ("patches", 6): ("method", "integrated gradients"),
    ("temperature", 3): ("temperature", "0.5"),
    ("temperature", 4): ("top-k", "6"),
    ("window", 4): ("near", "4"),
}


@pytest.fixture
def model(request: pytest.FixtureRequest, run: Callable[[str], Path]) -> Callable[[str], Path]:
    """The model that a lesson is walked on."""
    return lambda name: request.getfixturevalue(RUNS[name]) if RUNS[name] == "minilm" else run(RUNS[name])


class Saved(NamedTuple):
    """A browser page on a saved file."""

    page: Any
    explorer: Explorer
    url: str

    @property
    def address(self) -> dict[str, str]:
        """The state in the page's URL."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.page.url).fragment).items()}


def at_step(page: Any, number: int) -> Any:
    """The panel, once it shows a step."""
    panel = page.locator(f'[data-testid="lesson"][data-step="{number}"][data-ready="true"]')
    panel.wait_for()
    return panel


def computed(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The values of a step as they are written and exactly, from Python."""
    pieces = [piece for some in found["paragraphs"] for piece in some if piece["kind"] == "value"]
    return [(piece["text"], piece["value"]) for piece in pieces]


def walk(browsing: Any, lesson: Lesson) -> None:
    """Go through a lesson: what is computed is that of Python, questions are answered, and what is to do is done."""
    page, explorer = browsing.page, browsing.explorer
    name = next(iter(explorer.subjects))
    page.goto(f"{browsing.url}#lesson={lesson.name}/0&model={name}")
    for number, step in enumerate(lesson.steps):
        panel = at_step(page, number)
        page.locator('[data-figure][data-ready="true"]').first.wait_for()
        assert panel.locator("h2").inner_text() == step.title
        assert browsing.address["view"] == step.view
        found = answer(explorer, lesson, number, name)
        shown = panel.locator(".text strong").evaluate_all(
            "all => all.map((one) => [one.textContent, one.dataset.value])"
        )
        expected = [[text, None if value is None else float(value)] for text, value in computed(found)]
        assert [[text, None if value is None else float(value)] for text, value in shown] == expected
        if step.spot:
            page.locator("[data-spot]").wait_for()
        if (question := found["question"]) is not None:
            answer_question(page, panel, question, step.question is not None and step.question.cover)
            assert {**browsing.address, **question["then"]} == browsing.address
        assert found["otherwise"] == []
        assert panel.get_by_test_id("otherwise").count() == 0
        if step.do:
            assert panel.locator(".do.done").count() == 0
            act(page, lesson.name, number)
            panel.locator(".do.done").wait_for()
        page.locator('[data-figure][data-ready="true"]').first.wait_for()
        assert page.locator(".problem").count() == 0
        if number + 1 < len(lesson.steps):
            panel.get_by_test_id("next-step").click()
    assert panel.get_by_test_id("next-step").is_disabled()


def act(page: Any, lesson: str, number: int) -> None:
    """Do what a step says, as a student would; what has no single control is shown by its button."""
    if (lesson, number) in CLICKS:
        for name in CLICKS[lesson, number]:
            page.locator("main").get_by_test_id(name).first.click()
    elif (lesson, number) in FIELDS:
        name, value = FIELDS[lesson, number]
        field = page.locator("main").get_by_test_id(name)
        if field.evaluate("one => one.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    else:
        page.get_by_test_id("show-me").click()


def answer_question(page: Any, panel: Any, question: dict[str, Any], cover: bool) -> None:
    """Guess wrongly, and compare the truth with Python's."""
    wrong = (question["right"] + 1) % len(question["choices"])
    figure = page.locator("[data-figure] > *").first
    assert figure.evaluate("one => getComputedStyle(one).visibility") == ("hidden" if cover else "visible")
    assert panel.locator("[data-testid^=choice-] .share").count() == 0  # nothing tells the answer
    panel.get_by_test_id(f"choice-{wrong}").click()
    verdict = panel.get_by_test_id("verdict")
    verdict.wait_for()
    assert verdict.inner_text().startswith(f"It is {question['truth']}.")
    assert figure.evaluate("one => getComputedStyle(one).visibility") == "visible"
    values = panel.locator("[data-testid^=choice-]").evaluate_all("all => all.map((one) => one.dataset.value)")
    assert [value and float(value) for value in values] == [one["value"] for one in question["choices"]]
    assert panel.locator(".good .name").inner_text() == question["choices"][question["right"]]["name"]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in SHORT else pytest.mark.slow) for one in shipped()]
)
def test_lesson_is_walked_to_its_end(name: str, browse: Callable[..., Any], model: Callable[[str], Path]) -> None:
    walk(browse(model(name), reduced_motion="reduce"), shipped()[name])


def test_pronoun_of_the_lesson_is_the_animal(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    page = browsing.page
    page.goto(browsing.url)
    begin = page.get_by_test_id("what-next").locator("[data-testid^=begin-]")
    begin.first.wait_for()
    assert begin.evaluate_all("all => all.map((one) => one.dataset.testid)") == ["begin-coreference", "begin-heads"]
    begin.first.click()
    at_step(page, 0)
    page.goto(f"{browsing.url}#lesson=coreference/2")
    panel = at_step(page, 2)
    panel.get_by_role("button", name="animal").click()
    assert panel.get_by_test_id("verdict").inner_text().startswith("Right: animal. Head 2 alone puts 0.64 on")
    assert panel.get_by_test_id("score").inner_text().startswith("1 of 1 guesses right")
    page.locator('[data-testid="head-1"][aria-pressed="true"]').wait_for()
    page.reload()  # the guess stays on this machine
    panel = at_step(page, 2)
    panel.get_by_test_id("verdict").wait_for()
    panel.get_by_test_id("reset-score").click()
    until(lambda: panel.get_by_test_id("verdict").count() == 0)
    page.keyboard.press("n")
    at_step(page, 3)
    page.keyboard.press("PageUp")
    at_step(page, 2)
    page.get_by_test_id("leave").click()
    page.get_by_test_id("lesson-coreference").click()
    at_step(page, 0)
    assert browsing.address["lesson"] == "coreference/0"


FALSE = """---
title: A claim
model: any
address: view=heads&layer=3&text=The+animal+was+tired
---

# A step
check: tokens = 6; weight from=was to=animal head=1 > 2; weights from=was head=1 = street; tokens <= tokens

It is more than two.
"""


def test_what_a_model_does_otherwise_is_said(browse: Callable[..., Any], minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "claim.md").write_text(FALSE, encoding="utf-8")
    lesson = read_lesson(tmp_path / "claim.md")
    browsing = browse(minilm)
    browsing.explorer.lessons["claim"] = lesson
    found = answer(browsing.explorer, lesson, 0, minilm.parent.name)["otherwise"]
    assert [one.partition(":")[0] for one in found] == [
        "weight from=was to=animal head=1 > 2", "weights from=was head=1 = street"
    ]  # fmt: skip
    (tmp_path / "head.md").write_text(FALSE.replace("It is", "It is {weight head=77}:"), encoding="utf-8")
    with pytest.raises(UserError, match="no such head") as caught:
        answer(browsing.explorer, read_lesson(tmp_path / "head.md"), 0, minilm.parent.name)
    assert caught.value.where == "head.md:10: weight"
    browsing.page.goto(f"{browsing.url}#lesson=claim/0")
    assert at_step(browsing.page, 0).get_by_test_id("otherwise").locator("code").all_inner_texts() == found


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_lesson_in_a_file_works_offline(name: str, chromium: Any, model: Callable[[str], Path], tmp_path: Path) -> None:
    explorer = Explorer([model(name)])
    html = page_of(explorer, Export(view=shipped()[name].steps[0].view, state={"lesson": f"{name}/0"}))
    (tmp_path / "lesson.html").write_text(html, encoding="utf-8")
    context = chromium.new_context(offline=True, reduced_motion="reduce")
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    walk(Saved(page, explorer, (tmp_path / "lesson.html").as_uri()), shipped()[name])
    assert not wrong
    context.close()
