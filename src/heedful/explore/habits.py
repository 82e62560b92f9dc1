"""What the heads of an open model do over its examples, and by it the picture that a view opens on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.head_patterns import Finding, Profile, finding, profiles
from heedful.explore.inspect import TextInput, Trace
from heedful.explore.openings import Highlight, quoted
from heedful.explore.samples import LONG, SHORT
from heedful.tasks.base import Example

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject


@dataclass(frozen=True)
class Habits:
    """The profile of each kind of attention over some texts, and how telling each text is."""

    profiles: dict[str, Profile]
    gains: dict[str, float]

    @property
    def size(self) -> int:
        return sum(one.sums.nbytes for each in self.profiles.values() for one in each.means)

    def sorted(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """Examples of a readable length first, and of these the one with the most unusual weight."""
        return tuple(
            sorted(examples, key=lambda one: (not SHORT <= len(one.text) <= LONG, -self.gains.get(one.text, 0.0)))
        )

    def finding(self, trace: Trace, text: str) -> Finding | None:
        """The most unusual weight of a text."""
        return finding(self.profiles, trace, text)


def habits_on(subject: Subject, examples: Sequence[Example]) -> Habits:
    """The habits of a model's heads over texts; those that it cannot read are left out.

    A translation is read with its reference, so that nothing has to be searched.
    """
    traces: list[tuple[str, Trace]] = []
    for one in examples if subject.attentions else ():
        other = one.right if inspect.is_translator(subject.predictor) else one.other
        try:
            traces.append((one.text, subject.trace(TextInput(text=one.text, other=other))))
        except UserError:
            continue
    known = profiles(traces)
    found = {text: finding(known, trace, text) for text, trace in traces}
    return Habits(known, {text: one.gain for text, one in found.items() if one is not None})


def most_unusual(
    subject: Subject, given: TextInput, state: Callable[[Finding], Mapping[str, int | str]]
) -> Highlight | None:
    """The most unusual weight of a text, and the state that shows it in a view."""
    trace = subject.trace(given)
    finding = subject.habits.finding(trace, given.text)
    if finding is None:
        return None
    attention = finding.attention
    query = quoted(trace.reading.sides[attention.queries][finding.query].piece)
    key = quoted(trace.reading.sides[attention.keys][finding.key].piece)
    why = (
        f"Layer {finding.layer + 1}, head {finding.head + 1}, because {query} attends to {key} "
        f"with {finding.weight:.2f}: no weight is further above its head's mean at that distance ({finding.mean:.2f})."
    )
    return Highlight(finding.gain, why, {"look": attention.name, "layer": finding.layer, **state(finding)})
