"""Models that generate token by token, translators and language models alike, from an input and some first tokens.

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
from heedful.explore.inspect import TextInput, is_language_model, is_translator, source_ids, too_long

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

STRIDE = 128  # tokens per forward pass, since logits take much memory


@dataclass(frozen=True)
class Prefix:
    """What a model generates after: its initial state, and the tokens so far."""

    state: Any
    ids: list[int]
    source: list[int]  # of a translation; empty for a language model
    dropped: int  # tokens at the start of the text that exceed the model's context


def is_generator(subject: Subject) -> bool:
    """Whether a model generates token by token, by a search that can be stepped through."""
    predictor = None if subject.broken is not None else subject.predictor
    return is_translator(predictor) or is_language_model(predictor)


@torch.inference_mode()
def prefix_of(predictor: Any, given: TextInput, then: Sequence[int]) -> Prefix:
    """The prefix of an input and some tokens that were generated already."""
    require_tokens(predictor, then)
    if not is_translator(predictor):
        ids = [*predictor.prompt_ids(given.text), *then]
        dropped = predictor.context_start(len(ids))
        return Prefix(predictor.start(1), ids[dropped:], [], dropped)
    source, tokenizer = source_ids(predictor, given.text), predictor.tokenizer
    ids = [tokenizer.bos, *(tokenizer.target_ids([given.other])[0] if given.other else []), *then]
    if len(ids) > predictor.context:
        raise too_long(len(ids), predictor.context)
    padded, real, _ = predictor.batch([source])
    return Prefix(predictor.start(padded, real)[0], ids, source, 0)


@torch.inference_mode()
def next_logits(predictor: Any, prefix: Prefix) -> tuple[Tensor, Tensor]:
    """The logits (V,) of the next token, and the log-probability of each token so far but the first, (T - 1,)."""
    state, logs = prefix.state, []
    logits = torch.empty(0)
    for at in range(0, len(prefix.ids), STRIDE):
        tokens = torch.tensor([prefix.ids[at : at + STRIDE]], device=predictor.device)
        logits, state = predictor.model(tokens, state)
        after = torch.tensor(prefix.ids[at + 1 : at + 1 + STRIDE], device=predictor.device, dtype=torch.long)
        logs.append(logits[0, : len(after)].float().log_softmax(-1).gather(1, after[:, None])[:, 0])
    return logits[0, -1].float(), torch.cat(logs)


def end_token(predictor: Any) -> int | None:
    """The token that ends a generated text; None for a model without one."""
    end: int | None = predictor.tokenizer.eos if is_translator(predictor) else predictor.codec.end_id
    return end


def require_tokens(predictor: Any, ids: Sequence[int]) -> None:
    """Refuse ids that are not in a model's vocabulary."""
    for number in ids:
        if number >= predictor.tokenizer.vocab:
            raise UserError(
                "this model has no such token", found=str(number), expected=f"0 to {predictor.tokenizer.vocab - 1}"
            )


def numbers_of(state: Mapping[str, Any], numbers: Sequence[str], lists: Sequence[str] = ()) -> dict[str, Any]:
    """The integers of a page's state, and its lists of integers such as 0,3,5, by name."""
    found: dict[str, Any] = {}
    for name in (*numbers, *lists):
        if (value := state.get(name)) in (None, ""):
            continue
        try:
            found[name] = json.loads(f"[{value}]" if name in lists else str(value))
        except (ValueError, RecursionError):
            raise UserError("this is not a number", where=name, found=shown(value)) from None
    return found
