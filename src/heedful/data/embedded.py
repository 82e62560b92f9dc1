"""Data that needs no download: numbers in words, the prose of Python's standard library, and scikit-learn's digits."""

from __future__ import annotations

import ast
import difflib
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Examples, Pair, Split
from heedful.data.formats.tables import Item, Items
from heedful.data.images.sources import Images
from heedful.data.text.files import Running, Text, gathered
from heedful.errors import UserError

NO_PROSE = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}  # folders that are not the library's own

DIGITS = 1_797  # images that scikit-learn has

SHORT, OFTEN = 100, 20  # numbers below a hundred are few, the stuff of all others, and what people try first


class Embedded(Config):
    """What all of them share."""

    def missing(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Nothing: no file is needed."""
        return []


class NumberWords(Embedded):
    """Numbers in words, "three hundred twenty-one" to "dreihunderteinundzwanzig", no number in two splits."""

    kind: Literal["number_words"] = "number_words"
    source: str = Field("en", description="language code of the source")
    target: str = Field("de", description="language code of the target")
    train: int = Field(20_000, ge=1, le=10_000_000, description="numbers to learn from")
    valid: int = Field(500, ge=1, le=1_000_000, description="numbers to watch progress on")
    test: int = Field(2_000, ge=1, le=1_000_000, description="numbers for the final figure")
    below: int = Field(1_000_000, ge=3, le=10**12, description="numbers are smaller than this")
    seed: int = Field(0, ge=0, lt=2**63, description="which numbers are drawn")

    @field_validator("source", "target")
    @classmethod
    def _known(cls, code: str) -> str:
        known = languages()
        if code not in known:
            # Codes differ in case and in the joining sign more than in letters: en-in is meant as en_IN.
            spelled = {name.lower(): name for name in known}
            near = difflib.get_close_matches(code.lower().replace("-", "_"), spelled, n=1, cutoff=0.5)
            hint = f"; did you mean {spelled[near[0]]}?" if near else ""
            raise ValueError(f"no number words for this language{hint} (known: {', '.join(known)})")
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
        """The pairs of a split; none is ever blank."""
        return Examples(self.pairs(split), 0)

    def pairs(self, split: Split) -> list[Pair]:
        """The numbers of a split in both languages; training shows the short ones again and again."""
        numbers = self.numbers(split)
        if split == "train":
            numbers += [number for number in numbers if number < SHORT] * (OFTEN - 1)
        return [Pair(*both) for both in zip(spell(numbers, self.source), spell(numbers, self.target), strict=True)]

    def numbers(self, split: Split) -> list[int]:
        """The numbers of a split in random order, as many of each digit length as there are to have."""
        from heedful.data.order import permutation

        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        starts = [0] + [10**digits for digits in range(1, len(str(self.below - 1)))]
        counts = [end - start for start, end in zip(starts, [*starts[1:], self.below], strict=True)]
        shares = even_shares(sum(sizes.values()), counts)
        drawn = [
            start + number
            for length, (start, count, share) in enumerate(zip(starts, counts, shares, strict=True))
            for number in sample(self.seed, length, count, share)
        ]
        drawn = [drawn[place] for place in permutation(self.seed, 0, len(drawn), stream=1)]
        # The word for zero is in no other number, so that only training can show it.
        drawn.sort(key=lambda number: number != 0)
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        return drawn[begin : begin + sizes[split]]


class NumberLanguages(Embedded):
    """Numbers in words, each in one of several languages, which is what there is to tell; no number in two splits."""

    kind: Literal["number_languages"] = "number_languages"
    languages: tuple[str, ...] = Field(
        ("de", "en", "es", "fr", "it", "nl", "pl", "sv"), min_length=2, max_length=100, description="language codes"
    )
    train: int = Field(8_000, ge=1, le=10_000_000, description="numbers to learn from")
    valid: int = Field(500, ge=1, le=1_000_000, description="numbers to watch progress on")
    test: int = Field(1_000, ge=1, le=1_000_000, description="numbers for the final figure")
    below: int = Field(1_000_000, ge=3, le=10**12, description="numbers are smaller than this")
    seed: int = Field(0, ge=0, lt=2**63, description="which numbers are drawn")

    @field_validator("languages")
    @classmethod
    def _known(cls, codes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(codes)) < len(codes):
            raise ValueError("a language stands here more than once; write each once")
        return tuple(NumberWords(source=code).source for code in codes)

    @model_validator(mode="after")
    def _enough(self) -> NumberLanguages:
        self._numbers()
        return self

    def _numbers(self) -> NumberWords:
        return NumberWords(train=self.train, valid=self.valid, test=self.test, below=self.below, seed=self.seed)

    def read(self, split: Split) -> Items:
        """The numbers of a split, the languages taking turns."""
        numbers, many = self._numbers().numbers(split), len(self.languages)
        spelled = {code: iter(spell(numbers[place::many], code)) for place, code in enumerate(self.languages)}
        codes = [self.languages[place % many] for place in range(len(numbers))]
        return Items([Item(next(spelled[code]), None, code, "data") for code in codes], 0)


class LibraryProse(Embedded):
    """What the modules of Python's standard library say of themselves, read from the Python that runs."""

    kind: Literal["library_prose"] = "library_prose"
    valid: int = Field(30, ge=1, le=10_000, description="modules to watch progress on")
    test: int = Field(30, ge=1, le=10_000, description="modules for the final figure")
    seed: int = Field(0, ge=0, lt=2**63, description="which modules these are")

    def read(self, split: Split) -> Text:
        """The docstrings of a split's modules, line by line, with a blank line after each."""
        return gathered(self.running(split))

    def running(self, split: Split) -> Running:
        """The same, a module a document."""
        return ([line for text in module for line in (*text.splitlines(), "")] for module in self.modules(split))

    def modules(self, split: Split) -> list[list[str]]:
        """The docstrings of each module of a split."""
        from heedful.data.order import permutation

        modules = library()
        needed = self.valid + self.test + 1
        if len(modules) < needed:
            raise UserError(
                "the standard library of this Python is too small",
                where="data",
                found=f"{len(modules):,} modules with docstrings",
                expected=f"at least {needed:,}, as data.valid and data.test ask for",
                todo="ask for fewer, or use files of text: data.kind=text",
            )
        order = permutation(self.seed, 0, len(modules)).tolist()
        cuts = {"valid": (0, self.valid), "test": (self.valid, needed - 1), "train": (needed - 1, len(order))}
        return [modules[number] for number in sorted(order[slice(*cuts[split])])]


class Digits(Embedded):
    """Handwritten digits of 8 x 8 pixels, numbers from 0 to 1, which come with scikit-learn; none in two splits."""

    kind: Literal["digits"] = "digits"
    train: int = Field(1_437, ge=1, description="images to learn from")
    valid: int = Field(180, ge=1, description="images to watch progress on")
    test: int = Field(180, ge=1, description="images for the final figure")
    seed: int = Field(0, ge=0, lt=2**63, description="which images these are")

    @model_validator(mode="after")
    def _enough(self) -> Digits:
        wanted = self.train + self.valid + self.test
        if wanted > DIGITS:
            raise ValueError(f"train + valid + test = {wanted:,}, but there are only {DIGITS:,} digits; ask for fewer")
        return self

    def read(self, split: Split) -> Images:
        """The images of a split, with the digits that they show."""
        import numpy as np
        from sklearn.datasets import load_digits

        from heedful.data.order import permutation

        every = load_digits()
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        rows = permutation(self.seed, 0, DIGITS)[begin : begin + sizes[split]]
        pixels = (every.images[rows, None] / 16).astype(np.float32)  # shades are whole numbers from 0 to 16
        return Images(pixels, every.target[rows].astype(np.int64), tuple(map(str, every.target_names)))


@cache
def library() -> list[list[str]]:
    """The docstrings of each module of the standard library that has any, by the modules' paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (path for path in sorted(root.rglob("*.py")) if not NO_PROSE & set(path.relative_to(root).parts))
    return [found for path in files if (found := list(docstrings(path)))]


def docstrings(path: Path) -> Iterator[str]:
    """Those of a module, its classes and its functions, in the order of the file."""
    try:
        module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a library may hold files that are wrong on purpose
        return
    defined = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    places = (node for node in ast.walk(module) if isinstance(node, defined))
    for node in sorted(places, key=lambda node: getattr(node, "lineno", 0)):
        if text := ast.get_docstring(node):
            yield text


def languages() -> list[str]:
    """The codes of the languages that number words come in."""
    from unicode_rbnf import RbnfEngine

    return list(RbnfEngine.get_supported_languages())


def spell(numbers: list[int], language: str) -> list[str]:
    """Each number in words, without the soft hyphens that mark where a word may be broken."""
    from unicode_rbnf import RbnfEngine

    engine = RbnfEngine.for_language(language)
    # Asked for all rule sets (case, gender, year), the engine is up to ten times slower than for its default one.
    default = engine.format_number(1).text_ruleset
    return [engine.format_number(number, ruleset_names=[default]).text for number in numbers]


def even_shares(total: int, counts: list[int]) -> list[int]:
    """How many to take of each group so that shares are even as far as the groups' counts allow."""
    shares = [0] * len(counts)
    left = total
    by_size = sorted(range(len(counts)), key=lambda group: counts[group])
    for done, group in enumerate(by_size):
        shares[group] = min(counts[group], left // (len(counts) - done))
        left -= shares[group]
    return shares


def sample(seed: int, group: int, count: int, share: int) -> list[int]:
    """Some of the numbers 0..count-1, each once at most: a shuffle cut short that moves only what it touches."""
    from heedful.data.order import draws

    moved: dict[int, int] = {}
    chosen = []
    for place, draw in enumerate(draws(seed, group, 0, share).tolist()):
        other = place + draw % (count - place)
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return chosen
