"""Datasets without a download: spelled-out numbers, docstrings of the standard library, scikit-learn's digits."""

from __future__ import annotations

import ast
import difflib
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Examples, Pair, Split
from heedful.data.formats.tables import Item, Items
from heedful.data.images.sources import Images
from heedful.data.text.files import DocumentStream, Text, collect
from heedful.errors import UserError

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}  # folders without library code

DIGITS = 1_797  # images in scikit-learn's dataset

SHORT, REPEATS = 100, 20  # numbers below 100 are rare in a random sample, so each is repeated this often in training


class Embedded(Config):
    """The base class: no files are needed."""

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """The problems of the data: none."""
        return []


class NumberWords(Embedded):
    """Spelled-out numbers, "three hundred twenty-one" to "dreihunderteinundzwanzig"; the splits are disjoint."""

    kind: Literal["number_words"] = "number_words"
    source: str = Field("en", description="language code of the source")
    target: str = Field("de", description="language code of the target")
    train: int = Field(20_000, ge=1, le=10_000_000, description="numbers for training")
    valid: int = Field(500, ge=1, le=1_000_000, description="numbers for validation")
    test: int = Field(2_000, ge=1, le=1_000_000, description="numbers for the final score")
    below: int = Field(1_000_000, ge=3, le=10**12, description="upper limit of the numbers, exclusive")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the sampled numbers")

    @field_validator("source", "target")
    @classmethod
    def _known(cls, code: str) -> str:
        known = languages()
        if code not in known:
            # Compare without case and with underscores, so that en-in suggests en_IN.
            spelled = {name.lower(): name for name in known}
            near = difflib.get_close_matches(code.lower().replace("-", "_"), spelled, n=1, cutoff=0.5)
            hint = f"; did you mean {spelled[near[0]]}?" if near else ""
            raise ValueError(f"number words are not available in this language{hint} (known: {', '.join(known)})")
        return code

    @model_validator(mode="after")
    def _enough(self) -> NumberWords:
        wanted = self.train + self.valid + self.test
        if wanted > self.below:
            raise ValueError(
                f"train + valid + test = {wanted:,}, but there are only {self.below:,} numbers below {self.below:,}; "
                f"raise below to {wanted:,} or more, or ask for fewer"
            )
        return self

    def read(self, split: Split) -> Examples:
        """The pairs of a split, with the number of blank lines, which is zero."""
        return Examples(self.pairs(split), 0)

    def pairs(self, split: Split) -> list[Pair]:
        """The numbers of a split in both languages; in training, numbers below 100 are repeated."""
        numbers = self.numbers(split)
        if split == "train":
            numbers += [number for number in numbers if number < SHORT] * (REPEATS - 1)
        return [Pair(*both) for both in zip(spell(numbers, self.source), spell(numbers, self.target), strict=True)]

    def numbers(self, split: Split) -> list[int]:
        """The numbers of a split in random order, with equally many of each number of digits as far as possible."""
        from heedful.data.order import permutation

        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        starts = [0] + [10**digits for digits in range(1, len(str(self.below - 1)))]
        counts = [end - start for start, end in zip(starts, [*starts[1:], self.below], strict=True)]
        shares = even_shares(sum(sizes.values()), counts)
        numbers = [
            start + number
            for length, (start, count, share) in enumerate(zip(starts, counts, shares, strict=True))
            for number in sample(self.seed, length, count, share)
        ]
        numbers = [numbers[index] for index in permutation(self.seed, 0, len(numbers), stream=1)]
        # The word for zero occurs in no other number, so zero must be in the training set.
        numbers.sort(key=lambda number: number != 0)
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        return numbers[begin : begin + sizes[split]]


def known_languages(codes: tuple[str, ...]) -> tuple[str, ...]:
    """The codes, if each is known and listed once."""
    if len(set(codes)) < len(codes):
        raise ValueError("a language is listed more than once")
    return tuple(NumberWords(source=code).source for code in codes)


class LanguageNumbers(Embedded):
    """The base of datasets whose numbers are spelled out in several languages, one after another."""

    if TYPE_CHECKING:
        languages: tuple[str, ...]
        train: int
        valid: int
        test: int
        below: int
        seed: int

    _known = field_validator("languages", check_fields=False)(known_languages)

    @model_validator(mode="after")
    def _enough(self) -> Self:
        self._numbers()
        return self

    def _numbers(self) -> NumberWords:
        return NumberWords(train=self.train, valid=self.valid, test=self.test, below=self.below, seed=self.seed)


class NumberLanguages(LanguageNumbers):
    """Spelled-out numbers, each in one of several languages, which is the label; the splits are disjoint."""

    kind: Literal["number_languages"] = "number_languages"
    languages: tuple[str, ...] = Field(
        ("de", "en", "es", "fr", "it", "nl", "pl", "sv"), min_length=2, max_length=100, description="language codes"
    )
    train: int = Field(8_000, ge=1, le=10_000_000, description="numbers for training")
    valid: int = Field(500, ge=1, le=1_000_000, description="numbers for validation")
    test: int = Field(1_000, ge=1, le=1_000_000, description="numbers for the final score")
    below: int = Field(1_000_000, ge=3, le=10**12, description="upper limit of the numbers, exclusive")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the sampled numbers")

    def read(self, split: Split) -> Items:
        """The numbers of a split, cycling through the languages."""
        numbers, count = self._numbers().numbers(split), len(self.languages)
        spelled = {code: iter(spell(numbers[index::count], code)) for index, code in enumerate(self.languages)}
        codes = [self.languages[index % count] for index in range(len(numbers))]
        return Items([Item(next(spelled[code]), None, code, "data") for code in codes], 0)


class Counting(LanguageNumbers):
    """Documents that count in words, "forty-one, forty-two, forty-three", each in one of several languages."""

    kind: Literal["counting"] = "counting"
    languages: tuple[str, ...] = Field(
        ("ar", "de", "en", "es", "fa", "fr", "hi", "tr"), min_length=1, max_length=100, description="language codes"
    )
    train: int = Field(8_000, ge=2, le=1_000_000, description="documents for training")
    valid: int = Field(200, ge=2, le=100_000, description="documents for validation")
    test: int = Field(200, ge=2, le=100_000, description="documents for the final score")
    length: int = Field(8, ge=2, le=1_000, description="numbers of a document, one sentence each")
    below: int = Field(1_000_000, ge=3, le=10**12, description="upper limit of the first numbers, exclusive")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the first numbers")

    def documents(self, split: Split) -> Iterator[list[str]]:
        """The documents of a split, cycling through the languages."""
        for index, first in enumerate(self._numbers().numbers(split)):
            yield spell(list(range(first, first + self.length)), self.languages[index % len(self.languages)])


class LibraryProse(Embedded):
    """The docstrings in the standard library of the running Python."""

    kind: Literal["library_prose"] = "library_prose"
    valid: int = Field(30, ge=1, le=10_000, description="modules for validation")
    test: int = Field(30, ge=1, le=10_000, description="modules for the final score")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the split")

    def read(self, split: Split) -> Text:
        """The docstrings of a split's modules, line by line, with a blank line after each."""
        return collect(self.stream(split))

    def stream(self, split: Split) -> DocumentStream:
        """The documents of a split, one for each module, as lines."""
        return ([line for text in module for line in (*text.splitlines(), "")] for module in self.modules(split))

    def modules(self, split: Split) -> list[list[str]]:
        """The docstrings of a split, module by module."""
        from heedful.data.order import permutation

        modules = library()
        needed = self.valid + self.test + 1
        if len(modules) < needed:
            raise UserError(
                "the standard library of this Python is too small", where="data",
                found=f"{len(modules):,} modules with docstrings",
                expected=f"at least {needed:,}: data.valid + data.test + 1",
                todo="reduce data.valid or data.test, or use text files: data.kind=text",
            )  # fmt: skip
        order = permutation(self.seed, 0, len(modules)).tolist()
        slices = {"valid": (0, self.valid), "test": (self.valid, needed - 1), "train": (needed - 1, len(order))}
        return [modules[number] for number in sorted(order[slice(*slices[split])])]


class Digits(Embedded):
    """Handwritten digits of 8 x 8 pixels, values from 0 to 1, from scikit-learn; the splits are disjoint."""

    kind: Literal["digits"] = "digits"
    train: int = Field(1_437, ge=1, description="images for training")
    valid: int = Field(180, ge=1, description="images for validation")
    test: int = Field(180, ge=1, description="images for the final score")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the split")

    @model_validator(mode="after")
    def _enough(self) -> Digits:
        wanted = self.train + self.valid + self.test
        if wanted > DIGITS:
            raise ValueError(f"train + valid + test = {wanted:,}, but there are only {DIGITS:,} digits; ask for fewer")
        return self

    def read(self, split: Split) -> Images:
        """The images of a split, with their digits as labels."""
        import numpy as np
        from sklearn.datasets import load_digits

        from heedful.data.order import permutation

        dataset = load_digits()
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        rows = permutation(self.seed, 0, DIGITS)[begin : begin + sizes[split]]
        pixels = (dataset.images[rows, None] / 16).astype(np.float32)  # the stored values are integers from 0 to 16
        return Images(pixels, dataset.target[rows].astype(np.int64), tuple(map(str, dataset.target_names)))


@cache
def library() -> list[list[str]]:
    """The docstrings of each module of the standard library that has any, sorted by path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (path for path in sorted(root.rglob("*.py")) if not SKIPPED & set(path.relative_to(root).parts))
    return [texts for path in files if (texts := list(docstrings(path)))]


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions, in file order."""
    try:
        module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # some files of the library are invalid on purpose
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in _statements(module) if isinstance(node, kinds))
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if text := ast.get_docstring(node):
            yield text


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and the statements in it; expressions, of which there are far more, define no docstrings."""
    yield node
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            yield from _statements(inner)


def languages() -> list[str]:
    """The language codes for which number words are available."""
    from unicode_rbnf import RbnfEngine

    return list(RbnfEngine.get_supported_languages())


@cache
def _engine(language: str) -> Any:
    from unicode_rbnf import RbnfEngine

    return RbnfEngine.for_language(language)


def spell(numbers: list[int], language: str) -> list[str]:
    """Each number in words, without soft hyphens."""
    engine = _engine(language)
    # With all rule sets (case, gender, year) the engine is up to ten times slower than with its default one.
    default = engine.format_number(1).text_ruleset
    return [engine.format_number(number, ruleset_names=[default]).text for number in numbers]


def even_shares(total: int, counts: list[int]) -> list[int]:
    """The sample size of each group, as equal as the sizes of the groups allow."""
    shares = [0] * len(counts)
    remaining = total
    by_size = sorted(range(len(counts)), key=lambda group: counts[group])
    for done, group in enumerate(by_size):
        shares[group] = min(counts[group], remaining // (len(counts) - done))
        remaining -= shares[group]
    return shares


def sample(seed: int, group: int, count: int, share: int) -> list[int]:
    """Sample `share` of 0..count-1 without replacement: a partial Fisher-Yates shuffle with a sparse array."""
    from heedful.data.order import random_bits

    moved: dict[int, int] = {}
    sampled = []
    for index, draw in enumerate(random_bits(seed, group, 0, share).tolist()):
        other = index + draw % (count - index)
        sampled.append(moved.get(other, other))
        moved[other] = moved.get(index, index)
    return sampled
