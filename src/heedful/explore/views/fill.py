"""Masked tokens: what an encoder predicts for them, and how its attention changes.

G masked positions, K top tokens, L layers, H heads, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.explore import inspect
from heedful.explore.inspect import TextInput, Trace
from heedful.explore.openings import Highlight, best, on_text, quoted, rivals
from heedful.explore.packets import pack
from heedful.explore.views import Call, InputRequest, input_of
from heedful.explore.views.heads import described
from heedful.tasks.pretraining.predictor import TextEncoder

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Fill mask"
ABOUT = "Mask tokens of a text: what the model predicts for them, and how its attention changes."
EXAMPLES, WORDS = 4, 6  # to choose the first picture from
TOP = 8  # tokens for a masked position
FILE = 6_000_000  # bytes of attention in a file for the tokens its reader may click

Position = Annotated[int, Field(ge=0, le=100_000)]


class MaskRequest(InputRequest):
    """A text or a pair with some masked tokens."""

    hidden: tuple[Position, ...] = Field((), max_length=512)


class LayerRequest(MaskRequest):
    """One layer of it."""

    layer: int = Field(ge=0, le=1000)


def fits(subject: Subject) -> bool:
    return (
        subject.broken is None and isinstance(subject.predictor, TextEncoder) and subject.model.masked_words is not None
    )


def tokens(subject: Subject, request: InputRequest) -> bytes:
    """The tokens, the default masked token, the mask, and the probability that the second text follows the first."""
    row, segments = rows(subject, request)
    found = {"first": default_mask(subject, row), "mask": subject.predictor.tokenizer.mask_name}
    return pack({**described(subject.trace(request)), **found, "follows": follows(subject, request, row, segments)})


def guess(subject: Subject, request: MaskRequest) -> bytes:
    """The predictions for the masked tokens, and the change of each head's attention.

    Arrays: positions (G,), the probabilities of the top tokens (G, K), the rank and probability of the original token
    (G,), 0 where it is unknown, and the fraction of the attention that moved, as a mean over all tokens (L, H).
    """
    row, segments = rows(subject, request)
    covered = masked(subject, row, request.hidden)
    places = [place for place, number in enumerate(covered) if number == subject.predictor.tokenizer.mask]
    with subject.lock:
        shares = subject.predictor.masked_log_probabilities(covered, segments, places).exp()  # (G, V)
        after = follows(subject, request, covered, segments)
    best, ids = shares.topk(min(TOP, shares.shape[1]))  # (G, K)
    right = torch.tensor([row[place] for place in places], dtype=torch.long)  # (G,)
    known = right != subject.predictor.tokenizer.mask
    share = shares.gather(1, right[:, None])[:, 0] * known  # (G,)
    rank = ((shares > share[:, None]).sum(1) + 1) * known  # (G,)
    return pack(
        {"words": [subject.predictor.tokenizer.pieces(some) for some in ids.tolist()], "follows": after},
        places=torch.tensor(places, dtype=torch.int32), shares=best, rank=rank.int(), share=share,
        moved=moved(subject, request),
    )  # fmt: skip


def highlight(subject: Subject, given: TextInput) -> Highlight | None:
    """The masked word for which another one is as likely as possible, of the longest words."""
    tokenizer = subject.predictor.tokenizer
    row, segments = inspect.pair_ids(tokenizer, given, subject.model.config.context)
    if tokenizer.mask in row:
        return None
    pieces = tokenizer.pieces(row)
    words = sorted((one for one in maskable(subject, row) if pieces[one].isalpha()), key=lambda one: -len(pieces[one]))

    def tell_place(place: int) -> Highlight:
        with subject.lock:
            covered = masked(subject, row, [place])
            shares = subject.predictor.masked_log_probabilities(covered, segments, [place])[0].exp()
        shares[list(tokenizer.special)] = 0.0
        found = shares.topk(2)
        names = tokenizer.pieces(found.indices.tolist())
        return rivals(f"words for the masked {quoted(pieces[place])}", *zip(names, found.values.tolist(), strict=True))

    if not words:
        return None
    place, found = best(tell_place, words[:WORDS])
    return replace(found, state={"hidden": place})


def layer(subject: Subject, request: LayerRequest) -> bytes:
    """The attention weights of one layer, (H, T, T) as half floats, before and after masking."""
    traces = {"before": subject.trace(request), "after": masked_trace(subject, request)}
    return pack({}, **{
        name: trace.weights(trace.attentions[0], request.layer).to(torch.float16) for name, trace in traces.items()
    })  # fmt: skip


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The masked tokens of the state with all layers, and those after a click on any token, as many as fit."""
    settings = input_of(state)
    row, _ = rows(subject, InputRequest(**settings))
    attention = subject.trace(InputRequest(**settings)).attentions[0]
    given = state.get("hidden")
    now = (
        default_mask(subject, row)
        if given is None
        else [int(place) for place in str(given).split(",") if place.isdecimal()]
    )
    clicks = [sorted({*now} ^ {place}) for place in maskable(subject, row)]
    found = [Call("fill", "tokens", settings)]
    found += [Call("fill", "layer", {**settings, "hidden": now, "layer": one}) for one in range(len(attention.taps))]
    for some in [now, [], *clicks[: FILE // (4 * attention.heads * len(row) ** 2)]]:
        most = int(moved(subject, MaskRequest(**settings, hidden=tuple(some))).flatten().argmax()) // attention.heads
        found.append(Call("fill", "guess", {**settings, "hidden": some}))
        found.append(Call("fill", "layer", {**settings, "hidden": some, "layer": most}))
    return found


def rows(subject: Subject, request: InputRequest) -> tuple[list[int], list[int]]:
    """The ids of the input, and their segments."""
    return inspect.pair_ids(subject.predictor.tokenizer, request, subject.model.config.context)


def maskable(subject: Subject, row: Sequence[int]) -> list[int]:
    """The positions of tokens that are not special."""
    tokenizer = subject.predictor.tokenizer
    return [place for place, one in enumerate(row) if one not in tokenizer.special or one == tokenizer.unk]


def default_mask(subject: Subject, row: Sequence[int]) -> list[int]:
    """The position that is masked by default: the longest token, unless the text has masks of its own."""
    if subject.predictor.tokenizer.mask in row:
        return []
    pieces = subject.predictor.tokenizer.pieces(row)
    return sorted(maskable(subject, row), key=lambda place: -len(pieces[place].removeprefix("##")))[:1]


def masked(subject: Subject, row: Sequence[int], places: Sequence[int]) -> list[int]:
    """The ids with some positions masked; special tokens cannot be."""
    hidden = {*places} & {*maskable(subject, row)}
    return [subject.predictor.tokenizer.mask if place in hidden else one for place, one in enumerate(row)]


def masked_trace(subject: Subject, request: MaskRequest) -> Trace:
    """The activations with some tokens masked."""
    row, segments = rows(subject, request)
    covered = masked(subject, row, request.hidden)

    def compute() -> Trace:
        return inspect.trace(subject.model, inspect.bidirectional_reading(subject.predictor, covered, segments))

    return subject.cached(json.dumps(["fill", covered, segments]), compute)


def moved(subject: Subject, request: MaskRequest) -> Tensor:
    """The fraction of each head's attention (L, H) that moves to other tokens by masking, a mean over all queries."""
    before, after = subject.trace(request), masked_trace(subject, request)
    attention = before.attentions[0]
    pairs = ((before.weights(attention, one), after.weights(attention, one)) for one in range(len(attention.taps)))
    return torch.stack([(a - b).abs().sum(-1).mean(-1) / 2 for a, b in pairs]).float()


def follows(subject: Subject, request: InputRequest, row: Sequence[int], segments: Sequence[int]) -> float | None:
    """The probability that the second text follows the first, for a model with a head for pairs."""
    if request.other is None or subject.model.config.pairs is None:
        return None
    with subject.lock:
        return float(subject.predictor.next_sentence_probability(row, segments))


CALLS = {
    "tokens": (InputRequest, tokens), "guess": (MaskRequest, guess), "layer": (LayerRequest, layer),
    "opening": on_text(highlight, EXAMPLES),
}  # fmt: skip
