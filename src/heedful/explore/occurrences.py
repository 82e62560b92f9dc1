"""Where else an attention head does the same: its largest weights of one kind in other texts of the model's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.inspect import Attention, TextInput, Token
from heedful.explore.views import require_index
from heedful.tasks.base import Example

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TEXTS_PER_CALL = 8
MOST_TOKENS = 512  # of a text; longer ones are left out
Same = Literal["tokens", "query", "distance"]


class Pattern(NamedTuple):
    """What is looked for: the tokens of a query and of a key, and the distance from one to the other."""

    query: int
    key: int
    distance: int
    same: Same  # which of them has to be the same: both tokens, the query's alone, or the distance


def search(subject: Subject, tap: str, head: int, pattern: Pattern, texts: Sequence[Example]) -> list[dict[str, Any]]:
    """The largest matching weight of one head in each text that has one; the weights are those at a tap."""
    found = []
    for one in texts:
        other = one.right if inspect.is_translator(subject.predictor) else one.other
        try:
            reading = inspect.reading(subject.predictor, TextInput(text=one.text, other=other or None))
        except UserError:  # too long, or not a text of this model
            continue
        if max(map(len, reading.sides.values())) > MOST_TOKENS:
            continue
        with subject.lock:
            trace = inspect.trace(subject.model, reading, tap)
        if tap not in trace.values:
            continue
        attention = trace.attentions[0]
        weights = trace.values[tap].float().cpu()  # (H, T, S)
        sides = trace.reading.sides
        queries, keys = sides[attention.queries], sides[attention.keys]
        require_index("head", head, len(weights))
        if weights.shape[1:] == (len(queries), len(keys)):
            allowed = weights[head].nan_to_num(-1).masked_fill(~matches(pattern, queries, keys), -1)  # (T, S)
            weight, place = allowed.flatten().max(0)
            if weight >= 0:
                query, key = divmod(int(place), len(keys))
                found.append(described(one.text, other or None, float(weight), attention, (query, key), sides))
    return found


def matches(pattern: Pattern, queries: Sequence[Token], keys: Sequence[Token]) -> Tensor:
    """Which pairs of a query and a key have what is looked for, (T, S); a special token is one only by its name."""
    words = torch.tensor([one.part is not None for one in keys])
    query = torch.tensor([one.id == pattern.query for one in queries])[:, None]
    if pattern.same == "query":
        return query & words
    if pattern.same == "tokens":
        return query & torch.tensor([one.id == pattern.key for one in keys])
    return (torch.arange(len(keys)) - torch.arange(len(queries))[:, None] == pattern.distance) & words


def described(
    text: str, other: str | None, weight: float, attention: Attention, pair: tuple[int, int],
    sides: dict[str, list[Token]],
) -> dict[str, Any]:  # fmt: skip
    """An occurrence for the page."""
    return {
        "text": text, "other": other, "weight": weight, "query": pair[0], "key": pair[1],
        "queries": [one.piece for one in sides[attention.queries]],
        "keys": None if attention.keys == attention.queries else [one.piece for one in sides[attention.keys]],
    }  # fmt: skip
