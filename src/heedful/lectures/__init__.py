"""Studies: small experiments that compute or train what the lectures show, each with its figure.

A study is a module with `Settings`, with `study(settings)`, a generator that yields its progress and returns its
results, and with `plot(results, style)`. It is imported when it is first used.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.plots.style import Figure, Style

FIGURES = {
    "gradient-distance": "how a plain RNN's gradient vanishes or explodes with distance",
    "cell-gradient": "the gradient along an LSTM's cell, a product of forget gates",
    "recall": "a word recalled over a growing distance: RNN, LSTM, and LSTM with attention",
    "length": "how quality falls with a sentence's length, without attention and with it",
    "alignment": "what attention learns to align when a string is copied, and when it is reversed",
    "nopos": "language models with each kind of positions, or none: their losses, and a probe of positions",
    "contexts": "the same word in several sentences, layer by layer; needs model=FOLDER",
    "occurrences": "a map of a word's occurrences for each layer; needs model=FOLDER",
    "cost": "what it costs to pre-train BERT, beside what was published",
    "maps": "images on a map: t-SNE of their codes, codes of two dimensions, t-SNE of the pixels; needs model=RUN",
    "linear-probes": "accuracy of a linear classifier on each layer of a network, before and after training",
    "long": "time and memory over length: full and sparse attention, Linformer and an LSTM, with exponents",
    "pooling": "what pooling keeps of an image, and what upsampling makes of that",
}


class Progress(NamedTuple):
    """How far a study is, from 0 to 1, and what it is doing."""

    share: float
    doing: str


class Table(NamedTuple):
    """The numbers behind a figure."""

    columns: tuple[str, ...]
    rows: tuple[tuple[float | str, ...], ...]


class Found(Protocol):
    """The results of a study."""

    def table(self) -> Table: ...


class Study(Protocol):
    """The names that the module of a study has."""

    @property
    def Settings(self) -> type[Config]: ...  # noqa: N802

    def study(self, settings: Any) -> Generator[Progress, None, Found]: ...

    def plot(self, found: Any, style: Style = "light") -> Figure: ...


def require_figure(name: str, about: Mapping[str, str]) -> None:
    """Refuse the name of an unknown figure, and suggest similar ones: by name, or by what they show."""
    if name not in about:
        near = difflib.get_close_matches(name, about, n=1, cutoff=0.75) or described(name, about)  # maps are not masks
        raise UserError(
            "there is no such figure",
            found=shown(name),
            expected="one of " + ", ".join(about),
            todo=f"did you mean {' or '.join(near)}?" if near else "`heedful figure` lists what each shows",
        )


def described(name: str, about: Mapping[str, str], most: int = 3) -> list[str]:
    """Figures whose name or description has the most words of a name, by their first six letters."""
    stems = [word[:6] for word in re.findall(r"[^\W_]+", name.lower()) if len(word) > 2]
    counts = {
        one: sum(
            any(word.startswith(stem) for word in re.findall(r"[^\W_]+", f"{one} {text}".lower())) for stem in stems
        )
        for one, text in about.items()
    }
    best = max(counts.values(), default=0)
    return [one for one, count in counts.items() if count == best > 0][:most]


def find(name: str) -> Study:
    """The study behind a figure's name."""
    require_figure(name, FIGURES)
    return cast(Study, import_module(f"heedful.lectures.{name.replace('-', '_')}"))
