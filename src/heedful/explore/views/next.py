"""The next word: a logit for every token of the vocabulary, and what temperature, top-k and top-p make of them.

T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.config import Config
from heedful.decode.rules import Generated
from heedful.explore.decoding import begun, end_of, goes_on, read, stated
from heedful.explore.packets import pack, unpack
from heedful.explore.views import Asked, Named, Request
from heedful.tasks.language_model.perplexity import exp
from heedful.tasks.language_model.predictor import seed_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Next token"
ABOUT = "The logit and the probability of every token, with temperature, top-k and top-p."

MOST = 256  # tokens that are written
BARS = 20  # tokens that a reader can pick
FILE = 6_000_000  # bytes of logits in a file


class So(Asked):
    """A text, and the tokens that were chosen after it."""

    then: tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...] = Field((), max_length=MOST)


class Seeded(Config):
    """A seed of chance."""

    seed: int = Field(ge=0, le=2**31 - 1)


def fits(subject: Subject) -> bool:
    return goes_on(subject)


def logits(explorer: Explorer, asked: So) -> bytes:
    """The logits (V,) of the next token, and how likely each token so far was, (T - 1,)."""
    subject = explorer.subject(asked.model)
    predictor = subject.predictor
    with subject.lock, torch.inference_mode():
        place = begun(predictor, asked, asked.then)
        found, logs = read(predictor, place)
    pieces = predictor.tokenizer.pieces
    return pack(
        {
            "pieces": pieces(place.ids), "then": min(len(asked.then), len(place.ids)), "source": pieces(place.source),
            "forgotten": place.forgotten, "context": predictor.context, "end": end_of(predictor),
            "perplexity": exp(-float(logs.double().mean())) if len(logs) else None,
        },
        logits=found, logs=logs, never=never(predictor, found),
    )  # fmt: skip


def vocabulary(explorer: Explorer, asked: Named) -> bytes:
    """How each token reads."""
    tokenizer = explorer.subject(asked.model).predictor.tokenizer
    return pack({"pieces": tokenizer.pieces(range(tokenizer.vocab))})


def luck(explorer: Explorer, asked: Seeded) -> bytes:
    """The numbers from 0 to 1 that decide, one a token, when the first text of a seed is drawn by chance."""
    return pack({}, luck=torch.rand(MOST, generator=torch.Generator().manual_seed(seed_of(asked.seed, 0))))


def never(predictor: Any, logits: Tensor) -> Tensor:
    """The tokens that the model is not allowed to write, whatever their logits (V,)."""
    none = torch.zeros(1, 1, dtype=torch.long, device=logits.device)
    ruled = torch.zeros_like(logits)[None]  # (1, V)
    for rule in predictor.rules():
        ruled = rule(ruled, Generated(none, none, none[0, 0], none))
    return ruled[0].isneginf().nonzero()[:, 0].int()


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    model = {"model": state["model"]}
    given = {**model, "text": state["text"], **({"other": state["other"]} if state.get("other") else {})}
    said = stated(state, ("seed",), ("then",))
    then = said.get("then", [])
    _, arrays = unpack(explorer.answer("next", "logits", {**given, "then": then}))
    left = min(BARS + 8, FILE // arrays["logits"].nbytes)
    ways = [then, *(then[:end] for end in range(len(then) - 1, -1, -1))][: 1 + left // 3]
    likeliest = torch.from_numpy(arrays["logits"].copy()).topk(min(BARS, len(arrays["logits"]))).indices.tolist()
    ways += [[*then, token] for token in likeliest[: left - len(ways)] if len(then) < MOST]
    texts = [Request("next", "logits", {**given, **({"then": way} if way else {})}) for way in ways]
    chance = Request("next", "luck", {"seed": said.get("seed", 0)})
    return [*texts, chance, Request("next", "vocabulary", model)]


CALLS = {"logits": (So, logits), "vocabulary": (Named, vocabulary), "luck": (Seeded, luck)}
