"""Convert tensors between external formats and Heedful's: one table for both directions, every tensor used once.

A rule lists the external tensors that one of Heedful's consists of. Tensors that are missing, unexpected, or of the
wrong shape or dtype are reported by name; the table also lists tensors that may be omitted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.errors import UserError
from heedful.models.exchange import Rule, Table

MAX_NAMES = 10  # in an error
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LedgerLine:
    """The source and the destination of one tensor; the ledger has a line for each tensor of the files."""

    source: str
    name: str | None  # in Heedful's model; None if the tensor is not used
    operation: str
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the file."""
        return tuple(self.tensor.shape)

    @property
    def sha256(self) -> str:
        """The hash of the bytes in the file."""
        return tensor_sha256(self.tensor)


def tensor_sha256(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def _ours(rule: Rule, tensors: Mapping[str, Tensor]) -> Tensor:
    """Heedful's tensor from the external ones."""
    if rule.counter and rule.theirs[0] not in tensors:
        return torch.zeros((), dtype=torch.long)
    flat = rule.heads or rule.inner
    parts = [tensors[name].flatten(1) if flat else tensors[name] for name in rule.theirs]
    parts = [part.T if rule.transposed else part for part in parts]
    parts = [part[0] if rule.flat else part for part in parts]
    parts = [part[list(rule.rows)] if rule.rows else part for part in parts]
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()


def _theirs(rule: Rule, tensor: Tensor) -> dict[str, Tensor]:
    """The external tensors from Heedful's."""
    parts = tensor.chunk(len(rule.theirs)) if len(rule.theirs) > 1 else (tensor,)
    if rule.rows:  # of several rows of ours that were one of theirs, the last one is written
        last = {theirs: ours for ours, theirs in enumerate(rule.rows)}
        parts = tuple(part[[last[row] for row in range(len(last))]] for part in parts)
    parts = tuple(part[None] if rule.flat else part for part in parts)
    parts = tuple(part.T if rule.transposed else part for part in parts)
    parts = tuple(part.unflatten(1, (rule.heads, -1)) if rule.heads else part for part in parts)
    parts = tuple(part.unflatten(1, rule.inner) if rule.inner else part for part in parts)
    return dict(zip(rule.theirs, parts, strict=True))


def newer_names(names: Mapping[str, str], table: Table) -> dict[str, str]:
    """The names in the table, also of tensors that have another one in the file."""
    known = set(names.values())
    others = {
        next((name for name in rule.instead if name in known), None): rule.theirs[0]
        for rule in table.rules
        if rule.theirs[0] not in known
    }
    return {source: others.get(name, name) for source, name in names.items()}


def read_tensors(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    table: Table,
    shapes: Mapping[str, Sequence[int]],
    where: Path,
) -> tuple[dict[str, Tensor], tuple[LedgerLine, ...]]:
    """Heedful's tensors from external ones, and the ledger; `names` maps names in the file to names in the table."""
    sources = {name: source for source, name in names.items()}
    wrong = [f"{name}: twice, as {sources[name]} too" for source, name in names.items() if sources[name] != source]
    known = {name: rule for rule in table.rules for name in rule.theirs}
    twins = {twin.name: twin.of for twin in table.twins}
    wrong += [f"{name}: not in the file" for name, rule in known.items() if name not in sources and not rule.counter]
    unused = (*table.unused, *(name for rule in table.rules for name in rule.instead))
    others = {*twins, *table.spare, *unused}
    wrong += [
        f"{source}: unexpected, the model has no such tensor"
        for source, name in names.items()
        if name not in known and name not in others
    ]
    if not wrong:
        expected = {name: rule.shape(shapes[rule.ours]) for name, rule in known.items()}
        expected |= {name: expected[of] for name, of in twins.items()}
        for name in (name for name in expected if name in sources):
            tensor = tensors[sources[name]]
            if tuple(tensor.shape) != tuple(expected[name]):
                wrong.append(f"{sources[name]}: {tuple(tensor.shape)} in the file, {expected[name]} in the model")
            elif tensor.dtype not in ((torch.int64,) if name in known and known[name].counter else FLOATS):
                wrong.append(f"{sources[name]}: {str(tensor.dtype).removeprefix('torch.')} is not a supported dtype")
        for name, of in (pair for pair in twins.items() if pair[0] in sources and not wrong):
            if not torch.equal(tensors[sources[name]], tensors[sources[of]]):
                raise UserError(
                    f"not supported: {sources[name]} of its own", where=str(where),
                    found=f"{sources[name]}: not the same as {sources[of]}, which the model uses in its place",
                    expected=f"the same values as in {sources[of]}",
                    todo="name the folder of a model that ties them, or, if it was trained without, "
                    "set tie_word_embeddings to false in its config.json",
                )  # fmt: skip
    wrong += [
        f"{source}: values beyond those of float32"
        for source in (sources[name] for name in known if not wrong and name in sources)
        if tensors[source].dtype == torch.float64 and not tensors[source].float().isfinite().all()
    ]
    if wrong:
        raise mismatch_error(wrong, len(known), where)
    theirs = {
        name: tensors[source] if known[name].counter else tensors[source].float()
        for name, source in sources.items()
        if name in known
    }
    found = {rule.ours: _ours(rule, theirs) for rule in table.rules}
    lines = []
    order = {name: place for place, name in enumerate([*known, *twins, *table.spare, *unused])}
    for source, name in sorted(names.items(), key=lambda pair: order[pair[1]]):
        rule = known.get(name)
        if rule is not None:
            changed = "" if tensors[source].dtype == torch.float32 or rule.counter else ", made float32"
            lines.append(LedgerLine(source, rule.ours, rule.operation + changed, tensors[source]))
        else:
            operation = "left out, it is no weight" if name in table.spare else "left out, of a part that is not used"
            operation = f"left out, the same as {sources[twins[name]]}" if name in twins else operation
            lines.append(LedgerLine(source, None, operation, tensors[source]))
    return found, tuple(lines)


def mismatch_error(wrong: Sequence[str], count: int, where: Path) -> UserError:
    """The error for tensors that do not match the model; it names the first few."""
    more = f"\nand {len(wrong) - MAX_NAMES} more" if len(wrong) > MAX_NAMES else ""
    return UserError(
        "the weights do not fit the model", where=str(where), found="\n".join(wrong[:MAX_NAMES]) + more,
        expected=f"{count} tensors, each of the right shape and dtype",
        todo="copy or download config and weights again; they must belong to the same model",
    )  # fmt: skip


def write_tensors(tensors: Mapping[str, Tensor], table: Table) -> tuple[dict[str, Tensor], tuple[LedgerLine, ...]]:
    """Convert Heedful's tensors to external ones by the same table, with the ledger; tied tensors are written once."""
    found: dict[str, Tensor] = {}
    lines = []
    for rule in table.rules:
        parts = _theirs(rule, tensors[rule.ours])
        found |= {name: part.contiguous() for name, part in parts.items()}
        lines += [LedgerLine(name, rule.ours, rule.operation, found[name]) for name in parts]
        if rule.copy is not None:
            found[rule.copy] = found[rule.theirs[0]]
            lines.append(LedgerLine(rule.copy, rule.ours, "the same again", found[rule.copy]))
    return found, tuple(lines)


def format_ledger(lines: Iterable[LedgerLine]) -> list[str]:
    """The ledger as tab-separated lines: source, name, operation, shape, hash."""
    return [
        f"{line.source}\t{line.name or '-'}\t{line.operation}\t{'x'.join(map(str, line.shape)) or '1'}\t{line.sha256}"
        for line in lines
    ]
