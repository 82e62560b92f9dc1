"""The view of blocks: the mask of 16,384 tokens, the weights of a long text, single cells, and the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.blocks.masks import BLOCK_KINDS
from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import InputRequest, blocks, grid, heads
from heedful.models.bigbird.config import BigBirdConfig
from heedful.models.bigbird.model import block_kinds, sight
from patience import until
from tolerance import near

LONG = "the old cat sat on a mat " * 200  # more than 1,024 tokens


@pytest.fixture(scope="module")
def explorer(bigbird: Path) -> Explorer:
    return Explorer([bigbird])


def answer(explorer: Explorer, call: str, **settings: object) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("blocks", call, {"model": "bigbird", **settings}))


@pytest.mark.parametrize(
    "settings", [{}, {"global_tokens": 8}, {"random_from": "first"}, {"attention": "original_full"}], ids=str
)
@pytest.mark.parametrize(("length", "padded"), [(20, 4), (100, 0), (100, 12), (101, 30)])
def test_kinds_of_blocks_are_the_mask_that_attention_uses(settings: dict[str, Any], length: int, padded: int) -> None:
    update = {"block": 4, "context": 256, "random_from": "seed", **settings}
    config = BigBirdConfig.tiny().model_copy(update=update)
    total = length + config.global_tokens
    kinds = block_kinds(config, length, padded).repeat_interleave(4, 1).repeat_interleave(4, 2)
    kinds = kinds[:, : total + padded, : total + padded]
    rule = sight(config, torch.tensor([total]), total + padded, watched=False).mask
    b, h, q = (torch.arange(n) for n in (1, config.heads, total))
    k = torch.arange(total + padded)
    truth = rule(b[:, None, None, None], h[:, None, None], q[:, None], k)[0]  # type: ignore[operator, misc]
    allowed = (kinds > 0) & (kinds < BLOCK_KINDS.index("padding")) & (k < total)
    assert torch.equal(*torch.broadcast_tensors(allowed[:, :total], truth))
    names = {BLOCK_KINDS[number] for number in kinds.unique().tolist()}
    whole = settings.get("attention") == "original_full" or length <= config.dense_length
    assert names <= {"every token", "padding"} if whole else {"window", "global"} < names


def test_mask_of_16384_tokens_is_a_small_packet(explorer: Explorer) -> None:
    packet = explorer.answer("blocks", "mask", {"model": "bigbird", "length": 16_384, "head": 1})
    words, arrays = unpack(packet)
    assert arrays["kinds"].shape == (256, 256) and len(packet) < 70_000
    counts = np.bincount(arrays["kinds"].ravel(), minlength=6)
    # Rows between the ends: three of the window, two ends, two random ones; near the ends two of them coincide.
    assert counts.tolist() == [65_536 - counts[1:].sum(), 256 * 3 - 2, 2 * 256 * 2 - 4 - 6, 254 * 2, 0, 0]
    assert words["share"] == pytest.approx(counts[1:].sum() / 65_536)
    other = answer(explorer, "mask", length=16_384, head=0)[1]["kinds"]
    assert (other != arrays["kinds"]).any(), "heads have random blocks of their own"
    short = answer(explorer, "mask", length=100, padded=156)[1]["kinds"]
    assert short.tolist() == [[4, 4, 5, 5], [4, 4, 5, 5], [5] * 4, [5] * 4]


def test_cells_of_a_block_end_with_the_text(explorer: Explorer) -> None:
    settings = {"length": 2000, "padded": 48, "head": 0}
    whole = answer(explorer, "mask", **settings)[1]["kinds"]
    words, arrays = answer(explorer, "cells", **settings, row=31, column=30)
    assert words["first"] == [31 * 64, 30 * 64] and arrays["kinds"].shape == (64, 64)
    assert (arrays["kinds"][:16] == whole[31, 30]).all() and (arrays["kinds"][16:] == 5).all()
    assert (answer(explorer, "cells", **settings, row=30, column=31)[1]["kinds"][:, 16:] == 5).all()
    assert answer(explorer, "cells", length=2000, row=31, column=0)[1]["kinds"].shape == (16, 64)


@pytest.mark.parametrize("text", [LONG, "the old cat sat on a mat " * 30], ids=["long", "short"])
def test_weights_by_block_are_those_of_the_model(explorer: Explorer, text: str) -> None:
    subject = explorer.subject("bigbird")
    reading = subject.predictor.tokenizer.ids([text])[0]
    tokens = torch.tensor([[subject.predictor.tokenizer.cls, *reading, subject.predictor.tokenizer.sep]])
    with (
        torch.inference_mode(),
        watch(subject.model, "blocks.1.attention.weights", edit=lambda name, x: None) as seen,
    ):
        subject.model(tokens)
    weights = seen["blocks.1.attention.weights"][0, 1].double().numpy()
    settings = {"text": text, "layer": 1, "head": 1}
    words, arrays = answer(explorer, "weights", **settings)
    assert words == {"size": 64, "tokens": tokens.shape[1]}
    rows = -(-tokens.shape[1] // 64)
    assert arrays["shares"].shape == (rows, rows) and arrays["shares"].sum(1) == near(np.ones(rows))
    for row, column in ((0, 0), (2, 1), (rows - 1, 2), (1, rows - 1)):
        part = weights[row * 64 : row * 64 + 64, column * 64 : column * 64 + 64]
        assert arrays["shares"][row, column] == near(part.sum() / len(part), 16)
        cells = answer(explorer, "weight_cells", **settings, row=row, column=column)[1]["weights"]
        assert cells.shape == part.shape
        np.testing.assert_allclose(cells, part, rtol=2e-3, atol=1e-7)


def test_views_of_single_tokens_refuse_a_long_text(explorer: Explorer, run: Callable[[str], Path]) -> None:
    subject = explorer.subject("bigbird")
    assert heads.fits(subject) and grid.fits(subject) and blocks.fits(subject)
    for view, call in (("heads", "tokens"), ("grid", "wall")):
        explorer.answer(view, call, {"model": "bigbird", "text": "the cat"})
        with pytest.raises(UserError, match="too long for this view") as caught:
            explorer.answer(view, call, {"model": "bigbird", "text": LONG})
        assert caught.value.todo == "shorten it, or open the view Blocks"
    for name in ("translation", "gpt", "images"):
        assert not blocks.fits(Subject(name, run(name)))
    assert subject.trace(InputRequest(model="bigbird", text=LONG), "blocks.0.attention.weights").size < 30_000_000


@pytest.mark.parametrize(
    ("call", "settings", "message"),
    [
        ("mask", {"length": 16_385}, "the text is too long"),
        ("mask", {"length": 16_384, "padded": 60_000}, "too many blocks"),
        ("mask", {"length": 100, "head": 2}, "there is no such head"),
        ("cells", {"length": 100, "row": 2}, "there is no such row"),
        ("weights", {"text": "a", "layer": 2}, "there is no such layer"),
        ("weight_cells", {"text": "a", "column": 1}, "there is no such column"),
    ],
)
def test_mistakes_are_named(explorer: Explorer, call: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        answer(explorer, call, **settings)


def test_file_has_what_its_state_shows(explorer: Explorer) -> None:
    subject, model = explorer.subject("bigbird"), {"model": "bigbird", "text": "the cat", "other": None}
    plain = blocks.calls(subject, model)
    assert [(one.call, dict(one.settings)) for one in plain] == [
        ("about", {"model": "bigbird"}),
        ("mask", {"model": "bigbird", "length": 16_384, "padded": 0, "head": 0}),
    ]
    state = {**model, "mode": "weights", "layer": "7", "row": "0", "column": "0"}
    assert [one.call for one in blocks.calls(subject, state)] == ["about", "weights", "weight_cells"]
    for one in (*plain, *blocks.calls(subject, state)):
        explorer.answer(one.view, one.call, one.settings)


def test_page_draws_16384_tokens_and_enlarges_a_block(browse: Callable[..., Any], bigbird: Path) -> None:
    browsing = browse(bigbird)
    page = browsing.go("blocks", length=16_000, padded=384, head=1)
    kinds = unpack(
        browsing.explorer.answer("blocks", "mask", {"model": "bigbird", "length": 16_000, "padded": 384, "head": 1})
    )[1]["kinds"]

    def colours(testid: str) -> np.ndarray:
        dots = page.get_by_test_id(testid).evaluate(
            "(one) => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
        )
        return np.array(dots).reshape(-1, 4)[:, :3]

    found = colours("whole")
    assert len(found) == 256 * 256
    used = {number: {tuple(one) for one in found[kinds.ravel() == number]} for number in np.unique(kinds).tolist()}
    assert set(used) == {0, 1, 2, 3, 5} and all(len(each) == 1 for each in used.values())
    assert len(set.union(*used.values())) == 5, "each kind has a colour of its own"

    row, column = (int(one) for one in np.argwhere(kinds == 3)[100])
    page.get_by_test_id("whole").click(position={"x": 2 * column + 1, "y": 2 * row + 1})
    browsing.ready()
    assert browsing.address["row"] == str(row) and browsing.address["column"] == str(column)
    assert page.get_by_test_id("said").inner_text().endswith(": random")
    assert len(colours("part")) == 64 * 64 and {tuple(one) for one in colours("part")} == used[3]
    page.get_by_test_id("close").click()
    browsing.ready()
    assert page.get_by_test_id("part").count() == 0
    page.get_by_test_id("mode").select_option("weights")
    page.get_by_test_id("text").fill(LONG)
    until(lambda: "blocks of 64" in page.get_by_test_id("caption").inner_text())
    browsing.ready()
    page.get_by_test_id("whole").click(position={"x": 3, "y": 3})
    browsing.ready()
    assert page.get_by_test_id("said").inner_text().startswith("tokens 1 to 64 → 1 to 64:")
