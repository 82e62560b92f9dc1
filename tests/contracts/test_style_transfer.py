"""Contract tests of every style transfer model: words and soft words, padding, state, and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.state import select
from heedful.blocks.taps import taps, watch
from heedful.decode.search import beam, drain, greedy
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.tracing import summary
from tolerance import close

VOCAB, END = 23, 3
CELLS: tuple[str, ...] = ("gru", "lstm", "rnn")


def configs() -> Iterator[Any]:
    for kind in kinds_of("style_transfer"):
        tiny = config_class(kind).tiny()
        for cell in CELLS:
            yield pytest.param(tiny.model_copy(update={"cell": cell}), id=f"{kind}-{cell}")
        if kind == "style_transfer":
            for settings in ({"score": "location"}, {"score": "additive"}, {"normalize": "sparsemax"}):
                yield pytest.param(tiny.model_copy(update=settings), id="-".join([kind, *settings.values()]))


@pytest.fixture(params=configs())
def config(request: pytest.FixtureRequest) -> Any:
    return request.param


def build_model(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build(config).eval()


def words(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def one_hot(tokens: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tokens, VOCAB).float()


STYLES = torch.tensor([0, 1, 1, 0])


def test_shapes_and_count(config: Any) -> None:
    model = build_model(config)
    logits, _ = model(words(4, 5), model.start(words(4, 6), STYLES))
    assert logits.shape == (4, 5, VOCAB)
    assert model.discriminator(words(4, 6), words(4, 6) > 0).shape == (4, 3)
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters(VOCAB)
    assert summary(config).parameters == config.parameters(VOCAB)


def test_a_word_and_its_one_hot_distribution_are_the_same(config: Any) -> None:
    model, texts, more = build_model(config), words(4, 6), words(4, 5, seed=1)
    hard, _ = model(more, model.start(texts, STYLES))
    soft, _ = model(one_hot(more), model.start(one_hot(texts), STYLES))
    close(soft, hard)
    real = torch.ones(4, 6, dtype=torch.bool)
    close(model.discriminator(one_hot(texts), real), model.discriminator(texts, real))


def test_later_words_change_no_earlier_logits(config: Any) -> None:
    model, texts, more = build_model(config), words(4, 5), words(4, 6, seed=1)
    whole, _ = model(more, model.start(texts, STYLES))
    other = torch.cat([more[:, :3], words(4, 3, seed=2)], 1)
    changed, _ = model(other, model.start(texts, STYLES))
    close(changed[:, :3], whole[:, :3])
    assert not torch.equal(changed[:, 3:], whole[:, 3:])


def test_all_at_once_in_chunks_and_one_by_one_agree(config: Any) -> None:
    model, texts, more = build_model(config), words(4, 5), words(4, 7, seed=1)
    whole, _ = model(more, model.start(texts, STYLES))
    for sizes in ([3, 4], [1] * 7):
        state, parts = model.start(texts, STYLES), []
        for part in more.split(sizes, 1):
            logits, state = model(part, state)
            parts.append(logits)
        close(torch.cat(parts, 1), whole)


def test_padding_and_the_batch_change_nothing(config: Any) -> None:
    model, texts, more = build_model(config), words(4, 9), words(4, 5, seed=1)
    lengths = torch.tensor([9, 4, 1, 6])
    real = torch.arange(9) < lengths[:, None]
    never = torch.zeros(VOCAB, dtype=torch.bool)
    together, state = model(more, model.start(texts, STYLES, Padded(real)))
    judged = model.discriminator(texts, real)
    soft = model.write(model.start(texts, STYLES, Padded(real)), more[:, :1], END, never, lengths + 1, 0.5)
    rows = torch.tensor([2, 0, 3, 1])
    close(model(more[rows], select(state, rows))[0], model(more, state)[0][rows])
    for row, length in enumerate(lengths.tolist()):
        text, style, first = texts[row : row + 1, :length], STYLES[row : row + 1], more[row : row + 1]
        close(model(first, model.start(text, style))[0][0], together[row])
        close(model.discriminator(text, text > 0)[0], judged[row])
        alone = model.write(model.start(text, style), first[:, :1], END, never, lengths[row : row + 1] + 1, 0.5)
        count = int(alone.real.sum())
        assert int(soft.real[row].sum()) == count <= length + 1
        close(soft.words[row, :count], alone.words[0, :count])


def test_the_style_and_the_text_matter(config: Any) -> None:
    model, texts, more = build_model(config), words(4, 6), words(4, 5, seed=1)
    whole, _ = model(more, model.start(texts, STYLES))
    assert not torch.equal(model(more, model.start(texts, 1 - STYLES))[0], whole)
    assert not torch.equal(model(more, model.start(texts.flip(1), STYLES))[0], whole)


def test_soft_texts_end_pass_gradients_and_never_say_some_words(config: Any) -> None:
    model = build_model(config).train()
    never = torch.tensor([number in (0, 1, 2) for number in range(VOCAB)])
    texts, begin, limits = words(4, 6), torch.full((4, 1), 2), torch.tensor([5, 2, 8, 3])
    soft = model.write(model.start(texts, STYLES), begin, END, never, limits, 1.0)
    close(soft.words.sum(-1), torch.ones(soft.words.shape[:2]))
    assert not soft.words[..., :3].any()
    assert bool((soft.real.sum(1) <= limits).all()) and bool(soft.real[:, 0].all())
    ends = (soft.words.argmax(-1) == END) & soft.real
    assert bool((ends.sum(1) <= 1).all())
    model.discriminator(soft.words, soft.real).sum().backward()
    resting = {"discriminator"}
    missing = [name for name, one in model.named_parameters() if one.grad is None and name.split(".")[0] not in resting]
    assert missing == []


def test_greedy_search_and_beams_of_one_agree(config: Any) -> None:
    model, texts = build_model(config), words(4, 6)
    prefix, limit = torch.full((4, 1), 2), torch.full((4,), 8)
    one = drain(greedy(model, model.start(texts, STYLES), prefix, limit, END))
    two = drain(beam(model, model.start(texts, STYLES), prefix, limit, END, beams=1))
    assert torch.equal(one.tokens, two.tokens)


def test_watching_changes_nothing(config: Any) -> None:
    model, texts, more = build_model(config), words(4, 6), words(4, 5, seed=1)
    plain, _ = model(more, model.start(texts, STYLES))
    assert model.alignment in taps(model)
    with watch(model) as seen:
        watched, _ = model(more, model.start(texts, STYLES))
    close(watched, plain)
    weights = seen.all[model.alignment][0]
    close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_a_saved_model_loads_bit_for_bit(config: Any, tmp_path: Path) -> None:
    model, texts = build_model(config), words(4, 6)
    write_model(tmp_path / "model", "{}", model.state_dict(), {}, {})
    other = build_model(config, seed=5)
    other.load_state_dict(read_model(tmp_path / "model").tensors)
    found, wanted = (one(texts, one.start(texts, STYLES))[0] for one in (other, model))
    assert torch.equal(found, wanted)


def test_what_cannot_be_read_is_refused(config: Any) -> None:
    model = build_model(config)
    with pytest.raises(ValueError, match="is empty"):
        model.start(words(4, 0), STYLES)
    with pytest.raises(ValueError, match="more than the model's context"):
        model.start(words(4, config.context + 1), STYLES)
    with pytest.raises(ValueError, match="is empty"):
        model(words(4, 0), model.start(words(4, 3), STYLES))
