"""Words that are hidden from an encoder: what it takes them for, and how its attention changes.

G hidden places, K words told, L layers, H heads, T tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.explore import inspect
from heedful.explore.capabilities import Fills
from heedful.explore.inspect import Trace
from heedful.explore.packets import pack
from heedful.explore.views import Asked, Request, input_in
from heedful.explore.views.heads import described

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Fill mask"
ABOUT = "Mask tokens of a text: what the model predicts for them, and how its attention changes."
TOLD = 8  # words for a place
HELD = 6_000_000  # bytes of attention that a file holds for what its reader may click

Place = Annotated[int, Field(ge=0, le=100_000)]


class Hiding(Asked):
    """A text or a pair, some of whose tokens are hidden."""

    hidden: tuple[Place, ...] = Field((), max_length=512)


class Layer(Hiding):
    """One layer of it."""

    layer: int = Field(ge=0, le=1000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, Fills) and subject.model.masked_words is not None


def tokens(explorer: Explorer, asked: Asked) -> bytes:
    """The tokens, which of them is hidden where nobody says, and whether the texts seem to follow each other."""
    subject = explorer.subject(asked.model)
    found = subject.trace(asked)
    row, segments = rows(subject, asked)
    return pack({**described(found), "first": first(subject, row), "follows": follows(subject, asked, row, segments)})


def guess(explorer: Explorer, asked: Hiding) -> bytes:
    """What the hidden words are taken for; which words are right, and how each head's look changed.

    Arrays: places (G,), words and shares (G, K), the right word's rank and share (G,), 0 where nobody knows it, and the
    part of the attention that went elsewhere, a mean over all tokens (L, H).
    """
    subject = explorer.subject(asked.model)
    row, segments = rows(subject, asked)
    covered = cover(subject, row, asked.hidden)
    places = [place for place, number in enumerate(covered) if number == subject.predictor.tokenizer.mask]
    with subject.lock:
        shares = subject.predictor.hidden(covered, segments, places).exp()  # (G, V)
        after = follows(subject, asked, covered, segments)
    best, ids = shares.topk(min(TOLD, shares.shape[1]))  # (G, K)
    right = torch.tensor([row[place] for place in places], dtype=torch.long)  # (G,)
    known = right != subject.predictor.tokenizer.mask
    share = shares.gather(1, right[:, None])[:, 0] * known  # (G,)
    rank = ((shares > share[:, None]).sum(1) + 1) * known  # (G,)
    return pack(
        {"words": [subject.predictor.tokenizer.pieces(some) for some in ids.tolist()], "follows": after},
        places=torch.tensor(places, dtype=torch.int32), shares=best, rank=rank.int(), share=share,
        moved=moved(subject, asked),
    )  # fmt: skip


def layer(explorer: Explorer, asked: Layer) -> bytes:
    """Where the heads of one layer look, (H, T, T) as half floats, with all words in sight and with some hidden."""
    subject = explorer.subject(asked.model)
    before, after = subject.trace(asked), covered_trace(subject, asked)
    return pack({}, before=half(before, asked.layer), after=half(after, asked.layer))


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    """What is hidden now with all its layers, and what a click on any word leads to, as far as there is room."""
    asked = input_in(state)
    subject = explorer.subject(state["model"])
    row, _ = rows(subject, Asked(**asked))
    look = subject.trace(Asked(**asked)).looks[0]
    said = state.get("hidden")
    now = first(subject, row) if said is None else [int(place) for place in str(said).split(",") if place.isdecimal()]
    free = [place for place, number in enumerate(row) if hideable(subject, number)]
    clicks = [sorted({*now} ^ {place}) for place in free][: HELD // (4 * look.heads * len(row) ** 2)]
    found = [Request("fill", "tokens", asked)]
    found += [Request("fill", "layer", {**asked, "hidden": now, "layer": number}) for number in range(len(look.taps))]
    for some in [now, [], *clicks]:
        most = int(moved(subject, Hiding(**asked, hidden=tuple(some))).flatten().argmax()) // look.heads
        found.append(Request("fill", "guess", {**asked, "hidden": some}))
        found.append(Request("fill", "layer", {**asked, "hidden": some, "layer": most}))
    return found


def rows(subject: Subject, asked: Asked) -> tuple[list[int], list[int]]:
    """The ids of the input, and the text that each is of."""
    return inspect.pair_ids(subject.predictor.tokenizer, asked, subject.model.config.context)


def hideable(subject: Subject, number: int) -> bool:
    """Whether a token is one of the text's own."""
    tokenizer = subject.predictor.tokenizer
    return number not in tokenizer.special or number == tokenizer.unk


def first(subject: Subject, row: Sequence[int]) -> list[int]:
    """What is hidden where nobody says: the longest word, unless the text has gaps of its own."""
    if subject.predictor.tokenizer.mask in row:
        return []
    pieces = subject.predictor.tokenizer.pieces(row)
    free = [place for place, number in enumerate(row) if hideable(subject, number)]
    return sorted(free, key=lambda place: -len(pieces[place].removeprefix("##")))[:1]


def cover(subject: Subject, row: Sequence[int], hidden: Sequence[int]) -> list[int]:
    """The ids with some places hidden; those that are of no text cannot be."""
    mask = subject.predictor.tokenizer.mask
    return [mask if place in hidden and hideable(subject, number) else number for place, number in enumerate(row)]


def covered_trace(subject: Subject, asked: Hiding) -> Trace:
    """What passes the model's taps while some words are hidden."""
    row, segments = rows(subject, asked)
    covered = cover(subject, row, asked.hidden)

    def made() -> Trace:
        return inspect.trace(subject.model, inspect.both_ways(subject.predictor, covered, segments))

    return subject.kept(json.dumps(["fill", covered, segments]), made)


def moved(subject: Subject, asked: Hiding) -> Tensor:
    """How much of each head's attention (L, H) looks elsewhere when words are hidden, a mean over all tokens."""
    before, after = subject.trace(asked), covered_trace(subject, asked)
    look = before.looks[0]
    pairs = ((before.weights(look, number), after.weights(look, number)) for number in range(len(look.taps)))
    return torch.stack([(a - b).abs().sum(-1).mean(-1) / 2 for a, b in pairs]).float()


def follows(subject: Subject, asked: Asked, row: Sequence[int], segments: Sequence[int]) -> float | None:
    """How likely the second text follows the first, where there is one, and a head that can tell."""
    if asked.other is None or subject.model.next_sentence is None:
        return None
    with subject.lock:
        return float(subject.predictor.following(row, segments))


def half(trace: Trace, number: int) -> Tensor:
    return trace.weights(trace.looks[0], number).to(torch.float16)


CALLS = {"tokens": (Asked, tokens), "guess": (Hiding, guess), "layer": (Layer, layer)}
