"""The logit lens: what each layer would predict if it were the last (nostalgebraist, 2020).

L layers, T tokens, K top tokens, C candidates, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.taps import taps
from heedful.explore import inspect
from heedful.explore.capabilities import LogitLens
from heedful.explore.head_patterns import is_word
from heedful.explore.inspect import TextInput, Token, Trace
from heedful.explore.openings import Highlight, on_text, quoted
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, input_of, require_index

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Logit lens"
ABOUT = "What each layer would predict if it were the last."
EXAMPLES, PLACES = 3, 6  # to choose the first picture from: examples, and tokens that are seen without scrolling
TOP = 5  # tokens of a cell


class PositionRequest(InputRequest):
    """One token of the input."""

    place: int = Field(ge=0, le=100_000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and inspect.reads_text(subject.predictor) and len(layers_of(subject.model)) > 1


def layers_of(model: Any) -> list[str]:
    """The taps of the residual stream after each layer, from the first to the last."""
    pattern = model.lens_taps if isinstance(model, LogitLens) else None
    return [name for name in taps(model) if pattern is not None and fnmatchcase(name, pattern)]


def words(subject: Subject, request: InputRequest) -> bytes:
    """The input tokens, and by layer the most probable tokens (L, T, K) and the probability of the target (L, T)."""
    trace, tokens, targets = traced(subject, request)
    vocab = subject.predictor.tokenizer.vocab
    every = [logits(subject, trace.values[name]).softmax(-1) for name in layers_of(subject.model)]  # (T, V) each
    best = [each.topk(min(TOP, vocab)) for each in every]
    ids = torch.stack([each.indices for each in best])  # (L, T, K)
    pieces = subject.predictor.tokenizer.pieces
    right = torch.tensor([-1 if one is None else one for one in targets], dtype=torch.int32)  # (T,)
    return pack(
        {
            "tokens": [token.to_json() for token in tokens],
            "right": [None if one is None else pieces([one])[0] for one in targets],
            "pieces": dict(zip(map(str, unique := ids.unique().tolist()), pieces(unique), strict=True)),
            "ahead": targets != [token.id for token in tokens],
        },
        right=right, truth=torch.stack([each.gather(1, right.long().clamp(min=0)[:, None])[:, 0] for each in every]),
        ids=ids.int(), shares=torch.stack([each.values for each in best]).float(),
    )  # fmt: skip


def ranks(subject: Subject, request: PositionRequest) -> bytes:
    """The rank (L, C), from 1, and the probability by layer of the target and of each layer's best token."""
    trace, tokens, targets = traced(subject, request)
    require_index("place", request.place, len(tokens), "token")
    every = torch.stack(
        [logits(subject, trace.values[name][request.place, None])[0] for name in layers_of(subject.model)]
    )  # (L, V)
    target = targets[request.place]
    best = [*every.argmax(-1).tolist(), *every[-1].topk(min(TOP, every.shape[1])).indices.tolist()]
    ids = list(dict.fromkeys([*([] if target is None else [target]), *best]))
    rank = torch.stack([(every > one[:, None]).sum(-1) + 1 for one in every[:, ids].unbind(1)], 1)  # (L, C)
    shares = every.softmax(-1)[:, ids]  # (L, C)
    return pack(
        {"pieces": subject.predictor.tokenizer.pieces(ids)},
        ids=torch.tensor(ids, dtype=torch.int32), rank=rank.int(), share=shares.float(),
    )  # fmt: skip


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The token whose prediction is found in the last layers alone, and is most probable then."""
    trace, tokens, _ = traced(subject, InputRequest(model=subject.name, text=given.text, other=given.other))
    every = [logits(subject, trace.values[name]).softmax(-1).max(-1) for name in layers_of(subject.model)]
    best = torch.stack([each.indices for each in every])  # (L, T)
    late = (best != best[-1]).int()  # (L, T)
    layer = len(best) - 1 - late.flip(0).argmax(0)  # (T,), the last one that predicts another token
    words = torch.tensor([place < PLACES and is_word(token) for place, token in enumerate(tokens)])
    gains = torch.where(late.any(0) & words, layer + every[-1].values, 0.0)
    place = int(gains.argmax())
    if not gains[place]:
        return None
    last = int(layer[place])
    after, before = map(quoted, subject.predictor.tokenizer.pieces(best[[-1, last], place].tolist()))
    why = (
        f"Because the prediction at {quoted(tokens[place].piece)} changes late: layer {last + 1} of {len(best)} still "
        f"predicts {before}, the last layer {after}."
    )
    return Highlight(float(gains[place]), why, {"place": place})


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    settings = input_of(state)
    _, tokens, _ = traced(subject, InputRequest(**settings))
    every = [Call("lens", "ranks", {**settings, "place": place}) for place in range(len(tokens))]
    return [Call("lens", "words", settings), *every]


def traced(subject: Subject, request: InputRequest) -> tuple[Trace, list[Token], list[int | None]]:
    """The activations after each layer, the input tokens, and the id of the target at each of them.

    The target is the next token for a language model, the next token of the translation for a translator, and the token
    itself for an encoder.
    """
    trace = subject.trace(request, subject.model.lens_taps)
    sides = trace.reading.sides
    if "written" in sides:
        return trace, sides["target"], [token.id for token in sides["written"]]
    ids: list[int | None] = [token.id for token in sides["text"]]
    return trace, sides["text"], [*ids[1:], None] if inspect.is_language_model(subject.predictor) else ids


@torch.inference_mode()
def logits(subject: Subject, x: Tensor) -> Tensor:
    """The logits (T, V) of a layer's output (T, D), through the model's last norm and output layer."""
    with subject.lock:
        found: Tensor = subject.model.lens(x[None])[0, :, : subject.predictor.tokenizer.vocab]
    return found.float().cpu()


CALLS = {"words": (InputRequest, words), "ranks": (PositionRequest, ranks), "opening": on_text(highlight, EXAMPLES)}
