"""ELMo, beyond the contract tests: directions, layers, and the embedder."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.models.elmo.config import ElmoConfig
from heedful.models.elmo.model import Elmo, Embedder
from tolerance import close

B, T, D, L = 3, 6, 8, 3
ROWS = {
    "right": [[1] * 6, [1] + [0] * 5, [1] * 4 + [0] * 2],
    "left": [[1] * 6, [0] * 5 + [1], [0] * 2 + [1] * 4],
    "both sides": [[0, 1, 1, 1, 0, 0], [0] * 5 + [1], [1] * 6],
    "empty rows": [[0] * 6, [1] * 6, [1] * 2 + [0] * 4],
}


def elmo(dropout: float = 0.0) -> Elmo:
    """A model with random noise on its weights."""
    model = Elmo(ElmoConfig(vocab=11, width=D, hidden=12, layers=L, dropout=dropout)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def tokens(length: int = T) -> Tensor:
    return torch.randint(0, 11, (B, length))


def test_each_direction_sees_one_side_only() -> None:
    model, text, seen = elmo(), tokens(), []
    model.tokens.register_forward_hook(lambda module, inputs, output: seen.append(output))
    ahead, back = model.read(text)
    for at in range(T):
        for x, sees in ((ahead, range(at + 1)), (back, range(at, T))):
            (grad,) = torch.autograd.grad(x[:, at].sum(), seen[0], retain_graph=True)
            assert [t for t in range(T) if grad[:, t].any()] == list(sees)


def test_directions_do_not_see_each_other() -> None:
    model, text = elmo(), tokens()
    ahead, back = model.read(text)
    with torch.no_grad():
        for weight in model.ahead.parameters():
            weight.mul_(2)
    other, same = model.read(text)
    assert same.equal(back)
    assert not torch.isclose(other, ahead).all(-1).any()


def test_backward_equals_forward_on_the_reversed_text() -> None:
    model, text = elmo(), tokens()
    _, back = model.read(text)
    model.ahead.load_state_dict(model.back.state_dict())
    ahead, _ = model.read(text.flip(1))
    assert ahead.flip(1).equal(back)


def test_layers_are_embeddings_then_both_directions_concatenated() -> None:
    model, text = elmo(), tokens()
    layers = model.layers(text)
    assert layers.shape == (B, L + 1, T, 2 * D)
    assert layers[:, 0].equal(model.embed(text).repeat(1, 1, 2))
    ahead, back = model.read(text)
    assert layers[:, L].equal(torch.cat([ahead, back], -1))
    torch.testing.assert_close(model(text), (model.tokens.logits(ahead), model.tokens.logits(back)))


def test_layers_have_residual_connections() -> None:
    model, text = elmo(), tokens()
    layers = model.layers(text)[:, :, :, :D].unbind(1)
    for number, (layer, down) in enumerate(zip(model.ahead.layers, model.ahead.down, strict=True)):
        y = down(layer(layers[number])[0])
        close(layers[number + 1], y + layers[number] if number else y, slack=8192)


@pytest.mark.parametrize("rows", list(ROWS.values()), ids=list(ROWS))
def test_padded_batch_equals_single_texts(rows: list[list[int]]) -> None:
    model, text, real = elmo(), tokens(), torch.tensor(rows, dtype=torch.bool)
    layers, (ahead, back) = model.layers(text, real), model.read(text, real)
    assert not layers.transpose(1, 2)[~real].any()
    assert bool(layers.isfinite().all())
    for row in range(B):
        alone = text[row : row + 1, real[row]]
        if alone.shape[1]:
            close(layers[row][:, real[row]], model.layers(alone)[0], slack=8192)
            own = ahead[row, real[row]], back[row, real[row]]
            close(own, tuple(x[0] for x in model.read(alone)), slack=8192)


def test_taps_show_every_layer_of_each_direction() -> None:
    model, text = elmo(), tokens()
    layers = model.layers(text)
    with watch(model, "*outputs.*") as seen:
        model.layers(text)
    for number in range(L):
        close(seen[f"ahead.outputs.{number}"], layers[:, number + 1, :, :D], slack=8192)
        mirrored = seen[f"back.outputs.{number}"].flip(1)
        close(mirrored, layers[:, number + 1, :, D:], slack=8192)


def test_embedder_trains_only_its_mix() -> None:
    embedder, text = Embedder(elmo(dropout=0.5)).double(), tokens()
    assert {name for name, weight in embedder.named_parameters() if weight.requires_grad} == {"mix.share", "mix.gamma"}
    for mode in (True, False):
        embedder.train(mode)
        assert embedder.mix.training is mode
        assert embedder(text).equal(embedder(text))  # no dropout in frozen layers
    x = embedder(text)
    assert x.shape == (B, T, 2 * D)
    torch.testing.assert_close(x, embedder.elmo.layers(text).mean(1))
    x.square().sum().backward()
    assert bool(embedder.mix.share.grad.any()) and bool(embedder.mix.gamma.grad.any())
    assert all(weight.grad is None for weight in embedder.elmo.parameters())


def test_embedder_is_zero_at_padding() -> None:
    embedder, text = Embedder(elmo()).double(), tokens()
    real = torch.tensor(ROWS["both sides"], dtype=torch.bool)
    x = embedder(text, real)
    assert not x[~real].any()
    alone = embedder(text[:1, 1:4])
    close(x[:1, 1:4], alone, slack=8192)


def test_too_large_model_is_rejected() -> None:
    with pytest.raises(ValidationError, match="more than 200 billion"):
        ElmoConfig(width=65536, hidden=65536, layers=100)
