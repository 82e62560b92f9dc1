"""Contract tests of autoencoders; a new model is one more line in `TABLE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.autoencoder.config import SIZES, AutoencoderConfig
from heedful.models.autoencoder.layers import Dense
from tolerance import close

TABLE = {
    **SIZES,
    "small": AutoencoderConfig(
        input=(30,),
        encoder=(Dense(width=40, activation="tanh"), Dense(width=8, activation="linear")),
        decoder=(Dense(width=40, activation="tanh"), Dense(width=30, activation="linear")),
    ),
    **{kind: config_class(kind).tiny() for kind in kinds_of("autoencoder")},
}


@pytest.fixture(params=TABLE)
def config(request: pytest.FixtureRequest) -> AutoencoderConfig:
    return TABLE[request.param]


def build_model(config: AutoencoderConfig, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build(config).eval()


def test_every_weight_gets_a_gradient(config: AutoencoderConfig) -> None:
    model, x = build_model(config, 1), torch.rand(16, *config.input)  # with other seeds a small net may be dead
    (model(x) - x).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_forward_is_deterministic_in_eval_and_training(config: AutoencoderConfig) -> None:
    model, x = build_model(config), torch.rand(4, *config.input)
    first = model(x)
    assert torch.equal(model(x), first)
    assert torch.equal(model.train()(x), first)
    assert not torch.equal(build_model(config, 1)(x), first)


def test_batch_does_not_change_the_output(config: AutoencoderConfig) -> None:
    model, x = build_model(config), torch.rand(9, *config.input)
    whole, order = model(x), torch.randperm(9)
    close(model(x[order]), whole[order])
    for row in range(9):
        close(model(x[row : row + 1])[0], whole[row])
    assert model(x[:0]).shape == (0, *config.input)


def test_saved_model_is_loaded(config: AutoencoderConfig, tmp_path: Path) -> None:
    model, other = build_model(config), build_model(config, 1)
    write_model(tmp_path / "model", "{}", model.state_dict(), {"images.json": "{}"}, {})
    other.load_state_dict(read_model(tmp_path / "model", lambda text: ["images.json"]).tensors)
    x = torch.rand(3, *config.input)
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize(("name", "steps"), [("small", 300), ("autoencoder", 500)])
def test_eight_images_are_memorized(name: str, steps: int) -> None:
    config = TABLE[name]
    model = build_model(config, 2).train()
    x = torch.rand(8, *config.input)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2 * float(x.var())


def test_hooks_do_not_change_the_output(config: AutoencoderConfig) -> None:
    model, x = build_model(config), torch.rand(2, *config.input)
    plain, seen = model(x), list[torch.Tensor]()
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.register_forward_hook(lambda module, given, out: seen.append(out))
    assert torch.equal(model(x), plain)
    assert len(seen) == len(config.encoder) + len(config.decoder)
