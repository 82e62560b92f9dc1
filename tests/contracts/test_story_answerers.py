"""Contract tests of models that answer questions about stories: every model in the role, in its tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import taps, watch
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.tracing import summary
from tolerance import close

KINDS = kinds_of("story_answerer")
EVERY: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in KINDS),
    ("memory_network", {"tying": "layer_wise"}),
    ("memory_network", {"sentences": "bag", "hops": 4}),
]
every_model = pytest.mark.parametrize(("kind", "changes"), EVERY)


def model_of(kind: str, changes: dict[str, Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    tiny = config_class(kind).tiny()
    return build(type(tiny).model_validate(tiny.model_dump() | changes)).eval()


def given(model: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Stories of five sentences, of two and of one, and questions of one to three words; padding where they end."""
    torch.manual_seed(1)
    sentences = torch.randint(2, model.config.vocab, (6, 4)) * (
        torch.arange(4) < torch.tensor([4, 3, 4, 1, 2, 4])[:, None]
    )
    questions = torch.randint(2, model.config.vocab, (3, 3)) * (torch.arange(3) < torch.tensor([3, 1, 2])[:, None])
    return sentences, torch.tensor([[0, 1, 2, 3, 4], [5, 0, -1, -1, -1], [3, -1, -1, -1, -1]]), questions


@every_model
def test_shapes_and_count(kind: str, changes: dict[str, Any]) -> None:
    model = model_of(kind, changes)
    assert model(*given(model)).shape == (3, len(model.config.labels))
    assert sum(weight.numel() for weight in model.parameters()) == model.config.parameters(model.config.vocab)
    assert summary(model).parameters == model.config.parameters(model.config.vocab)


@every_model
def test_every_weight_gets_a_gradient(kind: str, changes: dict[str, Any]) -> None:
    model = model_of(kind, changes).train()
    model(*given(model)).log_softmax(-1)[:, 0].sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


@every_model
def test_answers_do_not_depend_on_the_batch(kind: str, changes: dict[str, Any]) -> None:
    model = model_of(kind, changes)
    sentences, stories, questions = given(model)
    whole = model(sentences, stories, questions)
    assert not torch.equal(whole[0], whole[1])
    for row, length in enumerate((5, 2, 1)):
        used = stories[row, :length]
        words = int((sentences[used] > 0).sum(1).max())
        asked = questions[row : row + 1, : int((questions[row] > 0).sum())]
        alone = model(sentences[used, :words], torch.arange(length)[None], asked)
        close(alone, whole[row : row + 1])
    order = torch.tensor([2, 0, 1])
    close(model(sentences, stories[order], questions[order]), whole[order])


@every_model
def test_watching_changes_nothing_and_weights_sum_to_one(kind: str, changes: dict[str, Any]) -> None:
    model = model_of(kind, changes)
    fast, real = model(*given(model)), given(model)[1] >= 0
    if model.hop_weights is None:
        assert not taps(model)
        return
    with watch(model, model.hop_weights) as seen:
        close(model(*given(model)), fast)
    assert len(seen) == sum(name.endswith("weights") for name in taps(model))
    for weights in seen.values():
        close(weights[:, 0, 0].sum(-1), torch.ones(3))
        assert (weights[:, 0, 0][~real] == 0).all() and (weights[:, 0, 0][real] > 0).all()


@every_model
def test_saved_model_is_loaded(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(kind, changes)
    write_model(tmp_path / "model", model.config.model_dump_json(), model.state_dict(), {}, {})
    files = read_model(tmp_path / "model")
    again = model_of(kind, changes, seed=1)
    again.load_state_dict(files.tensors)
    assert again(*given(model)).equal(model(*given(model)))
