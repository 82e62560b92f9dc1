"""Contract tests of every captioner: soft and hard attention with each score, a Transformer, and none at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.losses import cross_entropy
from heedful.blocks.state import regroup, select
from heedful.blocks.taps import taps, watch
from heedful.decode.search import beam, drain, greedy
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.tracing import summary
from tolerance import close

VOCAB = 23
RECURRENT = {"kind": "recurrent", "width": 16, "hidden": 20}
DECODERS: dict[str, dict[str, Any]] = {
    **{
        score: RECURRENT | {"attention": {"kind": "soft", "score": score}}
        for score in ("additive", "general", "location")
    },
    **{
        score: RECURRENT | {"hidden": 12, "attention": {"kind": "soft", "score": score}}
        for score in ("dot", "scaled_dot", "cosine")
    },
    "hard": RECURRENT | {"attention": {"kind": "hard"}},
    "ungated": RECURRENT | {"cell": "gru", "layers": 2, "attention": {"kind": "soft", "gate": False}},
    "none": RECURRENT | {"cell": "rnn", "attention": None},
    "transformer": {"kind": "transformer", "width": 16, "heads": 2, "layers": 2, "hidden": 20},
}


def configs() -> Iterator[Any]:
    for kind in kinds_of("captioner"):
        tiny = config_class(kind).tiny()
        for name, decoder in DECODERS.items():
            yield pytest.param(type(tiny).model_validate(tiny.model_dump() | {"decoder": decoder}), id=f"{kind}-{name}")


LEARNING = ("captioner-additive", "captioner-hard", "captioner-transformer")  # what `make test` trains


@pytest.fixture(params=configs())
def config(request: pytest.FixtureRequest) -> Any:
    return request.param


def build_model(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build(config).eval()


def images(config: Any, count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *config.encoder.input, generator=torch.Generator().manual_seed(seed))


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_shapes_and_count(config: Any) -> None:
    model = build_model(config)
    logits, _ = model(tokens(3, 5), model.start(images(config, 3)))
    assert logits.shape == (3, 5, VOCAB)
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters(VOCAB)
    assert summary(config).parameters == config.parameters(VOCAB)


def test_every_weight_gets_a_gradient(config: Any) -> None:
    model = build_model(config).train()
    read = model.read(images(config, 4), tokens(8, 7))
    total = model.tokens.logits(read.x).log_softmax(-1)[..., 5].sum()
    (total if read.choices is None else total + read.choices.sum()).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_later_words_change_no_earlier_logits(config: Any) -> None:
    model, x, words = build_model(config), images(config, 2), tokens(2, 6)
    whole, _ = model(words, model.start(x))
    words = torch.cat([words[:, :3], tokens(2, 3, seed=1)], 1)
    changed, _ = model(words, model.start(x))
    close(changed[:, :3], whole[:, :3])
    assert not torch.equal(changed[:, 3:], whole[:, 3:])


def test_all_at_once_in_chunks_and_one_by_one_agree(config: Any) -> None:
    model, x, words = build_model(config), images(config, 3), tokens(3, 7)
    whole, _ = model(words, model.start(x))
    for sizes in ([3, 4], [1] * 7):
        state, parts = model.start(x), []
        for part in words.split(sizes, 1):
            logits, state = model(part, state)
            parts.append(logits)
        close(torch.cat(parts, 1), whole)


def test_images_do_not_affect_each_other(config: Any) -> None:
    model, x, words = build_model(config), images(config, 5), tokens(5, 4)
    whole, _ = model(words, model.start(x))
    order = torch.tensor([3, 0, 4, 2, 1])
    close(model(words[order], model.start(x[order]))[0], whole[order])
    for row in range(5):
        close(model(words[row : row + 1], model.start(x[row : row + 1]))[0][0], whole[row])
    state = model(words[:, :2], model.start(x))[1]
    close(model(words[order, 2:], select(state, order))[0], whole[order, 2:])


def test_captions_of_an_image_share_its_map(config: Any) -> None:
    model, x, words = build_model(config), images(config, 2), tokens(6, 5)
    rows = torch.arange(6) // 3
    apart, _ = model(words, select(model.start(x), rows))
    together, _ = model(words, regroup(model.start(x), rows))
    close(together, apart)
    close(model.tokens.logits(model.read(x, words).x), apart)


def test_the_image_matters(config: Any) -> None:
    model, words = build_model(config), tokens(2, 4)
    one, other = (model(words, model.start(images(config, 2, seed)))[0] for seed in (0, 1))
    assert not torch.allclose(one, other, atol=1e-4)


def test_search_is_the_same_alone_and_in_a_batch(config: Any) -> None:
    model, x = build_model(config), images(config, 4)
    with torch.inference_mode():

        def found(part: Tensor) -> list[list[int]]:
            prefix, limit = torch.full((len(part), 1), 2), torch.full((len(part),), 9)
            paths = drain(beam(model, model.start(part), prefix, limit, 3, 3, 1, 1.0))
            return [row[:n].tolist() for row, n in zip(paths.tokens[:, 0], paths.lengths[:, 0], strict=True)]

        assert found(x) == [found(x[row : row + 1])[0] for row in range(4)]
        one = drain(greedy(model, model.start(x), torch.full((4, 1), 2), torch.full((4,), 9), 3))
        wide = drain(beam(model, model.start(x), torch.full((4, 1), 2), torch.full((4,), 9), 3, 1, 1, 1.0))
        assert torch.equal(one.tokens, wide.tokens)


@pytest.mark.claim("I7")
def test_weights_reshape_to_the_grid_and_sum_to_one(config: Any) -> None:
    model, x, words = build_model(config), images(config, 3), tokens(3, 5)
    plain = model.read(x, words)
    rows, columns = config.grid
    if not any("attention.weights" in name or "cross.weights" in name for name in taps(model)):
        return
    with watch(model, model.alignment) as seen:
        read = model.read(x, words)
    close(read.x, plain.x)  # watching changes nothing
    for values in seen.all.values():
        weights = torch.cat(values, 2)  # (B, H, T, places)
        assert weights.shape[2:] == (5, rows * columns)
        sums = weights.unflatten(3, (rows, columns)).sum((3, 4))
        close(sums, torch.ones_like(sums))


def test_saved_model_is_loaded_bit_for_bit(config: Any, tmp_path: Path) -> None:
    model, other = build_model(config).train(), build_model(config, 1)
    model.read(images(config, 8, 1), tokens(8, 4))  # running statistics change
    write_model(tmp_path / "model", "{}", model.state_dict(), {"images.json": "{}"}, {})
    other.load_state_dict(read_model(tmp_path / "model", lambda text: ["images.json"]).tensors)
    x, words = images(config, 3), tokens(3, 4)
    assert torch.equal(model.eval()(words, model.start(x))[0], other(words, other.start(x))[0])


def test_bfloat16_gives_similar_logits(config: Any) -> None:
    if config.hard:
        return  # another place may be the most probable
    model, x, words = build_model(config), images(config, 3), tokens(3, 4)
    full = model(words, model.start(x))[0]
    with torch.autocast("cpu", torch.bfloat16):
        half = model(words, model.start(x))[0]
    assert bool(half.isfinite().all())
    assert float((half - full).detach().abs().max()) < 0.1 * float(full.detach().abs().max())


@pytest.mark.parametrize(
    "config",
    [pytest.param(*one.values, id=one.id, marks=() if one.id in LEARNING else pytest.mark.slow) for one in configs()],
    indirect=True,
)
def test_four_captions_are_memorized(config: Any) -> None:
    model = build_model(config.model_copy(update={"dropout": 0.0}), 2).train()
    x, words = images(config, 4), torch.cat([torch.full((4, 1), 2), tokens(4, 5)], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        logits = model.tokens.logits(model.read(x, words[:, :-1]).x)
        optimizer.zero_grad()
        cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).total.backward()
        optimizer.step()
    with torch.no_grad():
        logits = model.tokens.logits(model.read(x, words[:, :-1]).x)
    assert logits.argmax(-1).tolist() == words[:, 1:].tolist()


def test_images_of_another_shape_and_empty_captions_are_refused(config: Any) -> None:
    model = build_model(config)
    channels, rows, columns = config.encoder.input
    with pytest.raises(ValueError, match="the model reads"):
        model.start(torch.zeros(2, channels + 1, rows, columns))
    with pytest.raises(ValueError, match="the caption is empty"):
        model(torch.zeros(2, 0, dtype=torch.long), model.start(images(config, 2)))


@pytest.mark.parametrize("kind", kinds_of("image_encoder"))
def test_any_image_encoder_gives_a_map(kind: str) -> None:
    """The layers after the map are left out, and the rest is counted."""
    encoder = config_class(kind).tiny().model_copy(update={"classes": None})
    small = config_class("captioner").tiny().model_dump() | {"encoder": encoder.model_dump()}
    config: Any = config_class("captioner").model_validate(small)
    model = build_model(config).train()
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters(VOCAB)
    read = model.read(torch.randn(3, *encoder.input), tokens(3, 4))
    assert read.weights.shape == (3, 4, config.grid[0] * config.grid[1])
    read.x.sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_a_frozen_part_stays_as_it_is() -> None:
    config = config_class("captioner").tiny()
    for part in ("encoder", "decoder"):
        model = build_model(config.model_copy(update={"freeze": part})).train()
        before = {name: value.clone() for name, value in model.get_submodule(part).state_dict().items()}
        model.read(images(config, 4), tokens(4, 5)).x.sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        assert not model.get_submodule(part).training
        assert all(torch.equal(value, before[name]) for name, value in model.get_submodule(part).state_dict().items())
