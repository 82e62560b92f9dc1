"""Models that write one token after another, translators and language models alike: what they have read so far.

T tokens so far, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import UserError, shown
from heedful.explore.capabilities import Searches
from heedful.explore.inspect import Given, source_ids, too_long, translates

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

STRIDE = 128  # tokens that are read at a time: a row of logits is long


@dataclass(frozen=True)
class Begun:
    """Where a model stands: what it carries, and the tokens after which it writes the next one."""

    state: Any
    ids: list[int]
    source: list[int]  # what is translated; nothing, where a text goes on
    forgotten: int  # tokens at the beginning of the text that no longer fit into the model's context


def goes_on(subject: Subject) -> bool:
    """Whether a model writes one token after another, and its search can be followed."""
    return subject.broken is None and isinstance(subject.predictor, Searches)


def begun(predictor: Any, given: Given, then: Sequence[int]) -> Begun:
    """A model that has read an input, and some tokens that were written already."""
    require_tokens(predictor, then)
    if not translates(predictor):
        ids = [*predictor.read_ids(given.text), *then]
        forgotten = predictor.forgotten(len(ids))
        return Begun(predictor.model.start(1, predictor.device), ids[forgotten:], [], forgotten)
    source, tokenizer = source_ids(predictor, given.text), predictor.tokenizer
    ids = [tokenizer.bos, *(tokenizer.ids([given.other])[0] if given.other else []), *then]
    if len(ids) > predictor.context:
        raise too_long(len(ids), predictor.context)
    padded, real, _ = predictor.batch([source])
    return Begun(predictor.start(padded, real)[0], ids, source, 0)


@torch.inference_mode()
def read(predictor: Any, begun: Begun) -> tuple[Tensor, Tensor]:
    """The logits (V,) of the next token, and the log-probability of each token so far but the first, (T - 1,)."""
    state, logs = begun.state, []
    logits = torch.empty(0)
    for at in range(0, len(begun.ids), STRIDE):
        tokens = torch.tensor([begun.ids[at : at + STRIDE]], device=predictor.device)
        logits, state = predictor.model(tokens, state)
        after = torch.tensor(begun.ids[at + 1 : at + 1 + STRIDE], device=predictor.device, dtype=torch.long)
        logs.append(logits[0, : len(after)].float().log_softmax(-1).gather(1, after[:, None])[:, 0])
    return logits[0, -1].float(), torch.cat(logs)


def end_of(predictor: Any) -> int | None:
    """The token with which a model ends what it writes; None, where it goes on for ever."""
    end: int | None = predictor.tokenizer.eos if translates(predictor) else predictor.codec.end_id
    return end


def require_tokens(predictor: Any, ids: Sequence[int]) -> None:
    """Refuse numbers that are no tokens of a model."""
    for number in ids:
        if number >= predictor.tokenizer.vocab:
            raise UserError(
                "this model has no such token", found=str(number), expected=f"0 to {predictor.tokenizer.vocab - 1}"
            )


def stated(state: Mapping[str, Any], numbers: Sequence[str], lists: Sequence[str] = ()) -> dict[str, Any]:
    """What the address of a page says by some names, where it says it: numbers, and lists of them as 0,3,5."""
    found: dict[str, Any] = {}
    for name in (*numbers, *lists):
        if (said := state.get(name)) in (None, ""):
            continue
        try:
            found[name] = json.loads(f"[{said}]" if name in lists else str(said))
        except (ValueError, RecursionError):
            raise UserError("this is not a number", where=name, found=shown(said)) from None
    return found
