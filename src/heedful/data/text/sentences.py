"""Short sentences of a grammar: who does what, where, stated or asked; nothing to download."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from heedful.data.embedded import Embedded, even_shares, sample
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.text.files import Text

DETERMINERS = ("the", "a", "every", "my")
ADJECTIVES = ("old", "young", "tall", "happy", "tired", "clever", "quiet", "famous")
PEOPLE = ("farmer", "teacher", "doctor", "singer", "sailor", "pilot", "child", "king", "baker", "nurse")
RESTS = ("sleeps", "waits", "sings", "laughs", "works", "dreams")
ACTS = ("sees", "finds", "buys", "paints", "wants", "hides", "carries", "likes")
THINGS = ("horse", "letter", "book", "ship", "house", "clock", "apple", "mirror", "chair", "coat")
PLACES = ("in the garden", "near the river", "at school", "behind the church", "on the roof", "under the bridge")
TIMES = ("today", "at night", "every morning", "in winter")

Slots = tuple[tuple[str, ...], ...]
WHO: Slots = (DETERMINERS, ADJECTIVES, PEOPLE)
FORMS: tuple[Slots, ...] = (
    (*WHO, RESTS, PLACES),
    (*WHO, RESTS, PLACES, TIMES),
    (*WHO, ACTS, DETERMINERS, THINGS),
    (*WHO, ACTS, DETERMINERS, THINGS, PLACES),
    (("does",), *WHO, tuple(word.removesuffix("s") for word in RESTS), PLACES),
)


class SentenceText(NamedTuple):
    """The sentences of a split, and the number of blank ones, which were skipped."""

    sentences: list[str]
    skipped: int

    @classmethod
    def of(cls, lines: Iterable[str]) -> SentenceText:
        """One sentence for each line that is not blank."""
        every = list(lines)
        found = [line.strip() for line in every if line.strip()]
        return cls(found, len(every) - len(found))

    @classmethod
    def of_text(cls, text: Text) -> SentenceText:
        """One sentence for each line of a text."""
        return cls.of(text.lines)


class GrammarSentences(Embedded):
    """Sentences of a small grammar, equally many of each form; the splits are disjoint."""

    kind: Literal["grammar"] = "grammar"
    train: int = Field(8_000, ge=1, le=10_000_000, description="sentences for training")
    valid: int = Field(300, ge=1, le=100_000, description="sentences for validation")
    test: int = Field(500, ge=1, le=100_000, description="sentences for the final score")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the sampled sentences")

    @model_validator(mode="after")
    def _enough(self) -> GrammarSentences:
        wanted, known = self.train + self.valid + self.test, sum(prod(map(len, form)) for form in FORMS)
        if wanted > known:
            raise ValueError(
                f"train + valid + test = {wanted:,}, but the grammar has {known:,} sentences; ask for fewer"
            )
        return self

    def read(self, split: Split) -> SentenceText:
        """The sentences of a split."""
        from heedful.data.order import permutation

        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        counts = [prod(map(len, form)) for form in FORMS]
        every = [
            sentence(form, number)
            for group, (form, count, share) in enumerate(
                zip(FORMS, counts, even_shares(sum(sizes.values()), counts), strict=True)
            )
            for number in sample(self.seed, group, count, share)
        ]
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        order = permutation(self.seed, 0, len(every), stream=1)[begin : begin + sizes[split]]
        return SentenceText([every[index] for index in order.tolist()], 0)


def sentence(form: Slots, number: int) -> str:
    """The sentence of a form with this number, whose digits choose the words."""
    words = []
    for slot in form:
        number, at = divmod(number, len(slot))
        words.append(slot[at])
    return " ".join(words) + (" ?" if form[0] == ("does",) else " .")
