"""The pages beside the views: the lectures with their search and links, and the quiz."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.lectures.decks import decks, overview, references, takeaways, topics
from heedful.lectures.quiz import quiz


def test_decks_topics_and_links_to_views(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"))
    page = browsing.page
    page.goto(browsing.url)
    browsing.ready()
    page.get_by_test_id("page-lectures").click()
    page.get_by_test_id("decks").wait_for()
    assert page.locator("[data-testid^=deck-] h3").all_inner_texts() == [deck.title for deck in decks()]
    page.get_by_test_id("deck-yoon").click()
    page.locator("[data-testid^=topic-]").first.wait_for()
    assert page.locator("[data-testid^=topic-]").count() == len(decks()[-1].topics)
    page.get_by_test_id("search").fill("multi-head")
    page.locator("[data-testid=topic-multi-head][open]").wait_for()
    shown = page.get_by_test_id("topic-multi-head").inner_text()
    for part in (topics()["multi-head"].summary, "heedful explore runs/numbers --view grid", "test_transformer.py"):
        assert part in shown
    page.get_by_test_id("see-multi-head").click()
    page.get_by_test_id("grid").wait_for()
    assert "page=" not in page.url and "search=" not in page.url and "view=grid" in page.url
    page.go_back()
    page.locator("[data-testid=topic-multi-head][open]").wait_for()
    page.get_by_test_id("search").fill("references")
    page.get_by_test_id("references").wait_for()
    assert page.get_by_test_id("references").locator("li").count() == len(references())
    page.get_by_test_id("search").fill("takeaways")
    page.get_by_test_id("takeaways").wait_for()
    assert page.get_by_test_id("takeaways").locator("li").count() == sum(one.deck == "yoon" for one in takeaways())
    page.get_by_test_id("search").fill("zzz")
    page.get_by_text("no topic matches").wait_for()
    page.get_by_text("all decks").click()
    page.get_by_test_id("search").fill("GPT vs BERT vs XLNet")
    page.get_by_test_id("topic-three-masks").get_by_text("Sungroh Yoon").wait_for()


@pytest.mark.claim("N1")
def test_quiz_accepts_right_answers_and_explains_wrong_ones(
    browse: Callable[..., Any], run: Callable[[str], Path]
) -> None:
    browsing = browse(run("translation"))
    page, questions = browsing.page, quiz(7, 10)
    page.goto(f"{browsing.url}#page=quiz&seed=7")
    for number, question in enumerate(questions):
        page.get_by_text(f"question {number + 1} of 10").wait_for()
        assert question.prompt in page.get_by_test_id("question").inner_text()
        right = number % 2 == 0
        if question.choices:
            choice = (
                question.answers[0] if right else next(one for one in question.choices if one not in question.answers)
            )
            page.get_by_role("button", name=choice, exact=True).click()
        else:
            page.get_by_test_id("answer").fill(question.answers[-1].upper() if right else "nothing")
            page.get_by_test_id("submit").click()
        verdict = page.get_by_test_id("verdict").inner_text()
        assert verdict.startswith("right" if right else f"it is {question.answers[0]}")
        assert question.why in verdict
        page.get_by_test_id("next").click()
    assert "5 of 10 right" in page.get_by_test_id("result").inner_text()
    page.reload()
    page.get_by_text("question 1 of 10").wait_for()
    assert page.get_by_test_id("score").inner_text().startswith("5 of 10 guesses right, kept on this machine")


def test_server_gives_both_as_json(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"))
    browsing.page.goto(browsing.url)
    fetched = "path => fetch(path).then(async (response) => [response.status, await response.text()])"
    status, text = browsing.page.evaluate(fetched, "/api/lectures")
    assert status == 200 and json.loads(text) == json.loads(json.dumps(overview()))
    status, text = browsing.page.evaluate(fetched, "/api/lectures/search?words=C7%20")
    assert status == 200 and json.loads(text) == ["add-and-norm"]
    assert browsing.page.evaluate(fetched, "/api/lectures/search")[0] == 422
    status, text = browsing.page.evaluate(fetched, "/api/quiz/3")
    assert status == 200 and [one["prompt"] for one in json.loads(text)] == [one.prompt for one in quiz(3, 10)]
    assert browsing.page.evaluate(fetched, "/api/quiz/x")[0] == 422
