"""Quantities of attention weights, of one head step by step, and of masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heedful.explore.lessons.state import (
    Choice,
    Page,
    entropy_of,
    head_of,
    kinds,
    number,
    place_of,
    ranking,
    row,
    softmax,
)


def weight(page: Page) -> float:
    pieces, shares = row(page)
    tokens = [{"piece": piece} for piece in pieces]
    return float(shares[place_of(tokens, page.state.get("to", "0"), "to")])


def weights(page: Page) -> list[Choice]:
    return ranking(*row(page))


def entropy(page: Page) -> float:
    return entropy_of(row(page)[1])


def uniform_entropy(page: Page) -> float:
    return float(np.log(token_count(page)))


def token_count(page: Page) -> float:
    sides, look = kinds(page)
    return len(sides[look["sees"]])


def head_count(page: Page) -> float:
    return int(kinds(page)[1]["heads"])


def layer_count(page: Page) -> float:
    return int(kinds(page)[1]["layers"])


def pattern(page: Page) -> str:
    """The name of a head's pattern over the model's examples."""
    every = _patterns(page)
    heads = every[min(number(page, "layer"), len(every) - 1)]
    return heads[min(number(page, "head"), len(heads) - 1)]


def patterns(page: Page) -> list[Choice]:
    """The patterns by how many heads have each."""
    every = [one for layer in _patterns(page) for one in layer]
    names = sorted(set(every))
    return ranking(names, [every.count(name) for name in names])


def pattern_heads(page: Page) -> float:
    """The heads with the pattern `of`, over all layers."""
    return sum(layer.count(page.state.get("of", "content")) for layer in _patterns(page))


def _patterns(page: Page) -> list[list[str]]:
    header, _ = page.ask("heads", "patterns", model=page.texts()["model"])
    found: list[list[str]] = header["patterns"][kinds(page)[1]["name"]]
    return found


def entropies(page: Page) -> list[Choice]:
    """Heads by the entropy of their weights from one query."""
    return ranking(*_heads_by(page, entropy_of))


def sharpest(page: Page) -> list[Choice]:
    """Heads by the largest weight that they give, from one query."""
    return ranking(*_heads_by(page, lambda shares: float(shares.max())))


def heads_on(page: Page) -> list[Choice]:
    """Heads by their weight on one key."""
    sides, look = kinds(page)
    key = place_of(sides[look["sees"]], page.state.get("to", "0"), "to")
    return ranking(*_heads_by(page, lambda shares: float(shares[key])))


def heads_choosing(page: Page) -> float:
    """The heads of a layer whose largest weight, from one query, is on one key."""
    sides, look = kinds(page)
    key = place_of(sides[look["sees"]], page.state.get("to", "0"), "to")
    return int(sum(_heads_by(page, lambda shares: float(shares.argmax() == key))[1]))


def _heads_by(page: Page, value: Callable[[NDArray[np.float64]], float]) -> tuple[list[str], list[float]]:
    sides, look = kinds(page)
    _, arrays = page.ask("heads", "layer", **page.texts(), look=look["name"], layer=number(page, "layer"))
    query = place_of(sides[look["asks"]], page.state.get("from", page.state.get("token", "0")), "from")
    each = arrays["weights"].astype(np.float64)[:, query]  # (H, S)
    return [f"head {head + 1}" for head in range(len(each))], [value(one) for one in each]


def dot(page: Page) -> float:
    _, arrays, query, key = head_of(page)
    return float(arrays["dots"][query, key])


def score(page: Page) -> float:
    _, arrays, query, key = head_of(page)
    return float(arrays["scores"][query, key])


def spread(page: Page) -> float:
    """The standard deviation of a head's products, or of its scores with `of=scores`, over all pairs of tokens."""
    _, arrays, _, _ = head_of(page)
    return float(arrays["scores" if page.state.get("of") == "scores" else "dots"].astype(np.float64).std())


def head_width(page: Page) -> float:
    return int(head_of(page)[0]["width"])


def largest_weight(page: Page) -> float:
    _, arrays, query, _ = head_of(page)
    return float(arrays["weights"][query].max())


def undivided(page: Page) -> float:
    """The largest weight, were the dot products not divided; masked keys stay masked."""
    _, arrays, query, _ = head_of(page)
    bias = arrays["bias"][query] if "bias" in arrays else 0.0
    seen = arrays["masked"][query] == 0
    return float(softmax((arrays["dots"][query] + bias)[seen]).max())


def masked_count(page: Page) -> float:
    _, arrays, query, _ = head_of(page)
    return int(arrays["masked"][query].sum())


# ------------------------------------------------------------------ masks
def mask(page: Page, kind: str) -> NDArray[np.bool_]:
    """Which tokens each token may attend to, (N, N)."""
    settings = {"kind": kind, "size": number(page, "size", 32), "near": number(page, "near", 2)}
    _, arrays = page.ask("positions", "mask", **settings)
    found: NDArray[np.bool_] = arrays["mask"][0] > 0
    return found


def position_table(page: Page) -> NDArray[np.float64]:
    """The vectors of the first positions, (T, D): sinusoids, or those that the state names."""
    settings = {"of": page.state.get("of") or "interleaved", "places": 64, "width": number(page, "width", 512)}
    _, arrays = page.ask("positions", "table", model=page.texts()["model"], **settings)
    return arrays["table"].astype(np.float64)


def position_value(page: Page) -> float:
    """One number of the vector of a position."""
    return float(position_table(page)[number(page, "place"), number(page, "column")])


def position_product(page: Page) -> float:
    """The dot product of the vectors of two positions."""
    table = position_table(page)
    return float(table[number(page, "from")] @ table[number(page, "to")])


def allowed(page: Page) -> float:
    return int(mask(page, page.state.get("kind", "causal")).sum())


def reach(page: Page) -> float:
    """The tokens that the last one depends on after some layers."""
    one = mask(page, page.state.get("kind", "local")).astype(np.int64)
    found = np.eye(len(one), dtype=np.int64)
    for _ in range(min(number(page, "layers", 1), 64)):
        found = np.minimum(found @ one, 1)
    return int(found[-1].sum())
