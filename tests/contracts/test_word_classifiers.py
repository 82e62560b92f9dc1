"""Contract tests of the classifiers of words: convolutional, recurrent and Transformer ones behind one interface."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.losses import cross_entropy
from heedful.models import build, config_class, kinds_of
from heedful.models.roles import ModelConfig
from tolerance import close

# Settings whose combinations are varied: a model that is not named here is tested in its tiny size.
MORE: dict[str, dict[str, dict[str, Any]]] = {
    "rnn_classifier": {
        "gru-mean": {"cell": "gru", "pool": "mean"},
        "rnn-max": {"cell": "rnn", "pool": "max"},
        "ahead": {"directions": "ahead"},
        "ahead-gru": {"directions": "ahead", "cell": "gru", "layers": 1},
    },
    "transformer_classifier": {
        "post-learned": {"norm": "post", "positions": "learned"},
        "rotary-max": {"positions": "rotary", "pool": "max", "activation": "gelu"},
        "alibi": {"positions": "alibi"},
        "none-general": {"positions": "none", "score": "general", "normalize": "sparsemax"},
        "halves-additive": {"positions": "sinusoid_halves", "score": "additive"},
    },
}
CASES = [(kind, name) for kind in kinds_of("word_classifier") for name in ("tiny", *MORE.get(kind, ()))]


def config_of(kind: str, name: str, **settings: Any) -> ModelConfig:
    """The tiny settings of a kind, with those of a case, and without dropout unless it is asked for."""
    own = MORE.get(kind, {}).get(name, {})
    cls = config_class(kind)
    found: ModelConfig = cls.model_validate(cls.tiny().model_dump() | {"dropout": 0.0} | own | settings)
    return found


def model_of(kind: str, name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = build(config_of(kind, name, **settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind, name = request.param
    return kind, name


@pytest.mark.claim("M9")
def test_shape_count_and_gradients(case: tuple[str, str]) -> None:
    model = model_of(*case)
    logits = model(torch.randint(0, 23, (3, 7)))
    assert logits.shape == (3, 2)
    assert sum(weight.numel() for weight in model.parameters()) == config_of(*case).parameters(23)
    logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_evaluation_is_deterministic_and_dropout_is_not(case: tuple[str, str]) -> None:
    model, text = model_of(*case, dropout=0.5), torch.randint(0, 23, (3, 7))
    assert torch.equal(model(text), model(text))
    model.train()
    assert not torch.equal(model(text), model(text))


@pytest.mark.claim("M9")
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_and_batch_change_nothing(case: tuple[str, str], side: str) -> None:
    model = model_of(*case)
    texts = [torch.randint(0, 23, (length,)) for length in (1, 7, 3, 12)]
    alone = torch.cat([model(text[None]) for text in texts])
    ids, real = torch.randint(0, 23, (5, 14)), torch.zeros(5, 14, dtype=torch.bool)  # the last row is empty
    for row, text in enumerate(texts):
        sides = {"left": torch.arange(14 - len(text), 14), "right": torch.arange(len(text))}
        place = sides.get(side, torch.randperm(14)[: len(text)].sort().values)
        ids[row, place], real[row, place] = text, True
    found = model(ids, None, Padded(real))
    close(found[:4], alone, slack=16)
    assert found[4].isfinite().all()
    order = torch.tensor([2, 4, 0, 3, 1])
    close(model(ids[order], None, Padded(real[order])), found[order], slack=16)


def test_order_of_words_matters_where_there_are_positions(case: tuple[str, str]) -> None:
    model, text = model_of(*case), torch.tensor([[5, 9, 11, 3, 7, 8]])
    swapped = text[:, [0, 3, 2, 1, 5, 4]]
    unordered = case[1].startswith("none")
    assert torch.allclose(model(text), model(swapped), atol=1e-5) == unordered


@pytest.mark.claim("M9")
def test_each_learns_eight_texts(case: tuple[str, str]) -> None:
    """One loop for all of them: only the settings differ."""
    torch.manual_seed(1)
    model = build(config_of(*case)).train()
    texts, right = torch.randint(0, 23, (8, 9)), torch.arange(8) % 2
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(120):
        loss = cross_entropy(model(texts), right)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    assert (model.eval()(texts).argmax(-1) == right).all()


def test_frozen_words_are_not_trained(case: tuple[str, str]) -> None:
    model = build(config_of(*case, freeze=True))
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert frozen == ["tokens.weight"]


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="write hidden: 8"):
        config_of("rnn_classifier", "tiny", hidden=7)
    with pytest.raises(ValueError, match="cannot be shared by 3 heads"):
        config_of("transformer_classifier", "tiny", heads=3)
    with pytest.raises(ValueError, match="even width"):
        config_of("transformer_classifier", "tiny", width=15, heads=3)
    model = model_of("transformer_classifier", "tiny")
    with pytest.raises(ValueError, match="17 tokens, more than the model's context of 16"):
        model(torch.randint(0, 23, (1, 17)))


def by_hand(model: nn.Module, text: Tensor) -> Tensor:
    """The logits of a bidirectional RNN of one layer, step by step in float64."""
    state = {name: value.double() for name, value in model.state_dict().items()}
    words = state["tokens.weight"][text]
    ends = []
    for way, steps in (("ahead", words), ("back", words.flip(0))):
        cell = {name.rpartition("cell.")[2]: value for name, value in state.items() if f".{way}.cell." in name}
        h = torch.zeros(4, dtype=torch.float64)
        for x in steps:
            h = torch.tanh(cell["x.weight"] @ x + cell["h.weight"] @ h)
        ends.append(h)
    return state["head.weight"] @ torch.cat(ends) + state["head.bias"]


def test_recurrent_logits_match_plain_loops() -> None:
    torch.manual_seed(0)
    model = build(config_of("rnn_classifier", "tiny", cell="rnn", layers=1)).eval()
    text = torch.randint(0, 23, (6,))
    close(model(text[None])[0], by_hand(model, text))
