"""The convolutional classifier against loops; padding, batches and parameter counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.models import build
from heedful.models.conv_classifier.config import ConvClassifierConfig
from heedful.runs.recipe import load_recipe
from tolerance import close

CONFIG = ConvClassifierConfig(vocab=23, labels=("a", "b", "c"), width=6, sizes=(1, 2, 5), filters=4, dropout=0.0)


def tiny_model(config: ConvClassifierConfig = CONFIG) -> torch.nn.Module:
    torch.manual_seed(0)
    model = build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def by_hand(model: torch.nn.Module, text: Tensor) -> Tensor:
    """The logits of one text, position by position in float64, with zeros beyond its ends."""
    state = {name: value.double() for name, value in model.state_dict().items()}
    words = state["tokens.weight"][text]
    found = []
    for number, size in enumerate(CONFIG.sizes):
        weight, bias = state[f"filters.{number}.slide.weight"], state[f"filters.{number}.slide.bias"]
        beyond = torch.zeros(size - 1, CONFIG.width, dtype=torch.float64)
        line = torch.cat([beyond, words, beyond])
        places = [line[start : start + size] for start in range(len(text) + size - 1)]
        answers = torch.stack([torch.einsum("fdk,kd->f", weight, place) + bias for place in places])
        found.append(answers.relu().amax(0))
    return state["head.weight"] @ torch.cat(found) + state["head.bias"]


@pytest.mark.claim("M20")
@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_logits_match_plain_loops(length: int) -> None:
    model, text = tiny_model(), torch.randint(0, 23, (length,))
    close(model(text[None])[0], by_hand(model, text))


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_and_batch_do_not_change_the_output(side: str) -> None:
    model = tiny_model()
    texts = [torch.randint(0, 23, (length,)) for length in (1, 7, 3, 12)]
    alone = torch.cat([model(text[None]) for text in texts])
    ids, real = torch.randint(0, 23, (4, 20)), torch.zeros(4, 20, dtype=torch.bool)
    for row, text in enumerate(texts):
        sides = {"left": torch.arange(20 - len(text), 20), "right": torch.arange(len(text))}
        place = sides.get(side, torch.randperm(20)[: len(text)].sort().values)
        ids[row, place], real[row, place] = text, True
    close(model(ids, None, Padded(real)), alone, slack=16)


def test_parameters_are_counted_and_learn_unless_frozen() -> None:
    for freeze in (False, True):
        config = CONFIG.model_copy(update={"freeze": freeze})
        model = tiny_model(config)
        assert sum(weight.numel() for weight in model.parameters()) == config.parameters(23)
        model(torch.arange(23)[None]).square().sum().backward()
        learning = {name for name, weight in model.named_parameters() if weight.grad is not None}
        still = {name for name, _ in model.named_parameters()} - learning
        assert still == ({"tokens.weight"} if freeze else set())


def test_conflicting_settings_are_rejected() -> None:
    for change, message in (
        ("train.compile=true", "too many different lengths"),
        ("train.batching=packed", "would mix packed texts"),
        ("embedding_init={file: x}", "characters have no word vectors"),
        ("model.freeze=true", "randomly initialized vectors must be trained"),
        ("model.labels=[a, a]", "more than once"),
    ):
        with pytest.raises(UserError, match=message):
            load_recipe("number-languages-conv", [change])
