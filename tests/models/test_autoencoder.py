"""The settings of autoencoders: validation errors, shapes, parameter and multiplication counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful.config import parse
from heedful.errors import UserError
from heedful.models import MODELS, build
from heedful.models.autoencoder.config import SIZES, AutoencoderConfig, dense
from heedful.models.autoencoder.model import Autoencoder


def settings(**changes: Any) -> dict[str, Any]:
    defaults = {
        "input": [1, 8, 8],
        "encoder": [{"kind": "conv", "filters": 2}, {"kind": "max_pool"}],
        "decoder": [{"kind": "upsample"}, {"kind": "conv", "filters": 1}],
    }
    return defaults | changes


DENSE = {"kind": "dense", "width": 4}


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"input": [2, 2]}, "input", "[784], or an image of channels, rows and columns, [1, 28, 28]"),
        ({"input": []}, "input", "[784], or an image"),
        ({"input": [0]}, "input.0", "greater than or equal to 1"),
        ({"encoder": []}, "encoder", "at least 1"),
        ({"encoder": [{"kind": "conv", "filters": 2}, DENSE]}, "encoder.1", "put `kind: flatten` before it"),
        ({"encoder": [{"kind": "conv", "filters": 2, "size": 2}]}, "encoder.0", "write an odd size, or padding: valid"),
        ({"decoder": [{"kind": "upsample"}, {"kind": "flatten"}, {"kind": "conv", "filters": 1}]}, "decoder.2",
         "put `kind: reshape` before it"),
        ({"decoder": [{"kind": "upsample"}]}, "decoder", "the decoder ends with an image of 2 x 8 x 8"),
        ({"encoder": [{"kind": "conf", "filters": 2}]}, "encoder.0.kind", "did you mean conv"),
        ({"encoder": [{"kind": "conv", "filter": 2}]}, "encoder.0.filter", "did you mean"),
        ({"encoder": [DENSE | {"activation": "rely"}]}, "encoder.0.activation", "did you mean relu"),
    ],
)  # fmt: skip
def test_invalid_layers_are_reported_by_their_key(changes: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse(AutoencoderConfig, settings(**changes))
    assert message in str(raised.value)
    assert where in str(raised.value)


def test_implausibly_large_model_is_rejected_before_it_is_built() -> None:
    wide = {"kind": "dense", "width": 1_048_576}
    with pytest.raises(UserError):
        parse(AutoencoderConfig, {"input": [64], "encoder": [wide] * 900, "decoder": [{"kind": "dense", "width": 64}]})


def test_dense_decoder_mirrors_encoder() -> None:
    config = dense(64, 48, 32, 10)
    assert [row.shape for row in config.summary()] == [(64,), (48,), (32,), (10,), (32,), (48,), (64,)]
    assert config.code == (10,)
    assert [row.shape for row in dense(9, 2).summary()] == [(9,), (2,), (9,)]


@pytest.mark.parametrize(("name", "products"), [("dense", 161_804), ("conv", 80 * 784 + 292 * 196 + 148 * 49 + 148 * 16
                                                                     + 148 * 64 + 296 * 196 + 73 * 784)])  # fmt: skip
def test_multiplications_are_parameters_times_positions(name: str, products: int) -> None:
    assert SIZES[name].products == products


@pytest.mark.parametrize("name", SIZES)
def test_built_model_matches_its_settings(name: str) -> None:
    config = SIZES[name]
    model = build(config)
    assert isinstance(model, Autoencoder)
    assert "autoencoder" in MODELS
    assert config.parameters() == sum(weight.numel() for weight in model.parameters())
    assert parse(AutoencoderConfig, config.model_dump(mode="json")) == config
    x = torch.rand(2, *config.input)
    assert model.encoder(x).shape == (2, *config.code)
    assert torch.equal(model.decoder(model.encoder(x)), model(x))
    assert model.summary() == config.summary()
