"""What the quantities of a lesson read: the state of a page, and the packets that its views show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heedful.errors import UserError, shown

Packet = tuple[dict[str, Any], Mapping[str, NDArray[Any]]]
MOST = 24  # choices of a ranking
MARKS = "Ġ▁ "  # before the pieces of some tokenizers


class Page(Protocol):
    """The page of a step: its state with the arguments of a quantity, and the answers of its views."""

    @property
    def state(self) -> Mapping[str, str]: ...

    @property
    def parameters(self) -> int: ...

    def texts(self) -> dict[str, Any]:
        """The model and the texts, as the settings of a call."""

    def ask(self, view: str, call: str, **settings: object) -> Packet:
        """The header and the arrays that answer a call."""


class Choice(NamedTuple):
    """A name in a ranking, and its number."""

    name: str
    value: float


Value = float | str | list[Choice]


def number(page: Page, name: str, otherwise: int = 0) -> int:
    """An integer of the state."""
    text = page.state.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else otherwise


def kinds(page: Page) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tokens of an input by side, and the kind of attention that the state names, or the first."""
    header, _ = page.ask("heads", "tokens", **page.texts())
    named = [one for one in header["looks"] if one["name"] == page.state.get("look")]
    return header["sides"], (named or header["looks"])[0]


def plain(piece: str) -> str:
    """A token as it is written in a sentence."""
    return piece.strip(MARKS).removeprefix("##").lower()


def place_of(tokens: Sequence[Mapping[str, Any]], given: str, name: str) -> int:
    """The position of a token by its text or its index."""
    pieces = [token["piece"] for token in tokens]
    index = given.rpartition("-")[2]
    if index.isascii() and index.isdecimal() and int(index) < len(pieces):
        return int(index)
    found = [at for at, piece in enumerate(pieces) if plain(piece) == given.lower() or piece == given]
    if not found:
        raise UserError("there is no such token", where=name, found=shown(given), expected=" ".join(pieces[:40]))
    return found[0]


def row(page: Page) -> tuple[list[str], NDArray[np.float64]]:
    """The keys, and the weights from one query to them: of the chosen heads, their mean."""
    sides, look = kinds(page)
    settings = {**page.texts(), "look": look["name"], "layer": number(page, "layer")}
    _, arrays = page.ask("heads", "layer", **settings)
    every = arrays["weights"].astype(np.float64)  # (H, T, S)
    heads = page.state.get("head") or page.state.get("heads") or page.state.get("alignhead")
    if heads:
        chosen = [int(one) for one in heads.split(",")]
        if max(chosen) >= len(every):
            raise UserError("the model has no such head", found=str(max(chosen) + 1), expected=f"1 to {len(every)}")
        every = every[chosen]
    query = place_of(sides[look["asks"]], page.state.get("from", page.state.get("token", "0")), "from")
    return [token["piece"] for token in sides[look["sees"]]], every.mean(0)[query]


def head_of(page: Page) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]], int, int]:
    """One head step by step: its header and arrays, and the query and the key that the state names."""
    sides, look = kinds(page)
    settings = {"look": look["name"], "layer": number(page, "layer"), "head": number(page, "head")}
    header, arrays = page.ask("steps", "head", **page.texts(), **settings)
    if "dots" not in arrays:
        raise UserError("this model has no scaled dot products", todo="open a Transformer")
    query = place_of(sides[look["asks"]], page.state.get("from", page.state.get("token", "0")), "from")
    key = place_of(sides[look["sees"]], page.state.get("to", "0"), "to")
    return header, arrays, query, key


def entropy_of(shares: NDArray[Any]) -> float:
    """The entropy of some weights, in nats."""
    some = shares[shares > 0].astype(np.float64)
    return float(-(some * np.log(some)).sum())


def softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    """exp(x) / sum exp(x)."""
    e = np.exp(x.astype(np.float64) - x.max())
    found: NDArray[np.float64] = e / e.sum()
    return found


def ranking(names: Sequence[str], values: Sequence[float] | NDArray[Any]) -> list[Choice]:
    """The names with their numbers, in the order that they are in; a name that comes twice gets its place."""
    pairs = list(zip(names, map(float, values), strict=True))
    if len(pairs) > MOST:
        least = sorted((value for _, value in pairs), reverse=True)[MOST - 1]
        pairs = [pair for pair in pairs if pair[1] >= least][:MOST]
    every = [name.replace("\n", "⏎").strip(MARKS) or "␣" for name, _ in pairs]
    return [
        Choice(name if every.count(name) == 1 else f"{name} ({every[: at + 1].count(name)})", value)
        for at, (name, (_, value)) in enumerate(zip(every, pairs, strict=True))
    ]
