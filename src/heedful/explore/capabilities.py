"""What predictors and models can do, as small protocols: a view names those that it needs, and no class of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.decode.rules import Rule
from heedful.decode.search import Search
from heedful.decode.settings import Generation


# ------------------------------------------------------------------ predictors
def part_of(module: torch.nn.Module, name: str) -> Any:
    """A module or a weight that a module has under a name, or None.

    Protocols see those that `torch` keeps apart from attributes up to Python 3.11 alone.
    """
    return dict(module.named_children()).get(name, dict(module.named_parameters(recurse=False)).get(name))


@runtime_checkable
class Translates(Protocol):
    """Reads one text, and writes another."""

    settings: Any
    context: int

    def search(self, texts: Sequence[str]) -> Any: ...

    def align(self, text: str, translation: Any) -> Any: ...

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    def start(self, source: Tensor, real: Tensor | None) -> tuple[Any, Tensor]: ...


@runtime_checkable
class Writes(Protocol):
    """Goes on with texts."""

    codec: Any

    def read_ids(self, prompt: str) -> list[int]: ...

    def forgotten(self, count: int) -> int: ...

    def text_after(self, before: list[int], ids: list[int]) -> str: ...


@runtime_checkable
class Searches(Protocol):
    """Writes one token after another, and its search can be followed step by step."""

    settings: Generation

    def steps(self, text: str, beams: int) -> Search: ...

    def room(self, text: str) -> int: ...

    def rules(self) -> Iterable[Rule]: ...


@runtime_checkable
class Captures(Protocol):
    """Keeps captured steps for a GPU."""

    graphs: Any


@runtime_checkable
class Fills(Protocol):
    """Tells hidden words."""

    def fill(self, text: str) -> Any: ...

    def hidden(self, row: Sequence[int], segments: Sequence[int], gaps: Sequence[int]) -> Tensor: ...


@runtime_checkable
class Pools(Protocol):
    """Makes one vector of a text's vectors."""

    pooling: str | None
    normalize: bool


@runtime_checkable
class Classifies(Protocol):
    """Predicts the class of a text."""

    labels: Sequence[str]

    def classify(self, texts: Sequence[Any]) -> Any: ...


@runtime_checkable
class Tags(Protocol):
    """Says a tag of each word."""

    labels: Sequence[str]

    def tag(self, texts: Sequence[Any]) -> Any: ...


@runtime_checkable
class Answers(Protocol):
    """Finds the answer to a question in a passage."""

    def answer(self, questions: Sequence[tuple[str, str]]) -> Any: ...


@runtime_checkable
class Reconstructs(Protocol):
    """Makes images again from a code."""

    canvas: Any

    def encode(self, images: NDArray[Any]) -> NDArray[Any]: ...

    def decode(self, codes: NDArray[Any]) -> NDArray[Any]: ...

    def reconstruct(self, images: NDArray[Any]) -> NDArray[Any]: ...

    def walk(self, first: NDArray[Any], last: NDArray[Any], steps: int) -> NDArray[Any]: ...


# ------------------------------------------------------------------ models and their parts
@runtime_checkable
class Encodes(Protocol):
    """Gives a vector for each token of a text, of any of its layers."""

    config: Any

    def layers(self, tokens: Tensor) -> Any: ...

    def pool(self, first: Tensor) -> Tensor: ...


@runtime_checkable
class Aligns(Protocol):
    """Looks at the source while it writes."""

    alignment: str  # the taps that show where


@runtime_checkable
class Foretells(Protocol):
    """Can tell words from the output of any layer."""

    lens_taps: str | None  # the taps of these outputs


@runtime_checkable
class Headed(Protocol):
    """Is an attention of several heads."""

    heads: int


@runtime_checkable
class Scores(Protocol):
    """Is an attention whose score can be chosen."""

    score: Any


@runtime_checkable
class Normalizes(Protocol):
    """Is an attention whose normalization can be chosen."""

    normalize: Any


@runtime_checkable
class Placed(Protocol):
    """Are settings of a model that knows where a token stands."""

    positions: str
    heads: int


# ------------------------------------------------------------------ tokenizers
@runtime_checkable
class Masks(Protocol):
    """Has a token for a hidden word."""

    mask: int


@runtime_checkable
class Spells(Protocol):
    """Tells how tokens read."""

    def pieces(self, ids: Iterable[int]) -> list[str]: ...


@runtime_checkable
class Unknowing(Protocol):
    """Has a token for words that it does not know."""

    unk: int
