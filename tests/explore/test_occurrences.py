"""Where else a head does this: the search of a run's own texts for the same tokens, query or distance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import UserError
from heedful.explore import samples
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import heads
from patience import until

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
BERT, TRANSLATION = GOLDEN / "pretraining-bert", GOLDEN / "translation-transformer"


@pytest.mark.parametrize("same", ["tokens", "query", "distance"])
@pytest.mark.parametrize("folder", [BERT, TRANSLATION])
def test_search_finds_the_largest_matching_weight_of_each_text(
    folder: Path, same: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "TEXTS_PER_CALL", 1)  # the data are small
    explorer = Explorer([folder])
    subject = explorer.subject(folder.name)
    corpus = subject.corpus
    assert 1 < len(corpus) <= samples.CORPUS
    first = corpus[0]
    pair = first.right if folder == TRANSLATION else first.other
    trace = subject.trace(TextInput(text=first.text, other=pair or None))
    attention = trace.attentions[-1]
    queries, keys = trace.reading.sides[attention.queries], trace.reading.sides[attention.keys]
    query, key = 2, 1
    asked = {"model": folder.name, "look": attention.name, "layer": 0, "head": 1, "same": same,
             "query": queries[query].id, "key": keys[key].id, "distance": key - query}  # fmt: skip
    header, _ = unpack(explorer.answer("heads", "occurrences", asked))
    assert (header["read"], header["of"]) == (1, len(corpus))
    found = {one["text"]: one for one in header["found"]}
    weights = trace.weights(attention, 0)[1]
    same_query = [one.id == queries[query].id for one in queries]
    words = [one.part is not None for one in keys]
    wanted = {
        (q, k): float(weights[q, k])
        for q in range(len(queries))
        for k in range(len(keys))
        if {
            "tokens": same_query[q] and keys[k].id == keys[key].id,
            "query": same_query[q] and words[k],
            "distance": k - q == key - query and words[k],
        }[same]
    }
    best = found[first.text]
    assert best["weight"] == pytest.approx(max(wanted.values()), abs=1e-6)
    assert wanted[best["query"], best["key"]] == pytest.approx(best["weight"], abs=1e-6)
    last, _ = unpack(explorer.answer("heads", "occurrences", asked | {"start": len(corpus) - 1}))
    assert last["read"] == last["of"]
    with pytest.raises(UserError, match="no such layer"):
        explorer.answer("heads", "occurrences", asked | {"layer": 99})
    with pytest.raises(UserError, match="no such head"):
        explorer.answer("heads", "occurrences", asked | {"head": 99})


def test_keys_that_are_not_tokens_are_slots(browse: Callable[..., Any]) -> None:
    """A Linformer attends to mixtures of tokens: its weights are shown, and are searched by slot."""
    folder = GOLDEN / "pretraining-linformer"
    browsing = browse(folder)
    subject = browsing.explorer.subject(folder.name)
    text = subject.corpus[0].text
    trace = subject.trace(TextInput(text=text, other=subject.corpus[0].other))
    (attention,) = trace.attentions
    slots = trace.weights(attention, 0).shape[-1]
    assert [one.piece for one in trace.reading.sides[attention.keys]] == [f"slot {one + 1}" for one in range(slots)]
    query = trace.reading.sides["text"][2]
    asked = {"model": folder.name, "look": attention.name, "layer": 0, "head": 1, "same": "tokens", "query": query.id,
             "key": 3, "distance": 0}  # fmt: skip
    header, _ = unpack(browsing.explorer.answer("heads", "occurrences", asked))
    assert all(one["key"] == 3 and one["keys"][3] == "slot 4" for one in header["found"]) and header["found"]
    page = browsing.go("heads", text=text, token="ask-2", heads=1)
    assert page.get_by_test_id(f"see-{slots - 1}").inner_text() == f"slot {slots}"
    browsing.go("fill", text=text)


def test_occurrence_opens_its_text_with_the_same_head(browse: Callable[..., Any]) -> None:
    browsing = browse(BERT)
    page = browsing.go("heads", layer=1, heads=1, token="ask-3")
    page.get_by_test_id("find-query").click()
    page.locator('[data-testid="occurrences"][data-done="true"]').wait_for()
    rows = page.locator("[data-testid^=found-]")
    weights = [float(one) for one in page.locator('[data-testid="occurrences"] .weight').all_inner_texts()]
    assert weights == sorted(weights, reverse=True) and len(weights) == rows.count() > 1
    other = next(
        number
        for number in range(rows.count())
        if rows.nth(number).get_attribute("title") != page.get_by_test_id("text").input_value()
    )
    wanted = rows.nth(other).get_attribute("title")
    rows.nth(other).click()
    until(lambda: page.get_by_test_id("text").input_value() == wanted)
    assert (browsing.address["heads"], browsing.address["layer"]) == ("1", "1")
    page.get_by_test_id("undo").click()
    until(lambda: page.get_by_test_id("text").input_value() != wanted)
