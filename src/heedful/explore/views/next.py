"""The next token: a logit for every token of the vocabulary, to which the page applies temperature, top-k and top-p.

T tokens so far, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.config import Config
from heedful.decode.rules import Generated
from heedful.explore import subjects
from heedful.explore.decoding import end_token, is_generator, next_logits, numbers_of, prefix_of
from heedful.explore.inspect import TextInput
from heedful.explore.openings import Highlight, on_text, rivals
from heedful.explore.packets import pack, unpack
from heedful.explore.views import Call, InputRequest, ModelRequest, input_of
from heedful.tasks.language_model.perplexity import perplexity
from heedful.tasks.language_model.predictor import seed_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Next token"
ABOUT = "The logit and the probability of every token, with temperature, top-k and top-p."

MAX_TOKENS = 256  # that are generated
EXAMPLES = 8  # to choose the first picture from
BARS = 20  # tokens that a reader can choose
FILE = 6_000_000  # bytes of logits in a file


class TokensRequest(InputRequest):
    """A text, and the tokens that were chosen after it."""

    then: tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...] = Field((), max_length=MAX_TOKENS)


class SeedRequest(Config):
    """A random seed."""

    seed: int = Field(ge=0, le=2**31 - 1)


fits = is_generator


def logits(subject: Subject, request: TokensRequest) -> bytes:
    """The logits (V,) of the next token, and the log-probability of each token so far, (T - 1,)."""
    predictor = subject.predictor
    with subject.lock:
        prefix = prefix_of(predictor, request, request.then)
        found, logs = next_logits(predictor, prefix)
    pieces = predictor.tokenizer.pieces
    return pack(
        {
            "pieces": pieces(prefix.ids), "then": min(len(request.then), len(prefix.ids)),
            "source": pieces(prefix.source), "forgotten": prefix.dropped, "context": predictor.context,
            "end": end_token(predictor),
            "perplexity": perplexity(-float(logs.double().mean())) if len(logs) else None,
        },
        logits=found, logs=logs, never=excluded(predictor, found),
    )  # fmt: skip


def vocabulary(subject: Subject, request: ModelRequest) -> bytes:
    """The text of each token."""
    tokenizer = subject.predictor.tokenizer
    return pack({"pieces": tokenizer.pieces(range(tokenizer.vocab))})


def uniform_numbers(request: SeedRequest) -> bytes:
    """The uniform random numbers, one per token, by which the first text of a seed is sampled."""
    return pack({}, luck=torch.rand(MAX_TOKENS, generator=torch.Generator().manual_seed(seed_of(request.seed, 0))))


def excluded(predictor: Any, logits: Tensor) -> Tensor:
    """The tokens that the model's rules never allow, whatever their logits (V,)."""
    none = torch.zeros(1, 1, dtype=torch.long, device=logits.device)
    ruled = torch.zeros_like(logits)[None]  # (1, V)
    for rule in predictor.rules():
        ruled = rule(ruled, Generated(none, none, none[0, 0], none))
    return ruled[0].isneginf().nonzero()[:, 0].int()


def highlight(subject: Subject, given: TextInput) -> Highlight:
    """How close the second most probable token is to the first."""
    predictor = subject.predictor
    with subject.lock:
        logits, _ = next_logits(predictor, prefix_of(predictor, given, ()))
    best = logits.index_fill(0, excluded(predictor, logits).long(), -torch.inf).softmax(-1).topk(2)
    return rivals("tokens", *zip(predictor.tokenizer.pieces(best.indices.tolist()), best.values.tolist(), strict=True))


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The chosen tokens, each prefix of them, and one more of the most probable tokens, as many as fit."""
    model = {"model": state["model"]}
    given = {name: value for name, value in input_of(state).items() if value not in (None, "") or name == "text"}
    numbers = numbers_of(state, ("seed",), ("then",))
    then = numbers.get("then", [])
    request = subjects.parse_request(TokensRequest, json.dumps({**given, "then": then}).encode())
    _, arrays = unpack(logits(subject, request))
    left = min(BARS + 8, FILE // arrays["logits"].nbytes)
    ways = [then, *(then[:end] for end in range(len(then) - 1, -1, -1))][: 1 + left // 3]
    likeliest = torch.from_numpy(arrays["logits"].copy()).topk(min(BARS, len(arrays["logits"]))).indices.tolist()
    ways += [[*then, token] for token in likeliest[: left - len(ways)] if len(then) < MAX_TOKENS]
    texts = [Call("next", "logits", {**given, **({"then": way} if way else {})}) for way in ways]
    return [*texts, Call("next", "luck", {"seed": numbers.get("seed", 0)}), Call("next", "vocabulary", model)]


CALLS = {
    "logits": (TokensRequest, logits), "vocabulary": (ModelRequest, vocabulary), "luck": (SeedRequest, uniform_numbers),
    "opening": on_text(highlight, EXAMPLES),
}  # fmt: skip
