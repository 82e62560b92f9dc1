"""Longer texts for trained encoders: a repeated table of positions, and weights of one encoder for another kind.

Longformer (Beltagy et al., 2020) and BigBird (Zaheer et al., 2020) began from RoBERTa in this way. A text that fitted
before gives the same vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from heedful.errors import UserError
from heedful.hub.folder import find_exchange
from heedful.hub.loading import Pretrained
from heedful.hub.rules import MAX_NAMES, LedgerLine
from heedful.models import build, config_class, kinds_of
from heedful.models.exchange import validate_config

TABLE, SEGMENTS = "positions.table", "segments"  # names of tensors, in every encoder that has them


def lengthen(model: Pretrained, context: int, where: Path) -> Pretrained:
    """The encoder with a longer context: its table of positions is repeated, and all else is as it was."""
    before, first = model.config.context, model.config.first_position if model.config.role == "encoder" else None
    if first is None:
        raise UserError(
            "the context of this model cannot be changed", where=str(where), found=_title(model),
            expected="an encoder with a table of positions, which can be repeated", todo="leave --context out",
        )  # fmt: skip
    if context < before:
        raise UserError(
            "the context can only grow", where="--context", found=f"{context:,}",
            expected=f"at least {before:,}, the context of {where}",
            todo="leave --context out; `model.longest` of a recipe limits the length of texts",
        )  # fmt: skip
    if context == before:
        return model
    table = model.tensors[TABLE]
    rows = torch.cat([torch.arange(first), first + torch.arange(context) % before])
    notes = [f"positions {before:,} to {context - 1:,} repeat the first {before:,}: train it on long texts before use"]
    if model.longest is not None:
        notes.append(f"texts were limited to {model.longest:,} tokens; the limit is the context now")
    return model._replace(
        config=model.config.model_copy(update={"context": context}),
        tensors=model.tensors | {TABLE: table[rows]},
        ledger=_add(model.ledger, f"repeated to {context:,} positions"),
        longest=None,
        notes=(*model.notes, *notes),
    )


def change_kind(model: Pretrained, kind: str, published: bool, where: Path) -> Pretrained:
    """The encoder as one of another kind, with the same weights; `published`: as a folder of Hugging Face has it."""
    if model.config.role != "encoder" or kind not in kinds_of("encoder") or model.config.kind == kind:
        raise UserError(
            "the model cannot become one of this kind", where="--kind", found=f"{kind}, for this {_title(model)}",
            expected=f"an encoder of another kind: {', '.join(kinds_of('encoder'))}", todo="leave --kind out",
        )  # fmt: skip
    if model.head is not None:
        raise UserError(
            "a fine-tuned model keeps its kind, since the heads of kinds differ", where=str(where),
            found=f"{_title(model)} with a {model.head.kind}",
            todo="change the kind of the encoder that it was fine-tuned from, and fine-tune again",
        )  # fmt: skip
    cls, first, notes = config_class(kind), model.config.first_position or 0, list(model.notes)
    settings = cls.adopt(model.config, published)
    if settings is None:
        raise _misfit(model, kind, where, [f"kind {model.config.kind}"])
    config = validate_config(cls, settings, {}, "--kind")
    tensors, ledger = dict(model.tensors), model.ledger
    if dropped := first - (config.first_position or 0):
        tensors[TABLE] = tensors[TABLE][dropped:].contiguous()
        ledger = _add(ledger, f"without its first {dropped} rows")
    if SEGMENTS not in tensors:
        tensors[SEGMENTS] = torch.zeros(config.segments, config.width)
        notes.append(f"{_title(model)} has no segments: those of the new model are zero")
    with torch.device("meta"):
        needed = {name: tuple(value.shape) for name, value in build(config).state_dict().items()}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    if needed != given:
        raise _misfit(model, kind, where, sorted({name for name, _ in needed.items() ^ given.items()}))
    return model._replace(config=config, tensors=tensors, ledger=ledger, notes=tuple(notes))


def _title(model: Pretrained) -> str:
    """The name of a model in a sentence."""
    exchange = find_exchange(model.config.kind)
    return model.config.kind if exchange is None else exchange.TITLE


def _add(ledger: Sequence[LedgerLine], operation: str) -> tuple[LedgerLine, ...]:
    """The ledger with one more operation on the table of positions."""
    return tuple(
        replace(line, operation=f"{line.operation}, {operation}") if line.name == TABLE else line for line in ledger
    )


def _misfit(model: Pretrained, kind: str, where: Path, found: Sequence[str]) -> UserError:
    """The error for weights that another kind has no place for."""
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return UserError(
        f"the weights of this {_title(model)} do not fit a {kind}", where=str(where),
        found=", ".join(found[:MAX_NAMES]) + more, expected="an encoder with the blocks and embeddings of BERT",
        todo="leave --kind out; --context alone may work",
    )  # fmt: skip
