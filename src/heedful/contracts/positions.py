"""Checks of positions: no causal leak, forward or backward; a cache gives the same; positions do not end early.

B rows of a batch, T tokens of a row, D width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heedful.contracts.comparison import ROUNDING, Cause, Comparison, one_row
from heedful.contracts.refusals import RefusedError, user_code
from heedful.contracts.subject import Between, Subject, distance
from heedful.contracts.trace import first_leaking, traced

LEAK = 1e-5  # of the largest output: one kernel may add in another order
PAIRS = 3  # neighbours at the end that are not distinguished before positions are said to end


# ------------------------------------------------------------------ causal
def changed(subject: Subject, row: Tensor, at: int) -> Tensor:
    """The row with something else at one position."""
    other = row.clone()
    different = [one for one in subject.rows([len(row)], seed=9 + at)[0] if not torch.equal(one, row[at])]
    other[at] = different[0] if different else row[at]
    return other


def dependence(subject: Subject, row: Tensor) -> Tensor:
    """How much the output at each position (T) changes with the input at each (T), relative to the largest output."""
    before = subject.outputs([row])[0]
    columns = []
    for at in range(len(row)):
        after = subject.outputs([changed(subject, row, at)])[0]
        columns.append(distance(list(after), list(before)))
    return torch.stack(columns, 1)


def reach(subject: Subject, row: Tensor) -> tuple[int, int]:
    """How many positions ahead, and how many back, an output depends on."""
    uses = (dependence(subject, row) > LEAK).nonzero()
    apart = uses[:, 1] - uses[:, 0]
    return int(apart.clamp(min=0).max()) if len(uses) else 0, int((-apart).clamp(min=0).max()) if len(uses) else 0


def bidirectional(subject: Subject) -> str:
    """Why a model need not be causal; where it is not declared, measured."""
    if not subject.sequence:
        return "rows have no positions"
    if not subject.aligned:
        return "there is one output for a row, not one at each position"
    if subject.causal is False:
        return "positions may see later ones"
    if subject.causal is None:
        row = next(one_row(subject))[0]
        try:
            ahead, back = reach(subject, row)
        except RefusedError:
            return ""
        if ahead >= min(back, len(row) // 2):
            seen = "all others" if min(ahead, back) == len(row) - 1 else f"{ahead} positions ahead and {back} back"
            return f"a position sees {seen}; write causal=true if it must not" if ahead else "positions are separate"
    return ""


def leak(subject: Subject, rows: list[Tensor]) -> float:
    """The largest change of an output by a later input."""
    return max(float(dependence(subject, row).triu(1).max()) for row in rows)


def causal_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Why positions see later ones."""
    row = subject.rows([min(8, subject.longest)])[0]
    ahead, _ = reach(subject, row)
    before = traced(subject.module, lambda: subject.outputs([row]))
    after = traced(subject.module, lambda: subject.outputs([changed(subject, row, len(row) - 1)]))
    name, first = first_leaking(before, after, len(row))
    module = subject.module.get_submodule(name) if name else None
    where = f"{name} ({type(module).__name__})"
    seen = f"a position sees {ahead} later {'one' if ahead == 1 else 'ones'}"
    if isinstance(module, nn.Conv1d):
        return Cause(
            f"a convolution is padded on both sides: {seen}, by {where}",
            "pad kernel_size - 1 on the left alone: F.pad(x, (k - 1, 0)) and padding=0",
        )
    if isinstance(module, nn.RNNBase) and module.bidirectional:
        return Cause(f"{where} also reads from the end", "pass bidirectional=False where later tokens are not known")
    if module is not None and first == 1 and len(row) > 2:
        return Cause(
            f"the causal mask is off by one in each layer: {seen}, first in what {where} returns",
            "mask keys j > i: torch.ones(T, T).triu(1), or tril(0) for what may be seen",
        )
    if ahead >= len(row) - 2:
        at = f", first in what {where} returns" if module else ", after the last layer"
        return Cause(
            f"there is no causal mask, or a softmax, norm or scale goes over queries, or over all positions{at}",
            "mask keys j > i before a softmax over dim=-1; normalize each position alone",
        )
    return Cause(
        f"{seen}{f', first in what {where} returns' if module else ''}",
        "look for what moves later positions to earlier ones",
    )


def gradient_leak(subject: Subject, rows: list[Tensor]) -> float:
    """The largest gradient of an output for a later input, relative to the largest gradient."""
    found = leaf_and_output(subject, rows[0])
    if found is None:
        return 0.0
    leaves, output = found
    most, leaked = 0.0, 0.0
    weights = torch.randn(output.shape[1:], generator=torch.Generator().manual_seed(3)).to(output)
    for at in range(output.shape[1]):
        with torch.enable_grad():
            value = (output[:, at] * weights[at]).sum()
        with user_code():
            grads = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
        for grad in (grad for grad in grads if grad is not None):
            sizes = grad.detach().abs().flatten(2).amax((0, 2))
            most = max(most, float(sizes.max()))
            leaked = max(leaked, float(sizes[at + 1 :].max()) if at + 1 < len(sizes) else 0.0)
    return leaked / (most or 1.0)


def leaf_and_output(subject: Subject, row: Tensor) -> tuple[list[Tensor], Tensor] | None:
    """The vectors (1, T, D) of a row's tokens and the output (1, T, ...); None where there is no table of them.

    If modules above the table read the same tokens, what they return is among the vectors.
    """
    inputs, real = subject.batch([row])
    with torch.enable_grad():
        if inputs.is_floating_point():
            leaf = inputs.to(subject.device).requires_grad_()
            return [leaf], subject.read(leaf, real)
        seen = list[Tensor]()

        def record(module: nn.Module, given: tuple[object, ...], output: object) -> None:
            ids = given[0] if given else None
            same = isinstance(ids, Tensor) and ids.shape == inputs.shape and torch.equal(ids.cpu(), inputs)
            if same and isinstance(output, Tensor) and output.dim() > 2 and output.requires_grad:
                seen.append(output)

        hooks = [module.register_forward_hook(record) for module in subject.module.modules()]
        try:
            output = subject.read(inputs, real)
        finally:
            for hook in hooks:
                hook.remove()
    return (seen, output) if seen and output.requires_grad else None


def no_gradient(subject: Subject) -> str:
    """Why gradients are not followed."""
    if reason := bidirectional(subject):
        return reason
    try:
        found = leaf_and_output(subject, next(one_row(subject))[0])
    except RefusedError:
        return ""
    return "" if found else "no embedding module reads the tokens, or the output has no gradient"


# ------------------------------------------------------------------ cache
def chunks(length: int, several: bool) -> Iterator[list[int]]:
    """One by one, some and then one by one, and with `several` in chunks."""
    yield [1] * length
    if length > 3:
        yield [length - 2, 1, 1]
        if several:
            yield [2, length - 3, 1]


def cache_difference(subject: Subject, rows: list[Tensor]) -> float:
    """What steps with a cache give, against all at once."""
    inputs, real = subject.batch(rows)
    whole = subject.read(inputs, real)
    gaps = [
        float(distance([stepped(subject, inputs, sizes)], [whole]).max())
        for sizes in chunks(inputs.shape[1], subject.chunked)
    ]
    return max(*gaps, float(distance([interleaved(subject, inputs)], [whole]).max()))


def stepped(subject: Subject, inputs: Tensor, sizes: list[int], between: Between = lambda: None) -> Tensor:
    """The outputs of a batch in chunks."""
    assert subject.step is not None
    with user_code():
        return subject.step(subject.module, inputs.to(subject.device), sizes, between)


def interleaved(subject: Subject, inputs: Tensor) -> Tensor:
    """The outputs of a batch one by one, while the model also reads other rows."""
    other = subject.batch(subject.rows([inputs.shape[1]] * len(inputs), seed=8))
    return stepped(subject, inputs, [1] * inputs.shape[1], lambda: subject.read(*other))


def in_chunks(subject: Subject) -> str:
    """What is said of chunks of several tokens where they need not be right."""
    inputs, real = subject.batch(next(cached_rows(subject)))
    if subject.chunked or inputs.shape[1] < 4:
        return ""
    try:
        found = stepped(subject, inputs, [2, inputs.shape[1] - 3, 1])
    except RefusedError:
        return ""
    same = float(distance([found], [subject.read(inputs, real)]).max()) <= ROUNDING
    return "" if same else "; several tokens at once after a cache do not (chunks=true if they must)"


def cache_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Where steps with a cache begin to differ."""
    inputs, real = subject.batch(subject.rows([min(8, subject.longest)] * 2))
    whole, steps = subject.read(inputs, real), stepped(subject, inputs, [1] * inputs.shape[1])
    apart = [float(distance([steps[:, at]], [whole[:, at]]).max()) > ROUNDING for at in range(inputs.shape[1])]
    first = apart.index(True) + 1 if True in apart else 0
    if not first and float(distance([interleaved(subject, inputs)], [whole]).max()) > ROUNDING:
        return Cause(
            "another text that is read between two steps changes them: the cache is kept in the module",
            "return all of the cache, and take it as an argument; keep nothing on self",
        )
    if len(rows) > 1 and all(cache_difference(subject, [row]) <= ROUNDING for row in rows):
        return Cause(
            "rows share the cache: one row alone is right", "look for expand, [:1] and dim=0 where the cache is made"
        )
    if not first:
        return Cause(
            "chunks of several tokens differ, single ones do not", "shift the causal mask by the length of the cache"
        )
    if first == 1:
        return Cause("the first step differs already", "the output with an empty cache must be that without one")
    if first == 2:
        other = torch.stack([changed(subject, row, 0) for row in inputs])
        used = float(distance([stepped(subject, other, [1] * inputs.shape[1])[:, 1]], [steps[:, 1]]).max()) > LEAK
        return Cause(
            "it differs from the second step on: positions (of queries, keys or distances) start over with each step, "
            "or the parts of a state are exchanged"
            if used
            else "it differs from the second step on, which does not depend on the first: the cache is not used",
            "add the length of the cache to the positions; return a state as it is taken"
            if used
            else "concatenate old and new keys and values, or pass the state on",
        )
    return Cause(
        f"it differs from step {first} on: the cache drops or overwrites a key",
        "concatenate new keys and values at the end, and compare the cache's length with the number of steps",
    )


def cached_rows(subject: Subject) -> Iterator[list[Tensor]]:
    """Two rows of one length."""
    yield subject.rows([min(8, subject.longest)] * 2)


# ------------------------------------------------------------------ positions
def distinguished(subject: Subject, row: Tensor) -> list[bool]:
    """For each two neighbours, whether exchanging them does more than exchange their outputs."""
    before, found = subject.outputs([row])[0], []
    for at in range(len(row) - 1):
        order = list(range(len(row)))
        order[at], order[at + 1] = at + 1, at
        after = subject.outputs([row[order]])[0]
        found.append(float(distance([after[order]], [before]).max()) > LEAK)
    return found


def positions_end(subject: Subject, rows: list[Tensor]) -> float:
    """The share of neighbours at the end of a row that cannot be distinguished, although the first ones can."""
    apart = [any(pair) for pair in zip(*(distinguished(subject, row) for row in rows), strict=True)]
    same = apart[::-1].index(True) if True in apart else 0
    return same / len(apart) if same >= PAIRS and apart[0] else 0.0


def distinct_rows(subject: Subject) -> Iterator[list[Tensor]]:
    """Two long rows, in which neighbours differ."""
    rows = subject.rows([subject.longest] * 2, seed=4)
    for row in rows:
        for at in range(1, len(row)):
            if torch.equal(row[at], row[at - 1]):
                row[at] = changed(subject, row, at)[at]
    yield rows


def unordered(subject: Subject) -> str:
    """Why positions are not compared."""
    if not (subject.sequence and subject.aligned):
        return (
            "there is one output for a row, not one at each position" if subject.sequence else "rows have no positions"
        )
    return "" if subject.longest > PAIRS + 2 else f"rows of {subject.longest} positions are too short to tell"


def positions_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """From where on positions are the same."""
    apart = distinguished(subject, subject.rows([subject.longest], seed=4)[0])
    last = len(apart) - (apart[::-1].index(True) if True in apart else 0)
    return Cause(
        f"position {last} and later ones share one position: an index is clamped, or a table ends",
        "refuse rows longer than the table of positions, or make it longer",
    )


POSITION_CHECKS = {
    "causal": Comparison(
        "no output depends on a later position", leak, one_row, causal_cause, bidirectional, tolerance=LEAK
    ),
    "causal-gradient": Comparison(
        "no gradient flows to a later position", gradient_leak, one_row, causal_cause, no_gradient, tolerance=LEAK
    ),
    "cache": Comparison(
        "steps with a cache give the same as all at once", cache_difference, cached_rows, cache_cause,
        lambda subject: "" if subject.step else subject.uncached, note=in_chunks,
    ),
    "positions": Comparison(
        "neighbours are distinguished up to the end of a row", positions_end, distinct_rows, positions_cause, unordered,
        tolerance=0.0,
    ),
}  # fmt: skip
