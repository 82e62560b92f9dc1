"""Padding on either side and between tokens, also wider than the context, changes neither positions nor outputs."""

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
    """A mask (N, width) of the columns with tokens, for rows of these lengths."""
    real = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        columns = {"left": torch.arange(width - length, width), "right": torch.arange(length)}
        real[row, columns.get(side, torch.randperm(width)[:length])] = True
    return real


def place_tokens(rows: Sequence[Tensor], real: Tensor, fill: int) -> Tensor:
    """The rows' tokens, in order, at the positions of `real`."""
    return torch.full(real.shape, fill).masked_scatter(real, torch.cat(list(rows)))


@decoders.every_variant
@every_side
def test_decoder_ignores_padding_anywhere(case: decoders.Case, side: Side) -> None:
    model, source = decoders.prepared(case), decoders.sentences(*LENGTHS)
    target = torch.randint(0, decoders.VOCAB, (4, 5))
    real = places(LENGTHS, case.config.context + 5, side)
    batch, _ = model(target, case.read(model, place_tokens(source, real, 7), real))
    alone = [model(row[None], case.start(model, [one]))[0] for row, one in zip(target, source, strict=True)]
    close(batch, torch.cat(alone))


def whole(model: Any, ids: Tensor, segments: Tensor, real: Tensor) -> list[Tensor]:
    """The outputs for each text: of its first token, if the model pools it, or of all its tokens."""
    if model.config.role in ("classifier", "regressor"):
        return list(model(ids, segments, Padded(real)))
    numbers = real.flatten().nonzero()[:, 0]
    if model.config.role == "tagger":
        found = model(ids, segments, Padded(real), numbers)
    else:
        found = model(ids, segments, Padded(real)).flatten(0, 1)[numbers]
    return list(found.split(real.sum(1).tolist()))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in encoders.FAST else pytest.mark.slow)
        for name, case in encoders.TABLE.items()
        if case.config.role in WHOLE
    ],
)
@every_side
def test_encoder_and_heads_ignore_padding_anywhere(name: str, side: Side) -> None:
    model, some = encoders.prepared(encoders.TABLE[name]), encoders.rows(*LENGTHS)
    real = places(LENGTHS, encoders.CONTEXT + 5, side)
    ids, segments = (place_tokens([row[part] for row in some], real, 1) for part in (0, 1))
    batch = whole(model, ids, segments, real)
    for found, (ids, segments) in zip(batch, some, strict=True):
        close(found, whole(model, ids[None], segments[None], torch.ones(1, len(ids), dtype=torch.bool))[0])


@every_side
def test_empty_rows_do_not_affect_others(side: Side) -> None:
    model, some = encoders.prepared(encoders.TABLE["classifier"]), encoders.rows(3, 0, 5)
    real = places((3, 0, 5), 8, side)
    found = model(*(place_tokens([row[part] for row in some], real, 0) for part in (0, 1)), Padded(real))
    assert bool(found.isfinite().all())
    close(found[0], model(some[0][0][None], some[0][1][None])[0])


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_packed_texts_pool_their_first_tokens(name: str) -> None:
    model, some = encoders.prepared(encoders.TABLE[name]), encoders.rows(5, 1, 9)
    batch = encoders.given(some, "packed", 3)
    assert isinstance(batch.layout, PackedTexts)
    close(model(batch.ids, batch.segments, batch.layout), torch.stack(encoders.firsts(model, batch)))


def test_too_long_sequence_is_rejected_with_any_padding() -> None:
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
def test_decoder_stays_in_double_precision(case: decoders.Case) -> None:
    source, target = decoders.sentences(5, 3), torch.randint(0, decoders.VOCAB, (2, 4))
    in_double(lambda: decoders.prepared(case), lambda model: model(target, case.start(model, source))[0])


@encoders.every_model
@torch.no_grad()
def test_encoder_stays_in_double_precision(case: encoders.Case) -> None:
    batch = encoders.given(encoders.rows(5, 3))
    in_double(lambda: encoders.prepared(case), lambda model: torch.cat([x.flatten() for x in case.says(model, batch)]))
