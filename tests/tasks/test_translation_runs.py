"""A third kind of translation model: nothing but its role is required."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, Self

import pytest
import torch
from pydantic import create_model
from torch import Tensor, nn

import heedful
from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.layouts import Layout, Unpadded
from heedful.blocks.state import Shared
from heedful.blocks.taps import Tap
from heedful.errors import UserError
from heedful.explore.server.page import is_built
from heedful.models import MODELS, Model, any_of
from heedful.models.roles import ModelConfig
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Finished
from heedful.tasks import TASKS, task_of
from heedful.tasks.translation.recipe import TranslationRecipe

TINY = [
    "data.train=60", "data.valid=4", "data.test=4", "tokenizer.vocab=90", "train.budget.steps=2",
    "train.batch_tokens=256", "train.accumulate=1", "train.average=1", "train.schedule.warmup=1",
]  # fmt: skip


class BagConfig(ModelConfig):
    """The mean of the source's words, used at every step."""

    implementation: ClassVar = "model.Bag"

    kind: Literal["bag"] = "bag"
    vocab: int | None = None
    width: int = 8
    context: int = 48
    looks: bool = False

    def parameters(self, vocab: int) -> int:
        return vocab * self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, context=16)


class Bag(nn.Module):
    """source (B, S), target (B, T) -> logits (B, T, V)."""

    def __init__(self, config: BagConfig) -> None:
        super().__init__()
        assert config.vocab is not None
        self.config, self.tokens = config, TiedEmbedding(config.vocab, config.width)
        if config.looks:
            self.alignment, self.weights = "weights", Tap()

    def start(self, source: Tensor, layout: Layout | None = None) -> Shared[tuple[Tensor, Tensor]]:
        layout = layout or Unpadded(source)
        real = torch.ones_like(source, dtype=torch.bool) if layout.real is None else layout.real
        return Shared((self.tokens(source), real / real.sum(1, keepdim=True).clamp(min=1)))

    def features(self, target: Tensor, state: Shared[tuple[Tensor, Tensor]]) -> tuple[Tensor, object]:
        x, share = state.value
        weights = share[:, None].expand(-1, target.shape[1], -1)  # (B, T, S)
        weights = self.weights(weights[:, None])[:, 0] if self.config.looks else weights
        y = (weights @ x).repeat_interleave(len(target) // len(x), 0)
        return y + self.tokens(target), state

    def read(self, source: Tensor, target: Tensor, layout: Layout | None = None) -> Tensor:
        return self.features(target, self.start(source, layout))[0]

    def forward(self, target: Tensor, state: Shared[tuple[Tensor, Tensor]]) -> tuple[Tensor, object]:
        return self.tokens.logits(self.features(target, state)[0]), state


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder and one line; the recipe's union is computed as at import."""
    module: Any = ModuleType("bag")
    module.Bag, module.BagConfig = Bag, BagConfig
    for file in ("config", "model"):
        monkeypatch.setitem(sys.modules, f"heedful.models.bag.{file}", module)
    monkeypatch.setattr(BagConfig, "__module__", "heedful.models.bag.config")
    monkeypatch.setitem(MODELS, "bag", Model("seq2seq", "BagConfig"))
    union = any_of("seq2seq", usual="transformer")
    recipe = create_model("BagRecipe", __base__=TranslationRecipe, model=(union, BagConfig()))
    monkeypatch.setattr("heedful.tasks.translation.recipe.BagRecipe", recipe, raising=False)
    monkeypatch.setitem(TASKS, "translation", TASKS["translation"]._replace(recipe="BagRecipe"))


@pytest.mark.parametrize("looks", [False, True])
def test_third_model_kind_is_trained_reported_and_used(looks: bool, tmp_path: Path) -> None:
    recipe = load_recipe("numbers", [*TINY, f"model={{kind: bag, looks: {str(looks).lower()}}}"])
    run = tmp_path / "run"
    assert isinstance(list(heedful.train(recipe, run))[-1], Finished)
    assert ("--align" in (run / "report.html").read_text(encoding="utf-8")) == looks
    assert ("--align" in task_of(recipe).next(run, None)[0]) == looks
    translator = heedful.load(run)
    (found,) = translator.search(["three"])
    if looks:
        assert translator.align("three", found[0]).layer == 1
    else:
        with pytest.raises(UserError, match="does not attend to the source"):
            translator.align("three", found[0])
    if is_built():  # where Node was available to build the page
        assert heedful.show(run, view="run").html
