"""The alignment of a translation with its source, and the player of its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import alignment
from patience import until
from tolerance import near

TEXT = "three hundred forty-two"


def opened(folder: Path) -> tuple[Explorer, Subject]:
    explorer = Explorer([folder])
    return explorer, next(iter(explorer.subjects.values()))


@pytest.mark.parametrize("name", ["translation", "recurrent"])
def test_alignment_is_that_of_the_translator(run: Callable[[str], Path], name: str) -> None:
    explorer, subject = opened(run(name))
    asked = {"model": subject.name, "text": TEXT}
    translation = subject.predictor.search([TEXT])[0][0]
    expected = subject.predictor.align(TEXT, translation)
    words, steps = unpack(explorer.answer("alignment", "steps", asked))
    found, arrays = unpack(explorer.answer("alignment", "weights", asked))
    assert [one["piece"] for one in words["source"]] == expected.source
    assert [one["piece"] for one in words["written"]] == expected.target
    assert words["sharpest"] + 1 == found["layer"] + 1 == expected.layer
    assert arrays["mean"] == near(expected.weights.numpy(), 32)
    assert arrays["heads"].mean(0) == pytest.approx(expected.weights.numpy(), abs=1e-3)
    again, same = unpack(explorer.answer("alignment", "weights", {**asked, "layer": words["sharpest"]}))
    assert again == found and (same["mean"] == arrays["mean"]).all()
    # The probabilities of the generated tokens multiply to that of the translation.
    assert float(torch.tensor(steps["chance"]).log().sum()) == pytest.approx(translation.log_probability, abs=1e-3)
    likeliest = [pieces[0] for pieces in words["likely"]]
    assert [one["piece"] for one, best in zip(words["written"], steps["chances"][:, 0], strict=True) if best > 0.5] == [
        piece for piece, best in zip(likeliest, steps["chances"][:, 0], strict=True) if best > 0.5
    ]


def test_every_layer_has_an_alignment_also_for_a_given_translation(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("translation"))
    asked = {"model": subject.name, "text": TEXT, "other": "vierzig"}
    words, _ = unpack(explorer.answer("alignment", "steps", asked))
    assert subject.predictor.tokenizer.decode([one["id"] for one in words["written"]]) == "vierzig"
    pictures = [
        unpack(explorer.answer("alignment", "weights", {**asked, "layer": layer}))[1]["mean"]
        for layer in range(words["layers"])
    ]
    assert len(pictures) == 2 and abs(pictures[0] - pictures[1]).max() > 1e-3
    assert all(picture.sum(1) == near(1) for picture in pictures)
    with pytest.raises(UserError, match="no such layer"):
        explorer.answer("alignment", "weights", {**asked, "layer": 2})
    with pytest.raises(UserError, match="too long"):
        explorer.answer("alignment", "steps", {**asked, "text": "one " * 500})
    assert unpack(explorer.answer("alignment", "steps", {**asked, "text": ""}))[0]["source"]


@pytest.mark.parametrize("name", ["translation", "recurrent"])
def test_page_shows_and_plays_the_alignment(
    browse: Callable[..., Any], run: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    browsing = browse(run(name), accept_downloads=True)
    page = browsing.go("alignment", text=TEXT)
    predictor = next(iter(browsing.explorer.subjects.values())).predictor
    found = predictor.align(TEXT, predictor.search([TEXT])[0][0])
    (written, read), most = found.weights.shape, found.weights.argmax(1).tolist()
    assert page.locator(".letters text").all_text_contents() == [*found.source, *found.target]
    marks = page.locator("rect.mark").evaluate_all("(all) => all.map((one) => Number(one.dataset.key))")
    assert marks == most

    # The cell under the pointer is described in words.
    row, key = written - 2, most[written - 2]
    box = page.get_by_test_id("cells").bounding_box()
    page.get_by_test_id("cells").hover(
        position={"x": (key + 0.5) * box["width"] / read, "y": (row + 0.5) * box["height"] / written}
    )
    readout = page.get_by_test_id("said").inner_text()
    assert readout == f"{found.target[row]} → {found.source[key]}: {float(f'{found.weights[row, key]:.2g}'):g}"

    # It is reachable by keyboard, and no label is truncated, not even a bold one.
    page.mouse.move(0, 0)
    page.get_by_test_id("cells").focus()
    longest = max(range(written), key=lambda place: len(found.target[place]))
    for _ in range(longest + 1):
        page.keyboard.press("ArrowDown")
    until(lambda: page.get_by_test_id("said").inner_text().startswith(f"{found.target[longest]} → {found.source[0]}:"))
    lefts = page.locator(".letters text").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().left)")
    assert min(lefts) >= page.locator("[data-figure] svg").bounding_box()["x"]
    page.get_by_test_id("cells").blur()

    # The player: step by step with keys and buttons, each step in the address.
    page.mouse.move(0, 0)
    page.keyboard.press("ArrowRight")
    page.get_by_test_id("step-on").click()
    assert "step=1" in page.url
    browsing.ready()
    shares = page.locator(".chip[data-share]").evaluate_all("(all) => all.map((one) => Number(one.dataset.share))")
    assert shares == near(found.weights[1].tolist(), 32)
    assert page.locator("[data-testid^=written-]").all_inner_texts() == found.target[:2]
    assert page.locator("rect.mark").count() == 2
    page.get_by_test_id("play").click()
    page.get_by_test_id("written-2").wait_for(timeout=3000)
    page.keyboard.press("p")
    until(lambda: page.get_by_test_id("play").inner_text() == "play")
    page.keyboard.press("Escape")
    until(lambda: "step" not in page.url and page.locator("rect.mark").count() == written)

    # In a saved picture, words are text, and all cells are there.
    with page.expect_download() as download:
        page.get_by_test_id("export-svg").click()
    download.value.save_as(tmp_path / "picture.svg")
    picture = (tmp_path / "picture.svg").read_text()
    assert all(f">{piece.replace('<', '&lt;').replace('>', '&gt;')}</text>" in picture for piece in found.target)
    if found.layer == 1 and name == "recurrent":
        assert page.get_by_test_id("layer").count() == page.get_by_test_id("head").count() == 0
        return
    other = 2 - found.layer
    page.get_by_test_id("layer").select_option(label=str(other + 1))
    page.get_by_test_id("head").select_option(label="3")
    page.locator(f'[data-figure][data-layer="{other}"][data-ready="true"]').wait_for()
    subject = next(iter(browsing.explorer.subjects.values()))
    trace = subject.trace(alignment.InputRequest(model=subject.name, text=TEXT))
    heads = trace.weights(alignment.cross_attention(trace), other)[2].half()
    marks = page.locator("rect.mark").evaluate_all("(all) => all.map((one) => Number(one.dataset.key))")
    assert marks == heads.argmax(1).tolist()
