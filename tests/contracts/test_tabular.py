"""Contract tests of the models of tables: every way in which a text becomes a vector, and image encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.models import build, config_class, kinds_of
from heedful.models.roles import EncoderConfig
from heedful.training.checkpoint.weights import load_strictly
from tolerance import close

TEXTS = {
    "mean": {"kind": "mean", "width": 6},
    "recurrent": {"kind": "recurrent", "width": 6, "hidden": 5, "layers": 2},
    "convolution": {"kind": "convolution", "width": 6, "sizes": [1, 3], "filters": 4},
    **{kind: config_class(kind).tiny().model_dump(mode="json") for kind in kinds_of("encoder")},
}
QUICK = ("mean", "recurrent", "convolution", "bert", "xlnet")  # the other encoders have contract tests of their own
CASES = [
    pytest.param(kind, text, marks=[] if text in QUICK else [pytest.mark.slow], id=f"{kind}-{text}")
    for kind in kinds_of("tabular")
    for text in TEXTS
]
B, T = 3, 6


def model_of(kind: str, text: str = "mean", **changes: Any) -> Any:
    torch.manual_seed(0)
    tiny = config_class(kind).tiny().model_dump(mode="json")
    model = build(config_class(kind).model_validate(tiny | {"text": TEXTS[text]} | changes, strict=False)).eval()
    with torch.no_grad():  # as after some training: biases that are not 0
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def values_of(model: Any, rows: int = B, width: int = T) -> list[Tensor]:
    """A text of width, width - 1 ... tokens, numbers, a class and an image for each row."""
    torch.manual_seed(1)
    text, numbers, classes, image = model.config.columns
    ids = torch.randint(4, text.vocab, (rows, width))
    ids[:, 0] = 2
    ids *= torch.arange(width) < width - torch.arange(rows)[:, None]
    return [
        ids, torch.randn(rows, numbers.size), torch.arange(rows) % classes.classes,
        torch.randn(rows, image.channels, *image.size),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_shapes_count_and_gradients(kind: str, text: str) -> None:
    model = model_of(kind, text)
    assert sum(weight.numel() for weight in model.parameters()) == model.config.parameters()
    outputs = model(values_of(model))
    assert outputs.shape == (B, model.config.outputs)
    outputs.logsumexp(-1).sum().backward()
    missing = [
        name for name, weight in model.named_parameters()
        if (weight.grad is None or not weight.grad.any()) and "relations" not in name and "segment" not in name
    ]  # fmt: skip
    assert not [name for name in missing if "columns.0.texts.encoder" not in name]
    assert len(missing) <= 4, missing


@pytest.mark.parametrize(("kind", "text"), CASES)
@torch.no_grad()
def test_rows_are_independent_of_padding_batch_and_order(kind: str, text: str) -> None:
    model = model_of(kind, text)
    values = values_of(model)
    together = model(values)
    wider = [torch.nn.functional.pad(values[0], (0, 5)), *values[1:]]
    close(model(wider), together, 2**6)
    order = torch.tensor([2, 0, 1])
    close(model([value[order] for value in values]), together[order], 2**6)
    for row in range(B):
        length = int((values[0][row] != 0).sum())
        alone = [value[row : row + 1] for value in values]
        close(model([alone[0][:, :length], *alone[1:]])[0], together[row], 2**6)


@pytest.mark.parametrize("kind", kinds_of("tabular"))
def test_every_column_matters_and_watching_changes_nothing(kind: str) -> None:
    model = model_of(kind)
    values = values_of(model)
    with torch.no_grad():
        before = model(values)
        for column, value in enumerate(values):
            changed = [*values]
            changed[column] = value.flip(0)
            assert not torch.allclose(model(changed)[0], before[0])
        with watch(model, "joined") as seen:
            assert torch.equal(model(values), before)
        assert seen["joined"].shape == (B, len(values) * model.config.width)


@pytest.mark.parametrize("kind", kinds_of("tabular"))
def test_dropout_is_the_only_randomness(kind: str) -> None:
    model = model_of(kind, dropout=0.5)
    values = values_of(model)
    assert torch.equal(model(values), model(values))
    model.train()
    assert not torch.equal(model(values), model(values))


@pytest.mark.parametrize("image", kinds_of("image_encoder"))
def test_any_image_encoder_can_be_chosen(image: str) -> None:
    (kind,) = kinds_of("tabular")
    tiny = config_class(image).tiny()
    column = {"kind": "image", "channels": tiny.channels, "size": tiny.size}
    settings = {"columns": [column], "image": tiny.model_dump(mode="json"), "grid": 1}
    config = config_class(kind).model_validate(
        config_class(kind).tiny().model_dump(mode="json") | settings, strict=False
    )
    model: Any = build(config).eval()
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters()
    assert model([torch.randn(2, *tiny.input)]).shape == (2, 3)


@pytest.mark.parametrize("kind", kinds_of("tabular"))
def test_saved_weights_load_and_four_rows_can_be_learned(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    values, targets = values_of(model, 4), torch.tensor([0, 2, 1, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(values), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    other = build(model.config).eval()
    load_strictly(other, dict(model.state_dict()), tmp_path)
    assert torch.equal(other(values), model(values))


@pytest.mark.parametrize("kind", kinds_of("tabular"))
def test_texts_longer_than_the_encoder_reads_are_refused(kind: str) -> None:
    tiny = config_class(kind).tiny().model_dump(mode="json")
    tiny["columns"][0]["longest"] = 99
    assert isinstance(config_class("bert").tiny(), EncoderConfig)
    with pytest.raises(ValueError, match="context: 99"):
        config_class(kind).model_validate(tiny | {"text": TEXTS["bert"]}, strict=False)
