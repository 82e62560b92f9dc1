"""Networks of layers: output shapes, activations, initialization, shared weights, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from heedful.models.autoencoder.layers import Activation, Conv, Dense, Flatten, Layer, MaxPool, Reshape, Shape, Upsample
from heedful.models.autoencoder.network import Input, Network, build_module
from tolerance import close

F = nn.functional
KINDS: list[tuple[Shape, Layer]] = [
    ((7,), Dense(width=3)),
    ((2, 5, 4), Conv(filters=3)),
    ((2, 5, 4), Conv(filters=3, size=1)),
    ((2, 9, 7), Conv(filters=2, size=5)),
    ((2, 5, 4), Conv(filters=3, size=2, padding="valid")),
    ((2, 3, 3), Conv(filters=1, size=3, padding="valid")),
    ((2, 5, 4), MaxPool()),
    ((1, 7, 1), MaxPool(size=3)),
    ((1, 2, 2), MaxPool(size=9)),
    ((3, 4, 5), MaxPool(size=1)),
    ((2, 5, 4), Upsample()),
    ((2, 5, 4), Upsample(size=3)),
    ((2, 5, 4), Flatten()),
    ((6,), Flatten()),
    ((24,), Reshape(shape=(2, 3, 4))),
]


@pytest.mark.parametrize(("shape", "layer"), KINDS, ids=[f"{shape} {layer!r}" for shape, layer in KINDS])
def test_output_shape_and_parameter_count_match_the_module(shape: Shape, layer: Layer) -> None:
    network = Network.of(shape, [layer])
    for batch in (4, 1, 0):
        assert network(torch.rand(batch, *shape)).shape == (batch, *layer.output_shape(shape))
    assert sum(weight.numel() for weight in network.parameters()) == layer.parameters(shape)
    assert network.code == layer.output_shape(shape)
    assert network.summary().parameters == layer.parameters(shape)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (Dense(width=3), (1, 4, 4), "put `kind: flatten` before it"),
        (Conv(filters=3), (16,), "put `kind: reshape` before it"),
        (MaxPool(), (16,), "put `kind: reshape` before it"),
        (Upsample(), (16,), "put `kind: reshape` before it"),
        (Conv(filters=3, size=4), (1, 9, 9), "write an odd size, or padding: valid"),
        (Conv(filters=3, size=5, padding="valid"), (1, 9, 4), "does not fit into 9 x 4; write padding: same"),
        (Reshape(shape=(1, 4, 4)), (15,), "a vector of 15 has 15 values"),
        (Reshape(shape=(1, 4, 4)), (4, 2, 2), "put `kind: flatten` before it"),
    ],
)
def test_error_for_a_wrong_input_shape_names_the_fix(layer: Layer, shape: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=r"write|put|values") as raised:
        Network.of(shape, [layer])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "function"), [("relu", F.relu), ("sigmoid", F.sigmoid), ("tanh", F.tanh), ("linear", lambda x: x)]
)
def test_activations_match_their_formulas(name: Activation, function: Any) -> None:
    torch.manual_seed(2)
    network, x = Network.of((5,), [Dense(width=6, activation=name)]), torch.randn(4, 5)
    weight, bias = network.parameters()
    nn.init.normal_(bias)
    close(network(x), function(x @ weight.T + bias), slack=16)


def test_flatten_is_channel_major_and_reshape_inverts_it() -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4)
    flat = Network.of((2, 3, 4), [Flatten()])(x)
    assert flat[0].tolist() == list(range(24))
    assert torch.equal(Network.of((24,), [Reshape(shape=(2, 3, 4))])(flat), x)


def test_upsampling_by_three_repeats_each_pixel_nine_times() -> None:
    x = torch.randn(2, 3, 2, 3)
    assert torch.equal(Network.of((3, 2, 3), [Upsample(size=3)])(x), torch.kron(x, torch.ones(3, 3)))


def test_weights_are_glorot_initialized_and_biases_zero() -> None:
    for shape, layer, fans in (((300,), Dense(width=200), 500), ((8, 9, 9), Conv(filters=24), 9 * 32)):
        weight, bias = Network.of(shape, [layer]).parameters()
        bound = (6 / fans) ** 0.5
        assert 0.98 * bound < float(weight.detach().abs().max()) <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
        assert not bias.any()


def test_symbolic_tensors_share_weights() -> None:
    image, layer = Input(6), Dense(width=4)
    first, second = layer(image), layer(image)
    one, other = Network(image, first), Network(image, second)
    longer = Network(image, Dense(width=2)(first))
    assert longer.layers[0] is one.layers[0]
    assert one.layers[0] is not other.layers[0]
    x = torch.randn(3, 6)
    with torch.no_grad():
        before, unlike = one(x), other(x)
        assert not torch.equal(before, unlike)
        for weight in longer.layers[0].parameters():
            weight.add_(1)
        assert not torch.equal(one(x), before)
        assert torch.equal(other(x), unlike)


def test_network_may_start_anywhere_but_needs_an_output() -> None:
    image = Input(6)
    code = Dense(width=4)(image)
    out = Dense(width=6)(code)
    x = torch.randn(2, 6)
    assert torch.equal(Network(code, out)(Network(image, code)(x)), Network(image, out)(x))
    with pytest.raises(ValueError, match="no layers lead from this input to this output"):
        Network(out, code)
    with pytest.raises(ValueError, match="no layers lead"):
        Network(Input(6), out)
    unknown: Any = "fog"
    with pytest.raises(TypeError, match="not a layer of a network"):
        build_module(unknown, (3,))


def test_summary_counts_layers_by_kind_and_aligns_columns() -> None:
    network = Network.of((1, 4, 4), [Conv(filters=1500), MaxPool(), Flatten(), Dense(width=10), Dense(width=2)])
    table = network.summary()
    assert [row.name for row in table] == ["input", "conv_1", "max_pool_1", "flatten_1", "dense_1", "dense_2"]
    assert str(table) == (
        "Layer (type)          Output shape        Parameters\n"
        "----------------------------------------------------\n"
        "input (Input)         (None, 4, 4, 1)              0\n"
        "conv_1 (Conv)         (None, 4, 4, 1500)      15,000\n"
        "max_pool_1 (MaxPool)  (None, 2, 2, 1500)           0\n"
        "flatten_1 (Flatten)   (None, 6000)                 0\n"
        "dense_1 (Dense)       (None, 10)              60,010\n"
        "dense_2 (Dense)       (None, 2)                   22\n"
        "----------------------------------------------------\n"
        "Total parameters: 75,032\n"
        "Trainable parameters: 75,032\n"
        "Non-trainable parameters: 0"
    )
    assert repr(table) == str(table)
