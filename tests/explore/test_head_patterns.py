"""The patterns of heads and the first picture: by hand over the weights, and in the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.explore import head_patterns
from heedful.explore.head_patterns import PATTERNS, finding, profiles
from heedful.explore.inspect import Attention, Pass, Reading, TextInput, Token, Trace
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from tolerance import near

CUT = ["[CLS]", "the", "cat", "saw", ",", "a", "dog", "run", "[SEP]"]


def trace_of(weights: Tensor, pieces: list[str] = CUT) -> Trace:
    """A trace of one kind of attention with these weights, (L, H, T, T)."""
    tokens = [Token(piece, number, None if piece.startswith("[") else 0) for number, piece in enumerate(pieces)]
    taps = tuple(f"blocks.{layer}.weights" for layer in range(len(weights)))
    attention = Attention("blocks.*.weights", "self", "text", "text", taps, weights.shape[1])
    values = dict(zip(taps, weights, strict=True))
    return Trace(Reading({"text": tokens}, (Pass("text", "text", torch.empty),)), (attention,), values, torch.empty(0))


def head_for(pattern: str, chance: torch.Generator, pieces: list[str] = CUT) -> Tensor:
    """Weights (T, T) of a head that puts 0.6 on the keys of a pattern and the rest anywhere."""
    T = len(pieces)
    rest = torch.rand(T, T, generator=chance).softmax(-1)
    if pattern == "positional":  # the same for every text: three tokens back and, less, two ahead
        return torch.stack([torch.tensor([{-3: 0.8, 2: 0.2}.get(s - t, 0.02) for s in range(T)]) for t in range(T)])
    on = torch.zeros(T, T)
    for t in range(T):
        keys = {
            "self": [t], "previous token": [t - 1], "next token": [t + 1], "first token": [0], "delimiter": [4, T - 1],
            "content": [int(torch.randint(T, (), generator=chance))],
        }[pattern]  # fmt: skip
        for key in keys:
            on[t, key % T] += 1 / len(keys)
    return 0.7 * on + 0.3 * rest


def test_each_pattern_gets_its_name() -> None:
    chance = torch.Generator().manual_seed(0)
    heads = [torch.stack([head_for(pattern, chance) for pattern in PATTERNS]) for _ in range(4)]
    known = profiles([(f"text {number}", trace_of(each[None])) for number, each in enumerate(heads)])
    assert known["blocks.*.weights"].patterns == (PATTERNS,)


def test_expected_weights_match_a_loop_over_other_texts() -> None:
    """The mean by distance over the counted queries of the other texts, of different lengths."""
    chance = torch.Generator().manual_seed(1)
    texts = {"a": CUT, "b": CUT[:6], "c": CUT[2:]}
    weights = {
        text: torch.randn(2, 3, len(cut), len(cut), generator=chance).mul(2).softmax(-1) for text, cut in texts.items()
    }
    known = profiles([(text, trace_of(weights[text], cut)) for text, cut in texts.items()])["blocks.*.weights"]
    found = known.expected(1, 5, 7, "b")
    for t in range(5):
        for s in range(7):
            seen = [
                weights[text][1, 2, query, key].item()
                for text in ("a", "c")
                for query, piece in enumerate(texts[text])
                for key in range(len(texts[text]))
                if query > 1 and not piece.startswith("[") and key - query == s - t
            ]
            assert found[2, t, s].item() == pytest.approx(float(np.mean(seen)) if seen else 0.0, rel=1e-5)


def by_hand(explorer: Explorer, name: str, given: TextInput) -> tuple[float, str, int, int, int, int]:
    """The largest gain of a text, over every head and pair of words, one after another."""
    subject = explorer.subject(name)
    trace = subject.trace(given)
    best: tuple[float, str, int, int, int, int] = (0.0, "", 0, 0, 0, 0)
    for one in trace.attentions:
        known = subject.habits.profiles[one.name]
        queries, keys = trace.reading.sides[one.queries], trace.reading.sides[one.keys]
        for layer in range(len(one.taps)):
            weights = trace.weights(one, layer).tolist()
            usual = known.expected(layer, len(queries), len(keys), given.text).tolist()
            for head in range(one.heads):
                for t, query in enumerate(queries):
                    for s, key in enumerate(keys):
                        words = all(
                            part.part is not None and any(map(str.isalnum, part.piece)) for part in (query, key)
                        )
                        far = one.queries != one.keys or abs(s - t) >= 3
                        gain = weights[head][t][s] - usual[head][t][s]
                        if words and far and gain > best[0]:
                            best = (gain, one.name, layer, head, t, s)
    return best


@pytest.mark.parametrize("name", ["gpt", "translation", "recurrent"])
def test_first_picture_is_the_most_telling_weight(run: Callable[[str], Path], name: str) -> None:
    explorer = Explorer([run(name)])
    subject = explorer.subject(name)
    for example in subject.examples.examples[:2]:
        given = TextInput(text=example.text, other=example.other)
        gain, look, layer, head, query, key = by_hand(explorer, name, given)
        found = subject.habits.finding(subject.trace(given), given.text)
        assert found is not None
        assert (found.attention.name, found.layer, found.head, found.query, found.key) == (
            look,
            layer,
            head,
            query,
            key,
        )
        assert found.gain == pytest.approx(gain, rel=1e-5)
        asked = {"model": name, **given.model_dump()}
        words, _ = unpack(explorer.answer("heads", "opening", asked))
        assert words["state"] == {"look": look, "layer": layer, "heads": head, "token": f"ask-{query}"}
        assert f"{found.weight:.2f}" in words["why"] and f"{found.mean:.2f}" in words["why"]
        steps, _ = unpack(explorer.answer("steps", "opening", asked))
        assert steps["state"] == {"look": look, "layer": layer, "head": head, "token": query}


def test_examples_are_in_the_order_of_their_gains(run: Callable[[str], Path]) -> None:
    """Texts of a readable length first; of a translation, the attention to its reference counts."""
    subject = Explorer([run("translation")]).subject("translation")
    examples = subject.examples.examples
    assert len(examples) > 3
    explorer = Explorer([run("translation")])
    gains = [by_hand(explorer, "translation", TextInput(text=one.text, other=one.right))[0] for one in examples]
    readable = [12 <= len(one.text) <= 200 for one in examples]
    order = sorted(range(len(examples)), key=lambda place: (not readable[place], -gains[place]))
    assert order == list(range(len(examples)))


def test_texts_without_words_have_no_first_picture() -> None:
    even = torch.full((1, 1, 3, 3), 1 / 3)
    assert finding({}, trace_of(even, ["[CLS]", ",", "[SEP]"]), "") is None
    assert finding({}, trace_of(torch.full((1, 1, 3, 3), torch.nan), ["a", "b", "c"]), "") is None
    long = torch.full((1, 1, 70, 70), 1 / 70)
    assert profiles([("long", trace_of(long, ["a"] * 70))]) == {}


def test_page_opens_on_the_most_telling_head(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    page = browsing.go("heads")
    (subject,) = browsing.explorer.subjects.values()
    for place, example in ((0, subject.examples.examples[0]), (1, subject.examples.examples[1])):
        if place:
            page.get_by_test_id("chip-1").click()
            page.wait_for_url(lambda url, text=example.text: f"text={text.split()[0]}" in url and "layer=" in url)
            browsing.ready()
        assert page.get_by_test_id("text").input_value() == example.text
        given = TextInput(text=example.text)
        found = subject.habits.finding(subject.trace(given), example.text)
        assert found is not None
        at = browsing.address
        assert (at["layer"], at["heads"], at["token"]) == (str(found.layer), str(found.head), f"ask-{found.query}")
        why = page.get_by_test_id("why").inner_text()
        assert why.startswith(f"Layer {found.layer + 1}, head {found.head + 1}, because")
        share = page.get_by_test_id(f"see-{found.key}").get_attribute("data-share")
        assert float(share) == pytest.approx(found.weight, abs=1e-3)
    page.get_by_test_id("layer").press("Home")
    page.get_by_test_id("why").wait_for(state="detached")


def test_page_filters_heads_by_pattern_and_threshold(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    (subject,) = browsing.explorer.subjects.values()
    (patterns,) = (one.patterns for one in subject.habits.profiles.values())
    page = browsing.go("grid")
    page.get_by_test_id("pattern-next-token").click()
    expected = {
        f"thumb-0-{layer}-{head}"
        for layer, heads in enumerate(patterns)
        for head, one in enumerate(heads)
        if one == "next token"
    }
    assert 0 < len(expected) < 10
    kept = page.locator(".thumb:not(.other)").evaluate_all("all => all.map((one) => one.dataset.testid)")
    assert set(kept) == expected
    page = browsing.go("heads", layer=0, token="all", least=10)
    page.get_by_test_id("pattern-positional").click()
    browsing.ready()
    assert browsing.address["heads"] == ",".join(
        str(head) for head, one in enumerate(patterns[0]) if one == "positional"
    )
    page.get_by_test_id("least").press("ArrowRight")
    assert browsing.address["least"] == "15"
    assert "≥ 0.15" in page.locator("[data-legend]").inner_text()


def test_weights_of_the_alignment_start_at_a_threshold(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("translation"))
    text = browsing.explorer.subject("translation").examples.examples[0].text
    given = {"model": "translation", "text": text}
    _, arrays = unpack(browsing.explorer.answer("alignment", "weights", given))
    for least in (0, 30):
        page = browsing.go("alignment", text=text, least=least or None)
        drawn = page.locator("[data-testid=alignment] svg rect[fill]:not(.paper)").count()
        assert drawn == int((arrays["mean"] >= max(least / 100, 1 / 510)).sum())


def test_masks_of_keys_are_those_of_the_rule() -> None:
    trace = trace_of(torch.ones(1, 1, 9, 9))
    tokens = trace.reading.sides["text"]
    own = head_patterns.key_masks(trace.attentions[0], tokens, tokens)
    near(own[1], torch.tensor([[float(piece in (",", "[SEP]")) for piece in CUT]]).expand(9, 9))
    near(own[3], torch.diag(torch.ones(8), -1))
    near(own[4], torch.diag(torch.ones(8), 1))
