"""Padding on either side and between tokens, wider than the context too, moves no token and changes no number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from contracts import test_encoders as encoders
from contracts import test_models as decoders
from heedful.blocks.layouts import PackedTexts, Padded
from tolerance import close

Side = Literal["left", "right", "between"]
every_side = pytest.mark.parametrize("side", ["left", "right", "between"])
LENGTHS = (9, 1, 4, 6)
WHOLE = ("encoder", "classifier", "regressor", "tagger")


def places(lengths: Sequence[int], width: int, side: Side) -> Tensor:
    """Which of `width` columns hold a token (N, width), for rows of these lengths."""
    real = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        columns = {"left": torch.arange(width - length, width), "right": torch.arange(length)}
        real[row, columns.get(side, torch.randperm(width)[:length])] = True
    return real


def laid(rows: Sequence[Tensor], real: Tensor, fill: int) -> Tensor:
    """The rows' tokens, in order, where `real` says."""
    return torch.full(real.shape, fill).masked_scatter(real, torch.cat(list(rows)))


@decoders.every_variant
@every_side
def test_a_decoder_reads_the_same(case: decoders.Case, side: Side) -> None:
    model, source = decoders.prepared(case), decoders.sentences(*LENGTHS)
    target = torch.randint(0, decoders.VOCAB, (4, 5))
    real = places(LENGTHS, case.config.context + 5, side)
    batch, _ = model(target, case.read(model, laid(source, real, 7), real))
    alone = [model(row[None], case.start(model, [one]))[0] for row, one in zip(target, source, strict=True)]
    close(batch, torch.cat(alone))


def whole(model: Any, ids: Tensor, segments: Tensor, real: Tensor) -> list[Tensor]:
    """What is said of each text: by its first token, where a model pools that, or of its tokens one by one."""
    if model.config.role in ("classifier", "regressor"):
        return list(model(ids, segments, Padded(real)))
    numbers = real.flatten().nonzero()[:, 0]
    if model.config.role == "tagger":
        found = model(ids, segments, Padded(real), numbers)
    else:
        found = model(ids, segments, Padded(real)).flatten(0, 1)[numbers]
    return list(found.split(real.sum(1).tolist()))


@pytest.mark.parametrize("name", [name for name, case in encoders.TABLE.items() if case.config.role in WHOLE])
@every_side
def test_an_encoder_and_its_heads_read_the_same(name: str, side: Side) -> None:
    model, some = encoders.prepared(encoders.TABLE[name]), encoders.rows(*LENGTHS)
    real = places(LENGTHS, encoders.CONTEXT + 5, side)
    ids, segments = (laid([row[part] for row in some], real, 1) for part in (0, 1))
    batch = whole(model, ids, segments, real)
    for found, (ids, segments) in zip(batch, some, strict=True):
        close(found, whole(model, ids[None], segments[None], torch.ones(1, len(ids), dtype=torch.bool))[0])


@every_side
def test_rows_that_hold_no_token_spoil_nothing(side: Side) -> None:
    model, some = encoders.prepared(encoders.TABLE["classifier"]), encoders.rows(3, 0, 5)
    real = places((3, 0, 5), 8, side)
    found = model(*(laid([row[part] for row in some], real, 0) for part in (0, 1)), Padded(real))
    assert bool(found.isfinite().all())
    close(found[0], model(some[0][0][None], some[0][1][None])[0])


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_the_first_tokens_of_packed_texts_are_known(name: str) -> None:
    model, some = encoders.prepared(encoders.TABLE[name]), encoders.rows(5, 1, 9)
    batch = encoders.given(some, "packed", 3)
    assert isinstance(batch.layout, PackedTexts)
    close(model(batch.ids, batch.segments, batch.layout), torch.stack(encoders.firsts(model, batch)))


def test_what_does_not_fit_is_refused_however_it_is_padded() -> None:
    long, context = encoders.CONTEXT + 1, encoders.CONTEXT
    model, real = encoders.prepared(encoders.TABLE["bert"]), places((long, 2), long + 4, "between")
    with pytest.raises(ValueError, match=f"{long} tokens, more than the model's context of {context}"):
        model(torch.ones(2, long + 4, dtype=torch.long), None, Padded(real))


# ------------------------------------------------------------------ precision
def in_double(made: Callable[[], Any], says: Callable[[Any], Tensor]) -> None:
    model = made()
    single = says(model)
    double = says(model.double())
    assert double.dtype == torch.float64
    real = single.isfinite()
    assert real.equal(double.isfinite())
    close(single[real], double[real])


@decoders.every_variant
@torch.no_grad()
def test_a_decoder_in_double_precision_stays_there(case: decoders.Case) -> None:
    source, target = decoders.sentences(5, 3), torch.randint(0, decoders.VOCAB, (2, 4))
    in_double(lambda: decoders.prepared(case), lambda model: model(target, case.start(model, source))[0])


@encoders.every_model
@torch.no_grad()
def test_an_encoder_in_double_precision_stays_there(case: encoders.Case) -> None:
    batch = encoders.given(encoders.rows(5, 3))
    in_double(lambda: encoders.prepared(case), lambda model: torch.cat([x.flatten() for x in case.says(model, batch)]))
