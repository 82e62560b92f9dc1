"""A check that compares two computations of the same outputs, on a few inputs, and shrinks one that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from heedful.contracts.refusals import RefusedError
from heedful.contracts.report import Finding
from heedful.contracts.shrink import shrink, written
from heedful.contracts.subject import Subject

ROUNDING = 1e-4  # of the largest output: what float32 explains, in deep models too


@dataclass(frozen=True)
class Loaded:
    """A model to check: its module, what the checks vary, and what else there is."""

    name: str
    module: nn.Module
    subjects: tuple[Subject, ...]
    called: tuple[str, ...]
    rebuild: Callable[[], nn.Module] | None = None  # the same model from its code, with other random weights
    tokenizer: Any = None


class Cause(str):
    """The likely cause of a failure, and what to change."""

    advice: str

    def __new__(cls, cause: str, advice: str) -> Cause:
        """A cause with advice."""
        made = super().__new__(cls, cause)
        made.advice = advice
        return made


Compare = Callable[[Subject, list[Tensor]], float]


def never(subject: Subject) -> str:
    """Always applies."""
    return ""


@dataclass(frozen=True)
class Comparison:
    """A check by differences: `compare` gives that of some rows, relative to the largest output."""

    about: str
    compare: Compare
    trials: Callable[[Subject], Iterator[list[Tensor]]]
    cause: Callable[[Subject, list[Tensor]], Cause]
    skipped: Callable[[Subject], str] = field(default=never)  # why it does not apply to an input, or nothing
    tolerance: float = ROUNDING
    ragged: bool = False  # whether its rows may differ in length
    shown: str = ""  # what is said after the rows of the smallest input
    note: Callable[[Subject], str] = field(default=never)  # what is added if it passes
    refusal: str = "failed"  # what it means if the model raises an error: failed, or not applicable

    def run(self, name: str, loaded: Loaded) -> Finding:
        """Check every input of the model to which this applies."""
        reasons, worst, notes = list[str](), list[float](), list[str]()
        for subject in loaded.subjects:
            if reason := self.skipped(subject):
                reasons.append(reason)
                continue
            found = self._on(name, subject, len(loaded.subjects) > 1)
            if found.verdict == "failed":
                return found
            if found.verdict == "passed":
                worst.append(found.difference or 0.0)
                notes.append(self.note(subject))
            else:
                reasons.append(found.reason)
        if worst:
            about = self.about + "".join(dict.fromkeys(notes))
            return Finding(name, about, "passed", difference=max(worst), tolerance=self.tolerance)
        return Finding(name, self.about, "not applicable", "; ".join(dict.fromkeys(reasons)) or "nothing to vary")

    def _on(self, name: str, subject: Subject, several: bool) -> Finding:
        """Check one input."""
        worst = 0.0
        for rows in self.trials(subject):
            try:
                difference = self.compare(subject, rows)
            except RefusedError as error:
                if self.refusal != "failed":
                    return Finding(name, self.about, "not applicable", f"it refuses this: {error}")
                least = self._shrink(subject, rows, lambda some: self._refuses(subject, some))
                return Finding(
                    name, self.about, "failed", f"the model {error}", smallest=self._input(subject, least, several),
                    cause="it cannot be called like this" if "raised" in str(error) else "the rows are lost: "
                    "squeeze() without a dimension, a mean over all, or a reshape that adds to dimension 0",
                    advice="see where the error is raised, or declare how it is called" if "raised" in str(error)
                    else "name the dimension, as in squeeze(-1); keep dimension 0 for the rows",
                )  # fmt: skip
            if difference > self.tolerance:
                return self._failed(name, subject, rows, several)
            worst = max(worst, difference)
        return Finding(name, self.about, "passed", difference=worst)

    def _failed(self, name: str, subject: Subject, rows: list[Tensor], several: bool) -> Finding:
        def fails(candidate: list[Tensor]) -> bool:
            try:
                return self.compare(subject, candidate) > self.tolerance
            except RefusedError:
                return False

        least = self._shrink(subject, rows, fails)
        cause = self.cause(subject, least)
        return Finding(
            name, self.about, "failed", difference=self.compare(subject, least), tolerance=self.tolerance,
            smallest=self._input(subject, least, several), cause=str(cause), advice=cause.advice,
        )  # fmt: skip

    def _refuses(self, subject: Subject, rows: list[Tensor]) -> bool:
        try:
            self.compare(subject, rows)
        except RefusedError:
            return True
        return False

    def _shrink(self, subject: Subject, rows: list[Tensor], fails: Callable[[list[Tensor]], bool]) -> list[Tensor]:
        return shrink(rows, fails, self.ragged and bool(subject.sides), subject.sequence)

    def _input(self, subject: Subject, rows: list[Tensor], several: bool) -> str:
        return f"{subject.name}: " * several + written(rows) + self.shown


def equal_rows(subject: Subject) -> Iterator[list[Tensor]]:
    """Three rows of one length, a short and a long one."""
    for seed, length in enumerate((min(5, subject.longest), subject.longest)):
        yield subject.rows([length] * 3, seed)


def ragged_rows(subject: Subject) -> Iterator[list[Tensor]]:
    """Rows of different lengths, if they can be padded."""
    if not subject.sides:
        yield from equal_rows(subject)
        return
    longest = subject.longest
    for seed, lengths in enumerate([(4, 2), (longest, 1, max(1, longest // 2), max(1, longest - 1))]):
        yield subject.rows([min(length, longest) for length in lengths], seed)


def one_row(subject: Subject) -> Iterator[list[Tensor]]:
    """A row alone, twice."""
    for seed in (0, 1):
        yield subject.rows([min(8, subject.longest)], seed)
