"""The recurrent language model, beyond the contract tests."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.rnn_lm.model import RnnLM
from tolerance import close

CELLS = ["rnn", "lstm", "gru"]


def model(cell: Any = "lstm", hidden: int = 12, layers: int = 2) -> RnnLM:
    config = RnnLMConfig(vocab=11, width=8, hidden=hidden, layers=layers, cell=cell, context=4)
    return RnnLM(config).eval().double()


@pytest.mark.parametrize("cell", CELLS)
def test_text_may_be_longer_than_the_training_window(cell: str) -> None:
    lm, tokens = model(cell), torch.randint(0, 11, (2, 50))
    whole, last = lm(tokens, lm.start(2, tokens.device))
    assert whole.shape == (2, 50, 11)
    state, parts = lm.start(2, tokens.device), []
    for window in tokens.split(lm.config.context, 1):  # the state carries over from window to window
        logits, state = lm(window, state)
        parts.append(logits)
    close(torch.cat(parts, 1), whole, slack=8192)
    close(state.layers, last.layers, slack=8192)


@pytest.mark.parametrize("cell", CELLS)
def test_reading_starts_from_a_zero_state(cell: str) -> None:
    lm, tokens = model(cell), torch.randint(0, 11, (3, 6))
    x, _ = lm.features(tokens, lm.start(3, tokens.device))
    close(lm.read(tokens), x, slack=8192)
    close(lm.tokens.logits(x), lm(tokens, lm.start(3, tokens.device))[0], slack=8192)
    assert not any(part.any() for layer in lm.start(3, tokens.device).layers for part in layer)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_leaves_the_states_of_single_texts(cell: str, side: str) -> None:
    lm, tokens, lengths = model(cell), torch.randint(0, 11, (3, 6)), (6, 1, 4)
    real = torch.arange(6) < torch.tensor(lengths)[:, None]
    real = real.flip(1) if side == "left" else real
    read = lm.read(tokens, real)
    _, fast = lm.features(tokens, None, real)
    _, slow = lm(tokens, lm.start(3, tokens.device), real)
    for row in range(3):
        alone, state = lm.features(tokens[row : row + 1, real[row]])
        close(read[row : row + 1, real[row]], alone, slack=8192)
        for found in (fast, slow):
            own = tuple(tuple(part[row : row + 1] for part in layer) for layer in found.layers)
            close(own, state.layers, slack=8192)


def test_projection_exists_only_when_widths_differ() -> None:
    assert [tuple(weight.shape) for weight in model(hidden=12).out.parameters()] == [(8, 12), (8,)]
    assert not list(model(hidden=8).out.parameters())


def test_input_and_output_embeddings_are_tied() -> None:
    shapes = [tuple(weight.shape) for weight in model().parameters()]
    assert shapes.count((11, 8)) == 1
    assert sum(11 in shape for shape in shapes) == 1


def test_window_without_state_forgets_the_text_before() -> None:
    lm, tokens = model(), torch.randint(0, 11, (1, 8))
    _, carried = lm.features(tokens[:, :4])
    on, _ = lm.features(tokens[:, 4:], carried)
    close(on, lm.read(tokens)[:, 4:], slack=8192)
    assert not torch.allclose(lm.read(tokens[:, 4:]), on, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cell": "lstn"}, "'lstm', 'gru' or 'rnn'"),
        ({"layers": 0}, "greater than or equal to 1"),
        ({"width": 65536, "hidden": 65536, "layers": 100}, "more than 200 billion"),
        ({"heads": 4}, "not permitted"),
    ],
)
def test_impossible_models_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RnnLMConfig(**settings)


def test_published_size() -> None:
    # Zaremba et al.: a vocabulary of 10,000 and a separate output matrix of that size; here the two are tied.
    assert RnnLMConfig().parameters(10_000) + 10_000 * 650 == pytest.approx(19.8e6, rel=0.01)
