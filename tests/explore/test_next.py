"""The next token: logits of the model, and a page that samples as the library does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.decode.rules import Generated, Rule, SuppressTokens, Temperature, TopK, TopP
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import next as view
from patience import until
from tolerance import near

TEXT = "The name of the"
SOURCE = "nine hundred seventy-one"


def logits(explorer: Explorer, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("next", "logits", {"model": next(iter(explorer.subjects)), "text": TEXT, **asked}))


def ruled(values: Any, rules: list[Rule]) -> torch.Tensor:
    """What the library's rules make of logits."""
    none = torch.zeros(1, 1, dtype=torch.long)
    x = torch.from_numpy(values.copy())[None]
    for rule in rules:
        x = rule(x, Generated(none, none, none[0, 0], none))
    return x[0].double().softmax(-1)


@pytest.mark.parametrize("name", ["gpt", "rnn"])
def test_logits_are_those_of_the_model(run: Callable[[str], Path], name: str) -> None:
    explorer = Explorer([run(name)])
    predictor = explorer.subjects[name].predictor
    words, arrays = logits(explorer, then=[9, 12])
    ids = [predictor.codec.start_id, *predictor.codec.encode(TEXT), 9, 12]
    with torch.inference_mode():
        whole, _ = predictor.model(torch.tensor([ids]), predictor.model.start(1, predictor.device))
    assert arrays["logits"].tolist() == near(whole[0, -1].tolist())
    logs = whole[0, :-1].double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert arrays["logs"].tolist() == near(logs.tolist())
    assert words["perplexity"] == pytest.approx(math.exp(-float(logs.mean())), rel=1e-5)
    assert words["pieces"] == predictor.tokenizer.pieces(ids) and words["then"] == 2
    assert arrays["never"].tolist() == list(predictor.codec.suppressed)


@pytest.mark.parametrize("name", ["translation", "recurrent"])
def test_translator_continues_the_translation_so_far(run: Callable[[str], Path], name: str) -> None:
    explorer = Explorer([run(name)])
    predictor = explorer.subjects[name].predictor
    words, arrays = logits(explorer, text=SOURCE, other="neun", then=[20])
    target = [predictor.tokenizer.bos, *predictor.tokenizer.ids(["neun"])[0], 20]
    with torch.inference_mode():
        whole, _ = predictor.model(
            torch.tensor([target]), predictor.model.start(torch.tensor(predictor.source_ids([SOURCE])))
        )
    assert arrays["logits"].tolist() == near(whole[0, -1].tolist(), 1024)
    assert words["source"] == predictor.tokenizer.pieces(predictor.source_ids([SOURCE])[0])
    assert arrays["never"].tolist() == [0, 1, 2] and words["end"] == predictor.tokenizer.eos
    assert logits(explorer, text=SOURCE)[0]["perplexity"] is None


def test_long_texts_are_truncated_to_the_context(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt"), run("rnn")])
    predictor = explorer.subjects["gpt"].predictor
    text = "one two three " * 60
    words, arrays = logits(explorer, text=text)
    ids = [predictor.codec.start_id, *predictor.codec.encode(text)]
    assert words["forgotten"] == predictor.context_start(len(ids)) > 0
    seen = torch.tensor([ids[words["forgotten"] :]])
    with torch.inference_mode():
        whole, _ = predictor.model(seen, predictor.model.start(1, predictor.device))
    assert arrays["logits"].tolist() == near(whole[0, -1].tolist(), 1024)
    words, arrays = logits(explorer, model="rnn", text=text)  # no context: all is seen, in strides
    predictor = explorer.subjects["rnn"].predictor
    ids = [predictor.codec.start_id, *predictor.codec.encode(text)]
    assert words["forgotten"] == 0 and len(arrays["logs"]) == len(ids) - 1 > 3 * 128
    with torch.inference_mode():
        whole, _ = predictor.model(torch.tensor([ids]), predictor.model.start(1, predictor.device))
    assert arrays["logits"].tolist() == near(whole[0, -1].tolist(), 1024)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"then": [10**6]}, "no such token"),
        ({"then": [-1]}, "greater than or equal to 0"),
        ({"then": [5] * 257}, "at most 256"),
        ({"then": [5] * 200}, "too long"),
        ({"other": "neun " * 200}, "too long"),
        ({"text": "seven " * 300}, "too long"),
        ({"then": "5"}, "valid array"),
        ({"more": 1}, "Extra inputs"),
    ],
)
def test_invalid_requests_are_rejected(run: Callable[[str], Path], asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        logits(Explorer([run("translation")]), **{"text": SOURCE, **asked})
    with pytest.raises(UserError):
        Explorer([run("translation")]).answer("next", "luck", {"seed": -1})


@pytest.mark.parametrize("name", ["translation", "gpt", "rnn"])
@pytest.mark.parametrize("text", ["", " ", "\u0000", "\ud800", "🙂"])
def test_unusual_texts_have_a_next_token(run: Callable[[str], Path], name: str, text: str) -> None:
    packet = view.logits(
        Subject(name, run(name)), view.TokensRequest.model_construct(model=name, text=text, other=None, then=())
    )
    assert math.isfinite(unpack(packet)[1]["logits"].max())


def test_saved_file_answers_likely_requests(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    state = {"model": "gpt", "text": TEXT, "then": "9,12", "seed": "4", "top_k": "10"}
    asked = view.calls(explorer.subject(state["model"]), state)
    known = [json.dumps([one.call, one.settings], sort_keys=True) for one in asked]
    given = {"model": "gpt", "text": TEXT}
    _, arrays = logits(explorer, then=[9, 12])
    likeliest = int(arrays["logits"].argmax())
    for then in ([9, 12], [9], [9, 12, likeliest]):
        assert json.dumps(["logits", {**given, "then": then}], sort_keys=True) in known
    assert json.dumps(["logits", given], sort_keys=True) in known
    assert json.dumps(["luck", {"seed": 4}]) in known and json.dumps(["vocabulary", {"model": "gpt"}]) in known
    assert sum(len(explorer.answer(*one)) for one in asked) < 10_000_000


SETTINGS: list[tuple[dict[str, Any], list[Rule]]] = [
    ({}, []),
    ({"temperature": 0.7}, [Temperature(0.7)]),
    ({"temperature": 1.35, "top_k": 7}, [Temperature(1.35), TopK(7)]),
    ({"top_p": 0.35}, [TopP(0.35)]),
    ({"temperature": 0.6, "top_k": 15, "top_p": 0.8}, [Temperature(0.6), TopK(15), TopP(0.8)]),
]


@pytest.mark.claim("E4")
@pytest.mark.parametrize("name", ["gpt", "rnn"])
def test_temperature_top_k_and_top_p_in_the_page_are_those_of_the_library(
    run: Callable[[str], Path], browse: Any, name: str
) -> None:
    opened = browse(run(name))
    _, arrays = logits(opened.explorer)
    never: list[Rule] = [SuppressTokens(tuple(arrays["never"].tolist()))]
    pieces = opened.explorer.subjects[name].predictor.tokenizer.pieces
    for asked, rules in SETTINGS:
        page = opened.go("next", text=TEXT, **asked)
        p = ruled(arrays["logits"], never + rules)
        bars = page.evaluate(
            "[...document.querySelectorAll('button[data-p]')].map((bar) =>"
            " [Number(bar.dataset.testid.slice(4)), Number(bar.dataset.p), bar.classList.contains('cut'),"
            " bar.querySelector('.share').textContent])"
        )
        assert len(bars) == 20
        for token, share, cut, shown in bars:
            assert share == near(float(p[token]), 8388608, torch.float64, of=1.0)
            assert cut == (float(p[token]) == 0)
            assert cut or shown.lstrip("<").startswith(f"{100 * float(p[token]):.1f}"[:3])
        rest = float(page.get_by_test_id("rest").get_attribute("data-p"))
        assert rest == near(1 - sum(share for _, share, _, _ in bars), 8388608, torch.float64, of=1.0)
        assert page.get_by_test_id("left").inner_text() == f"{int((p > 0).sum()):,}"
        entropy = float(page.get_by_test_id("entropy").get_attribute("data-value"))
        assert entropy == near(float(torch.special.entr(p).sum()), 8388608, torch.float64, of=1.0)
    # A vector as long as the vocabulary; its largest number is looked up: that index reads as a word.
    top = int(arrays["logits"].argmax())
    said = page.get_by_test_id("argmax").inner_text()
    assert f"{len(arrays['logits']):,} logits" in said and f"id {top}:" in said
    assert pieces([top])[0].strip() in said


@pytest.mark.parametrize("name", ["gpt", "translation"])
def test_sampling_in_the_page_gives_the_text_of_the_library(run: Callable[[str], Path], browse: Any, name: str) -> None:
    opened = browse(run(name))
    predictor = opened.explorer.subjects[name].predictor
    how: dict[str, Any] = {"temperature": 1.2, "top_k": 50, "top_p": 0.95}
    if name == "gpt":
        wanted = predictor.generate([TEXT], seed=5, length=4, **how)[0].ids
    else:
        wanted = predictor.sample([TEXT], seed=5, **how)[0][0].ids[:4]
    page = opened.go("next", text=TEXT, seed=5, **how)
    page.get_by_test_id("draw").focus()
    for count in range(1, len(wanted) + 1):
        page.keyboard.press("Enter")  # again and again: the button stays where the keys are
        until(lambda n=count: page.locator("button.token").count() == n)
        opened.ready()
    then = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('then')")
    assert [int(token) for token in then.split(",")] == wanted
    words, _ = logits(opened.explorer, then=wanted)
    shown = float(page.get_by_test_id("perplexity").get_attribute("data-value"))
    assert shown == pytest.approx(words["perplexity"], rel=1e-12)
    if wanted[-1] == words["end"]:
        assert page.get_by_test_id("draw").is_disabled()
    page.locator("main").get_by_test_id("undo").click()
    opened.ready()
    bar = page.locator("button.bar").nth(1)  # and by hand, one that is cut if need be
    token = int(bar.get_attribute("data-testid")[4:])
    bar.click()
    until(lambda: page.locator("button.token").count() == len(wanted))
    opened.ready()
    assert page.url.endswith(f"%2C{token}") or f"%2C{token}&" in page.url
    page.get_by_test_id("text").fill("Another text")  # starts over
    until(lambda: page.locator("button.token").count() == 0)
    opened.ready()
    assert "then=" not in page.url
