"""Contract tests of models that choose actions: policies, with and without a critic, and Q networks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import taps, watch
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.roles import AgentConfig
from heedful.models.tracing import summary
from tolerance import close

VARIED: dict[str, list[dict[str, Any]]] = {
    "policy": [{"critic": None}, {"hidden": ()}, {"activation": "relu", "critic": ()}],
    "q_network": [{"hidden": ()}, {"activation": "tanh"}],
}


def configs() -> Iterator[Any]:
    for kind in kinds_of("policy", "q_network"):
        tiny = config_class(kind).tiny()
        for changes in [{}, *VARIED.get(kind, [])]:
            name = "-".join([kind, *(f"{key}={value}" for key, value in changes.items())])
            yield pytest.param(tiny.model_copy(update=changes), id=name)


@pytest.fixture(params=configs())
def config(request: pytest.FixtureRequest) -> AgentConfig:
    found: AgentConfig = request.param
    return found


def build_model(config: AgentConfig, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build(config).eval()


def observations(config: AgentConfig, count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, config.inputs, generator=torch.Generator().manual_seed(seed))


def outputs(model: Any, x: Tensor) -> Tensor:
    """All that a model says of observations, a row for each."""
    found = [model(x)]
    if model.config.estimates:
        found.append(model.value(x)[:, None])
    if model.config.role == "q_network":
        found.append(model.target_values(x))
    return torch.cat(found, 1)


def test_shapes_and_count(config: AgentConfig) -> None:
    model, x = build_model(config), observations(config, 5)
    assert model(x).shape == (5, config.outputs) and model(x[:0]).shape == (0, config.outputs)
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters()
    if config.estimates:
        assert model.value(x).shape == (5,)


def test_a_row_does_not_depend_on_the_batch(config: AgentConfig) -> None:
    model, x = build_model(config), observations(config, 9)
    whole, order = outputs(model, x), torch.randperm(9)
    close(outputs(model, x[order]), whole[order])
    for row in range(9):
        close(outputs(model, x[row : row + 1])[0], whole[row])


def test_evaluation_is_deterministic_and_leaves_the_model_as_it_is(config: AgentConfig) -> None:
    model, x = build_model(config), observations(config, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.equal(outputs(model, x), outputs(model, x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(outputs(build_model(config, 1), x), outputs(model, x))


def test_every_weight_that_is_trained_gets_a_gradient(config: AgentConfig) -> None:
    model, x = build_model(config).train(), observations(config, 8)
    (outputs(model, x) * torch.randn(outputs(model, x).shape)).sum().backward()
    for name, weight in model.named_parameters():
        assert (weight.grad is not None and bool(weight.grad.any())) == (not name.startswith("target.")), name
        assert weight.requires_grad == (not name.startswith("target."))


def test_target_network_begins_as_a_copy(config: AgentConfig) -> None:
    model, x = build_model(config), observations(config, 4)
    if config.role == "q_network":
        assert torch.equal(model.target_values(x), model(x))
        close(model.value(x), model(x).max(1).values)


def test_watching_changes_nothing(config: AgentConfig) -> None:
    model, x = build_model(config), observations(config, 4)
    plain = outputs(model, x)
    with watch(model, "*") as seen:
        assert torch.equal(outputs(model, x), plain)
    assert set(seen) <= set(taps(model)) and len(seen) >= 1


def test_saved_model_loads_bit_for_bit(config: AgentConfig, tmp_path: Path) -> None:
    model, x = build_model(config), observations(config, 4)
    write_model(tmp_path / "model", "{}\n", model.state_dict(), {}, {})
    other = build_model(config, 1)
    other.load_state_dict(read_model(tmp_path / "model").tensors)
    assert torch.equal(outputs(other, x), outputs(model, x))


def test_learns_to_choose(config: AgentConfig) -> None:
    """Eight observations, each with one right action."""
    model, x = build_model(config).train(), observations(config, 8)
    wanted = torch.arange(8) % config.outputs if config.hidden else model(x).argmin(1) * 0  # type: ignore[attr-defined]
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], 0.05)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), wanted).backward()
        optimizer.step()
    assert model(x).argmax(1).tolist() == wanted.tolist()


def test_summary(config: AgentConfig) -> None:
    assert f"{config.parameters():,}" in str(summary(config))
