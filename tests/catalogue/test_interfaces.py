"""One interface over recurrent, convolutional and Transformer parts: the same lines of a program run with each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful.blocks.layouts import Padded
from heedful.catalogue.swaps import Swappable
from heedful.models import build, config_class, kinds_of
from heedful.models.seq2seq.config import Seq2SeqConfig
from tolerance import close

SOURCE, REAL = torch.randint(0, 23, (3, 9)), torch.arange(9) < torch.tensor([[9], [4], [7]])


@pytest.mark.claim("M9")
@pytest.mark.parametrize("encoder", ["recurrent", "transformer", "convolutional"])
def test_encoders_give_a_memory_and_a_summary(encoder: str) -> None:
    """x (B, S, E) -> memory (B, S, M), and a summary (B, M) from which the decoder begins."""
    settings = Seq2SeqConfig.tiny().model_dump() | {"encoder": {"kind": encoder, "layers": 2}, "dropout": 0.0}
    if encoder == "transformer":
        settings["encoder"] |= {"heads": 2, "hidden": 20}
    config = Seq2SeqConfig.model_validate(settings)
    torch.manual_seed(0)
    model: Any = build(config).eval()
    memory, summary = model.encoder(model.tokens(SOURCE), Padded(REAL))
    wide = config.encoder.memory(config.width)
    assert memory.shape == (3, 9, wide) and summary.shape == (3, wide)
    alone, _ = model.encoder(model.tokens(SOURCE[1:2, :4]), Padded(REAL[1:2, :4]))
    close(memory[1:2, :4], alone, slack=16)
    assert model.read(SOURCE, SOURCE, Padded(REAL)).shape == (3, 9, config.width)


@pytest.mark.claim("M9")
@pytest.mark.parametrize("encoder", ["rnn_encoder", "conv_encoder", "bert"])
@pytest.mark.parametrize("head", kinds_of("classifier", "tagger", "answerer", "regressor", "multiple_choice"))
def test_every_head_takes_recurrent_convolutional_and_transformer_encoders(head: str, encoder: str) -> None:
    """The kind alone is another: what heads read is a vector of each token, and one of the text."""
    torch.manual_seed(0)
    tiny = config_class(head).tiny()
    settings = tiny.model_dump() | {"encoder": config_class(encoder).tiny().model_dump()}
    for unwanted in ("pooler", "masked_words", "next_sentence"):
        settings["encoder"].pop(unwanted)
    config = type(tiny).model_validate(settings)
    model: Any = build(config).eval()
    x = model.encoder(SOURCE, None, Padded(REAL))
    assert config.encoder.kind == encoder and x.shape == (3, 9, config.encoder.width)
    alone = model.encoder(SOURCE[1:2, :4], None, Padded(REAL[1:2, :4]))
    close(x[1:2, :4], alone, slack=16)


@pytest.mark.claim("M9")
@pytest.mark.parametrize("kind", kinds_of("causal"))
def test_decoders_take_tokens_and_a_state(kind: str) -> None:
    """tokens (B, T), state -> logits (B, T, V), state: all at once as one by one."""
    torch.manual_seed(0)
    model: Any = build(config_class(kind).tiny()).eval()
    tokens = torch.randint(0, 23, (2, 6))
    whole, _ = model(tokens, model.start(2, tokens.device))
    state, steps = model.start(2, tokens.device), []
    for t in range(6):
        logits, state = model(tokens[:, t : t + 1], state)
        steps.append(logits)
    assert whole.shape == (2, 6, 23)
    close(torch.cat(steps, 1), whole, slack=16)


@pytest.mark.claim("M9")
@pytest.mark.parametrize("kind", kinds_of("image_encoder"))
def test_image_encoders_give_logits_and_a_map(kind: str) -> None:
    """images (B, C, Y, X) -> logits (B, N), and a map (B, D, Y', X'), by convolutions or by attention to patches."""
    config: Any = config_class(kind).tiny()
    model: Any = build(config).eval()
    images = torch.randn(2, *config.input)
    assert model(images).shape == (2, config.outputs)
    assert model.map(images).shape == (2, *config.map_shape)


@pytest.mark.claim("M9")
@pytest.mark.parametrize("name", ["number-languages-conv", "number-languages-rnn", "number-languages-transformer"])
def test_a_recipe_of_one_classifier_is_one_key_from_the_others(name: str) -> None:
    swappable = Swappable(name)
    others = {swap.new: swap for swap in swappable.swaps("model.kind")}
    assert len(others) == len(kinds_of("word_classifier")) - 1 and all(swap.fits for swap in others.values())
    for kind, swap in others.items():
        recipe = swappable.load(swap)
        assert recipe.model.kind == kind and recipe.model.width == swappable.recipe.model.width
        same = recipe.model_copy(update={"model": swappable.recipe.model})
        assert same == swappable.recipe, "nothing else differs"
