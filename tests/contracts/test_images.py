"""Contract tests of image models: every model in the role `image_encoder`, in its tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import taps, watch
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.roles import ImageEncoderConfig
from heedful.models.tracing import summary
from tolerance import close

KINDS = kinds_of("image_encoder")


# Models of which `make test` takes the longest tests.
some_kinds = pytest.mark.parametrize(
    "config", [pytest.param(kind, marks=() if kind in ("lenet", "vit") else pytest.mark.slow) for kind in KINDS],
    indirect=True,
)  # fmt: skip


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest) -> ImageEncoderConfig:
    found: ImageEncoderConfig = config_class(request.param).tiny()
    return found


def build_model(config: ImageEncoderConfig, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build(config).eval()


def images(config: ImageEncoderConfig, count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *config.input, generator=torch.Generator().manual_seed(seed))


def weighted(model: Any, x: Tensor) -> Tensor:
    """The sum of all trained logits with their weights."""
    return torch.stack([weight * logits.square().sum() for weight, logits in model.training_logits(x)]).sum()


def test_shapes(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 3)
    assert model(x).shape == (3, config.classes)
    assert model.map(x).dim() == 4 and len(model.map(x)) == 3
    assert model.features(x).shape == (3, model.head.in_features)
    assert model.head.out_features == config.classes == config.outputs
    assert model(x[:0]).shape == (0, config.classes)


def test_logits_are_those_of_the_head(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 3)
    assert torch.equal(model(x), model.head(model.features(x)))
    weights, logits = zip(*model.training_logits(x), strict=True)
    assert weights[0] == 1 and all(0 < weight <= 1 for weight in weights)
    assert torch.equal(logits[0], model(x))


def test_batch_does_not_change_the_output(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 9)
    whole, order = model(x), torch.randperm(9)
    close(model(x[order]), whole[order])
    for row in range(9):
        close(model(x[row : row + 1])[0], whole[row])


def test_evaluation_is_deterministic_and_leaves_the_model_as_it_is(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.equal(model(x), model(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(build_model(config, 1)(x), model(x))


def test_every_weight_gets_a_gradient(config: ImageEncoderConfig) -> None:
    model = build_model(config).train()
    weighted(model, images(config, 8)).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_parameters_are_counted_for_any_number_of_classes(config: ImageEncoderConfig) -> None:
    for classes in (2, 7):
        sized = config.model_copy(update={"classes": classes})
        assert sum(weight.numel() for weight in build(sized).parameters()) == sized.parameters()
    assert (
        config.model_copy(update={"classes": None}).parameters()
        == config.model_copy(update={"classes": 2}).parameters()
    )
    assert summary(config).parameters == config.parameters()


def test_saved_model_is_loaded_bit_for_bit(config: ImageEncoderConfig, tmp_path: Path) -> None:
    model, other = build_model(config).train(), build_model(config, 1)
    model(images(config, 8, 1))  # where there are running statistics, they change
    write_model(tmp_path / "model", "{}", model.state_dict(), {"images.json": "{}"}, {})
    other.load_state_dict(read_model(tmp_path / "model", lambda text: ["images.json"]).tensors)
    x = images(config, 3)
    assert torch.equal(model.eval()(x), other(x))


@some_kinds
def test_eight_images_are_memorized(config: ImageEncoderConfig) -> None:
    model = build_model(config, 2).train()
    assert config.classes is not None
    x, labels = images(config, 8), torch.arange(8) % config.classes
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        losses = [
            weight * torch.nn.functional.cross_entropy(logits, labels) for weight, logits in model.training_logits(x)
        ]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    with torch.no_grad():
        assert model(x).argmax(-1).tolist() == labels.tolist()


def test_bfloat16_gives_similar_logits(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 4)
    full = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    assert bool(half.isfinite().all())
    assert float((half - full).detach().abs().max()) < 0.1 * float(full.detach().abs().max())


def test_images_of_another_shape_are_refused(config: ImageEncoderConfig) -> None:
    model, (channels, rows, columns) = build_model(config), config.input
    wanted = f"the model reads {channels} x {rows} x {columns}"
    with pytest.raises(ValueError, match=f"{channels + 1} x {rows} x {columns} .*{wanted}"):
        model(torch.zeros(2, channels + 1, rows, columns))
    if config.any_size:
        assert model(torch.zeros(2, channels, 2 * rows, 3 * columns)).shape == (2, config.classes)
    else:
        with pytest.raises(ValueError, match=wanted):
            model(torch.zeros(2, channels, rows, columns - 1))


@some_kinds
def test_compiled_model_has_no_graph_break(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 2)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    close(compiled(x), model(x))


def test_watching_changes_nothing(config: ImageEncoderConfig) -> None:
    model, x = build_model(config), images(config, 2)
    plain = model(x)
    assert taps(model), "put a tap wherever a value is worth watching"
    with watch(model) as seen:
        close(model(x), plain)
    assert set(seen) == set(taps(model))
