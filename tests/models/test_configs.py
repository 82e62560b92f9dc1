from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from heedful.config import parse
from heedful.models import MODELS, build, config_class
from heedful.models.roles import ROLES, Role
from heedful.models.transformer.config import SIZES, TransformerConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 100}, "write heads: 10 or width: 104"),
        ({"width": 7, "heads": 7}, "write width: 8 or positions: learned"),
        ({"width": 12, "heads": 4, "positions": "rotary"}, "write width: 16"),
        ({"width": 65536, "hidden": 1048576, "encoder_layers": 1000}, "more than 200 billion"),
        ({"width": 0}, "greater than or equal to 1"),
        ({"width": 10**6}, "less than or equal to 65536"),
        ({"vocab": 10**9}, "less than or equal to 10000000"),
        ({"dropout": 1.0}, "less than 1"),
        ({"heads": True}, "valid integer"),
        ({"layers": 6}, "not permitted"),
    ],
)
def test_impossible_models_are_rejected_with_advice(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TransformerConfig(**settings)


def test_published_base_size() -> None:
    base = SIZES["transformer-base"]
    assert (base.width, base.hidden, base.heads, base.encoder_layers, base.decoder_layers) == (512, 2048, 8, 6, 6)
    assert base.norm == "post"
    # Vaswani et al., table 3: 65 million with a shared vocabulary of about 37,000; big: 213 million.
    assert round(base.parameters(37_000) / 1e6) == pytest.approx(65, abs=2)
    assert round(SIZES["transformer-big"].parameters(37_000) / 1e6) == pytest.approx(213, abs=2)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoid", "learned", "rotary", "alibi"])
def test_parameter_count_matches_the_built_model(norm: Any, positions: Any) -> None:
    config = TransformerConfig(
        vocab=11,
        width=8,
        heads=2,
        encoder_layers=2,
        decoder_layers=3,
        hidden=5,
        context=6,
        norm=norm,
        positions=positions,
    )
    assert sum(weight.numel() for weight in build(config).parameters()) == config.parameters(11)


def test_table_names_each_kind() -> None:
    for kind in MODELS:
        assert config_class(kind).model_fields["kind"].default == kind


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_has_a_tiny_size_and_its_roles_fields(kind: str) -> None:
    config = config_class(kind).tiny()
    assert config.kind == kind and config.role == MODELS[kind].role
    assert parse(config_class(kind), config.model_dump(mode="json")) == config
    model = build(config)
    assert model.config == config
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters(23) < 20_000
    role = ROLES[config.role]
    methods = [name for name, part in vars(role).items() if inspect.isfunction(part) and name[0] != "_"]
    assert [name for name in methods if not callable(getattr(model, name, None))] == []
    assert [name for name in inspect.get_annotations(role) if not hasattr(model, name)] == []


def test_every_role_is_defined() -> None:
    assert (
        set(ROLES) == set(get_args(Role)) == {role for model in MODELS.values() for role in (model.role, *model.more)}
    )
