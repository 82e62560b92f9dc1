"""The grid of all heads: thumbnails, statistics, sorting, and one head enlarged."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import InputRequest, ablation, alignment, grid, heads
from patience import until
from tolerance import near

TEXT = "The animal didn't cross the street because it was too tired"


def random_weights(heads: int, queries: int, keys: int) -> torch.Tensor:
    return torch.randn(heads, queries, keys, generator=torch.Generator().manual_seed(0)).mul(3).softmax(-1)


def by_hand(weights: torch.Tensor) -> list[list[float]]:
    """The four numbers of each head, one weight after another."""
    found = []
    for head in weights.double().tolist():
        sums = [0.0] * 4
        for t, row in enumerate(head):
            for s, w in enumerate(row):
                parts = (-w * math.log(w) if w else 0.0, w * abs(t - s), w * (s == 0), w * (abs(t - s) == 1))
                sums = [total + part for total, part in zip(sums, parts, strict=True)]
        found.append([total / len(head) for total in sums])
    return found


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 5, 9), (1, 1, 1), (2, 9, 1)])
def test_head_statistics_match_a_loop_over_the_weights(shape: tuple[int, int, int]) -> None:
    weights = random_weights(*shape)
    assert grid.statistics(weights).numpy() == near(np.array(by_hand(weights)), 16)


def test_attention_to_one_token_has_zero_entropy_and_a_known_distance() -> None:
    weights = torch.eye(6)[None].roll(1, 2)  # each attends to the next one, the last to the first
    assert grid.statistics(weights)[0].tolist() == pytest.approx([0, 10 / 6, 1 / 6, 5 / 6])


def test_small_thumbnails_are_exact_and_large_ones_keep_large_weights() -> None:
    small = random_weights(2, 11, 30)
    assert torch.equal(grid.thumbnails(small), (small.sqrt() * 255).round().to(torch.uint8))
    large = torch.full((1, 500, 333), 1e-4)
    large[0, 499, 77], large[0, 250, 332] = 0.9, 0.5
    found = grid.thumbnails(large)
    assert found.shape == (1, 48, 48) and found.dtype == torch.uint8
    brightest = found[0].flatten().sort(descending=True).values
    assert brightest[0] == round(math.sqrt(0.9) * 255) and round(math.sqrt(0.5) * 255) in brightest.tolist()
    assert found[0, 47, 77 * 48 // 333] == brightest[0]


def test_which_models_fit_the_grid_and_the_alignment(run: Callable[[str], Path], minilm: Path, tmp_path: Path) -> None:
    for folder, attentions, aligned in (
        (run("translation"), True, True), (run("recurrent"), True, True), (run("gpt"), True, False),
        (minilm, True, False), (run("rnn"), False, False), (run("images"), False, False), (tmp_path, False, False),
    ):  # fmt: skip
        subject = Subject("it", folder)
        assert heads.fits(subject) is ablation.fits(subject) is attentions, folder
        assert grid.fits(subject) is (attentions and folder.name != "recurrent"), folder  # which has one head
        assert alignment.fits(subject) is aligned, folder


def test_one_packet_holds_every_kind_of_attention(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("translation")])
    (subject,) = explorer.subjects.values()
    asked = InputRequest(model=subject.name, text="one hundred two", other="hundert")
    words, arrays = unpack(explorer.answer("grid", "wall", asked.model_dump()))
    trace = subject.trace(asked)
    assert [look["kind"] for look in words["looks"]] == ["self", "causal", "cross"]
    for place, look in enumerate(trace.attentions):
        for layer in range(len(look.taps)):
            weights = trace.weights(look, layer)
            assert arrays[f"numbers{place}"][layer] == near(np.array(by_hand(weights)))
            assert arrays[f"pictures{place}"][layer].tolist() == grid.thumbnails(weights).tolist()


def test_unusual_texts_are_shown_or_rejected(run: Callable[[str], Path]) -> None:
    for name in ("translation", "gpt"):
        explorer = Explorer([run(name)])
        (model,) = explorer.subjects
        for text in ("", " ", "\u200b\n", "🙂" * 3, "<b>[MASK]</b>"):
            assert unpack(explorer.answer("grid", "wall", {"model": model, "text": text}))[0]["looks"]
        with pytest.raises(UserError, match="too long"):
            explorer.answer("grid", "wall", {"model": model, "text": "one " * 2000})


def test_saved_file_has_the_enlarged_layer_within_its_limit(
    run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer = Explorer([run("translation")])
    (model,) = explorer.subjects
    state = {"model": model, "text": "two", "look": "decoder.*.cross.weights", "layer": "1", "head": "1"}
    every = grid.calls(explorer.subject(state["model"]), state)
    assert [(one.view, one.call) for one in every] == [
        ("grid", "wall"), ("heads", "patterns"), *[("heads", "layer")] * 6
    ]  # fmt: skip
    monkeypatch.setattr(grid, "FILE", 1)
    *_, enlarged = grid.calls(explorer.subject(state["model"]), state)
    assert (enlarged.settings["look"], enlarged.settings["layer"]) == (state["look"], 1)


def test_page_sorts_and_enlarges_heads(browse: Callable[..., Any], minilm: Path) -> None:
    browsing = browse(minilm)
    page = browsing.go("grid", text=TEXT)
    (subject,) = browsing.explorer.subjects.values()
    trace = subject.trace(InputRequest(model=subject.name, text=TEXT))
    (look,) = trace.attentions
    statistics = {
        (layer, head): each
        for layer in range(len(look.taps))
        for head, each in enumerate(by_hand(trace.weights(look, layer)))
    }
    assert page.locator(".thumb").count() == len(statistics) == 72
    page.get_by_test_id("thumb-0-2-3").hover()
    shown = [page.get_by_test_id(name).inner_text() for name in ("entropy", "distance", "first", "near")]
    entropy, distance, first, beside = statistics[2, 3]
    assert shown == [f"{entropy:.4g}", f"{distance:.4g}", f"{100 * first:.1f} %", f"{100 * beside:.1f} %"]
    dots = page.get_by_test_id("thumb-0-2-3").locator("canvas").evaluate(
        "(one) => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
    )  # fmt: skip
    blue = -np.array(dots).reshape(15, 15, 4)[:, :, 0]  # the less red, the larger
    assert blue.argmax(1).tolist() == trace.weights(look, 2)[3].argmax(1).tolist()

    for place, name in enumerate(("entropy", "distance")):
        page.get_by_test_id("sort").select_option(name)
        names = page.locator(".thumb").evaluate_all("(all) => all.map((one) => one.dataset.testid)")
        order = [statistics[tuple(map(int, one.split("-")[2:]))][place] for one in names]  # type: ignore[index]
        assert order == near(sorted(order), 16) and len(order) == 72
    page.get_by_test_id("turn").click()
    until(lambda: page.locator(".thumb").first.get_attribute("data-testid") == names[-1])

    page.locator(".thumb").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    browsing.ready()
    layer, head = map(int, names[-2].split("-")[2:])
    assert f"layer={layer}" in page.url and f"head={head}" in page.url and "sort=distance" in page.url
    page.get_by_test_id("large").locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    weight = float(trace.weights(look, layer)[head, 1, 0].half())
    said, _, number = page.get_by_test_id("large-readout").inner_text().partition(":")
    assert (said, float(number.replace("−", "-"))) == ("the → [CLS]", pytest.approx(weight, rel=1e-3))
    page.get_by_test_id("next").click()
    browsing.ready()
    layer, head = map(int, names[-3].split("-")[2:])
    assert page.get_by_test_id("said").inner_text().startswith(f"layer {layer + 1}, head {head + 1}")
    page.keyboard.press("Escape")
    page.locator(".thumb").nth(71).wait_for()
    until(lambda: page.evaluate("document.activeElement.dataset.testid") == f"thumb-0-{layer}-{head}")

    # What was seen before is not taken for a text that cannot be read.
    page.get_by_test_id("text").fill("word " * 600)
    page.get_by_test_id("trouble").wait_for()
    figure = page.get_by_test_id("grid")
    assert figure.get_attribute("data-ready") == "false"
    assert float(figure.evaluate("(one) => getComputedStyle(one).opacity")) < 1
    page.get_by_test_id("text").fill("word")
    browsing.ready()
    assert page.get_by_test_id("trouble").count() == 0


def test_model_with_one_head_has_no_grid(run: Callable[[str], Path]) -> None:
    subject = Subject("recurrent", run("recurrent"))
    assert heads.fits(subject) and not grid.fits(subject)
    assert grid.fits(Subject("gpt", run("gpt")))
