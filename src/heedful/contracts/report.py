"""What the checks found: a line for each, and of a failed one the smallest input, the difference, cause and advice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from typing import Literal

Verdict = Literal["passed", "failed", "not applicable"]
WIDTH = 120  # characters of a line


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    about: str  # what must hold
    verdict: Verdict
    reason: str = ""  # why it does not apply, or how it failed
    difference: float | None = None  # relative to the largest output; infinite for NaN
    tolerance: float | None = None
    smallest: str = ""  # the smallest input found that fails
    cause: str = ""
    advice: str = ""

    def lines(self) -> Iterator[str]:
        """A line, and below a failed check its details."""
        reason = f" ({self.reason})" if self.reason and self.verdict == "not applicable" else ""
        mark = self.verdict.upper() if self.verdict == "failed" else self.verdict
        measured = f" [{size(self.difference)}]" if self.verdict == "passed" and self.difference is not None else ""
        yield f"{mark:<15} {self.check:<16} {self.about}{measured}{reason}"
        if self.verdict != "failed":
            return
        limit = "" if self.tolerance is None else f", at most {size(self.tolerance)} is rounding"
        gap = "" if self.difference is None else f"{size(self.difference)} of the largest output{limit}"
        gap = size(inf) if self.difference == inf else gap
        details = {
            "found": self.reason, "difference": gap, "smallest input": self.smallest,
            "likely cause": self.cause, "what to do": self.advice,
        }  # fmt: skip
        for label, text in details.items():
            if text:
                yield from textwrap.wrap(
                    f"{label + ':':<16}{text}", WIDTH, initial_indent=" " * 16, subsequent_indent=" " * 32
                )


@dataclass(frozen=True)
class Report:
    """The findings on a model. It prints as lines; `ok` says whether no check failed."""

    model: str
    called: tuple[str, ...]  # how the model is called, a line for each input that is varied
    parameters: int
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the failed checks."""
        return tuple(one.check for one in self.findings if one.verdict == "failed")

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the passed checks."""
        return tuple(one.check for one in self.findings if one.verdict == "passed")

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def __getitem__(self, check: str) -> Finding:
        return next(one for one in self.findings if one.check == check)

    def __str__(self) -> str:
        skipped = len(self.findings) - len(self.passed) - len(self.failed)
        head = [f"{self.model}: {self.parameters:,} parameters", *(f"called as {one}" for one in self.called), ""]
        tail = ["", f"{len(self.passed)} passed, {len(self.failed)} failed, {skipped} not applicable"]
        return "\n".join([*head, *(line for one in self.findings for line in one.lines()), *tail])

    def to_dict(self) -> dict[str, object]:
        """Everything as plain values that `json.dumps` accepts; an infinite difference is null."""
        rows = [asdict(one) for one in self.findings]
        for row in rows:
            row["nan"] = row["difference"] == float("inf")
            row["difference"] = None if row["nan"] else row["difference"]
        about = {"model": self.model, "parameters": self.parameters, "called": list(self.called), "ok": self.ok}
        return about | {"checks": rows}


def size(difference: float) -> str:
    """A relative difference in few characters."""
    return "NaN or inf" if difference == float("inf") else f"{difference:.1e}" if difference else "0"
