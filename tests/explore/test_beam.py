"""The tree of a beam search against the library's own search, in Python and in the page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import beam
from patience import until
from tolerance import near

TEXT = "nine hundred seventy-one"


def grown(explorer: Explorer, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("beam", "tree", {"model": next(iter(explorer.subjects)), "text": TEXT, **asked}))


def ids_to(arrays: dict[str, Any], node: int) -> list[int]:
    ids: list[int] = []
    while node >= 0:
        ids.insert(0, int(arrays["token"][node]))
        node = int(arrays["parent"][node])
    return ids


def test_view_fits_generating_models_only(run: Callable[[str], Path], minilm: Path) -> None:
    folders = {name: run(name) for name in ("translation", "recurrent", "gpt", "rnn", "images")}
    subjects = Explorer([*folders.values(), minilm]).subjects
    fits = {name: "beam" in subjects[name].views and "next" in subjects[name].views for name in folders}
    assert fits == {"translation": True, "recurrent": True, "gpt": True, "rnn": True, "images": False}
    assert not beam.fits(list(subjects.values())[-1])


@pytest.mark.parametrize("name", ["translation", "recurrent"])
@pytest.mark.parametrize(("k", "t"), [(2, 2), (4, 1), (5, 3)])
def test_hypotheses_are_those_of_the_translator(run: Callable[[str], Path], name: str, k: int, t: int) -> None:
    explorer = Explorer([run(name)])
    words, arrays = grown(explorer, k=k, t=t)
    found = explorer.subjects[name].predictor.search([TEXT], beams=k, top=t)[0]
    assert [(one["log"], one["score"]) for one in words["paths"]] == [(one.log_probability, one.score) for one in found]
    assert [ids_to(arrays, one["node"]) for one in words["paths"]] == [one.ids for one in found]
    assert [words["texts"][one["node"]] for one in words["paths"]] == [one.text for one in found]
    for one in words["paths"]:
        assert float(arrays["score"][one["node"]]) == one["score"]
    kept = [
        int(((arrays["step"] == step) & (arrays["fate"] == beam.KEPT)).sum()) for step in range(arrays["step"].max())
    ]
    assert max(kept) == k
    for node, log in enumerate(arrays["log"]):  # every candidate hangs where it belongs
        said = sum_of_logs(explorer.subjects[name].predictor, ids_to(arrays, node))
        assert float(log) == pytest.approx(said, abs=1e-3)
    looked = [int((arrays["step"] == step).sum()) for step in range(arrays["step"].max() + 1)]
    assert max(looked) == 2 * k


def test_one_beam_is_greedy(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("translation")])
    words, arrays = grown(explorer, k=1)
    (one,) = explorer.subjects["translation"].predictor.search([TEXT], beams=1)[0]
    (path,) = words["paths"]
    assert ids_to(arrays, path["node"]) == one.ids
    assert path["log"] == near(one.log_probability)


@pytest.mark.parametrize("name", ["gpt", "rnn"])
def test_language_model_searches_as_it_generates(run: Callable[[str], Path], name: str) -> None:
    explorer = Explorer([run(name)])
    words, arrays = grown(explorer, k=3, t=2, limit=6, penalty=0.5)
    found = explorer.subjects[name].predictor.generate([TEXT], samples=2, beams=3, length=6, length_penalty=0.5)
    assert [ids_to(arrays, one["node"]) for one in words["paths"]] == [one.ids for one in found]
    assert [words["texts"][one["node"]] for one in words["paths"]] == [one.completion for one in found]
    assert [one["log"] for one in words["paths"]] == [one.log_probability for one in found]


@pytest.mark.parametrize("name", ["translation", "gpt"])
def test_search_can_be_forced_through_any_candidate(run: Callable[[str], Path], name: str) -> None:
    explorer = Explorer([run(name)])
    _, arrays = grown(explorer, k=3, limit=6)
    pruned = int(((arrays["fate"] == beam.PRUNED) & (arrays["step"] == 1)).nonzero()[0][0])
    forced = ids_to(arrays, pruned)
    words, after = grown(explorer, k=3, limit=6, penalty=0.8, forced=forced)
    assert len(forced) == words["forced"] == 2 and words["paths"]
    assert float(after["log"][1]) == near(float(arrays["log"][pruned]))
    for path in words["paths"]:
        ids = ids_to(after, path["node"])
        assert ids[:2] == forced and len(ids) <= 6
        assert path["log"] == near(sum_of_logs(explorer.subjects[name].predictor, ids), 1024)
        assert path["score"] == pytest.approx(path["log"] / len(ids) ** 0.8, rel=1e-5)


def sum_of_logs(predictor: Any, ids: list[int]) -> float:
    """log p of ids after the text, in one go through the model."""
    with torch.inference_mode():
        if hasattr(predictor, "codec"):
            given = [predictor.codec.start_id, *predictor.codec.encode(TEXT)]
            state = predictor.model.start(1, predictor.device)
        else:
            given, state = [predictor.tokenizer.bos], predictor.model.start(torch.tensor(predictor.source_ids([TEXT])))
        logits, _ = predictor.model(torch.tensor([[*given, *ids[:-1]]]), state)
    logs = logits[0, len(given) - 1 :].double().log_softmax(-1)
    return float(logs.gather(1, torch.tensor(ids)[:, None]).sum())


def test_given_translation_is_scored(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("translation")])
    best = explorer.subjects["translation"].predictor.search([TEXT], beams=3)[0][0]
    words, _ = grown(explorer, k=3, other="siebzehn")
    predictor = explorer.subjects["translation"].predictor
    ids = [*predictor.tokenizer.ids(["siebzehn"])[0], predictor.tokenizer.eos]
    assert words["yours"]["log"] == near(sum_of_logs(predictor, ids), 1024)
    assert words["yours"]["tokens"] == len(ids)
    assert grown(explorer, k=3)[0]["yours"] is None
    if best.text and predictor.tokenizer.ids([best.text])[0] == best.ids[:-1]:
        assert grown(explorer, k=3, other=best.text)[0]["yours"]["score"] == near(best.score)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"k": 2, "t": 3}, "at most k hypotheses"),
        ({"k": 17}, "less than or equal to 16"),
        ({"k": 0}, "greater than or equal to 1"),
        ({"penalty": math.pi * 9}, "less than or equal to 2"),
        ({"limit": 201}, "less than or equal to 200"),
        ({"forced": [10**9]}, "no such token"),
        ({"forced": [-1]}, "greater than or equal to 0"),
        ({"forced": [5] * 201}, "at most 200"),
        ({"forced": [5, 6, 7], "limit": 2}, "more forced tokens"),
        ({"forced": [3, 5]}, "can follow the end"),
        ({"text": "seven " * 300}, "too long"),
        ({"k": "3"}, "valid integer"),
    ],
)
def test_invalid_requests_are_rejected(run: Callable[[str], Path], asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        grown(Explorer([run("translation")]), **asked)


@pytest.mark.parametrize("name", ["translation", "gpt", "rnn"])
@pytest.mark.parametrize("text", ["", " ", "\u0000", "\ud800", "🙂", "<eos> <img src=x onerror=alert(1)>"])
def test_unusual_texts_are_searched(run: Callable[[str], Path], name: str, text: str) -> None:
    words, arrays = unpack(
        beam.tree(
            Subject(name, run(name)), beam.SearchRequest.model_construct(model=name, text=text, other=None, limit=3)
        )
    )
    assert words["paths"] and len(words["texts"]) == len(arrays["token"])


def test_text_longer_than_the_context_is_continued_and_an_end_can_be_forced(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    words, _ = grown(explorer, text="one two three " * 60)
    assert words["forgotten"] > 0 and words["paths"]
    words, arrays = grown(explorer, forced=[7, words["end"]])
    assert [ids_to(arrays, one["node"]) for one in words["paths"]] == [[7, words["end"]]]


def test_saved_file_answers_likely_requests(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("translation")])
    state = {"model": "translation", "text": TEXT, "k": "3", "t": "2", "penalty": "0.5", "forced": "5", "view": "beam"}
    asked = [json.dumps(one.settings, sort_keys=True) for one in beam.calls(explorer.subject(state["model"]), state)]
    given = {"model": "translation", "text": TEXT, "k": 3, "t": 2, "penalty": 0.5, "forced": [5]}
    more = [{"k": 1, "t": 1}, {"k": 5}, {"t": 3}, {"forced": None}]
    for change in ({}, *more):
        wish = {name: value for name, value in {**given, **change}.items() if value is not None}
        assert json.dumps(wish, sort_keys=True) in asked
    assert sum(len(explorer.answer(*one)) for one in beam.calls(explorer.subject(state["model"]), state)) < 1_000_000
    with pytest.raises(UserError, match="not a number"):
        beam.calls(explorer.subject(state["model"]), {**state, "k": "x"})


@pytest.mark.claim("N2")
def test_page_shows_the_tree_plays_it_and_forces_a_node(run: Callable[[str], Path], browse: Any) -> None:
    opened = browse(run("translation"))
    page = opened.go("beam", text=TEXT, k=3, t=2)
    words, arrays = grown(opened.explorer, k=3, t=2)
    found = opened.explorer.subjects["translation"].predictor.search([TEXT], beams=3, top=2)[0]
    rows = page.get_by_test_id("paths").locator("[data-score]")
    assert [float(row.get_attribute("data-score")) for row in rows.all()] == [one.score for one in found]
    assert page.get_by_test_id("readout-text").inner_text() == found[0].text
    assert page.locator("[data-node]").count() == len(arrays["token"])
    for fate, number in (("pruned", beam.PRUNED), ("kept", beam.KEPT), ("ended", beam.ENDED)):
        assert page.locator(f'[data-fate="{fate}"]').count() == int((arrays["fate"] == number).sum())

    page.get_by_test_id("step").fill("2")  # the step player
    opened.ready()
    assert page.locator("[data-node]").count() == int((arrays["step"] < 2).sum())
    assert "step=2" in page.url
    page.get_by_test_id("play").click()
    page.locator('[data-step="3"]').wait_for()
    page.get_by_test_id("play").click()

    page.get_by_test_id("step").fill("2")
    node = int(((arrays["fate"] == beam.PRUNED) & (arrays["step"] == 1)).nonzero()[0][0])
    page.get_by_test_id(f"node-{node}").hover()
    assert page.get_by_test_id("readout-text").inner_text() == (words["texts"][node] or "∅")
    shown_log = float(page.get_by_test_id("readout-log").inner_text().replace("−", "-"))
    assert shown_log == pytest.approx(float(arrays["log"][node]), rel=1e-3)
    page.get_by_test_id(f"node-{node}").click()
    forced = ids_to(arrays, node)
    page.get_by_test_id("forced").wait_for()
    opened.ready()
    again, _ = grown(opened.explorer, k=3, t=2, forced=forced)
    assert [float(row.get_attribute("data-log")) for row in page.locator("[data-log]").all()] == [
        one["log"] for one in again["paths"]
    ]
    chips = page.locator(".chip:not([data-testid])")
    named = [opened.explorer.subjects["translation"].predictor.tokenizer.pieces([token])[0] for token in forced]
    assert [text.removesuffix("×").strip() for text in chips.all_inner_texts()] == named
    page.keyboard.press("Tab")
    page.get_by_test_id("release").click()  # the way back
    opened.ready()
    assert "forced" not in page.url
    assert [float(row.get_attribute("data-score")) for row in rows.all()] == [one.score for one in found]
    # More is given than may be written: the tree of before is shown, what is given has its own names.
    page.evaluate(f"location.hash += '&limit=1&forced={','.join(map(str, forced))}'")
    page.get_by_test_id("trouble").wait_for()
    assert [text.removesuffix("×").strip() for text in chips.all_inner_texts()] == named
    page.go_back()
    opened.ready()
    page.locator('[data-node="1"]').focus()  # by the keys alone, and they stay with the token that was forced
    page.keyboard.press("Enter")
    until(lambda: page.evaluate("document.activeElement.dataset.node") == "0")
    page.get_by_test_id("release").click()
    opened.ready()
    page.get_by_test_id("k").fill("1")
    until(lambda: page.locator("[data-score]").count() == 1)
    opened.ready()
