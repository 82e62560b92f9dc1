"""What each layer would predict if it were the last (nostalgebraist's logit lens, 2020).

L layers, T tokens, K words told, C candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.taps import taps
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.capabilities import Foretells
from heedful.explore.inspect import Token, Trace
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request, input_in
from heedful.explore.views.heads import told

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Logit lens"
ABOUT = "What each layer would predict if it were the last."
TOLD = 5  # words of a cell


class Place(Asked):
    """One token of the input."""

    place: int = Field(ge=0, le=100_000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and inspect.reads(subject.predictor) and len(layers_of(subject.model)) > 1


def layers_of(model: Any) -> list[str]:
    """The taps from which a model's words can be told, from the first layer to the last."""
    pattern = model.lens_taps if isinstance(model, Foretells) else None
    return [name for name in taps(model) if pattern is not None and fnmatchcase(name, pattern)]


def words(explorer: Explorer, asked: Asked) -> bytes:
    """The tokens that are read, the right word at each, and the likeliest ones of each layer (L, T, K)."""
    subject = explorer.subject(asked.model)
    trace, read, right = seen(subject, asked)
    shares, ids = [], []
    for name in layers_of(subject.model):
        best, some = told_at(subject, trace.values[name]).softmax(-1).topk(min(TOLD, subject.predictor.tokenizer.vocab))
        shares.append(best)
        ids.append(some)
    every = torch.stack(ids)  # (L, T, K)
    return pack(
        {
            "tokens": [told(token) for token in read],
            "right": [None if number is None else spelled(subject, [number])[0] for number in right],
            "pieces": dict(zip(map(str, unique := every.unique().tolist()), spelled(subject, unique), strict=True)),
            "ahead": right != [token.id for token in read],
        },
        right=torch.tensor([-1 if number is None else number for number in right], dtype=torch.int32),
        ids=every.int(), shares=torch.stack(shares).float(),
    )  # fmt: skip


def ranks(explorer: Explorer, asked: Place) -> bytes:
    """How each layer ranks, (L, C) from 1 on, what any of them likes best at one place, and the right word first."""
    subject = explorer.subject(asked.model)
    trace, read, right = seen(subject, asked)
    if asked.place >= len(read):
        raise UserError(
            "there is no such token", where="place", found=str(asked.place + 1), expected=f"1 to {len(read)}"
        )
    logits = torch.stack(
        [told_at(subject, trace.values[name][asked.place, None])[0] for name in layers_of(subject.model)]
    )  # (L, V)
    truth = right[asked.place]
    likely = [*logits.argmax(-1).tolist(), *logits[-1].topk(min(TOLD, logits.shape[1])).indices.tolist()]
    ids = list(dict.fromkeys([*([] if truth is None else [truth]), *likely]))
    chosen = logits[:, ids]  # (L, C)
    rank = torch.stack([(logits > one[:, None]).sum(-1) + 1 for one in chosen.unbind(1)], 1)  # (L, C)
    shares = logits.softmax(-1)[:, ids]  # (L, C)
    return pack(
        {"pieces": spelled(subject, ids)},
        ids=torch.tensor(ids, dtype=torch.int32), rank=rank.int(), share=shares.float(),
    )  # fmt: skip


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    asked = input_in(state)
    _, read, _ = seen(explorer.subject(state["model"]), Asked(**asked))
    places = [Request("lens", "ranks", {**asked, "place": place}) for place in range(len(read))]
    return [Request("lens", "words", asked), *places]


def seen(subject: Subject, asked: Asked) -> tuple[Trace, list[Token], list[int | None]]:
    """What each layer leaves of an input, the tokens that are read, and the id that is right at each of them.

    That is the next token for whoever reads ahead, the next word of the translation, and the token itself for whoever
    reads both ways.
    """
    trace = subject.trace(asked, subject.model.lens_taps)
    sides = trace.reading.sides
    if "written" in sides:
        return trace, sides["target"], [token.id for token in sides["written"]]
    ids: list[int | None] = [token.id for token in sides["text"]]
    return trace, sides["text"], [*ids[1:], None] if inspect.writes(subject.predictor) else ids


@torch.inference_mode()
def told_at(subject: Subject, x: Tensor) -> Tensor:
    """The logits (T, V) of what a layer leaves (T, D)."""
    with subject.lock:
        logits: Tensor = subject.model.lens(x[None])[0, :, : subject.predictor.tokenizer.vocab]
    return logits.float().cpu()


def spelled(subject: Subject, ids: Sequence[int]) -> list[str]:
    """How ids read."""
    pieces: list[str] = subject.predictor.tokenizer.pieces(ids)
    return pieces


CALLS = {"words": (Asked, words), "ranks": (Place, ranks)}
