"""Contract tests of every hierarchical encoder-decoder: kinds of encoders and cells, with attention and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

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
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gru": {"cell": "gru", "layers": 2, "turns": {"cell": "lstm", "layers": 2}, "speakers": 3},
    "rnn-ahead": {"cell": "rnn", "encoder": {"kind": "recurrent", "cell": "rnn", "hidden": 12, "directions": "ahead"}},
    "transformer": {"encoder": {"kind": "transformer", "heads": 2, "layers": 1, "hidden": 20}},
    "attention-output": {"attention": {"feed": "output"}},
    "attention-input-dot": {"attention": {"feed": "input", "score": "dot"}, "turns": {"hidden": 20}},
    "attention-monotonic": {"attention": {"feed": "output", "span": {"kind": "monotonic", "window": 1}}},
}
TURNS = ((5, 2, 7), (4,), (1, 6, 3, 8), (9, 9))  # tokens of the utterances of four dialogues
Side = Literal["left", "right", "between"]


def configs() -> Iterator[Any]:
    for kind in kinds_of("hierarchical"):
        tiny = config_class(kind).tiny()
        for name, changes in VARIANTS.items():
            yield pytest.param(type(tiny).model_validate(tiny.model_dump() | changes), id=f"{kind}-{name}")


@pytest.fixture(params=configs())
def config(request: pytest.FixtureRequest) -> Any:
    return request.param


def build_model(config: Any) -> Any:
    """A model with random noise on its weights, so that no bias is zero."""
    torch.manual_seed(0)
    model = build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def dialogues(turns: Sequence[Sequence[int]] = TURNS, seed: int = 0) -> list[list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [[torch.randint(4, VOCAB, (length,), generator=random) for length in lengths] for lengths in turns]


def columns(count: int, width: int, side: Side) -> list[int]:
    """The places of `count` real ones among `width`."""
    if side == "between":
        return sorted(torch.randperm(width)[:count].tolist())
    return list(range(width - count, width) if side == "left" else range(count))


def batch(
    rows: Sequence[Sequence[Tensor]], side: Side = "right", more: int = 0, fill: int = 7
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Utterances (B, U, T) padded on a side, which are real, speakers in turn, and the rows of the last utterances."""
    count, width = max(map(len, rows)) + more, max(len(one) for row in rows for one in row) + more
    utterances = torch.full((len(rows), count, width), fill)
    real, speakers = torch.zeros_like(utterances, dtype=torch.bool), torch.zeros(len(rows), count + 1).long()
    last = []
    for number, row in enumerate(rows):
        places = columns(len(row), count, side)
        for turn, (place, one) in enumerate(zip(places, row, strict=True)):
            at = columns(len(one), width, side)
            utterances[number, place, at], real[number, place, at] = one, True
            speakers[number, place], speakers[number, place + 1] = turn % 2, (turn + 1) % 2
        last.append(number * count + places[-1])
    return utterances, real, speakers, torch.tensor(last)


def begin(model: Any, rows: Sequence[Sequence[Tensor]], side: Side = "right", more: int = 0) -> Any:
    """The state before the reply to each dialogue."""
    utterances, real, speakers, last = batch(rows, side, more)
    return select(model.start(utterances, real, speakers), last)


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_shapes_and_count(config: Any) -> None:
    model = build_model(config)
    utterances, real, speakers, _ = batch(dialogues())
    logits, _ = model(tokens(16, 5), model.start(utterances, real, speakers))
    assert logits.shape == (16, 5, VOCAB)  # a reply to each of 4 x 4 utterances
    assert sum(weight.numel() for weight in model.parameters()) == config.parameters(VOCAB)
    assert summary(config).parameters == config.parameters(VOCAB)


def test_every_weight_gets_a_gradient(config: Any) -> None:
    model = build_model(config).train()
    utterances, real, speakers, _ = batch(dialogues(((4, 3, 5, 2), (2, 6, 4, 3))))
    speakers = torch.arange(10).view(2, 5) % config.speakers
    x, _ = model.features(tokens(8, 7), model.start(utterances, real, speakers))
    model.tokens.logits(x).log_softmax(-1)[..., 5].sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_evaluation_is_deterministic_and_dropout_is_not(config: Any) -> None:
    model, reply = build_model(config), tokens(4, 5)
    first, again = (model(reply, begin(model, dialogues()))[0] for _ in range(2))
    assert torch.equal(first, again)
    model.train()
    first, again = (model(reply, begin(model, dialogues()))[0] for _ in range(2))
    assert not torch.equal(first, again)


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_of_tokens_and_of_utterances_changes_nothing(config: Any, side: Side) -> None:
    model, rows, reply = build_model(config), dialogues(), tokens(4, 5)
    alone = torch.cat([model(reply[n : n + 1], begin(model, [row]))[0] for n, row in enumerate(rows)])
    torch.manual_seed(3)
    for more in (0, 3):
        close(model(reply, begin(model, rows, side, more))[0], alone)


def test_dialogues_of_a_batch_do_not_affect_each_other(config: Any) -> None:
    model, rows, reply = build_model(config), dialogues(), tokens(4, 5)
    whole, state = model(reply, begin(model, rows))
    order = torch.tensor([3, 0, 2, 1])
    close(model(reply[order], begin(model, [rows[n] for n in order]))[0], whole[order])
    again = tokens(4, 3, seed=1)
    close(model(again[order], select(state, order))[0], model(again, state)[0][order])


def test_state_before_each_reply_is_that_of_the_dialogue_up_to_it(config: Any) -> None:
    model, (row,), reply = build_model(config), dialogues(((3, 5, 2, 4),)), tokens(4, 6)
    utterances, real, speakers, _ = batch([row])
    whole, _ = model(reply, model.start(utterances, real, speakers))
    parts = [model(reply[n : n + 1], begin(model, [row[: n + 1]]))[0] for n in range(4)]
    close(whole, torch.cat(parts))


def test_no_gradient_flows_from_a_reply_to_later_utterances(config: Any) -> None:
    model = build_model(config)
    utterances, real, speakers, _ = batch(dialogues(((3, 3, 3, 3),)))
    read = list[Tensor]()
    model.encoder.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    logits, _ = model(tokens(4, 2), model.start(utterances, real, speakers))
    for reply in range(4):
        (gradient,) = torch.autograd.grad(logits[reply].log_softmax(-1)[..., 5].sum(), read[0], retain_graph=True)
        heard = gradient.abs().sum((1, 2)) > 0
        assert heard.tolist() == [turn <= reply for turn in range(4)]


def test_all_at_once_in_chunks_and_one_by_one_agree(config: Any) -> None:
    model, words = build_model(config), tokens(4, 7)
    whole, _ = model(words, begin(model, dialogues()))
    for sizes in ([3, 4], [1] * 7):
        state, parts = begin(model, dialogues()), []
        for part in words.split(sizes, 1):
            logits, state = model(part, state)
            parts.append(logits)
        close(torch.cat(parts, 1), whole)


def test_hypotheses_share_what_was_said(config: Any) -> None:
    model, words, rows = build_model(config), tokens(8, 5), torch.arange(8) // 2
    apart, _ = model(words, select(begin(model, dialogues()), rows))
    together, _ = model(words, regroup(begin(model, dialogues()), rows))
    close(together, apart)


@pytest.mark.parametrize("width", [1, 3])
def test_searches_do_not_depend_on_the_batch(config: Any, width: int) -> None:
    model, rows = build_model(config), dialogues(((2, 4), (5,), (3, 3, 6)) * 4)

    def search(some: Sequence[Sequence[Tensor]]) -> Any:
        prefix, limit = torch.full((len(some), 1), 2), torch.full((len(some),), 6)
        state = begin(model, some)
        return drain(
            greedy(model, state, prefix, limit, 3) if width == 1 else beam(model, state, prefix, limit, 3, width)
        )

    with torch.inference_mode():
        together, apart = search(rows), [search([row]) for row in rows]
    for number, one in enumerate(apart):
        length = int(one.lengths[0, 0])
        assert together.tokens[number, 0, :length].tolist() == one.tokens[0, 0, :length].tolist()
        close(together.logs[number], one.logs[0])


def test_what_was_said_first_and_by_whom_matters(config: Any) -> None:
    model, rows, reply = build_model(config), dialogues(((3, 4, 2, 5),)), tokens(1, 4)
    before, _ = model(reply, begin(model, rows))
    changed = [[rows[0][0].flip(0) + 1 - 2 * (rows[0][0].flip(0) == VOCAB - 1), *rows[0][1:]]]
    assert (model(reply, begin(model, changed))[0] - before).abs().max() > 1e-6
    utterances, real, speakers, last = batch(rows)
    state = select(model.start(utterances, real, 1 - speakers), last)
    assert (model(reply, state)[0] - before).abs().max() > 1e-6


def test_attention_weights_sum_to_one_over_the_turns_so_far(config: Any) -> None:
    model = build_model(config)
    if config.attention is None:
        assert model.alignment not in taps(model)
        return
    utterances, real, speakers, _ = batch(dialogues(((3, 4, 2),)))
    with watch(model, model.alignment) as seen:
        watched, _ = model(tokens(3, 5), model.start(utterances, real, speakers))
    plain, _ = model(tokens(3, 5), model.start(utterances, real, speakers))
    close(watched, plain)
    weights = torch.cat(seen.all[model.alignment], 2)[:, 0]  # (3, 5, 3), a reply to each turn
    close(weights.sum(-1), torch.ones(3, 5))
    assert (weights * ~torch.ones(3, 3, dtype=torch.bool).tril()[:, None] == 0).all()


def test_utterance_longer_than_the_context_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="17 tokens, more than the model's context of 16"):
        begin(build_model(config), dialogues(((3, 17),)))


def test_saved_model_loads_bit_for_bit(config: Any, tmp_path: Path) -> None:
    model = build_model(config)
    write_model(tmp_path / "model", "{}\n", model.state_dict(), {}, {})
    other = build(config).eval()
    other.load_state_dict(read_model(tmp_path / "model", lambda text: []).tensors)
    assert torch.equal(
        model(tokens(4, 3), begin(model, dialogues()))[0], other(tokens(4, 3), begin(other, dialogues()))[0]
    )


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("plain", "attention-output") else pytest.param(name, marks=pytest.mark.slow)
        for name in VARIANTS
    ],
)
@pytest.mark.parametrize("kind", kinds_of("hierarchical"))
def test_it_can_overfit_a_few_replies(kind: str, name: str) -> None:
    torch.manual_seed(1)
    tiny = config_class(kind).tiny()
    config = type(tiny).model_validate(tiny.model_dump() | VARIANTS[name])
    model = build(config.model_copy(update={"dropout": 0.0}))
    rows, words = dialogues(((2, 3), (3, 2), (4,), (1, 2, 3))), torch.cat([torch.full((4, 1), 2), tokens(4, 5)], 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(40):
        logits, _ = model(words[:, :-1], begin(model, rows))
        loss = cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    assert loss.total.item() / 20 < 0.1
