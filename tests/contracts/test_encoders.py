"""Contract tests of every encoder in `MODELS`, and of every head on it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.layouts import PackedTexts, Padded
from heedful.blocks.taps import taps, watch
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build, config_class, kinds_of
from heedful.models.heads.config import BiLSTMReader
from heedful.models.roles import BELOW_HEADS, Role
from tolerance import close

VOCAB, CONTEXT = 23, 16
Side = Literal["left", "right", "packed"]


@dataclass(frozen=True)
class Given:
    """Padded or packed sequences, with the indices of their first tokens and their lengths."""

    ids: Tensor
    segments: Tensor
    layout: Any
    begins: Tensor
    lengths: Tensor

    @property
    def tokens(self) -> Tensor:
        """The indices of all tokens, sequence by sequence."""
        parts = zip(self.begins.tolist(), self.lengths.tolist(), strict=True)
        return torch.cat([begin + torch.arange(length) for begin, length in parts])

    def split(self, x: Tensor) -> list[Tensor]:
        """The rows of each sequence."""
        return list(x.split(self.lengths.tolist()))


Row = tuple[Tensor, Tensor]  # ids and segments


def rows(*lengths: int) -> list[Row]:
    return [(torch.randint(1, VOCAB, (n,)), (torch.arange(n) >= n // 2).long()) for n in lengths]


def given(some: Sequence[Row], side: Side = "right", more: int = 0) -> Given:
    """Sequences in a batch, padded to the longest plus `more`, or packed with `more` unused positions."""
    lengths = torch.tensor([len(ids) for ids, _ in some])
    if side == "packed":
        room = int(lengths.sum()) + more
        ids, segments = (F.pad(torch.cat([row[part] for row in some]), (0, more), value=1)[None] for part in (0, 1))
        layout = PackedTexts.of(lengths, room, CONTEXT)
        return Given(ids, segments, layout, lengths.cumsum(0) - lengths, lengths)
    wide = int(lengths.max()) + more
    ids, segments = torch.full((len(some), wide), 7), torch.zeros(len(some), wide, dtype=torch.long)
    starts = torch.full_like(lengths, 0) if side == "right" else wide - lengths
    for row, ((one, kinds), start) in enumerate(zip(some, starts.tolist(), strict=True)):
        ids[row, start : start + len(one)], segments[row, start : start + len(one)] = one, kinds
    place = torch.arange(wide)
    real = (place >= starts[:, None]) & (place < (starts + lengths)[:, None])
    return Given(ids, segments, Padded(real), torch.arange(len(some)) * wide + starts, lengths)


# ------------------------------------------------------------------ outputs of each sequence
def heads(model: Any, batch: Given) -> list[Tensor]:
    """An encoder: the logits of every position, and in one more row the output for the whole text."""
    x = model(batch.ids, batch.segments, batch.layout).flatten(0, 1)
    words, first = batch.split(model.words(x[batch.tokens])), x[batch.begins]
    whole = model.follows(first) if model.config.pairs else model.pool(first) if model.config.pooler else first
    return [torch.cat([one, F.pad(two[None], (0, VOCAB - len(two)))]) for one, two in zip(words, whole, strict=True)]


def firsts(model: Any, batch: Given) -> list[Tensor]:
    return list(model(batch.ids, batch.segments, batch.layout))


def tags(model: Any, batch: Given) -> list[Tensor]:
    return batch.split(model(batch.ids, batch.segments, batch.layout, batch.tokens))


def spans(model: Any, batch: Given) -> list[Tensor]:
    most = int(batch.lengths.max())
    found = model(batch.ids, batch.segments, batch.layout, batch.begins, batch.lengths, most)
    return [one[:length] for one, length in zip(found, batch.lengths.tolist(), strict=True)]


def of_classes(found: Tensor, number: int) -> Tensor:
    """The loss of some class for every row."""
    logits = found.reshape(-1, found.shape[-1])
    return F.cross_entropy(logits, (torch.arange(len(logits)) + number) % min(2, logits.shape[1]))


def of_labels(found: Tensor, number: int) -> Tensor:
    """The loss of some labels, each of which is there or not."""
    return F.binary_cross_entropy_with_logits(found, (torch.arange(len(found)) + number) % 2.0)


def of_a_number(found: Tensor, number: int) -> Tensor:
    return (found - (-1.0) ** number).square()


def of_places(found: Tensor, number: int) -> Tensor:
    """The loss of some start and end."""
    return F.cross_entropy(found.mT, torch.tensor([number % len(found), len(found) - 1]))


@dataclass(frozen=True)
class Case:
    """A tiny config, the model's outputs for each sequence, their shape by the sequence's length, and a loss."""

    config: Any
    says: Callable[[Any, Given], list[Tensor]]
    shape: Callable[[int], tuple[int, ...]]
    loss: Callable[[Tensor, int], Tensor]

    def build(self) -> Any:
        return build(self.config)

    @property
    def plain(self) -> "Case":
        """The same without dropout."""
        encoder = getattr(self.config, "encoder", None)
        below = {} if encoder is None else {"encoder": without_dropout(encoder)}
        return replace(self, config=without_dropout(self.config).model_copy(update=below))


def without_dropout(config: Any) -> Any:
    """The same settings, and no dropout."""
    names = {"dropout", "attention_dropout"} & type(config).model_fields.keys()
    return config.model_copy(update=dict.fromkeys(names, 0.0))


SAYS: dict[Role, tuple[Any, Any, Any]] = {  # by role: outputs, their shape, and a loss
    "encoder": (heads, lambda n: (n + 1, VOCAB), of_classes),
    "classifier": (firsts, lambda n: (3,), of_classes),
    "multi_label": (firsts, lambda n: (3,), of_labels),
    "regressor": (firsts, lambda n: (), of_a_number),
    "multiple_choice": (firsts, lambda n: (), of_a_number),
    "tagger": (tags, lambda n: (n, 3), of_classes),
    "answerer": (spans, lambda n: (n, 2), of_places),
}


def table() -> Iterator[tuple[str, Case]]:
    """Every encoder, and every head on each of them, and on models that read from the left alone."""
    short = {"context": CONTEXT}
    encoders = [config_class(kind).tiny().model_copy(update=short) for role in BELOW_HEADS for kind in kinds_of(role)]
    for number, encoder in enumerate(encoders):
        encodes = encoder.role == "encoder"
        if encodes:
            yield encoder.kind, Case(encoder, *SAYS["encoder"])
        if encodes and "normalize" in type(encoder).model_fields:
            sparse = encoder.model_copy(update={"score": "additive", "normalize": "sparsemax"})
            yield f"{encoder.kind}-sparsemax", Case(sparse, *SAYS["encoder"])
        for kind in kinds_of(*(role for role in SAYS if role != "encoder")):
            head = config_class(kind).tiny()
            under = head.model_copy(update={"encoder": encoder.under_head(type(head).pools, kind)})
            name = f"{kind}-{encoder.kind}" if number else kind
            yield name, Case(under, *SAYS[head.role])
            if kind == "tagger":
                read = {"features": "sum_all", "reader": BiLSTMReader(hidden=10)}
                yield f"{name}-bilstm", Case(under.model_copy(update=read), *SAYS[head.role])


TABLE = dict(table())
ENCODERS = list(kinds_of("encoder"))


def on_first(case: Case) -> bool:
    """Whether it is the first encoder, or a head on it."""
    return getattr(case.config, "encoder", case.config).kind == ENCODERS[0]


def reads_both_sides(case: Case) -> bool:
    """Whether a token's output depends on those after it."""
    return getattr(case.config, "encoder", case.config).role == "encoder" or case.config.role not in (
        "tagger",
        "answerer",
    )


def fast_for(
    chosen: Callable[[str, Case], bool], applies: Callable[[Case], bool] = lambda case: True
) -> pytest.MarkDecorator:
    """Every model, of which `make test` takes the chosen ones and `make test-all` all."""
    params = [
        pytest.param(case, id=name, marks=() if chosen(name, case) else pytest.mark.slow)
        for name, case in TABLE.items()
        if applies(case)
    ]
    return pytest.mark.parametrize("case", params)


# Each encoder, each head on the first, and every fifth head on the others: of all heads, and on all encoders, some.
LATER_HEADS = [name for name, case in TABLE.items() if hasattr(case.config, "encoder") and not on_first(case)]
FAST = {*TABLE} - {*LATER_HEADS} | {*LATER_HEADS[::5]}
every_model = fast_for(lambda name, case: name in FAST)
every_packer = fast_for(lambda name, case: name in FAST, lambda case: case.config.packs)


def prepared(case: Case) -> Any:
    """The model with random noise on its weights, so that no bias is zero and no norm is the identity."""
    model = case.build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@every_model
def test_shapes(case: Case) -> None:
    found = case.says(prepared(case), given(rows(5, 2, 7)))
    assert [tuple(one.shape) for one in found] == [case.shape(5), case.shape(2), case.shape(7)]


@every_model
def test_parameter_count_matches_the_built_model(case: Case) -> None:
    assert case.config.parameters(VOCAB) == sum(p.numel() for p in case.build().parameters())


@every_model
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    model = prepared(case)
    # As long as the context, so that every position embedding is used.
    batch = given(rows(CONTEXT, 3))
    encoder, masked = getattr(model, "encoder", model), torch.arange(3, 8)
    found = case.says(model, batch)
    if encoder.config.role == "encoder":
        found = [*found, encoder.masked_vectors(batch.ids, batch.segments, batch.layout, masked)]
    torch.stack([(one.square() * torch.rand_like(one)).sum() for one in found]).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())] == []


@every_model
def test_eval_is_deterministic_and_dropout_is_not(case: Case) -> None:
    model, batch = prepared(case), given(rows(5, 2))
    close(case.says(model, batch), case.says(model, batch))
    model.train()
    one, other = (torch.cat([x.flatten() for x in case.says(model, batch)]) for _ in range(2))
    assert not one.equal(other)


@fast_for(lambda name, case: name in FAST, reads_both_sides)
def test_every_position_sees_all_others(case: Case) -> None:
    model, (row,) = prepared(case), rows(6)
    before = case.says(model, given([row]))[0]
    for place in range(6):
        other = row[0].clone()
        other[place] = other[place] % (VOCAB - 1) + 1
        after = case.says(model, given([(other, row[1])]))[0]
        changed = (before != after).reshape(-1, before.shape[-1] if before.dim() else 1).any(1)
        assert bool(changed.all())


@every_model
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_the_output(case: Case, side: Side) -> None:
    model, some = prepared(case), rows(9, 1, 4, 6)
    batch = case.says(model, given(some, side, 4))
    close(batch, [case.says(model, given([row]))[0] for row in some])


@every_model
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_single_texts(case: Case, side: Side) -> None:
    model, some = prepared(case), rows(*range(1, CONTEXT + 1))
    alone = [case.says(model, given([row]))[0] for row in some]
    # Relative to the largest, since a single number that a head adds up may be near zero.
    close(case.says(model, given(some, side)), alone, of=torch.cat([one.flatten() for one in alone]))


@every_packer
def test_packed_equals_padded(case: Case) -> None:
    model, some = prepared(case), rows(5, 1, 9, 3)
    close(case.says(model, given(some, "packed", 6)), case.says(model, given(some)))


@every_model
def test_padding_values_do_not_matter(case: Case) -> None:
    model, batch = prepared(case), given(rows(3, 6))
    other = torch.where(batch.layout.real, batch.ids, 11)
    close(case.says(model, batch), case.says(model, replace(batch, ids=other)))


@every_model
def test_order_of_the_batch_does_not_matter(case: Case) -> None:
    model, some = prepared(case), rows(4, 1, 6)
    one, other = (case.says(model, given(these)) for these in (some, [some[2], some[0], some[1]]))
    close([one[2], one[0], one[1]], other)


@every_model
def test_watching_does_not_change_the_output(case: Case) -> None:
    model, batch = prepared(case), given(rows(5, 3))
    fast = case.says(model, batch)
    with watch(model) as seen:
        watched = case.says(model, batch)
    close(torch.cat([one.flatten() for one in watched]), torch.cat([one.flatten() for one in fast]))
    assert set(seen) == set(taps(model))
    for name, weights in seen.items():
        if name.endswith("weights"):
            close(weights.sum(-1), torch.ones(weights.shape[:-1]), slack=16)


@every_model
def test_saved_model_is_loaded(case: Case, tmp_path: Path) -> None:
    model, batch = prepared(case), given(rows(5, 3))
    write_model(tmp_path / "model", case.config.model_dump_json(), model.state_dict(), {}, {})
    found = read_model(tmp_path / "model")
    again = build(type(case.config).model_validate_json(found.config_json)).eval()
    again.load_state_dict(found.tensors)
    for one, other in zip(case.says(model, batch), case.says(again, batch), strict=True):
        assert one.equal(other)


@every_model
def test_half_precision_is_finite_and_close(case: Case) -> None:
    model, some = prepared(case), rows(5, 3)
    full = torch.cat([one.flatten() for one in case.says(model, given(some))])
    with torch.autocast("cpu", torch.bfloat16):
        half = torch.cat([one.flatten().float() for one in case.says(model, given(some, "left", 2))])
    assert bool(half.isfinite().all())
    assert float((half - full).detach().abs().max()) < 0.05 * float(full.detach().abs().max())


@every_model
def test_sequence_longer_than_the_context_is_rejected(case: Case) -> None:
    with pytest.raises(ValueError, match=f"{CONTEXT + 1} tokens, more than the model's context of {CONTEXT}"):
        case.says(prepared(case), given(rows(CONTEXT + 1)))


@fast_for(lambda name, case: name in ENCODERS or on_first(case), reads_both_sides)  # each head on one encoder
def test_eight_examples_are_memorized(case: Case) -> None:
    model, some = case.plain.build(), rows(*range(2, 10))
    optimizer, batch = torch.optim.Adam(model.parameters(), lr=1e-2), given(some)
    loss = torch.tensor(9.0)
    for _ in range(1000):
        loss = torch.stack([case.loss(one, number) for number, one in enumerate(case.says(model, batch))]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
    assert loss.item() < 0.01
    again = case.says(model.eval(), given(some, "left", 1))
    assert float(torch.stack([case.loss(one, number) for number, one in enumerate(again)]).mean().detach()) < 0.1


@fast_for(lambda name, case: name in ("bert", "xlnet", "bigbird", "conv_encoder"))  # under a head, it is the same one
def test_compiled_model_has_no_graph_break(case: Case) -> None:
    model, batch = prepared(case), given(rows(5, 3))
    torch._dynamo.reset()
    encoder = getattr(model, "encoder", model)
    compiled = torch.compile(
        lambda ids, real: encoder.layers(ids, None, Padded(real))[-1], backend="eager", fullgraph=True
    )
    found = compiled(batch.ids, batch.layout.real)
    close(found, encoder.layers(batch.ids, None, batch.layout)[-1])
