"""The heads view with the lectures' sentence of the tired animal: attention weights of a published model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.explore.samples import ENGLISH

LAYERS, HEADS = 6, 12


@pytest.fixture(scope="module")
def published(minilm: Path) -> tuple[list[str], Tensor]:
    """The tokens of the sentence and the attention weights (L, H, T, T), as computed by the published program."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    given = tokenizer(ENGLISH.text, return_tensors="pt")
    with torch.inference_mode():
        looked = model(**given, output_attentions=True).attentions
    return tokenizer.convert_ids_to_tokens(given["input_ids"][0]), torch.cat(looked)


def shares(page: Any) -> list[float]:
    """The attention weight of each token, as the page has it."""
    found = page.locator("[data-token^=see]").evaluate_all("all => all.map((one) => one.dataset.share)")
    return [float(share) for share in found]


@pytest.mark.claim("C17")
def test_attention_weights_of_a_published_model(
    browse: Callable[..., Any], minilm: Path, published: tuple[list[str], Tensor]
) -> None:
    words, looked = published
    it = words.index("it")
    browsing = browse(minilm)
    page = browsing.go("heads", layer=0)  # the sentence is what a model of English begins with
    assert page.get_by_test_id("text").input_value() == ENGLISH.text
    assert page.locator("[data-token^=ask]").all_inner_texts() == words
    page.get_by_test_id(f"ask-{it}").click()
    for layer in range(LAYERS):
        page.locator(f'[data-figure][data-layer="{layer}"][data-ready="true"]').wait_for()
        assert shares(page) == pytest.approx(looked[layer, :, it].mean(0).tolist(), abs=1e-3)
        page.get_by_test_id("layer").press("ArrowRight")
    assert f"token=ask-{it}" in page.url


@pytest.mark.claim("C16")
@pytest.mark.parametrize("count", [*(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2)), 8])
def test_page_selects_heads_with_different_weights(
    browse: Callable[..., Any], minilm: Path, published: tuple[list[str], Tensor], count: int
) -> None:
    words, looked = published
    it, layer = words.index("it"), 3
    page = browse(minilm).go("heads", layer=layer, token=f"ask-{it}")
    page.get_by_test_id("head-0").dblclick()
    for head in range(1, count):
        page.get_by_test_id(f"head-{head}").click()
    pressed = page.locator('[data-testid^="head-"][aria-pressed="true"]').count()
    assert pressed == count
    assert shares(page) == pytest.approx(looked[layer, :count, it].mean(0).tolist(), abs=1e-3)
    each = []
    for head in range(count):
        if count > 1:  # one that is alone would bring back all
            page.get_by_test_id(f"head-{head}").dblclick()
        each.append(shares(page))
        assert each[-1] == pytest.approx(looked[layer, head, it].tolist(), abs=1e-3)
    assert len({tuple(one) for one in each}) == count
