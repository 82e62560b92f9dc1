"""Positions and masks: arrays are those of the library, and figures show these arrays."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from heedful.blocks.positions import sinusoid_halves, sinusoids
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import positions as view
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt
from patience import until
from tolerance import near

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
ORDER = [3, 2, 4, 1, 6, 5]


def call_view(explorer: Explorer, call: str, **settings: Any) -> dict[str, Any]:
    return unpack(explorer.answer("positions", call, settings))[1]


def mask(explorer: Explorer, **settings: Any) -> list[list[list[int]]]:
    found: list[list[list[int]]] = call_view(explorer, "mask", **settings)["mask"].tolist()
    return found


def opened(**settings: Any) -> tuple[Explorer, Gpt]:
    """An explorer on a small GPT with positions of some kind."""
    torch.manual_seed(0)
    model = Gpt(GptConfig(vocab=9, width=8, heads=2, layers=2, context=10, **settings))
    explorer, subject = Explorer([Path()]), Subject("made", Path())
    subject.__dict__["predictor"] = SimpleNamespace(model=model)
    explorer.subjects = {"made": subject}
    return explorer, model


@pytest.mark.parametrize(("layout", "made"), [("interleaved", sinusoids), ("halves", sinusoid_halves)])
def test_sinusoids_are_those_of_the_library_bit_for_bit(layout: str, made: Callable[[int, int], Any]) -> None:
    explorer, _ = opened()
    table = call_view(explorer, "table", model="made", of=layout, places=20, width=512)["table"]
    assert table.shape == (20, 512) and (table == made(20, 512).numpy()).all()
    products = call_view(explorer, "similarity", model="made", of=layout, places=30, width=64)["products"]
    assert products == near(made(30, 64).double().numpy() @ made(30, 64).double().numpy().T, 1024)


def test_position_encoding_of_a_model_is_recognized() -> None:
    for kind in ("learned", "sinusoid", "sinusoid_halves"):
        explorer, model = opened(positions=kind)
        own = unpack(explorer.answer("positions", "own", {"model": "made"}))[0]["own"]
        named = "learned" if kind == "learned" else "fixed"
        layout = {"sinusoid": "interleaved", "sinusoid_halves": "halves"}.get(kind)
        assert own == [{"name": "positions", "kind": named, "layout": layout, "places": 10, "width": 8}]
        table = call_view(explorer, "table", model="made", of="positions", places=6, width=2)["table"]
        assert (table == model.positions.table[:6].detach().numpy()).all()
    explorer, model = opened(positions="rotary")
    (own,) = unpack(explorer.answer("positions", "own", {"model": "made"}))[0]["own"]
    assert (own["kind"], own["places"], own["width"]) == ("rotary", 10, 4)
    table = call_view(explorer, "table", model="made", of=own["name"], places=10, width=2)["table"]
    assert table[3] == near([math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)], 16)
    explorer, _ = opened(positions="alibi")
    (own,) = unpack(explorer.answer("positions", "own", {"model": "made"}))[0]["own"]
    assert (own["name"], own["width"]) == ("alibi", 2)
    bias = call_view(explorer, "bias", model="made", of="alibi", places=5, width=2)["bias"]
    right = [[[-(2.0 ** -(4 * (h + 1))) * abs(q - k) for k in range(5)] for q in range(5)] for h in range(2)]
    assert bias == pytest.approx(np.array(right))
    explorer, _ = opened(positions="none")
    with pytest.raises(UserError, match="does not fit this model"):
        explorer.answer("positions", "own", {"model": "made"})


@pytest.mark.parametrize("name", ["permutation_lm-xlnet", "language_model-transformer_xl"])
def test_relative_positions_are_sinusoids_of_distances(name: str, tmp_path: Path) -> None:
    subject = Subject(name, shutil.copytree(GOLDEN / name, tmp_path / name))
    config = subject.model.config
    (own,) = view.described(subject.model)
    size = {"places": config.context, "width": config.width}
    assert view.fits(subject) and own == {"name": "distances", "kind": "relative", "layout": "halves", **size}
    ((_, table),) = view.tables(subject.model).values()
    rate = 10000.0 ** (-2 / config.width)
    assert table[5, [0, 1]].tolist() == near([math.sin(5), math.sin(5 * rate)], 16)


@pytest.mark.claim("G6")
def test_masks_show_which_tokens_attend_to_which() -> None:
    explorer, _ = opened()
    n = range(6)
    ranks = [ORDER.index(place + 1) for place in n]
    documents = [1, 1, 2, 2, 2, 3]
    rules: list[tuple[dict[str, Any], Callable[[int, int], bool]]] = [
        ({"kind": "all"}, lambda q, k: True),
        ({"kind": "causal"}, lambda q, k: k <= q),
        ({"kind": "window", "near": 1}, lambda q, k: abs(q - k) <= 1),
        ({"kind": "local", "near": 2}, lambda q, k: 0 <= q - k <= 2),
        ({"kind": "prefix", "lengths": [3]}, lambda q, k: k <= q or k < 3),
        ({"kind": "documents", "documents": documents}, lambda q, k: k <= q and documents[q] == documents[k]),
        ({"kind": "query", "order": ORDER}, lambda q, k: ranks[k] < ranks[q]),
        ({"kind": "content", "order": ORDER}, lambda q, k: ranks[k] <= ranks[q]),
    ]
    for settings, rule in rules:
        assert mask(explorer, size=6, **settings) == [[[int(rule(q, k)) for k in n] for q in n]], settings
    padded = mask(explorer, kind="padding", size=6, lengths=[6, 4, 0])
    assert padded == [[[int(k < length) for k in n] for _ in n] for length in (6, 4, 0)]


def test_invalid_requests_are_rejected() -> None:
    explorer, _ = opened()
    table = {"model": "made", "of": "interleaved", "places": 20, "width": 512}
    for call, settings in (
        ("table", {**table, "width": 15}), ("table", {**table, "places": 0}), ("table", {**table, "places": 10**9}),
        ("table", {**table, "of": "nothing"}), ("bias", {**table, "of": "alibi"}), ("table", {**table, "model": "?"}),
        ("mask", {"kind": "query", "size": 4, "order": [1, 2, 2, 4]}), ("mask", {"kind": "query", "size": 4}),
        ("mask", {"kind": "documents", "size": 4, "documents": [1]}), ("mask", {"kind": "causal", "size": 65}),
        ("mask", {"kind": "causal", "size": 0}), ("mask", {"kind": "unheard", "size": 4}),
        ("mask", {"kind": "padding", "size": 4, "lengths": [10**12]}),
    ):  # fmt: skip
        with pytest.raises(UserError):
            explorer.answer("positions", call, settings)
    for state in ({"words": ""}, {"words": "a b", "order": "x,1e9,٣"}, {"places": "many", "near": None}):
        for request in view.calls(explorer.subject("made"), {"model": "made", **state}):
            explorer.answer(*request)


def test_view_fits_models_with_positions_only(tmp_path: Path, run: Callable[[str], Path]) -> None:
    """Not a broken run, an autoencoder, recurrent nets, or a Transformer without positions."""
    assert not view.fits(Subject("empty", tmp_path))
    assert not any(view.fits(Subject(name, run(name))) for name in ("images", "recurrent", "rnn"))
    assert all(view.fits(Subject(name, run(name))) for name in ("gpt", "translation"))
    made = {kind: opened(positions=kind)[0].subjects["made"] for kind in ("sinusoid", "alibi", "rotary", "none")}
    assert [kind for kind, subject in made.items() if view.fits(subject)] == ["sinusoid", "alibi", "rotary"]


def test_page_opens_on_the_positions_of_its_model(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """A learned table for a GPT, and for a translator its sinusoids, as wide as the model is, with their formula."""
    browsing = browse(run("gpt"), run("translation"))
    page = browsing.go("positions", model="gpt")
    assert page.get_by_test_id("of").input_value() == "positions"
    page.get_by_text("These values are learned").wait_for()
    page.get_by_test_id("model").select_option("translation")
    page.get_by_role("heading", name="20 positions × 48 dimensions").wait_for()
    browsing.ready()
    box = page.get_by_test_id("table").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 48, box["y"] + box["height"] * 3.5 / 20)
    assert page.get_by_test_id("readout").inner_text().startswith("cos(3 / 10000^(4/48)) = ")


@pytest.mark.claim("D2")
@pytest.mark.claim("D4")
def test_page_draws_the_figures_of_the_lectures(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("gpt"))
    page = browsing.go("positions", of="interleaved")
    table = sinusoids(20, 512).numpy()
    canvas = page.get_by_test_id("table")
    drawn = canvas.evaluate("one => [one.width, one.height, ...one.getContext('2d').getImageData(0, 0, 512, 20).data]")
    assert drawn[:2] == [512, 20]
    bluer = np.array(drawn[4::4]) - np.array(drawn[2::4])  # blue is above zero, orange below
    clear = np.abs(table.ravel()) > 0.1
    assert ((bluer > 0) == (table.ravel() > 0))[clear].all()
    box = canvas.bounding_box()
    for place, column in ((7, 12), (19, 301)):
        page.mouse.move(box["x"] + box["width"] * (column + 0.5) / 512, box["y"] + box["height"] * (place + 0.5) / 20)
        said = page.get_by_test_id("readout").inner_text()
        wave = "cos" if column % 2 else "sin"
        assert said.startswith(f"{wave}({place} / 10000^({column // 2 * 2}/512)) = ")
        assert float(said.split("= ")[1].replace("−", "-")) == pytest.approx(float(table[place, column]), rel=1e-3)

    page.get_by_test_id("show-waves").click()
    page.get_by_test_id("column-8").click()
    browsing.ready()
    waves = sinusoids(100, 20).numpy()
    for column in (4, 5, 6, 7, 8):
        path = page.get_by_test_id(f"wave-{column}").get_attribute("d")
        heights = [float(point.split()[1]) for point in path.replace("M", "L").split("L")[1:]]
        assert [(150 - y) / 150 for y in heights] == near(waves[:, column].tolist(), 1024)
    assert "columns=4%2C5%2C6%2C7%2C8" in page.url

    page.get_by_test_id("of").select_option("positions")
    page.get_by_text("The model was free to learn any values").wait_for()
    browsing.ready()
    own = browsing.explorer.subjects["gpt"].model.positions.table.detach().double().numpy()
    path = page.get_by_test_id("wave-6").get_attribute("d")
    heights = [float(point.split()[1]) for point in path.replace("M", "L").split("L")[1:]]
    crest = np.abs(own[:, 4:9]).max()  # the largest number of the columns that are drawn touches the edge
    assert [(150 - y) / 150 * crest for y in heights] == near(own[:, 6].tolist(), 1024)

    page.get_by_test_id("show-similarity").click()
    browsing.ready()
    shown = page.get_by_test_id("similarity")
    box = shown.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 3.5 / 64, box["y"] + box["height"] * 2.5 / 64)
    said = page.get_by_test_id("readout").inner_text().split("= ")[1]
    assert float(said.replace("−", "-")) == pytest.approx(float(own[2] @ own[3]), rel=2e-3)


@pytest.mark.claim("G6")
def test_page_compares_three_masks(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("gpt"))
    page = browsing.go("positions", show="three")

    def seen(kind: str) -> list[int]:
        cells = page.get_by_test_id(kind).locator("rect").evaluate_all("all => all.map((one) => +one.dataset.seen)")
        return [int(cell) for cell in cells]

    def right(kind: str, order: list[int]) -> list[int]:
        """Which word sees which, by the lecture: the language model, both of XLNet's streams, and BERT."""
        rank = {word: order.index(word + 1) for word in range(6)}
        rules: dict[str, Callable[[int, int], bool]] = {
            "causal": lambda q, k: k <= q,
            "query": lambda q, k: rank[k] < rank[q],
            "content": lambda q, k: rank[k] <= rank[q],
            "all": lambda q, k: True,
        }
        return [int(rules[kind](q, k)) for q in range(6) for k in range(6)]

    for kind in ("causal", "query", "content", "all"):
        assert seen(f"three-{kind}") == right(kind, ORDER)
    factors = page.get_by_test_id("said-query").inner_text().split("\n")
    assert factors[:3] == ["p(crossed)", "p(animal | crossed)", "p(the | crossed, animal)"]
    page.get_by_test_id("order").fill("6,5,4,3,2,1")
    page.get_by_test_id("order").press("Enter")
    browsing.ready()
    until(lambda: page.get_by_test_id("said-query").inner_text().startswith("p(street)"))
    assert seen("three-query") == right("query", [6, 5, 4, 3, 2, 1])
    page.get_by_test_id("show-masks").click()
    page.get_by_test_id("mask-kind").select_option("padding")
    page.get_by_test_id("lengths").fill("5,2,1")
    page.get_by_test_id("lengths").press("Enter")
    page.get_by_test_id("mask-2").wait_for()
    browsing.ready()
    assert sum(seen("mask-0")) == 30 and sum(seen("mask-1")) == 12 and sum(seen("mask-2")) == 6
