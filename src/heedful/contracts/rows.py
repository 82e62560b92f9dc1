"""Checks of rows: alone and in a batch, in any order, padded on either side, and without any token.

B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from heedful.contracts.behaviour import left_training
from heedful.contracts.comparison import ROUNDING, Cause, Comparison, equal_rows, ragged_rows
from heedful.contracts.refusals import RefusedError, user_code
from heedful.contracts.subject import Side, Subject, distance
from heedful.contracts.trace import first_changed, first_reached, traced

MORE = 2  # positions of padding beyond the longest row
CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def alone(subject: Subject, rows: list[Tensor]) -> list[Tensor]:
    """The output of each row as a batch of its own."""
    return [subject.outputs([row])[0] for row in rows]


def batch_difference(subject: Subject, rows: list[Tensor]) -> float:
    """Rows of one length in a batch against each alone."""
    return float(distance(subject.outputs(rows), alone(subject, rows)).max())


def batch_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Why the rows of a batch affect each other."""
    if training := left_training(subject.module):
        return training
    for name, module in subject.module.named_modules():
        if isinstance(module, NORMS) and not module.track_running_stats:
            return Cause(
                f"{name} normalizes by the statistics of the batch, in evaluation too", "set track_running_stats=True"
            )
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and not module.batch_first:
            return Cause(
                f"{name or 'the module'} has batch_first=False: it takes rows for positions",
                "pass batch_first=True, or transpose what it reads; if it is meant so, write batch_first=false",
            )
    return Cause(
        "a sum, softmax, norm, sort or limit goes over dimension 0, the rows",
        "look for dim=0, for statistics of the batch, and for reshapes that mix rows",
    )


def rows_of_any_length(subject: Subject) -> Iterator[list[Tensor]]:
    """Rows of one length, and of different ones."""
    yield from equal_rows(subject)
    yield from ragged_rows(subject)


def order_difference(subject: Subject, rows: list[Tensor]) -> float:
    """Rows in a batch against the same rows in reverse order."""
    return float(distance(subject.outputs(rows[::-1])[::-1], subject.outputs(rows)).max())


def order_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Why the order of the rows matters."""
    if any(batch_difference(subject, some) > ROUNDING for some in equal_rows(subject)):
        return Cause(
            "rows affect each other (see batch), and the first ones go first",
            "look for limits that are filled row by row, for cumulative sums and sorts over dimension 0",
        )
    return Cause(
        "something is indexed by the number of the row", "look for arange(B), for lengths sorted and not sorted back"
    )


def padding_difference(side: Side, subject: Subject, rows: list[Tensor]) -> float:
    """Rows padded on a side against each alone."""
    return float(distance(subject.outputs(rows, side, MORE), alone(subject, rows)).max())


def unpadded(side: Side, subject: Subject) -> str:
    """Why rows are not padded on a side."""
    if side in subject.sides:
        return ""
    return subject.unpadded or f"rows are padded on the {subject.sides[0]}"


def padding_cause(side: Side, subject: Subject, rows: list[Tensor]) -> Cause:
    """Why padding changes the output."""
    if len(rows) > 1:
        return Cause(
            "one row alone may be padded: rows affect each other, or are mixed up (see batch and order)",
            "look for dim=0, for limits of the whole batch, and for lengths sorted and not sorted back",
        )
    inputs, real = subject.batch(rows, side, MORE)
    assert real is not None
    expected = alone(subject, rows)
    single = [subject.batch([row]) for row in rows]

    def outputs(mask: Tensor) -> list[Tensor]:
        found = subject.read(inputs, mask)
        return [one[row] for one, row in zip(found, real, strict=True)] if subject.aligned else list(found)

    try:
        inverted = [
            subject.read(one, torch.zeros_like(one_real))[0] for one, one_real in single if one_real is not None
        ]
        if float(distance(outputs(~real), inverted).max()) <= ROUNDING:
            return Cause(
                "the mask is read the other way round: True is taken for padding",
                "invert it where it is used, or write mask_means=padding if that is what your mask means",
            )
        if float(distance(outputs(torch.ones_like(real)), subject.outputs(rows, side, MORE)).max()) == 0:
            return Cause(
                "the mask changes nothing: padding counts as text", "use it in attention, pooling and recurrence"
            )
    except RefusedError:
        pass
    name, after = reached(subject, rows[0], side)
    module = subject.module.get_submodule(name) if name else None
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return Cause(
            f"{name} ({type(module).__name__}) runs over padding",
            "pack the rows by their lengths (pack_padded_sequence, enforce_sorted=False), or reverse real tokens alone",
        )
    if side == "left" and (hint := positions_hint(subject, rows, expected, module)):
        return hint
    if isinstance(module, CONVOLUTIONS):
        return Cause(
            f"{name} ({type(module).__name__}) reads padding that is not zero, or no longer",
            "multiply by the mask before every convolution: its bias fills the padding again",
        )
    if module is None and not subject.aligned:
        where = f"; first seen in what {after} ({type(subject.module.get_submodule(after)).__name__}) returns"
        return Cause(
            "pooling counts padding: a mean, a maximum or attention over all positions, or the first or last column"
            f"{where if after else ''}",
            "weight by the mask and divide by its sum; take the first or last real position; mask the keys",
        )
    where = f", first seen in what {name} ({type(module).__name__}) returns" if module else ""
    return Cause(
        f"padding reaches real positions: attention, a normalization or a recurrence goes over it{where}",
        "mask the keys in each layer before the softmax, which goes over keys (dim=-1), by True or 1 for real tokens "
        "or the other way round, as the layer expects; mix no positions by view where transpose is meant",
    )


def reached(subject: Subject, row: Tensor, side: Side) -> tuple[str, str]:
    """The first module that padding reaches: at real positions, and after these were pooled."""
    module, begin = subject.module, MORE if side == "left" else 0
    single = traced(module, lambda: subject.outputs([row]))
    padded = traced(module, lambda: subject.outputs([row], side, MORE))
    return first_reached(single, padded, begin, len(row)), first_changed(single, padded)


def positions_hint(
    subject: Subject, rows: list[Tensor], expected: list[Tensor], module: nn.Module | None
) -> Cause | None:
    """The cause of a difference on the left alone, first seen in `module`: positions that count padding."""
    declared = subject.with_positions
    if declared is not None:
        padded = replace(subject, call=declared).outputs(rows, "left", MORE)
        if float(distance(padded, expected).max()) <= ROUNDING:
            return Cause(
                "positions count padding, unless position ids are passed: with them, this check passes",
                "pass position_ids = (mask.cumsum(1) - 1).clamp(min=0), or let the model make them from the mask",
            )
    right = "right" in subject.sides and padding_difference("right", subject, rows) <= ROUNDING
    if right and module is None and not subject.aligned and list(subject.module.children()):
        return Cause(
            "the first column is taken, or another one by its number, which is padding there",
            "take the first real position: x[torch.arange(B), mask.int().argmax(1)]",
        )
    if right or isinstance(module, nn.Embedding):
        return Cause(
            "positions count padding: a text that begins later gets other positions",
            "make positions from the mask: (mask.cumsum(1) - 1).clamp(min=0)",
        )
    return None


def with_empty(subject: Subject) -> Iterator[list[Tensor]]:
    """A row without tokens between others."""
    some = subject.rows([min(4, subject.longest), min(6, subject.longest)])
    yield [some[0], some[0][:0], some[1]]


def empty_difference(subject: Subject, rows: list[Tensor]) -> float:
    """Infinite where an output or a gradient is not finite; else the difference that empty rows make to the others."""
    some = [number for number, row in enumerate(rows) if len(row)]
    if len(some) == len(rows) or not some:
        return 0.0
    worst = 0.0
    for side in subject.sides:
        inputs, real = subject.batch(rows, side)
        weights = [weight for weight in subject.module.parameters() if weight.requires_grad]
        with torch.enable_grad():
            found = subject.read(inputs, real)
            if bool(found.isnan().any()) or bool((found.isinf() & ~found[some].isinf().all(0)).any()):
                return torch.inf
            loss = found[some][found[some].isfinite()].float().square().sum()
            with user_code():
                grads = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else ()
        if not all(grad is None or bool(grad.isfinite().all()) for grad in grads):
            return torch.inf
        expected = subject.outputs([rows[number] for number in some], side)
        outputs = subject.outputs(rows, side)
        worst = max(worst, float(distance([outputs[number] for number in some], expected).max()))
    return worst


def empty_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Why a row without tokens gives NaN."""
    if any(isinstance(module, nn.MultiheadAttention) for module in subject.module.modules()):
        return Cause(
            "nn.MultiheadAttention takes the softmax of scores that are all -inf where every key is padding",
            "let empty rows see one key (mask[mask.all(1), 0] = False), or replace its output by nan_to_num",
        )
    return Cause(
        "a softmax over scores that are all -inf, or a mean over no positions (0 / 0)",
        "use torch.where(any key, softmax, 0); divide by the count clamped to at least 1; mask once, not with two sums",
    )


ROW_CHECKS = {
    "batch": Comparison("a row gives the same alone and in a batch", batch_difference, equal_rows, batch_cause),
    "order": Comparison(
        "the order of the batch does not matter", order_difference, rows_of_any_length, order_cause, ragged=True
    ),
    **{
        f"padding-{side}": Comparison(
            f"padding on the {side} changes nothing", partial(padding_difference, side), ragged_rows,
            partial(padding_cause, side), partial(unpadded, side), ragged=True,
            shown=f", in a batch padded on the {side} by {MORE} more",
        )
        for side in ("right", "left")
    },
    "empty-row": Comparison(
        "a row without tokens gives no NaN, and changes no other", empty_difference, with_empty, empty_cause,
        lambda subject: (
            subject.unpadded or "rows are not padded" if not subject.sides
            else "" if subject.empty else "it takes no row without tokens"
        ),
        ragged=True, refusal="not applicable",
    ),
}  # fmt: skip
